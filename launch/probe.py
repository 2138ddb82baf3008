"""The probe: measures this host once, keeps the figures in the user's cache, and gives the machine `local`.

It does not know plans or cost models; kernels are measured elsewhere, here only the rates that a roofline needs.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

import castile
from castile.launch import files
from castile.launch.ranks import UserError
from castile.planner.learn import DELAYED
from castile.planner.snapshot import Environment
from castile.runtime import cores, strict
from castile.runtime import machine as machines
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.messages import Request
from castile.runtime.machine import Level, Machine, Processor

# Each rate is measured for so long: the whole probe stays below 1.5 s.
SAMPLE_SECONDS = 0.12
MATRIX = 384
STREAM_BYTES = 2**25
PING_BYTES = (8, 1024, 16384, 262144, 2097152)
PING_SECONDS = 0.06
PING_TAG = 1_000_000
# Messages of one size come in so many rounds at most: the first of each waits for a rank that still asks for how long
# it had no core.
PING_ROUNDS = 8
# The executor's bookkeeping of a task costs about as much as this many kernel calls on next to no data.
CALLS_A_TASK = 12


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the probe measures; links are None where they were not, for want of ranks."""

    float32_flops_per_second: float
    float64_flops_per_second: float
    bytes_per_second: float
    task_overhead_seconds: float
    latency_seconds: float | None = None
    link_bytes_per_second: float | None = None


def measured(named: Machine, comm: Communicator | None = None) -> Machine:
    """A machine that `castile.runtime.machine.parse` gave, `local` with this host's figures in place of assumed ones.

    Every rank calls it; rank 0's result is the one to broadcast.
    """
    is_local = named.name.partition(":")[0] == "local"
    return local_machine(comm, named.num_procs) if is_local else named


def local_machine(comm: Communicator | None = None, procs: int | None = None) -> Machine:
    """This host as `procs` processors (the ranks by default, without ranks the cores), with measured rates.

    Figures come from the user's cache where they are there. Else they are measured, in about 1.5 s, with all ranks
    (without ranks: as many threads) at work, and with as many threads a matrix product as this process was given. With
    one thread the rates are the same where other programs want its core too; with more that is not sure.
    Links are measured between ranks; without a communicator of two or more they are the assumed ones of `local`.
    Every rank calls it; rank 0's result is the one to broadcast.
    """
    procs = procs or (comm.size if comm else machines.num_cores())
    path = cache_path(procs, cores.together(comm))
    cached = _read(path) if comm is None or comm.rank == 0 else None
    wants_links = comm is not None and comm.size > 1
    is_known = cached is not None and (not wants_links or cached.latency_seconds is not None)
    if comm is not None and wants_links:
        is_known = comm.bcast_bytes(bytes([is_known])) == bytes([True])
    if not is_known:
        leads = comm is None or comm.rank == 0
        if leads:
            what = "1 processor" if procs == 1 else f"{procs} processors"
            print(f"castile: measuring this host, once for {what}", file=sys.stderr, flush=True)
        cached = measure(comm, procs)
        if leads:
            _write(path, cached)
    return _machine(procs, cached)


def known() -> dict[int, Figures]:
    """The figures that are kept of this host as this process would measure it, by the number of processors."""
    counts = sorted({int(count) for path in _kept() if (count := path.name.split("-")[1]).isdecimal()})
    found = {procs: _read(cache_path(procs)) for procs in counts}
    return {procs: figures for procs, figures in found.items() if figures is not None}


def forget() -> None:
    """Remove all figures that are kept: the next command measures. Raises ValueError where the system refuses."""
    for path in _kept():
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ValueError(f"the figures of this host in {path} cannot be removed: {error.strerror}") from error


def measure(comm: Communicator | None, procs: int) -> Figures:
    """The host's figures now, every rank at work on the same thing at the same time."""
    neighbours = 1 if comm is not None else min(procs, machines.num_cores())
    # Of more processors than cores each gets its share.
    ours = cores.together(comm)
    share = min(1.0, ours / (comm.local_size if comm is not None else procs))
    _meet(comm)
    single = _matrix_rate(np.float32, neighbours)
    _meet(comm)
    double = _matrix_rate(np.float64, neighbours)
    _meet(comm)
    stream = _stream_rate(neighbours)
    _meet(comm)
    overhead = _task_seconds()
    is_crowded = comm is not None and comm.local_size > ours
    latency, bandwidth = _link(comm, is_crowded) if comm is not None and comm.size > 1 else (None, None)
    return Figures(share * single, share * double, share * stream, overhead / share, latency, bandwidth)


