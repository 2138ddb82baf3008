"""`castile launch`: starts a castile command on several MPI ranks, with the environment that needs.

Knows mpirun; not what the command does.
"""

import json
import os
import re
import resource
import shlex
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from castile.launch.processes import hostfile as hostfiles
from castile.launch.processes import installing, mpi_settings, mpirun
from castile.launch.processes.ranks import UserError, num_launched
from castile.launch.typed import options
from castile.runtime.memory import written

# Meanwhile what a rank leaves behind, such as memory of a GPU, is taken back.
PAUSE_SECONDS = 1.0
# Variables of what computes and of where the user keeps things.
_HANDED_OVER = re.compile(
    r"DEBUG|PYTHONPATH|(OMP|OPENBLAS|MKL)_NUM_THREADS|XDG_(CACHE|DATA)_HOME|(CUDA|CUPY|NCCL|NUMBA|TRITON)_\w+"
)
# Python with NumPy and MPI takes more, before a rank has done anything.
LEAST_RANK_BYTES = 2**25
# Variables of batch systems, within whose allocations mpirun starts ranks on other hosts too.
ALLOCATIONS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_VALUE_OPTIONS = ("-n", "--ranks", "--hostfile", "--restarts")


@dataclass(frozen=True)
class Launch:
    """Run a castile command on several MPI ranks: `castile launch -n 4 train convnet`."""

    ranks: Annotated[int, tyro.conf.arg(aliases=["-n"], metavar="N")]
    """How many ranks; there may be more than cores."""
    command: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="COMMAND...")]
    """The castile command and its own options, as without `launch`."""
    hostfile: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A file with one host a line, `NAME slots=COUNT`; without it all ranks run here."""
    restarts: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Where a rank, a host or the network fails, start the same command again, without hosts that are lost; give up
    after so many restarts without a newer checkpoint."""
    dry_run: bool = False
    """Print the command line and the variables it needs, and start nothing."""
    json: bool = False
    """Print one JSON object: that of the command, or with --dry-run the command line and its variables."""


COMMAND = Launch


def parse(args: Sequence[str]) -> Launch:
    """Splits `args` where the castile command begins, so that its options stay its own."""
    own, command = _split(list(args))
    # The positional words come after `--`, so that tyro reads none of them as an option of ours.
    words = ["--", *command] if command else []
    return options.read(Launch, "castile launch", [*own, *words])


def run(command: Launch) -> int:
    """Starts the ranks, passes signals on, and returns mpirun's exit status.

    Raises UserError for no command, fewer than one rank or more than have room, restarts that could not go on, a launch
    within a launch, a bad host file, hosts of one name, or no mpirun.
    """
    _check(command)
    asked = ["--json"] if command.json and not command.dry_run else []
    program = [sys.executable, "-m", "castile", *command.command, *asked]
    words = mpirun_words(command.ranks, command.hostfile, program)
    added = {name: value for name, value in variables().items() if name not in os.environ}
    if not command.dry_run:
        # within an allocation of Slurm's hosts have its names, and may have no ssh
        if command.hostfile is not None and "SLURM_JOB_ID" not in os.environ:
            hostfiles.check_apart(hostfiles.slots(command.hostfile))
        return _run_again_and_again(command, program, words, os.environ | added | _plain())
    if command.json:
        print(json.dumps({"command": words, "environment": added}))
    else:
        print(shlex.join([*(f"{name}={value}" for name, value in added.items()), *words]))
    return 0


def _run_again_and_again(
    command: Launch, program: Sequence[str], words: Sequence[str], environment: Mapping[str, str]
) -> int:
    """The status of the last of the jobs that are started one after another, for as long as they fail and may."""
    num_again, seen = 0, {""}
    with tempfile.TemporaryDirectory(prefix="castile-") as folder:
        slots = hostfiles.slots(command.hostfile) if command.hostfile else {}
        num_ranks = command.ranks
        while (end := mpirun.run(words, environment)).failed:
            # ranks say last what there is to go on from
            num_again = num_again + 1 if end.left in seen else 1
            seen.add(end.left)
            if num_again > command.restarts:
                if command.restarts:
                    why = f"restarted {command.restarts} times without a newer checkpoint"
                    print(f"castile: given up: {why}", file=sys.stderr)
                break
            if slots and end.hosts:
                slots = hostfiles.without(slots, end.hosts)
                if not slots:
                    break
                hosts, num_ranks = Path(folder) / "hosts", min(num_ranks, sum(slots.values()))
                hosts.write_text("".join(f"{name} slots={count}\n" for name, count in slots.items()))
                words = mpirun_words(num_ranks, hosts, program)
            where = f"on {num_ranks} rank{'s' * (num_ranks != 1)}"
            print(f"castile: restart {num_again} of {command.restarts}, {where}", file=sys.stderr)
            time.sleep(PAUSE_SECONDS)
    return end.status


