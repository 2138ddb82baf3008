"""`castile profile`: what each kind of task of a model takes here, with all ranks at work, for the profile database.

It does not know how prices are made of measurements.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from castile.launch import checks, jobs, options, profile_report
from castile.launch.isolation import LEAST_NANOSECONDS, LEAST_REPETITIONS, MOST_TRANSFERS, Isolated, is_compute
from castile.launch.jobs import Job
from castile.launch.measure import sample_feed
from castile.launch.profile_report import Row
from castile.launch.ranks import UserError
from castile.planner.seeds import seeds
from castile.planner.snapshot import Measured, snapshot_of
from castile.planner.strategy import Strategy
from castile.runtime.task import CostKey, TaskGraph

# Half the distance of the quartiles over the median; above it a key is measured again, so many times at most.
STABLE = 0.1
MOST_ROUNDS = 3
# A key's repetitions in one sitting share its disturbances: beside steps measured later they count as these few.
WEIGHT = 5
# Parameters move while updates are repeated; at this share of the learning rate they stay near where they began.
RATE_SHARE = 1e-4


@dataclass(frozen=True)
class Profile:
    """Measure what each kind of task of a model takes on these ranks, and keep it in the profile database."""

    model: options.Model
    """Its name and settings (convnet, mlp, gpt:layers=4,width=128), or a Python file with a function build()."""
    machine: options.Machine = "local"
    """What to measure: this host, with a processor for each rank; or a TOML file that describes it."""
    plan: options.File = ""
    """The plan file whose tasks are measured; without one, those of the well-known plans (data parallel and others)."""
    batch: options.Count = None
    """Samples a step; the model's own by default."""
    profile: options.File = ""
    """The profile database to add to; by default ~/.local/share/castile/profile.db."""
    again: bool = False
    """Measure again what the database already holds for this host, instead of skipping it."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Profile


def run(command: Profile) -> int:
    """Measure, keep, tell. Raises ValueError or UserError in one sentence for a user's mistake."""
    begun = time.perf_counter()
    checks.counts(batch=command.batch)
    path = command.profile or jobs.default_profile()
    job = jobs.start(command.model, command.machine, command.batch, path)
    known = set() if command.again else {row.key for row in job.snapshot.rows}
    feed = sample_feed(job)
    rows: dict[CostKey, Row] = {}
    refused: UserError | None = None
    for name, plan in _plans(job, command.plan).items():
        try:
            isolated = Isolated(job, name, plan, feed, job.model.recipe.lr * RATE_SHARE)
        except ValueError as error:
            # Of the well-known plans some need too much memory where others do not.
            refused = refused or UserError(f"plan {name}: {error}" if name not in str(error) else str(error))
            continue
        _measure_plan(job, name, isolated, known, rows)
    if not rows:
        assert refused is not None
        raise refused
    if job.leads:
        facts = profile_report.facts(job, list(rows.values()), path, time.perf_counter() - begun)
        profile_report.tell(facts, command.json)
    return 0


def _plans(job: Job, path: str) -> dict[str, Strategy]:
    """The plan of the file, or the seeds."""
    if not path:
        return seeds(job.lowering)
    return {path: job.plan_of(path)}


def _measure_plan(job: Job, name: str, isolated: Isolated, known: set[CostKey], rows: dict[CostKey, Row]) -> None:
    """Measure the plan's keys that are not known, keep each at once, and add a row for each key that has none yet."""
    tasks = isolated.tasks
    counts = np.bincount(tasks.cost, minlength=len(tasks.cost_keys)).tolist()
    held = {row.key: row for row in job.snapshot.rows}
    beside: dict[CostKey, str] = {}
    todo = [k for k, key in enumerate(tasks.cost_keys) if key not in known]
    with _progress(job, name, len(todo)) as advance:
        for k in todo:
            key = tasks.cost_keys[k]
            held[key], beside[key] = _measure(job, isolated, k)
            _keep(job, held[key])
            known.add(key)
            advance()
    spent = {key: held[key].seconds * key.members * count for key, count in zip(tasks.cost_keys, counts)}
    total = sum(spent.values())
    for key, count in zip(tasks.cost_keys, counts):
        rows.setdefault(key, Row(held[key], name, count, spent[key] / total, key in beside, beside.get(key, "")))


def _keep(job: Job, row: Measured) -> None:
    """Into the job's snapshot, in place of an older figure, and at once into the database: it may be the last."""
    overhead = job.snapshot.overhead_seconds
    others = [r for r in job.snapshot.rows if r.key != row.key]
    job.snapshot = snapshot_of(job.snapshot.environment, [*others, row], overhead)
    if job.database is not None and job.leads:
        job.database.add(snapshot_of(job.snapshot.environment, [row], overhead))