def environment(kernels: str = "", active_ranks: int = 1) -> Environment:
    """The environment in which this process measures; `kernels` is the hash of their sources."""
    libraries = f"python {platform.python_version()}, numpy {np.__version__}, castile {castile.__version__}"
    return Environment(cpu_model(), num_threads(), active_ranks, kernels, libraries)


def num_threads() -> int:
    """Threads that a matrix product of this process uses, 0 where nothing limits them."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def cpu_model() -> str:
    """The processor's name, as the operating system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cache_path(procs: int, together: float | None = None) -> Path:
    """The file of the figures for this host, number of processors, threads and library versions.

    together    the cores that the ranks may use, by default those of this process alone
    """
    env = environment()
    text = repr((env.device, cores.together(None) if together is None else together, procs, env.threads, env.libraries))
    return _folder() / f"local-{procs}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def _folder() -> Path:
    return files.users("XDG_CACHE_HOME", ".cache")


def _kept() -> list[Path]:
    return list(_folder().glob("local-[0-9]*-*.json"))


def _machine(procs: int, figures: Figures | None) -> Machine:
    assumed = machines.local(procs)
    if figures is None:
        return assumed
    processor: Processor = msgspec.structs.replace(
        assumed.processors[0],
        flops_per_second=figures.float32_flops_per_second,
        float64_flops_per_second=figures.float64_flops_per_second,
        bytes_per_second=figures.bytes_per_second,
        task_overhead_seconds=figures.task_overhead_seconds,
    )
    levels = tuple(_measured_level(level, figures) for level in assumed.levels)
    return Machine(assumed.name, (processor,) * procs, levels, assumed.engines)


def _measured_level(level: Level, figures: Figures) -> Level:
    if figures.latency_seconds is None or figures.link_bytes_per_second is None:
        return level
    return msgspec.structs.replace(
        level, latency_seconds=figures.latency_seconds, bytes_per_second=figures.link_bytes_per_second
    )


def _read(path: Path) -> Figures | None:
    """The cached figures, None where there are none; a file that cannot be used is said so and measured anew."""
    try:
        figures = strict.from_json(path.read_bytes(), Figures, str(path))
        _machine(1, figures)
        return figures
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        print(f"castile: this host's cached figures are unusable and are measured again ({error})", file=sys.stderr)
        return None


def _write(path: Path, figures: Figures) -> None:
    """Keep the figures; whoever reads at the same time sees the old file or the new one, whole."""
    try:
        files.write(path, msgspec.json.encode(figures))
    except UserError as error:
        print(f"castile: the figures of this host could not be kept: {error}", file=sys.stderr)


def _matrix_rate(dtype: type, neighbours: int) -> float:
    """Floating point operations per second of a square product, with as many neighbours doing the same."""
    random = np.random.default_rng(0)

    def worker() -> float:
        a: np.ndarray = random.standard_normal((MATRIX, MATRIX)).astype(dtype)
        b: np.ndarray = a.T.copy()
        out = np.empty_like(a)
        return _core_seconds(lambda: np.matmul(a, b, out=out))

    return 2 * MATRIX**3 / _together(worker, neighbours)


