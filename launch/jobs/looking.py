"""Looking for a plan as `castile plan` was asked to: searches until a plan fits, then for what may be better.

It does not know how a search moves, nor what is told of what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace

from castile.launch.jobs.first import compiled_beside
from castile.launch.jobs.hunting import Hunt, Looked, remaining
from castile.launch.jobs.request import Request
from castile.planner.evaluation.budget import Budget, clock
from castile.planner.search import DATA_PARALLEL, Progress
from castile.planner.searching.accumulation import Batching
from castile.planner.searching.fronts import Point, front_of, search_front
from castile.planner.searching.results import NoPlanFits, SearchResult, matching_seed
from castile.planner.searching.subsets import SUBSET_SHARE, could_gain, faster_subsets
from castile.runtime.garbage import uncollected

# Where nothing fits when a time is over, a plan that does is looked for as long again, and so many seconds at least.
LATE_SECONDS = 10.0

# Of a time so much is for the plan from which a front begins.
WITHOUT_FRONT = 0.5

# Of what a front has of it so much for where it ends.
LOOKED_SMALL = 0.25


@dataclass(frozen=True)
class Looking(Request):
    """A way to what was asked for."""

    def look(self, limits: Budget, progress: Progress | None) -> tuple[Batching, SearchResult, list[Point]]:
        """What is found on all processors that may be used, or, where these are of several speeds, the better plan that
        is found on the faster of them alone: known plans that cut layers, and pipelines, are seldom good on both.

        Of a time a twentieth more goes into each of these. Where a front is asked for, half of a time is kept for
        that. Raises NoPlanFits where none is found anywhere, or not soon after the time is over.
        """
        began, refused, best, whole = clock(), None, None, limits
        if limits.seconds is not None:
            limits = limits.begun(1 + max(1.0, LATE_SECONDS / limits.seconds))
        if limits.seconds is not None and self.command.front:
            limits = replace(limits, seconds=WITHOUT_FRONT * limits.seconds)
        try:
            # What is worked out of plans of many parts stays while others are looked at.
            uncollecting = uncollected() if self.is_dear else nullcontext()
            compiling = nullcontext() if self.is_alone else compiled_beside()
            with compiling, self.prefetcher.running(self.compute_forecasts), uncollecting:
                best = Hunt(self, limits, progress).look()
        except NoPlanFits as error:
            refused = error
        num_proposals = best[1].num_proposals if best else refused.num_proposals if refused else 0
        for procs in self._faster(best):
            if limits.is_over():
                break
            part = limits if limits.seconds is None else replace(limits, seconds=SUBSET_SHARE * limits.seconds)
            try:
                other = Hunt(replace(self, only=procs), part, progress).look()
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
        chosen, found, points = *best, list[Point]()
        found = replace(found, num_proposals=num_proposals)
        if self.command.front:
            chosen, found, points = self._front(chosen, found, remaining(whole, clock() - began), progress)
        found = replace(found, elapsed_seconds=clock() - began)
        return replace(chosen, pins=self.pins(chosen.evaluator.lowering)), found, points

    def _front(
        self, chosen: Batching, found: SearchResult, limits: Budget, progress: Progress | None
    ) -> tuple[Batching, SearchResult, list[Point]]:
        """A front where known plans were looked at, and where they need least memory, with what was found in it unless
        that is beaten; and its best plan.

        None of its searches begins where that search ended: limits of memory would be farther apart, and it seldom fits
        them.
        """
        given, (base, least) = self.given(self.start, progress), self._ends(found, limits)
        more = [self.dropped(way) for way in self.said_by_none(gathering=True)]
        places, points = [base] if least is None else [base, least], list[tuple[Batching, Point]]()
        part = limits.share(len(places))
        for place in places:
            with suppress(NoPlanFits):  # none may fit there
                other, seen = search_front(
                    self.command.search, place.evaluator, part, pins=place.pins, dropping=more, **given
                )
                found = replace(found, num_proposals=found.num_proposals + other.num_proposals)
                points += [(place, point) for point in seen]
        front = front_of([point for _, point in points], found)
        best = min(front, key=lambda point: point.evaluated.rank)
        if best.evaluated.rank >= found.evaluated.rank or found.is_insisted:
            return chosen, found, front
        place = next(place for place, point in points if point is best)
        worth = replace(best.evaluated, strategy=best.strategy)
        equals = matching_seed(place.evaluator.lowering, found.seeds, worth)
        better = replace(found, strategy=best.strategy, evaluated=worth, arena_bytes=best.arena_bytes, equals=equals)
        return place, better, front

    def _ends(self, found: SearchResult, limits: Budget) -> tuple[Batching, Batching | None]:
        """Where known plans were looked at, and where they need least memory, if that is elsewhere."""
        plan = found.seeds[DATA_PARALLEL].strategy
        base = Batching(plan.microbatches, *self.at(plan.recompute, plan.microbatches))
        least = self.smallest(limits.begun(LOOKED_SMALL).is_over)
        if least is None:
            return base, None
        again = least.evaluator.lowering.recompute
        is_there = (least.num_microbatches, again) == (base.num_microbatches, base.evaluator.lowering.recompute)
        return base, None if is_there else Batching(least.num_microbatches, *self.at(again, least.num_microbatches))

    def _faster(self, best: Looked | None) -> Iterator[tuple[int, ...]]:
        """On which processors alone to look too: none where a known plan or little memory is asked for."""
        if self.names or self.command.objective == "memory":
            return
        evaluator, pinned = self.at(self.recompute, self.microbatches)
        every = range(evaluator.lowering.machine.num_procs) if pinned is None else pinned.procs
        for procs in faster_subsets(evaluator, every):
            if best is None or could_gain(evaluator, len(procs), best[1].evaluated.seconds):
                yield procs


def _better(one: Looked, other: Looked) -> Looked:
    """The better of two, with the known plans of the first."""
    if one[1].evaluated.rank <= other[1].evaluated.rank:
        return one
    seeds = one[1].seeds
    equals = matching_seed(other[0].evaluator.lowering, seeds, other[1].evaluated)
    return other[0], replace(other[1], seeds=seeds, equals=equals)
