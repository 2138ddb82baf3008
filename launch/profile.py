"""`castile profile`: what each kind of task of a model takes here, with all ranks at work, for the profile database.

It does not know how prices are made of measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from castile.launch.here import absent_gpus
from castile.launch.jobs import checks, jobs, offline, profile_store
from castile.launch.jobs.jobs import Job
from castile.launch.measuring import coverage, kernel_estimates, links, profile_report, task_timing, tuning
from castile.launch.measuring.isolation import Bench, Isolated
from castile.launch.measuring.measure import sample_feed
from castile.launch.measuring.profile_report import ProfileScope, Row
from castile.launch.measuring.task_kinds import is_among, names_of, of_nodes, owners
from castile.launch.pictures import roofline
from castile.launch.processes import interrupts
from castile.launch.processes.ranks import UserError
from castile.launch.reports import progress
from castile.launch.typed import files, options
from castile.launch.typed.files import Outputs
from castile.launch.typed.optimizers import patterns
from castile.planner import strategy as strategies
from castile.planner.costs.snapshot import Measured, snapshot_of, with_rows
from castile.planner.evaluation.sizes import SIZES
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines
from castile.runtime.machine import Machine
from castile.runtime.memory import written
from castile.runtime.task import CostKey, TaskGraph

# Parameters move while updates are repeated; at this share of the learning rate they stay near where they began.
RATE_SHARE = 1e-4


@dataclass(frozen=True)
class Profile:
    """Measure what each kind of task of a model takes on these ranks, and keep it in the profile database."""

    model: options.Model
    """Its name and settings (convnet, mlp, gpt:layers=4,width=128), a Python file with a function build(), or an
    ONNX file."""
    machine: options.Machine = "local"
    """What to measure: this host, with a processor for each rank; or a TOML file that describes it. For GPUs that are
    not here (h200, dgx-h100), times are estimated from kernels compiled for them."""
    plan: options.File = ""
    """Measure the tasks of the plan in this file; without one, those of the known plans (data parallel and others)."""
    all: bool = False
    """Measure every kind of task that a search may ask for: those of every split of every node."""
    op: options.Patterns = ""
    """Only tasks of the nodes with these names, with wildcards, several separated by commas (conv*,fc1), and no
    transfers."""
    links: bool = False
    """Also measure every form of transfer, over growing groups of ranks and from few bytes to many."""
    batch: options.Count = None
    """Samples a step; the model's own by default."""
    dtype: options.Dtype = "float32"
    """The dtype of the computation: float32, float64, bfloat16 or float16."""
    profile: options.File = ""
    """The profile database to add to; by default ~/.local/share/castile/profile.db."""
    again: bool = False
    """Measure again what the database already holds for this host, instead of skipping it."""
    picture: options.File = ""
    """Draw what was measured under the roofline of a processor, as SVG."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Profile


@dataclass(frozen=True)
class Work:
    """Tasks of which each kind is to be measured.

    is_step   whether they are a plan's whole step
    only      of their kinds these alone, where some are asked for
    tasks     makes the task graph
    bench     makes the tasks ready to be run; raises ValueError where they do not fit into memory
    """

    name: str
    is_step: bool
    only: frozenset[CostKey] | None
    tasks: Callable[[], TaskGraph]
    bench: Callable[[], Bench]

    def kinds(self, tasks: TaskGraph) -> dict[CostKey, int]:
        """Those that are to be measured of the kinds that its tasks have, each with its number there."""
        every = {tasks.cost_keys[k]: k for k in np.unique(tasks.cost).tolist()}
        return {key: k for key, k in every.items() if is_among(key, self.only)}


def run(command: Profile) -> int:
    """Measure, keep, tell. Raises ValueError or UserError in one sentence for a user's mistake."""
    begun = time.perf_counter()
    checks.counts(batch=command.batch)
    checks.dtype(command.dtype)
    checks.writable(of=command, picture=command.picture)
    if command.all and command.plan:
        raise UserError("--all measures more than --plan: give one of them")
    path = command.profile or profile_store.default_profile()
    if absent_gpus.is_known(machine := machines.parse(command.machine)):
        return _foretell(command, machine, path, begun)
    job = jobs.start(command.model, command.machine, command.batch, path, dtype=command.dtype, plan=command.plan)
    given = {command.plan: job.plan_of(command.plan)} if command.plan else {}
    job.measure()
    works = _works(job, command, given)
    known = set() if command.again else {row.key for row in job.snapshot.rows}
    with interrupts.ending_with(_kept(command, path, "measured")):
        num_tuned = tuning.tune(job, ((work.tasks(), work.only) for work in works), command.again)
        rows = _measure_all(job, works, known)
    if job.leads:
        of = ProfileScope(job.model.text, job.machine, job.graph, job.comm.size, command.op)
        _tell(command, profile_report.facts(of, rows, path, time.perf_counter() - begun, num_tuned))
    return 0