def _measure(job: Job, isolated: Isolated, k: int) -> tuple[Measured, str]:
    """What a cost key takes on this machine, the same on every rank, and what ranks without that key did meanwhile.

    Rounds are repeated until the repetitions agree; all ranks begin each together.
    """
    key = isolated.tasks.cost_keys[k]
    which = np.flatnonzero(isolated.tasks.cost == k)
    if is_compute(isolated.tasks, int(which[0])):
        chosen, doing = _chosen(isolated, which, key)
        beside = _worst(job, doing)
        measure_once = partial(_compute_round, job, isolated, chosen, doing == "same")
    else:
        group = _disjoint(isolated.tasks, which)
        beside = "same" if len(group) * key.members == isolated.tasks.num_procs else "idle"
        measure_once = partial(_transfer_round, job, isolated, group)
    samples: list[float] = []

    def more() -> bytes:
        low, median, high = np.percentile(samples, (25, 50, 75))
        measured = Measured(key, float(median), float(high - low) / 2, WEIGHT)
        return msgspec.json.encode((measured, bool((high - low) / 2 > STABLE * median)))

    for _ in range(MOST_ROUNDS):
        samples += measure_once()
        told = job.agree(more)
        measured, unstable = msgspec.json.decode(told, type=tuple[Measured, bool])
        if not unstable:
            break
    return measured, beside


def _chosen(isolated: Isolated, which: np.ndarray, key: CostKey) -> tuple[list[int], str]:
    """This rank's tasks to run while a key is measured: its own of that key, else one that should take as long."""
    own = np.intersect1d(which, isolated.mine)
    if len(own):
        return own.tolist(), "same"
    kernels = [t for t in isolated.mine.tolist() if is_compute(isolated.tasks, t)]
    if not kernels:
        return [], "idle"
    keys = isolated.tasks.cost_keys
    amount = [abs(np.log((_work(keys[isolated.tasks.cost[t]]) + 1) / (_work(key) + 1))) for t in kernels]
    return [kernels[int(np.argmin(amount))]], "similar"


def _work(key: CostKey) -> float:
    # An operation takes about as long as a tenth of a byte on most processors.
    return key.flops / 10 + key.nbytes


def _worst(job: Job, beside: str) -> str:
    """What the rank least busy with the same key does: "same" as the others, something "similar", or it is "idle"."""
    words = job.comm.gather_bytes(beside.encode())
    order = ["idle", "similar", "same"]
    return job.agree(lambda: min((w.decode() for w in words or []), key=order.index).encode()).decode()


def _compute_round(job: Job, isolated: Isolated, tasks: list[int], counts: bool) -> list[float]:
    """Seconds of each repetition on all ranks that have the key, on rank 0."""
    first = isolated.repeat(tasks, 0)
    slowest = int(np.median(first)) if counts else 0
    lengths = _gathered(job, np.array([slowest * LEAST_REPETITIONS]))
    nanoseconds = int(job.agree(lambda: str(max(LEAST_NANOSECONDS, *(int(n[0]) for n in lengths))).encode()))
    job.comm.barrier()
    lasted = isolated.repeat(tasks, nanoseconds)
    parts = _gathered(job, lasted if counts else np.zeros(0, np.int64))
    return (np.concatenate(parts) / 1e9).tolist() if parts else []


def _transfer_round(job: Job, isolated: Isolated, tasks: list[int]) -> list[float]:
    """Seconds of each repetition, on rank 0: from the moment when the last member came to the last member's end."""
    mine = [t for t in tasks if t in isolated.mine]
    first = isolated.exchange(mine, LEAST_REPETITIONS)
    once = _gathered(job, np.array([int(np.median(first[:, 1] - first[:, 0])) if mine else 0]))
    wanted = job.agree(lambda: str(LEAST_NANOSECONDS // max(1, *(int(n[0]) for n in once))).encode())
    repetitions = min(MOST_TRANSFERS, max(LEAST_REPETITIONS, int(wanted)))
    spans = _gathered(job, isolated.exchange(mine, repetitions) if mine else _stand_by(isolated, repetitions))
    if not job.leads:
        return []
    taking = np.stack([s.reshape(-1, 2) for s in spans if len(s)])
    return (np.maximum(1, taking[:, :, 1].max(axis=0) - taking[:, :, 0].max(axis=0)) / 1e9).tolist()


def _stand_by(isolated: Isolated, repetitions: int) -> np.ndarray:
    """Comes to the meetings of a transfer that this rank has no part in."""
    isolated.exchange([], repetitions)
    return np.zeros(0, np.int64)


def _gathered(job: Job, numbers: np.ndarray) -> list[np.ndarray]:
    """Every rank's int64 numbers, flat, on rank 0."""
    parts = job.comm.gather_bytes(np.ascontiguousarray(numbers, np.int64).tobytes())
    return [np.frombuffer(part, np.int64) for part in parts or []]


def _disjoint(tasks: TaskGraph, which: np.ndarray) -> list[int]:
    """As many transfers of a key as can run at once, each processor in one of them."""
    taken: set[int] = set()
    chosen = []
    for task in which.tolist():
        procs = set(tasks.tasks[task].procs)
        if not procs & taken:
            taken |= procs
            chosen.append(task)
    return chosen


@contextlib.contextmanager
def _progress(job: Job, name: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on rank 0's terminal, where there is one."""
    if not job.leads or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"measuring {name}", total=total)
        yield lambda: bar.update(task, advance=1)
