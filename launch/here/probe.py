"""The probe measures this host once, and keeps the figures in the user's cache.

It does not know plans or cost models, nor other hosts. Kernels are measured elsewhere, here only the rates that a
roofline needs.
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
from statistics import median
from typing import TypeVar

import msgspec
import numpy as np

import castile
from castile.launch.here import link_timing
from castile.launch.here.link_timing import Link
from castile.launch.processes.ranks import UserError
from castile.launch.typed import files
from castile.planner.costs.snapshot import Environment
from castile.runtime import cores, strict
from castile.runtime import machine as machines
from castile.runtime.comm.base import Communicator

T = TypeVar("T", bound=msgspec.Struct)

# Each rate is measured for so long: the whole probe stays below 1.5 s.
SAMPLE_SECONDS = 0.12
MATRIX = 384
STREAM_BYTES = 2**25
# About what a message within a host takes, and how many bytes go in a second.
GUESS = (2e-5, 4e9)
# A task on next to no data, with the executor's bookkeeping, costs about as much as this many kernel calls: the median
# of those of 24 networks' steps.
CALLS_A_TASK = 7
# Images of so many rows and columns, and so many bytes of them.
IMAGE, IMAGES_BYTES = 16, 2**19
# So many rows of scores, and numbers in each, which near caches hold.
SCORES = (256, 64)


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the probe measures; the link is None where there were too few ranks to measure it."""

    float32_flops_per_second: float
    float64_flops_per_second: float
    bytes_per_second: float
    task_overhead_seconds: float
    row_seconds: float
    look_seconds: float
    link: Link | None = None

    def __post_init__(self) -> None:
        link_timing.check(self, *[name for name in self.__struct_fields__ if name != "link"])


def of_host(near: Communicator | None, procs: int) -> Figures:
    """The figures of this host as `procs` processors, from its first rank.

    They come from the user's cache if possible. Otherwise they are measured, in about 1.5 s, with all ranks of the host
    (without ranks: as many threads) at work, and with as many threads a matrix product as this process was given. With
    one thread the rates do not depend on other programs that want its core; with more they may. Links are measured
    between ranks, where there are two or more.

    near   the ranks of this host, which all call it
    """
    path = cache_path(procs, cores.together(near))
    if near is None:
        return kept(path, Figures) or _measured(path, None, procs)
    found = kept(path, Figures) if near.rank == 0 else None
    is_known = found is not None and (near.size == 1 or found.link is not None)
    if near.bcast_bytes(bytes([is_known])) == bytes([False]):
        found = _measured(path, near, procs)
    answer = msgspec.json.encode(found) if near.rank == 0 else None
    return msgspec.json.decode(near.bcast_bytes(answer), type=Figures)


def known() -> dict[int, Figures]:
    """The stored figures of this host as this process would measure it, by number of processors."""
    paths = folder().glob("local-[0-9]*-*.json")
    counts = sorted({int(count) for path in paths if (count := path.name.split("-")[1]).isdecimal()})
    found = {procs: kept(cache_path(procs), Figures) for procs in counts}
    return {procs: figures for procs, figures in found.items() if figures is not None}


def forget() -> None:
    """Remove all stored figures: the next command measures. Raises ValueError where the system refuses."""
    for path in [*folder().glob("local-*-*.json"), *folder().glob("network-*.json")]:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ValueError(f"the figures of this host in {path} cannot be removed: {error.strerror}") from error


def measure(near: Communicator | None, procs: int) -> Figures:
    """The host's figures now, every rank of it at work on the same thing at the same time."""
    neighbours = 1 if near is not None else min(procs, machines.num_cores())
    # Of more processors than cores each gets its share.
    ours = cores.together(near)
    share = min(1.0, ours / (near.size if near is not None else procs))
    _meet(near)
    single = _matrix_rate(np.float32, neighbours)
    _meet(near)
    double = _matrix_rate(np.float64, neighbours)
    _meet(near)
    stream = _stream_rate(neighbours)
    _meet(near)
    overhead, row, look = _task_seconds(), _row_seconds(), _look_seconds()
    link = (
        link_timing.link(near, range(near.size), GUESS, near.size > ours)
        if near is not None and near.size > 1
        else None
    )
    rates = (share * single, share * double, share * stream)
    return Figures(*rates, overhead / share, row / share, look / share, link and link.shared(share))


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
    return folder() / f"local-{procs}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def folder() -> Path:
    """Where figures are kept. Raises UserError where this user has no folder."""
    return files.users("XDG_CACHE_HOME", ".cache")