def _plain() -> dict[str, str]:
    """What keeps styles out of what ranks write where this is no terminal: mpirun gives them one all the same."""
    return {} if sys.stdout is not None and sys.stdout.isatty() else {"TERM": "dumb"}


def variables() -> dict[str, str]:
    """What mpirun and the ranks need in their environment, where it does not say otherwise."""
    # without a home mpirun does not start
    home = {"HOME": os.path.expanduser("~")}
    return mpi_settings.variables() | dict.fromkeys(mpi_settings.THREAD_VARIABLES, "1") | home


def mpirun_path() -> Path:
    """This environment's own mpirun, else the first on PATH. Raises UserError, with the line that installs one."""
    folders = [sysconfig.get_path("scripts"), *os.environ.get("PATH", "").split(os.pathsep)]
    for folder in folders:
        path = Path(folder) / "mpirun"
        if os.access(path, os.X_OK):
            return path
    raise UserError(f"there is no mpirun here: install one with `{installing.line('castile[mpi]')}`")


def mpirun_words(num_ranks: int, hostfile: Path | None, program: Sequence[str]) -> list[str]:
    """The command line that starts `program` on `num_ranks` ranks, on the hosts of `hostfile` as their slots say.

    Raises UserError for a host file that is none.
    """
    words = [str(mpirun_path()), "-n", str(num_ranks)]
    if hostfile is not None:
        hostfiles.slots(hostfile)
        words += ["--hostfile", str(hostfile)]
        # what is set here, mpirun gives to ranks of this host alone; which GPUs a host may use Slurm says on each
        ours = {"CUDA_VISIBLE_DEVICES"} if "SLURM_JOB_ID" in os.environ else set()
        for name in sorted({name for name in {**os.environ, **variables()} if _HANDED_OVER.fullmatch(name)} - ours):
            words += ["-x", name]
    return [*words, *program]


def check_room(num_ranks: int, who: str, otherwise: str = "") -> None:
    """Raises UserError, in the words of `who`, where so many ranks have no room in this host's memory: mpirun would
    start them all the same, and the host stand still. And where mpirun may not open enough files for them.
    """
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_ranks * LEAST_RANK_BYTES > there:
        raise UserError(
            f"{who}: so many ranks have no room in the {written(there)} of this host: give at most "
            f"{there // LEAST_RANK_BYTES}{otherwise}"
        )
    files, (_, most) = mpirun.OWN_FILES + mpirun.RANK_FILES * num_ranks, resource.getrlimit(resource.RLIMIT_NOFILE)
    if files > most != resource.RLIM_INFINITY:
        raise UserError(
            f"{who}: mpirun opens {files} files for so many ranks, and only {most} may be open here: raise that limit "
            f"(ulimit -n {files}){otherwise}"
        )


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    position = 0
    while position < len(args) and args[position].startswith("-") and args[position] != "--":
        position += 2 if args[position] in _VALUE_OPTIONS else 1
    command = args[position:]
    return args[:position], command[1:] if command[:1] == ["--"] else command


def _check(command: Launch) -> None:
    if command.ranks < 1:
        raise UserError(f"-n {command.ranks}: a job has at least 1 rank")
    if command.hostfile is None and not any(name in os.environ for name in ALLOCATIONS):
        check_room(command.ranks, f"-n {command.ranks}", ", or --hostfile FILE with more hosts")
    if command.restarts < 0:
        raise UserError(f"--restarts {command.restarts}: a job is restarted 0 times or more")
    if command.command[:1] in ((), ("castile",)):
        what = "without the word castile before it" if command.command else "as in `castile launch -n 2 train convnet`"
        raise UserError(f"nothing to launch: name a castile command, {what}")
    is_kept = any(word == "--resume" or word.endswith(".toml") for word in command.command)
    if command.restarts and command.command[0] == "train" and not is_kept:
        raise UserError(
            "--restarts starts the same command again: give `train ... --checkpoint DIR --resume`, which goes on from "
            "the latest checkpoint"
        )
    if command.command[0] == "launch" or num_launched() > 1:
        raise UserError("a launch within a launch: start `castile launch` once, outside mpirun")