def _foretell(command: Profile, machine: Machine, path: str, begun: float) -> int:
    """Tell what each kind of task would take on GPUs that are not here; rank 0 alone."""
    if offline.is_silent(machine):
        return 0
    if command.links:
        raise UserError(f"--links: what transfers take is measured, and {machine.name} is not here: leave it out")
    given = strategies.read(command.plan) if command.plan else None
    kind = absent_gpus.kind_of(machine)
    desk = offline.desk(command.model, machine, command.batch, "", (command.dtype,), given)
    if given is None:
        # As `castile plan` does.
        desk, _ = desk.rewritten()
    else:
        offline.check_plan(given, command.plan, desk.model.text, desk)
    lowering = desk.evaluator.lowering
    plans = {command.plan: given} if given is not None else seeds(lowering)
    plans |= coverage.plans(lowering) if command.all else {}
    holds_for, database = absent_gpus.environment(kind, profile_store.kernels_hash()), profile_store.opened(path)
    known = {} if command.again else {row.key: row for row in database.snapshot(holds_for).rows}
    with interrupts.ending_with(_kept(command, path, "told")), progress.bar(True, "compiling") as advance:
        found = kernel_estimates.kinds(lowering, plans, _only(lowering, command, plans))
        rows = kernel_estimates.estimate(
            found, kind, known, partial(advance, "kernels"), lambda row: database.add(snapshot_of(holds_for, [row]))
        )
    of = ProfileScope(desk.model.text, machine, lowering.graph, 0, command.op)
    facts = profile_report.facts(of, rows, path, time.perf_counter() - begun)
    _tell(command, facts | {"num_untold_keys": len(found.calls) - len(rows)})
    return 0


def _kept(command: Profile, path: str, done: str) -> str:
    """What there is where it is broken off."""
    how = "without --again the same command" if command.again else "the same command"
    return f"ended; what was {done} until now is kept in {path}, and {how} goes on from there"


def _tell(command: Profile, facts: dict[str, Any]) -> None:
    outputs = Outputs()
    outputs.write("picture", command.picture, lambda path: files.write(path, roofline.picture(facts).encode()))
    facts["files"] |= outputs.paths
    profile_report.tell(facts, command.json)
    outputs.end()


def _only(lowering: Lowering, command: Profile, plans: Mapping[str, Strategy]) -> frozenset[CostKey] | None:
    """The kinds of tasks that --op asks for, None for all. Raises UserError where no node has such a name, and where
    those that have compute nothing.
    """
    if not command.op:
        return None
    checks.some_match("op", command.op, names_of(lowering), of="node")
    found = of_nodes(lowering, plans.values(), patterns(command.op))
    if not found:
        raise UserError(f"--op {command.op}: these nodes compute nothing of their own in {', '.join(plans)}")
    return found


def _tasks(job: Job, name: str, plan: Strategy) -> TaskGraph:
    """The plan's tasks. Raises UserError in one sentence, with the plan's name, where it is none for this model."""
    try:
        return job.lowering.lower(plan)
    except ValueError as error:
        raise UserError(f"plan {name}: {error}") from None


def _known(job: Job) -> dict[str, Strategy]:
    """The well-known plans, without buckets and with those of each size that a search tries: sums of many parameters,
    and updates together, are tasks of their own kinds."""
    plain = seeds(job.lowering)
    sized = {
        f"{name} in buckets of {written(size)}": msgspec.structs.replace(plan, bucket_bytes=size)
        for size in SIZES
        for name, plan in plain.items()
    }
    return plain | sized


