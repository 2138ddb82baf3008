"""`castile doctor`: what castile finds on this machine, what is missing, and the line that installs it.

Knows no model and no plan; it looks, and changes nothing unless an option says so.
"""

import ctypes
import glob
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from castile import __version__
from castile.launch import launch
from castile.launch.here import consistency, gpus, probe
from castile.launch.processes import installing, mpi_settings, ranks
from castile.launch.typed import options

_MPI_LINE, _GPU_LINE = installing.line("castile[mpi]"), installing.line("castile[gpu]")
_START_SECONDS = 60.0

# For which processor OpenBLAS takes the one that it runs on, whatever that is.
CORE_TYPE = "OPENBLAS_CORETYPE"


@dataclass(frozen=True)
class Doctor:
    """Show what castile finds on this machine, what is missing, and the line that installs it."""

    ranks: options.Number = 0
    """Start this many MPI ranks as a test, and time it; 0 starts none."""
    write_mpi_settings: bool = False
    """Write what Open MPI needs into this environment's parameter files, so that a bare `mpirun` works well."""
    measure_again: bool = False
    """Forget this host's rates, which were measured once: the next command that needs them measures them again."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Doctor


@dataclass(frozen=True)
class Finding:
    """One thing looked for: whether it is there, in words for people, in facts for programs, and how to get it."""

    name: str
    found: bool
    words: str
    facts: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""


def run(command: Doctor) -> int:
    """Prints the findings (rank 0 alone, of its host) and returns 0, whatever was found."""
    hosts = _hosts()
    if ranks.silent():
        return 0
    if command.ranks < 0:
        raise ranks.UserError(f"--ranks {command.ranks}: a test starts 1 rank or more, and 0 starts none")
    launch.check_room(command.ranks, f"--ranks {command.ranks}")
    if command.ranks and ranks.num_launched() > 1:
        raise ranks.UserError("--ranks starts ranks of its own: run `castile doctor` outside mpirun")
    if command.write_mpi_settings:
        for path in mpi_settings.write_settings(mpi_settings.folder()):
            print(f"wrote {path}", file=sys.stderr)
    if command.measure_again:
        probe.forget()
        print("this host is measured again by the next command that needs its rates", file=sys.stderr)
    if (command.write_mpi_settings or command.measure_again) and not (command.json or command.ranks):
        return 0
    findings = [*hosts, *examine(command.ranks)]
    print(as_json(findings) if command.json else as_text(findings))
    return 0


def examine(num_ranks: int = 0) -> list[Finding]:
    """Looks at everything; starts `num_ranks` MPI ranks as a test when that is above 0."""
    looks = [_castile(), _cores(), _memory(), _blas(), _rates(), _mpi(), _settings(), _root(), _gpu()]
    looks += [_package(name, package, _GPU_LINE) for name, package in _GPU_PACKAGES.items()]
    looks += [_transfers(), _parts()]
    return [*looks, _start(num_ranks)] if num_ranks else looks


def _hosts() -> list[Finding]:
    """The hosts of the ranks that were started together, if any were, and whether they have the same installed."""
    comm = ranks.this_world().communicator
    if comm is None:
        return []
    mine = (comm.host, comm.local_size, consistency.software()) if comm.local_rank == 0 else None
    gathered = comm.gather_bytes(json.dumps(mine).encode())
    each = [found for one in gathered or [] if (found := json.loads(one))]
    names = ", ".join(f"{host} with {size} rank{'s' * (size != 1)}" for host, size, _ in each)
    facts = {"hosts": [{"name": host, "num_ranks": size, "installed": has} for host, size, has in each]}
    if odd := next((host for host, _, has in each if has != each[0][2]), ""):
        return [
            Finding("hosts", False, f"{names}; what is installed on {odd} is not the same", facts, consistency.MEND)
        ]
    return [Finding("hosts", True, names, facts)]


def as_text(findings: list[Finding]) -> str:
    """One line a finding, with the remedy below what is missing, or below the last that it is for."""
    lines = []
    last = {finding.remedy: finding for finding in findings}
    for finding in findings:
        lines.append(f"{'ok' if finding.found else '--':<3} {finding.name:<13} {finding.words}")
        if finding.remedy and last[finding.remedy] is finding:
            lines.append(f"{'':<17} {finding.remedy}")
    return "\n".join(lines)


def as_json(findings: list[Finding]) -> str:
    """One object: a key for each finding, `found` and `remedy` beside its facts."""
    return json.dumps({_key(one): asdict(one)["facts"] | _verdict(one) for one in findings}, indent=2)


def _key(finding: Finding) -> str:
    return finding.name.lower().replace(" ", "_")


def _verdict(finding: Finding) -> dict[str, Any]:
    return {"found": finding.found, "words": finding.words} | ({"remedy": finding.remedy} if finding.remedy else {})


def _castile() -> Finding:
    words = f"{__version__} on Python {platform.python_version()}"
    return Finding("castile", True, words, {"version": __version__, "python": platform.python_version()})


def _cores() -> Finding:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    words = f"{usable}" if usable == present else f"{usable} usable of {present}"
    return Finding("cores", True, words, {"usable": usable, "present": present})


def _memory() -> Finding:
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    words = f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB unused"
    return Finding("memory", True, words, {"total_bytes": total, "unused_bytes": free})


def _blas() -> Finding:
    import numpy

    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    num_threads = _blas_threads(Path(numpy.__file__).parent)
    threads = "threads unknown" if num_threads is None else f"{num_threads} thread{'s' * (num_threads != 1)}"
    words = f"{blas['name']} {blas['version']}, {threads} in one process (OMP_NUM_THREADS sets it)"
    core_type = os.environ.get(CORE_TYPE, "")
    if core_type:
        words += f"; {CORE_TYPE}={core_type} takes this processor for that one: products may be faster without"
    facts = {"name": blas["name"], "version": blas["version"], "num_threads": num_threads, "core_type": core_type}
    return Finding("BLAS", True, words, facts)


def _blas_threads(numpy_folder: Path) -> int | None:
    for path in glob.glob(str(numpy_folder.parent / "numpy.libs" / "libscipy_openblas*.so")):
        # It is loaded already: this only finds it.
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads"):
            if hasattr(library, name):
                return int(getattr(library, name)())
    return None


def _rates() -> Finding:
    known = probe.known()
    if not known:
        return Finding("rates", True, "not measured yet: the first command that needs them does it", {"of_procs": {}})
    words = (
        f"as {procs} processor{'s' * (procs != 1)} {one.float32_flops_per_second / 1e9:.3g} GFLOP/s "
        f"and {one.bytes_per_second / 1e9:.3g} GB/s each"
        for procs, one in known.items()
    )
    facts = {procs: msgspec.to_builtins(one) for procs, one in known.items()}
    return Finding("rates", True, "; ".join(words), {"of_procs": facts})


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpi() -> Finding:
    python = _version("mpi4py")
    try:
        path = launch.mpirun_path()
    except ValueError:
        return Finding("MPI", False, "no mpirun: castile runs on one rank", {"mpi4py": python}, _MPI_LINE)
    status, library = _answer([str(path), "--version"])
    facts = {"mpi4py": python, "mpirun": str(path), "library": library}
    if status:
        return Finding("MPI", False, f"{path} does not start: {library}", facts)
    if python is None:
        return Finding("MPI", False, f"{library} at {path}, but no mpi4py", facts, _MPI_LINE)
    return Finding("MPI", True, f"{library} at {path}, mpi4py {python}", facts)


def _answer(words: list[str]) -> tuple[int, str]:
    """The exit status of a command, in the environment that `castile launch` gives it, and the first line it says."""
    environment = launch.variables() | os.environ
    none = subprocess.DEVNULL
    answer = subprocess.run(
        words, env=environment, stdin=none, capture_output=True, text=True, timeout=_START_SECONDS, check=False
    )
    lines = (answer.stdout or answer.stderr).strip().splitlines() or [f"exit status {answer.returncode}"]
    return answer.returncode, re.sub(r"^mpirun \((.*)\) ", r"\1 ", lines[0])


def _settings() -> Finding:
    etc = mpi_settings.folder()
    missing = mpi_settings.missing_settings(etc)
    if not missing:
        return Finding("MPI settings", True, f"in {etc}", {"folder": str(etc), "missing": []})
    words = f"{etc} lacks {', '.join(missing)}: a bare mpirun starts slowly and refuses more ranks than cores"
    remedy = "castile doctor --write-mpi-settings"
    return Finding("MPI settings", False, words, {"folder": str(etc), "missing": missing}, remedy)


def _root() -> Finding:
    missing = [name for name in mpi_settings.ROOT_VARIABLES if name not in os.environ]
    if os.geteuid() != 0:
        return Finding("root", True, "not root: a bare mpirun needs no variable", {"is_root": False, "missing": []})
    if not missing:
        return Finding("root", True, "root, and allowed to start ranks", {"is_root": True, "missing": []})
    words = "root: a bare mpirun refuses to start ranks (`castile launch` does not)"
    remedy = "export " + " ".join(f"{name}=1" for name in missing)
    return Finding("root", False, words, {"is_root": True, "missing": missing}, remedy)


def _gpu() -> Finding:
    tool = shutil.which("nvidia-smi")
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    answer = subprocess.run([tool, *query], capture_output=True, text=True, check=False) if tool else None
    names = answer.stdout.strip().splitlines() if answer and answer.returncode == 0 else []
    if not names:
        return Finding("GPU", False, "none seen: plans for GPUs can be made here, and run elsewhere", {"names": []})
    return Finding("GPU", True, f"{len(names)}: {'; '.join(names)}", {"names": names})


_GPU_PACKAGES = {
    "CuPy": "cupy-cuda13x",
    "Triton": "triton",
    "NCCL": "nvidia-nccl-cu13",
    "CUDA bindings": "cuda-bindings",
}


def _package(name: str, package: str, line: str) -> Finding:
    version = _version(package)
    if version is None:
        return Finding(name, False, f"{package} is not installed (needed on a GPU only)", {"version": None}, line)
    return Finding(name, True, f"{package} {version}", {"version": version})


def _transfers() -> Finding:
    num_gpus = gpus.count()
    if not num_gpus:
        why = gpus.unused()
        words = f"none: ranks compute on the cores of this host{f', as {why}' if why else ''}"
        return Finding("GPUs used", False, words, {"num_gpus": 0})
    talk = gpus.ways_to_talk()
    whom = "a rank on each" if num_gpus > 1 else "two ranks on it"
    words = f"{num_gpus} (an empty CUDA_VISIBLE_DEVICES keeps to the cores); {whom}: {talk}"
    return Finding("GPUs used", True, words, {"num_gpus": num_gpus, "talk": talk})


def _parts() -> Finding:
    most, why = gpus.most_parts() if gpus.count() else (0, "none without a GPU")
    return Finding("virtual GPUs", bool(most), why, {"most_parts": most})


def _start(num_ranks: int) -> Finding:
    program = "from castile.runtime.comm import mpi; world = mpi.world(); print(f'rank {world.rank} of {world.size}')"
    try:
        words = launch.mpirun_words(num_ranks, None, [sys.executable, "-c", program])
    except ValueError as error:
        return Finding("start-up", False, str(error), {"num_ranks": num_ranks}, _MPI_LINE)
    began = time.perf_counter()
    status, output = _run_ranks(words)
    seconds = time.perf_counter() - began
    wanted = sorted(f"rank {rank} of {num_ranks}" for rank in range(num_ranks))
    facts = {"num_ranks": num_ranks, "start_seconds": seconds, "exit_status": status}
    if sorted(output.split("\n")[:-1]) == wanted:
        return Finding("start-up", True, f"{num_ranks} ranks in {seconds:.2f} s", facts)
    return Finding("start-up", False, f"{num_ranks} ranks ended with status {status}: {output.strip()}", facts)


def _run_ranks(words: list[str]) -> tuple[int, str]:
    environment = os.environ | launch.variables()
    none, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(
        words, env=environment, text=True, stdin=none, stdout=pipe, stderr=same, process_group=0
    ) as process:
        try:
            output = process.communicate(timeout=_START_SECONDS)[0]
        except subprocess.TimeoutExpired:
            # A killed mpirun would leave its ranks behind; a terminated one ends them.
            process.terminate()
            output = process.communicate()[0] + f"not done after {_START_SECONDS:.0f} s"
    return process.returncode, output
