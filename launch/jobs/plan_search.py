"""Plan search: what `castile plan` runs: searches on all processors and on the fastest ones alone, and a Pareto front.

It does not know how a search moves, nor how its result is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace

from castile.launch.jobs.background_compiling import compiling_in_background
from castile.launch.jobs.escalation import Escalation, remaining
from castile.launch.jobs.request import Request
from castile.planner.evaluation.budget import Budget, clock
from castile.planner.search import DATA_PARALLEL, Progress
from castile.planner.searching.accumulation import Batching
from castile.planner.searching.fronts import Point, front_of, search_front
from castile.planner.searching.results import NoPlanFits, SearchResult, matching_seed
from castile.planner.searching.screening import BatchedResult
from castile.planner.searching.subsets import SUBSET_SHARE, could_gain, faster_subsets
from castile.planner.sketch.sketched_plans import is_long
from castile.runtime.garbage import uncollected

# If no plan fits once a budget of time is spent, the search goes on for as long again, and at least for this long.
LATE_SECONDS = 10.0
# The share of a budget of time for the plan from which a front starts.
BEFORE_FRONT_SHARE = 0.5
# The share of a front's time for finding where plans need least memory.
LEAST_MEMORY_SHARE = 0.25


@dataclass(frozen=True)
class PlanSearch(Request):
    """A request, and the searches that answer it."""

    def run(self, limits: Budget, progress: Progress | None) -> tuple[Batching, SearchResult, list[Point]]:
        """The best plan found, and the points of the front, if one is asked for.

        Where processors are of several speeds the faster ones alone are searched too: known plans that cut layers, and
        pipelines, are seldom good on both. With a budget of time each of these searches takes a twentieth more. Raises
        NoPlanFits where no plan fits anywhere, or none is found soon after the time is over.
        """
        began, refused, best, whole = clock(), None, None, limits
        if limits.seconds is not None:
            limits = limits.begun(1 + max(1.0, LATE_SECONDS / limits.seconds))
        if limits.seconds is not None and self.command.front:
            limits = replace(limits, seconds=BEFORE_FRONT_SHARE * limits.seconds)
        try:
            # Caches of plans with many parts are large: the garbage collector need not go through them.
            uncollecting = uncollected() if self.is_dear else nullcontext()
            is_worth = not self.is_alone and is_long(self.desk.evaluator, limits)
            compiling = compiling_in_background() if is_worth else nullcontext()
            with compiling, self.prefetcher.running(self.compute_forecasts), uncollecting:
                best = Escalation(self, limits, progress).run()
        except NoPlanFits as error:
            refused = error
        num_proposals = best[1].num_proposals if best else refused.num_proposals if refused else 0
        for procs in self._faster_subsets(best):
            if limits.is_over():
                break
            part = limits if limits.seconds is None else replace(limits, seconds=SUBSET_SHARE * limits.seconds)
            try:
                other = Escalation(replace(self, only=procs), part, progress).run()
            except ValueError:  # no plan fits there, or a pin asks for more
                continue
            num_proposals += other[1].num_proposals
            best = other if best is None else _better(best, other)
        if best is None:
            assert refused is not None
            if limits.seconds is None or not limits.is_over():
                raise refused
            late = f"{refused}; what else may fit there was no time to look for: raise --budget"
            raise NoPlanFits(late, num_proposals)
        batching, result, points = *best, list[Point]()
        result = replace(result, num_proposals=num_proposals)
        if self.command.front:
            batching, result, points = self._front(batching, result, remaining(whole, clock() - began), progress)
        result = replace(result, elapsed_seconds=clock() - began)
        return replace(batching, pins=self.pins(batching.evaluator.lowering)), result, points

    def _front(
        self, batching: Batching, result: SearchResult, limits: Budget, progress: Progress | None
    ) -> tuple[Batching, SearchResult, list[Point]]:
        """The front, and its best plan. The plan found before is a point of it unless it is beaten.

        Its searches start where the known plans were tried first, and where plans need least memory, not where the
        plan was found: limits of memory would be farther apart there, and that plan seldom meets them.
        """
        given, starts = self.given(self.start, progress), self._front_starts(result, limits)
        more = [self.dropped(way) for way in self.said_by_none(gathering=True)]
        part, points = limits.share(len(starts)), list[tuple[Batching, Point]]()
        for start in starts:
            with suppress(NoPlanFits):  # none may fit there
                other, found = search_front(
                    self.command.search, start.evaluator, part, pins=start.pins, dropping=more, **given
                )
                result = replace(result, num_proposals=result.num_proposals + other.num_proposals)
                points += [(start, point) for point in found]
        front = front_of([point for _, point in points], result)
        best = min(front, key=lambda point: point.evaluated.rank)
        if best.evaluated.rank >= result.evaluated.rank or result.is_insisted:
            return batching, result, front
        start = next(start for start, point in points if point is best)
        evaluated = replace(best.evaluated, strategy=best.strategy)
        equals = matching_seed(start.evaluator.lowering, result.seeds, evaluated)
        better = replace(
            result, strategy=best.strategy, evaluated=evaluated, arena_bytes=best.arena_bytes, equals=equals
        )
        return start, better, front

    def _front_starts(self, result: SearchResult, limits: Budget) -> list[Batching]:
        """The batching with which known plans were tried first, and that with which plans need least memory, if it is
        another one.
        """
        plan = result.seeds[DATA_PARALLEL].strategy
        base = Batching(plan.microbatches, *self.at(plan.recompute, plan.microbatches))
        least = self.smallest(limits.begun(LEAST_MEMORY_SHARE).is_over)
        if least is None:
            return [base]
        recompute = least.evaluator.lowering.recompute
        if (least.num_microbatches, recompute) == (base.num_microbatches, base.evaluator.lowering.recompute):
            return [base]
        return [base, Batching(least.num_microbatches, *self.at(recompute, least.num_microbatches))]

    def _faster_subsets(self, best: BatchedResult | None) -> Iterator[tuple[int, ...]]:
        """The sets of faster processors to search alone: none where a known plan or little memory is asked for."""
        if self.names or self.command.objective == "memory":
            return
        evaluator, pins = self.at(self.recompute, self.microbatches)
        every = range(evaluator.lowering.machine.num_procs) if pins is None else pins.procs
        for procs in faster_subsets(evaluator, every):
            if best is None or could_gain(evaluator, len(procs), best[1].evaluated.seconds):
                yield procs


def _better(one: BatchedResult, other: BatchedResult) -> BatchedResult:
    """The better of two, with the known plans of the first."""
    if one[1].evaluated.rank <= other[1].evaluated.rank:
        return one
    seeds = one[1].seeds
    equals = matching_seed(other[0].evaluator.lowering, seeds, other[1].evaluated)
    return other[0], replace(other[1], seeds=seeds, equals=equals)
