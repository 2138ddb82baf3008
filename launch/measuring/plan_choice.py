"""Chooses a plan on the machine: known plans are measured, the search uses what was learned, the fastest measured plan
wins.

A plan that was searched for is never taken on the simulator's word alone. Where no known plan fits, a plan is searched
for as `castile plan` does. It does not know how searches work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from castile.launch.jobs.execution import Feed, Prepared
from castile.launch.jobs.jobs import Job
from castile.launch.jobs.offline import Desk
from castile.launch.jobs.plan_search import PlanSearch
from castile.launch.measuring.measure import TimedPlan, measure, timed_plan
from castile.launch.measuring.parallel_compiling import compile_in_parallel
from castile.launch.processes.ranks import UserError
from castile.planner.cost import CostModel
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluator import Evaluator, identity
from castile.planner.evaluation.sizes import SIZES
from castile.planner.evaluation.traffic import moved_bytes
from castile.planner.known.seeds import known_names, seeds
from castile.planner.lower import Lowering
from castile.planner.search import budget_of, search
from castile.planner.searching.refinement import REFINEMENT_SHARE, refine, with_best_buckets
from castile.planner.searching.results import SearchResult
from castile.planner.simulate import simulate
from castile.planner.sketch.sketched_plans import is_long, shortest_long_budget
from castile.planner.strategy import Predicted, Strategy, same_tasks
from castile.runtime.transfer import TooManyTransfers

ROUNDS, LEAST_ROUNDS, ROUND_SECONDS = 12, 3, 4.0
MOST_TURNS = 4


@dataclass(frozen=True)
class PlanOptions:
    """How a training wants its plan searched for.

    search, budget, seed   as the user typed them
    accumulate, recompute  the number of microbatches, and what is recomputed; None and "" if the user left them open
    The rest are other options of `castile plan`.
    """

    search: str
    budget: str
    seed: int
    accumulate: int | None = None
    recompute: str = ""
    objective: str = "time"
    front: bool = False
    pin: tuple[str, ...] = ()
    without: str = ""
    seeds: str = ""
    processes: int = 1


@dataclass(frozen=True)
class Candidate:
    """A plan's step times: simulated before anything was measured, simulated now, and measured."""

    name: str
    untaught_seconds: float
    simulated_seconds: float
    measured_seconds: float


@dataclass(frozen=True)
class Chosen:
    """The plan to train with, and what it was chosen from (on rank 0); `equals` names the known plan that it is, if
    any.

    asked_for       the user named this very plan as the search, so it was taken whatever was measured
    is_made_to_fit  no known plan fitted as steps were meant, so batches are cut or more is recomputed
    num_proposals   plans that all searches proposed together
    """

    plan: Strategy
    prepared: Prepared
    candidates: tuple[Candidate, ...] = ()
    equals: str = ""
    asked_for: bool = False
    is_made_to_fit: bool = False
    num_proposals: int = 0


def given(job: Job, plan: Strategy, path: str) -> Chosen:
    """The plan in the user's file. Raises UserError where it does not fit graph, machine or memory."""
    try:
        return Chosen(plan, job.prepare(plan))
    except ValueError as error:
        raise UserError(f"plan {path}: {error}") from error


def any_known(job: Job, lowering: Lowering | None = None) -> Chosen:
    """The first known plan that fits, where measuring is not worth it. Raises UserError where none does.

    lowering   of the plans, by default that of the job's training
    """
    for plan in seeds(lowering or job.lowering, None, job.cost).values():
        with contextlib.suppress(ValueError):
            return Chosen(plan, job.prepare(plan, lowering))
    raise UserError("no known plan fits here: name the file of one that does with --plan")


def choose(
    job: Job, wish: PlanOptions, feed: Feed, rate: float, progress: Callable[[str], None] = lambda text: None
) -> Chosen:
    """Measure the known plans, search with what was learned, measure the result, search again; return the fastest
    measured.

    A search is drawn to plans that the cost model underrates, and measuring these corrects it: the loop ends when the
    search returns a plan that has been measured, or after a few turns. A search named after a known plan, such as
    data_parallel, takes that plan without looking at others. Where no plan fits, steps are changed to those of a plan
    that does, and `job` has these from then on. Raises NoPlanFits on rank 0 where none is found.
    """
    name, budget, seed = wish.search, wish.budget, wish.seed
    untaught = CostModel(job.machine)
    asked_for = [name] if name in known_names(job.lowering) else None
    progress(f"measuring {name}" if asked_for else "measuring the known plans")
    if not asked_for:
        _compile_in_parallel(job, name, budget, seed, feed, rate)
    searches: list[SearchResult] = []

    def next_found(search: Callable[[], SearchResult]) -> Strategy:
        searches.append(search())
        return searches[-1].strategy

    plans = known(job, asked_for)
    trials = _fitting(job, plans, seed)
    is_made_to_fit = not trials
    if is_made_to_fit:
        progress("no known plan fits: looking for one that does")
        fitting = job.agreed_plan(lambda: next_found(lambda: _searched(job, wish)))
        job.lowering = job.lowering.remade(microbatches=fitting.microbatches, recompute=fitting.recompute)
        plans = known(job, asked_for)
        trials = _fitting(job, plans | {"found to fit": fitting}, seed)
    best = _fastest(job, trials, _measure(job, trials, feed, rate))
    for turn in range(MOST_TURNS):
        if not asked_for:
            progress(f"searching ({name}, {budget}{' proposals' * budget.isdigit()})")
        plan = job.agreed_plan(lambda: next_found(lambda: searched(job, job.lowering, name, budget, seed, asked_for)))
        if any(same_tasks(plan, t.plan) for t in trials):
            break
        progress("measuring the plan that was found")
        trials.append(timed_plan(job, f"{name} {turn + 1}", plan, seed))
        # of what disturbs the host now both have their part, and the best had chance on its side before
        both = [best, trials[-1]]
        best = _fastest(job, both, _measure(job, both, feed, rate))
    taken = best.plan
    prepared = job.prepare(taken)
    candidates = tuple(_candidate(job, t, untaught) for t in trials) if job.leads else ()
    same = (label for label, plan in plans.items() if plan.configs == taken.configs)
    equals = name if asked_for else next(same, "")
    num_proposals = sum(found.num_proposals for found in searches)
    predicted = _predicted(job, taken, prepared)
    return Chosen(predicted, prepared, candidates, equals, bool(asked_for), is_made_to_fit, num_proposals)