def _measured(path: Path, near: Communicator | None, procs: int) -> Figures:
    """Figures that are measured now, and kept by the first rank."""
    leads = near is None or near.rank == 0
    if leads:
        what = "1 processor" if procs == 1 else f"{procs} processors"
        print(f"castile: measuring this host, once for {what}", file=sys.stderr, flush=True)
    found = measure(near, procs)
    if leads:
        keep(path, found)
    return found


def kept(path: Path, form: type[T]) -> T | None:
    """What `keep` stored there, None for nothing; a file that cannot be used is reported."""
    try:
        return strict.from_json(path.read_bytes(), form, str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        print(f"castile: this host's cached figures are unusable and are measured again ({error})", file=sys.stderr)
        return None


def keep(path: Path, figures: msgspec.Struct) -> None:
    """Store figures; readers at the same time see the old file or the new one, complete."""
    try:
        files.write(path, msgspec.json.encode(figures))
    except UserError as error:
        print(f"castile: the figures of this host could not be kept: {error}", file=sys.stderr)


def _matrix_rate(dtype: type, neighbours: int) -> float:
    """Floating-point operations per second of a square matrix product, with as many neighbours doing the same."""
    random = np.random.default_rng(0)

    def worker() -> float:
        a: np.ndarray = random.standard_normal((MATRIX, MATRIX)).astype(dtype)
        b: np.ndarray = a.T.copy()
        out = np.empty_like(a)
        return _core_seconds(lambda: np.matmul(a, b, out=out))

    return 2 * MATRIX**3 / _together(worker, neighbours)


def _stream_rate(neighbours: int) -> float:
    """Bytes read and written per second by an addition of arrays that exceed all caches."""

    def worker() -> float:
        a = np.ones(STREAM_BYTES // 4, np.float32)
        out = np.empty_like(a)
        return _core_seconds(lambda: np.add(a, a, out=out))

    return 2 * STREAM_BYTES / _together(worker, neighbours)


def _task_seconds() -> float:
    """An estimate of a task's overhead, from kernel calls on next to no data."""
    a, out = np.ones(8, np.float32), np.empty(8, np.float32)
    return CALLS_A_TASK * _core_seconds(lambda: np.add(a, a, out=out))


def _row_seconds() -> float:
    """The time to copy a row of an image to a padded copy, padding included.

    NumPy handles short runs as compiled loops do.
    """
    held = np.empty((IMAGES_BYTES // (4 * IMAGE**2), IMAGE + 1, IMAGE + 1), np.float32)
    images = np.ones((len(held), IMAGE, IMAGE), np.float32)

    def work() -> None:
        np.copyto(held[:, :IMAGE, :IMAGE], images)
        held[:, :IMAGE, IMAGE:] = 0

    return _core_seconds(work) / (len(images) * IMAGE)


def _look_seconds() -> float:
    """The time of a number that takes repeated passes over a short row: a share of a softmax."""
    scores = np.random.default_rng(0).standard_normal(SCORES).astype(np.float32)
    shares, of_row = np.empty_like(scores), np.empty((SCORES[0], 1), np.float32)

    def work() -> None:
        np.max(scores, axis=1, keepdims=True, out=of_row)
        np.subtract(scores, of_row, out=shares)
        np.exp(shares, out=shares)
        np.sum(shares, axis=1, keepdims=True, out=of_row)
        np.divide(shares, of_row, out=shares)

    return _core_seconds(work) / scores.size


def _together(worker: Callable[[], float], neighbours: int) -> float:
    """The slowest of as many workers as there are neighbours, all at once."""
    with ThreadPoolExecutor(neighbours) as pool:
        return max(pool.map(lambda _: worker(), range(neighbours)))


def _core_seconds(work: Callable[[], object]) -> float:
    """Seconds that the calling thread works on a call, including waits for memory, without the time that other programs
    took its core: a host that is busy for a moment has the same rates as an idle one. The median of many runs of calls,
    as some meet caches that others have filled.

    Threads of a call are not added up: they work while the caller does, and the rate is that of all of them. Time that
    the caller sleeps until the last of them is done does not count either.
    """
    work()
    taken, at_once, begin = list[float](), 1, time.perf_counter()
    while time.perf_counter() - begin < SAMPLE_SECONDS or len(taken) < 3:
        core_begin = time.thread_time()
        for _ in range(at_once):
            work()
        taken.append((time.thread_time() - core_begin) / at_once)
        # so many calls that the clock's own take nothing of it
        if at_once * taken[-1] < SAMPLE_SECONDS / 100:
            at_once *= 2
    return link_timing.positive(median(taken), "a kernel")


def _meet(near: Communicator | None) -> None:
    if near is not None:
        near.barrier()