def _stream_rate(neighbours: int) -> float:
    """Bytes read and written per second by an addition of arrays that no cache holds."""

    def worker() -> float:
        a = np.ones(STREAM_BYTES // 4, np.float32)
        out = np.empty_like(a)
        return _core_seconds(lambda: np.add(a, a, out=out))

    return 2 * STREAM_BYTES / _together(worker, neighbours)


def _task_seconds() -> float:
    """An estimate of what a task costs besides its work, from kernel calls on next to no data."""
    a, out = np.ones(8, np.float32), np.empty(8, np.float32)
    return CALLS_A_TASK * _core_seconds(lambda: np.add(a, a, out=out))


def _together(worker: Callable[[], float], neighbours: int) -> float:
    """The slowest of as many workers as there are neighbours, all at once."""
    with ThreadPoolExecutor(neighbours) as pool:
        return max(pool.map(lambda _: worker(), range(neighbours)))


def _core_seconds(work: Callable[[], object]) -> float:
    """Seconds that the calling thread works on a call, waits for memory included and what other programs took of its
    core not: a host that is busy for a moment has the same rates as an idle one.

    Where a call has threads of its own, their work is not added up: they work while the caller does, and the rate is
    that of all of them. What the caller sleeps until the last of them is done is not counted either.
    """
    work()
    num_calls, begin, core_begin = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() - begin < SAMPLE_SECONDS or num_calls < 3:
        work()
        num_calls += 1
    return _positive((time.thread_time() - core_begin) / num_calls, "a kernel")


def _positive(seconds: float, what: str) -> float:
    if not (np.isfinite(seconds) and seconds > 0):
        raise RuntimeError(f"measuring this host: {what} took {seconds} seconds; the clock cannot be trusted")
    return seconds


def _meet(comm: Communicator | None) -> None:
    if comm is not None:
        comm.barrier()


def _wait(*requests: Request) -> None:
    """Poll until all are done; every rank must come to the core, also where there are more ranks than cores."""
    while not all(request.poll() for request in requests):
        os.sched_yield()


def _link(comm: Communicator, is_crowded: bool) -> tuple[float, float]:
    """(latency, bytes per second) between neighbouring ranks, all pairs at once; figures hold on rank 0.

    What other programs held up does not count, unless all was or ranks are too many for the cores themselves.
    """
    peer = comm.rank ^ 1
    mine = [_pings(comm, peer, nbytes) for nbytes in PING_BYTES] if peer < comm.size else []
    delayed = comm.gather_bytes(np.concatenate([np.zeros(0), *(held for _, held in mine)]).tobytes())
    if delayed is None:
        return (1.0, 1.0)
    # a message waits for whichever end has no core
    ends = np.maximum(*map(np.frombuffer, delayed[:2])) * (not is_crowded)
    each = np.split(ends, np.cumsum([len(lasted) for lasted, _ in mine])[:-1])
    medians = [_free(lasted, held) for (lasted, _), held in zip(mine, each, strict=True)]
    return fit_link(np.array(PING_BYTES, float), np.array(medians))


def _free(lasted: np.ndarray, delayed: np.ndarray) -> float:
    """The median of messages in rounds of which little was waiting for a core, or of all where there are none."""
    is_free = delayed <= DELAYED * lasted.sum(axis=1)
    return _positive(float(np.median(lasted[is_free] if is_free.any() else lasted)), "a message")


def fit_link(nbytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """(latency, bytes per second) of seconds = latency + nbytes / rate, by least squares of relative errors."""
    # slow to import, and a host is measured once
    from scipy.optimize import nnls

    rows = np.stack([np.ones(len(nbytes)), nbytes], axis=1) / seconds[:, None]
    # Columns of one size, or the solver takes the bytes' tiny coefficients for zero.
    scale = rows.max(axis=0)
    latency, per_byte = nnls(rows / scale, np.ones(len(nbytes)))[0] / scale
    # On a busy host small messages may have taken as long as large ones: then the largest alone says what a byte costs.
    largest = seconds[-1] / nbytes[-1]
    return float(latency), 1.0 / _positive(float(per_byte or largest), "a byte over the link")


def _pings(comm: Communicator, peer: int, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rounds of messages: what each took one way, half of there and back, seconds[rounds, messages]; and half of the
    seconds for which in each round this rank was ready to run and had no core, seconds[rounds].
    """
    array = np.zeros(nbytes, np.uint8)
    lasted = np.zeros(_num_rounds(nbytes))
    delayed = np.zeros(len(lasted))
    for number, messages in enumerate(lasted):
        delayed_ns = cores.delayed_ns()
        for message in range(len(messages)):
            begin = time.perf_counter()
            if comm.rank < peer:
                _wait(comm.send(array, peer, PING_TAG))
                _wait(comm.recv(array, peer, PING_TAG))
            else:
                _wait(comm.recv(array, peer, PING_TAG))
                _wait(comm.send(array, peer, PING_TAG))
            messages[message] = (time.perf_counter() - begin) / 2
        delayed[number] = (cores.delayed_ns() - delayed_ns) / 2e9
    return lasted, delayed


def _num_rounds(nbytes: int) -> tuple[int, int]:
    """Rounds, and messages in each, that fit the time if a message takes 20 us and 4 GB/s; fixed, so that both ends
    agree.
    """
    num_messages = max(5, int(PING_SECONDS / 2 / (2e-5 + nbytes / 4e9)))
    num_rounds = min(num_messages, PING_ROUNDS)
    return num_rounds, num_messages // num_rounds