def _works(job: Job, command: Profile, given: dict[str, Strategy]) -> list[Work]:
    """What is measured, in this order: the step of each plan, then each transfer if the user asked for links."""
    plans = given or _known(job)
    if command.all:
        plans |= coverage.plans(job.lowering)
    feed, rate = sample_feed(job), job.model.recipe.lr * RATE_SHARE
    only = _only(job.lowering, command, plans)
    found = [
        Work(name, True, only, partial(_tasks, job, name, plan), partial(Isolated, job, name, plan, feed, rate))
        for name, plan in plans.items()
    ]
    if command.links:
        each = links.exchanges(job.machine, job.graph.dtype)
        found += [
            Work("links", False, None, partial(links.graph_of, job.machine, one), partial(links.bench, job, one))
            for one in each
        ]
    return found


def _measure_all(job: Job, works: Sequence[Work], known: set[CostKey]) -> list[Row]:
    """Measure the kinds of tasks that are not known yet, and keep each as soon as it is measured.

    Returns a row for each kind, told as part of the first work that has it. Raises UserError where no work fits.
    """
    rows: dict[CostKey, Row] = {}
    refused: list[str] = []
    wanted = [set(work.kinds(work.tasks())) for work in works]
    before = len(known)
    with progress.bar(job.leads, "measuring") as advance:
        for number, work in enumerate(works):

            def tell(name: str = work.name, later: Sequence[set[CostKey]] = wanted[number:]) -> None:
                done = len(known) - before
                advance(name, done, done + len(set().union(*later) - known))

            try:
                tasks, beside = _measure(job, work, wanted[number] - known, known, tell)
            except ValueError as error:
                # Of the well-known plans some need too much memory where others do not.
                refused.append(f"plan {work.name}: {error}" if work.name not in str(error) else str(error))
                continue
            _add_rows(job, work, tasks, beside, rows)
    if not rows:
        raise UserError(refused[0])
    return list(rows.values())


def _measure(
    job: Job, work: Work, todo: set[CostKey], known: set[CostKey], tell: Callable[[], None]
) -> tuple[TaskGraph, dict[CostKey, str]]:
    """Measure these kinds of a work's tasks; the tasks, and what ranks without a kind did meanwhile."""
    if not todo:
        return work.tasks(), {}
    # Its memory is given back before the next is made ready.
    bench, beside = work.bench(), dict[CostKey, str]()
    for key, k in work.kinds(bench.tasks).items():
        if key in todo:
            tell()
            measured, beside[key] = task_timing.measure(job, bench, k)
            _keep(job, measured)
            known.add(key)
    return bench.tasks, beside


def _add_rows(job: Job, work: Work, tasks: TaskGraph, beside: dict[CostKey, str], rows: dict[CostKey, Row]) -> None:
    """Make a row for each kind of task that has none yet.

    beside   the kinds that were measured now, each with what ranks without it did meanwhile
    """
    held = {row.key: row for row in job.snapshot.rows}
    counts = np.bincount(tasks.cost, minlength=len(tasks.cost_keys)).tolist()
    numbers = work.kinds(tasks)
    spent = {key: held[key].seconds * key.members * counts[k] for key, k in numbers.items()}
    total = sum(spent.values())
    nodes = owners(tasks, numbers.keys() - rows.keys())
    for key, k in numbers.items():
        if key not in rows:
            kernels = tuning.kernels_of(job, tasks, int(np.argmax(tasks.cost == k)))
            share, count = (spent[key] / total, counts[k]) if work.is_step else (0.0, 0)
            rows[key] = Row(held[key], work.name, count, share, key in beside, beside.get(key, ""), kernels, nodes[key])


def _keep(job: Job, row: Measured) -> None:
    """Put a measurement into the job's snapshot, in place of an older one, and at once into the database, since the run
    may be broken off at any time."""
    others = [r for r in job.snapshot.rows if r.key != row.key]
    job.snapshot = with_rows(job.snapshot, [*others, row])
    if job.database is not None and job.leads:
        job.database.add(with_rows(job.snapshot, [row]))
