"""Times a kind of task: all ranks begin it together and repeat it, until the repetitions agree.

It does not know whose tasks they are, nor where the times are kept.
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from castile.launch.jobs.jobs import Job
from castile.launch.measuring.isolation import LEAST_NANOSECONDS, LEAST_REPETITIONS, MOST_TRANSFERS, Bench, is_compute
from castile.planner.costs.learn import DELAYED
from castile.planner.costs.snapshot import Measured
from castile.runtime.task import CostKey, TaskGraph

# Half the distance of the quartiles over the median; above it a key is measured again, so many times at most.
STABLE = 0.1
MOST_ROUNDS = 3
# A key's repetitions in one sitting share its disturbances: beside steps measured later they count as these few.
WEIGHT = 5


def measure(job: Job, bench: Bench, k: int) -> tuple[Measured, str]:
    """The time of tasks with the bench's cost key number `k`, and what ranks without such tasks did meanwhile.

    All ranks call it and get the same: the median of all repetitions, and "same", "similar" or "idle" as
    `_least_activity` says. All ranks begin each round together; there are more rounds, up to MOST_ROUNDS, until the
    repetitions agree. Transfers that other programs delayed do not count, unless all were.
    """
    key = bench.tasks.cost_keys[k]
    which = np.flatnonzero(bench.tasks.cost == k)
    if is_compute(bench.tasks, int(which[0])):
        chosen, doing = _chosen(bench, which, key)
        beside = _least_activity(job, doing)
        measure_once = partial(_compute_round, job, bench, chosen, doing == "same")
    else:
        group = disjoint(bench.tasks, which)
        beside = "same" if len(group) * key.members == bench.tasks.num_procs else "idle"
        measure_once = partial(_transfer_round, job, bench, group)
    free: list[float] = []
    held_up: list[float] = []

    def more() -> bytes:
        low, median, high = np.percentile(free or held_up, (25, 50, 75))
        measured = Measured(key, float(median), float(high - low) / 2, WEIGHT)
        return msgspec.json.encode((measured, bool((high - low) / 2 > STABLE * median or not free)))

    for _ in range(MOST_ROUNDS):
        for samples, more_samples in zip((free, held_up), measure_once(), strict=True):
            samples += more_samples
        answer = job.agree(more)
        measured, unstable = msgspec.json.decode(answer, type=tuple[Measured, bool])
        if not unstable:
            break
    return measured, beside


def _chosen(bench: Bench, which: np.ndarray, key: CostKey) -> tuple[list[int], str]:
    """The tasks that this rank runs while a key is measured: its own with that key ("same"), else one that should take
    about as long ("similar"), else none ("idle").
    """
    own = np.intersect1d(which, bench.mine)
    if len(own):
        return own.tolist(), "same"
    kernels = [t for t in bench.mine.tolist() if is_compute(bench.tasks, t)]
    if not kernels:
        return [], "idle"
    keys = bench.tasks.cost_keys
    amount = [abs(np.log((_work(keys[bench.tasks.cost[t]]) + 1) / (_work(key) + 1))) for t in kernels]
    return [kernels[int(np.argmin(amount))]], "similar"


def _work(key: CostKey) -> float:
    # An operation takes about as long as a tenth of a byte on most processors.
    return key.flops / 10 + key.nbytes


def _least_activity(job: Job, beside: str) -> str:
    """The least that any rank does meanwhile: "idle" if one does nothing, else "similar" if one has other tasks, else
    "same".
    """
    words = job.comm.gather_bytes(beside.encode())
    order = ["idle", "similar", "same"]
    return job.agree(lambda: min((w.decode() for w in words or []), key=order.index).encode()).decode()


def _compute_round(job: Job, bench: Bench, tasks: list[int], counts: bool) -> tuple[list[float], list[float]]:
    """Seconds of each repetition on all ranks that have the key, on rank 0, all as if nothing disturbed it."""
    first = bench.repeat(tasks, 0)
    slowest = int(np.median(first)) if counts else 0
    lengths = _gathered(job, np.array([slowest * LEAST_REPETITIONS]))
    nanoseconds = int(job.agree(lambda: str(max(LEAST_NANOSECONDS, *(int(n[0]) for n in lengths))).encode()))
    job.comm.barrier()
    lasted = bench.repeat(tasks, nanoseconds)
    parts = _gathered(job, lasted if counts else np.zeros(0, np.int64))
    return (np.concatenate(parts) / 1e9).tolist() if parts else [], []


def _transfer_round(job: Job, bench: Bench, tasks: list[int]) -> tuple[list[float], list[float]]:
    """Seconds of each repetition, on rank 0: from when the last member began to when the last one ended.

    First those that nothing disturbed, then those in which a member waited for a core for too long.
    """
    mine = [t for t in tasks if t in bench.mine]
    job.comm.align_clocks()
    first = bench.exchange(mine, LEAST_REPETITIONS)
    once = _gathered(job, np.array([int(np.median(first[:, 1] - first[:, 0])) if mine else 0]))
    wanted = job.agree(lambda: str(LEAST_NANOSECONDS // max(1, *(int(n[0]) for n in once))).encode())
    repetitions = min(MOST_TRANSFERS, max(LEAST_REPETITIONS, int(wanted)))
    spans = _gathered(job, bench.exchange(mine, repetitions) if mine else _stand_by(bench, repetitions))
    if not job.leads:
        return [], []
    began, ended, delayed = np.stack([s.reshape(-1, 3) for s in spans if len(s)]).max(axis=0).T
    lasted = np.maximum(1, ended - began)
    is_free = delayed <= DELAYED * lasted
    return (lasted[is_free] / 1e9).tolist(), (lasted[~is_free] / 1e9).tolist()


def _stand_by(bench: Bench, repetitions: int) -> np.ndarray:
    """Take part in the barriers of a transfer that this rank has no part in; returns no times."""
    bench.exchange([], repetitions)
    return np.zeros(0, np.int64)


def _gathered(job: Job, numbers: np.ndarray) -> list[np.ndarray]:
    """Every rank's int64 numbers, flat, on rank 0."""
    parts = job.comm.gather_bytes(np.ascontiguousarray(numbers, np.int64).tobytes())
    return [np.frombuffer(part, np.int64) for part in parts or []]


def disjoint(tasks: TaskGraph, which: np.ndarray) -> list[int]:
    """As many of these transfers as can run at once: no processor is in two of them."""
    taken: set[int] = set()
    chosen = []
    for task in which.tolist():
        procs = set(tasks.tasks[task].procs)
        if not procs & taken:
            taken |= procs
            chosen.append(task)
    return chosen