def _searched(job: Job, wish: PlanOptions) -> SearchResult:
    """The result of searching as `castile plan` does: where nothing fits, with more microbatches and more
    recomputation.

    For rank 0. It starts no process, which ranks may not on every network.
    """
    desk = Desk(job.model, job.machine, Evaluator(job.lowering, job.cost, job.snapshot), job.snapshot)
    plan_search = PlanSearch(wish, desk, {}, is_alone=True)
    return plan_search.run(budget_of(wish.search, job.lowering, wish.budget), None)[1]


def _compile_in_parallel(job: Job, name: str, budget: str, seed: int, feed: Feed, rate: float) -> None:
    """Try the search beside a step, if it will walk through sketches, whose loops take longest to compile."""
    evaluator = Evaluator(job.lowering, job.cost)
    if is_long(evaluator, budget_of(name, job.lowering, budget)):
        compile_in_parallel(
            job, lambda: searched(job, job.lowering, name, shortest_long_budget(evaluator), seed), feed, rate
        )


def known(job: Job, asked_for: list[str] | None = None) -> dict[str, Strategy]:
    """The known plans, with these names if given, each with its best bucket size and order."""
    evaluator = Evaluator(job.lowering, job.cost, job.snapshot)
    found = {}
    for label, plan in seeds(job.lowering, asked_for, job.cost).items():
        with contextlib.suppress(TooManyTransfers):
            found[label] = with_best_buckets(evaluator, plan)
    return found


def searched(
    job: Job, lowering: Lowering, name: str, budget: str | Budget, seed: int, asked_for: list[str] | None = None
) -> SearchResult:
    """What a search finds with all that was learned so far, among plans of this lowering.

    asked_for   the known plan that it is to take
    """
    evaluator, limits = Evaluator(lowering, job.cost, job.snapshot), budget_of(name, lowering, budget)
    is_refined = limits.begun(1 + REFINEMENT_SHARE).is_over
    found = search(name, evaluator, limits, seed, seeds=asked_for, sizes=SIZES)
    return refine(evaluator, found, is_over=is_refined)


def _measure(job: Job, trials: list[TimedPlan], feed: Feed, rate: float) -> list[float]:
    """Measure these plans in turns, and learn from their steps; returns the median seconds of each, on rank 0."""
    before = [len(t.steps) for t in trials]
    measure(job, trials, feed, rate, _rounds(trials))
    steps = [t.steps[number:] for t, number in zip(trials, before, strict=True)]
    for t, each in zip(trials, steps, strict=True):
        job.learn(t.prepared, each)
    return [float(np.median([step.seconds for step in each])) for each in steps if each]


def _fastest(job: Job, trials: list[TimedPlan], seconds: list[float]) -> TimedPlan:
    """The plan with the least seconds, as rank 0 knows them."""
    return trials[int(job.agree(lambda: str(int(np.argmin(seconds))).encode()))]


def _predicted(job: Job, plan: Strategy, prepared: Prepared) -> Strategy:
    """The plan with its current prediction, and the measurements that this is based on."""
    peak = int(prepared.packing.peak_bytes.max())
    predicted = Predicted(prepared.simulated.seconds, peak, moved_bytes(prepared.tasks))
    return msgspec.structs.replace(plan, predicted=predicted, cost_snapshot=identity(job.snapshot))


def _rounds(trials: Sequence[TimedPlan]) -> int:
    """As many rounds as a few seconds allow, so that large models do not wait for hours."""
    step = sum(t.prepared.simulated.seconds for t in trials)
    return max(LEAST_ROUNDS, min(ROUNDS, round(ROUND_SECONDS / step))) if trials else 0


def _fitting(job: Job, plans: dict[str, Strategy], seed: int) -> list[TimedPlan]:
    """The plans that fit into memory; others cannot be measured."""
    trials = []
    for label, plan in plans.items():
        with contextlib.suppress(ValueError):
            trials.append(timed_plan(job, label, plan, seed))
    return trials


def _candidate(job: Job, t: TimedPlan, untaught: CostModel) -> Candidate:
    return Candidate(t.name, simulated(t.prepared, untaught), simulated(t.prepared, job.cost), t.seconds)


def simulated(prepared: Prepared, cost: CostModel) -> float:
    """The seconds of a step under another cost model."""
    return simulate(*cost.by_kind(prepared.tasks), cost.machine.engines).seconds
