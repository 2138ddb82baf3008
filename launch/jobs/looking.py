"""Looking for a plan as `castile plan` was asked to: searches until a plan fits, then for what may be better.

It does not know how a search moves, nor what is told of what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import inf
from typing import Any

import msgspec

from castile.launch.jobs.wanted import Dropped, Wanted
from castile.planner.choices.pins import Pins
from castile.planner.evaluation.budget import Budget, clock
from castile.planner.evaluation.sizes import SIZES
from castile.planner.known.pipelines import divisors
from castile.planner.known.seeds import is_in_pieces, is_pipeline, microbatch_counts
from castile.planner.search import DATA_PARALLEL, Found, NoPlanFits, Progress, same, search
from castile.planner.searching import accumulating
from castile.planner.searching.accumulating import NEAR, Chosen
from castile.planner.searching.fewer import FURTHER, could_gain, faster, on_fewer
from castile.planner.searching.filling import Gathering, Look, Others, cut_for, expect, filled, instead, sooner
from castile.planner.searching.foresight import Outlook, may_need
from castile.planner.searching.fronts import Point, front_of, search_front
from castile.planner.searching.settling import QUICK_PARTS, SETTLING, settled, settled_known
from castile.planner.sketch.sieve import num_parts
from castile.planner.step.recompute import NOTHING, PARAMETERS, SMALL_STEPS
from castile.planner.strategy import PATH, READY, Strategy
from castile.runtime.garbage import uncollected
from castile.runtime.memory import written

# What a search gets of a budget that others have spent: it looks at the known plans all the same.
LEAST_SECONDS = 1e-3
# So much of what is left of a time goes into a search where no known plan is taken to fit: the rest is for the next.
DOUBTED = 0.5

# Where nothing fits when a time is over, a plan that does is looked for as long again, and so many seconds at least.
LATE_SECONDS = 10.0

# Of a time so much is for the plan from which a front begins.
WITHOUT_FRONT = 0.5

# In how many microbatches a plan was found, and the plan.
Looked = tuple[Chosen, Found]
IsOver = Callable[[], bool]
Enough = Callable[[Dropped, Iterable[int]], Chosen | None]


@dataclass(frozen=True)
class Looking(Wanted):
    """A way to what was asked for."""

    def look(self, limits: Budget, progress: Progress | None) -> tuple[Chosen, Found, list[Point]]:
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
            with self.foresight.begun(self.drawn), uncollected() if self.is_dear else nullcontext():
                best = self._looked(limits, progress)
        except NoPlanFits as error:
            refused = error
        num_proposals = best[1].num_proposals if best else refused.num_proposals if refused else 0
        for procs in self._faster(best):
            if limits.is_over():
                break
            part = limits if limits.seconds is None else replace(limits, seconds=FURTHER * limits.seconds)
            try:
                other = replace(self, only=procs)._looked(part, progress)
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
            chosen, found, points = self._front(chosen, found, _left(whole, clock() - began), progress)
        found = replace(found, elapsed_seconds=clock() - began)
        return replace(chosen, pins=self.pins(chosen.evaluator.lowering)), found, points

    def _front(
        self, chosen: Chosen, found: Found, limits: Budget, progress: Progress | None
    ) -> tuple[Chosen, Found, list[Point]]:
        """A front where known plans were looked at, with what was found in it unless that is beaten; and its best plan.

        None of its searches begins where that search ended: limits of memory would be farther apart, and it seldom fits
        them.
        """
        base = found.seeds[DATA_PARALLEL].strategy
        place = Chosen(base.microbatches, *self.at(base.recompute, base.microbatches))
        more = [self.dropped(way) for way in self._said_by_none(gathering=True)]
        points, given = list[Point](), self._given(self.start, progress)
        with suppress(NoPlanFits):  # none may fit there
            other, points = search_front(
                self.command.search, place.evaluator, limits, pins=place.pins, dropping=more, **given
            )
            found = replace(found, num_proposals=found.num_proposals + other.num_proposals)
        points = front_of(points, found)
        best = min(points, key=lambda point: point.evaluated.rank)
        if best.evaluated.rank >= found.evaluated.rank or found.is_insisted:
            return chosen, found, points
        worth = replace(best.evaluated, strategy=best.strategy)
        equals = same(place.evaluator.lowering, found.seeds, worth)
        better = replace(found, strategy=best.strategy, evaluated=worth, arena_bytes=best.arena_bytes, equals=equals)
        return place, better, points

    def _faster(self, best: Looked | None) -> Iterator[tuple[int, ...]]:
        """On which processors alone to look too: none where a known plan or little memory is asked for."""
        if self.names or self.command.objective == "memory":
            return
        evaluator, pinned = self.at(self.recompute, self.microbatches)
        every = range(evaluator.lowering.machine.num_procs) if pinned is None else pinned.procs
        for procs in faster(evaluator, every):
            if best is None or could_gain(evaluator, len(procs), best[1].evaluated.seconds):
                yield procs

    def _looked(self, limits: Budget, progress: Progress | None) -> Looked:
        """Search, and where no plan fits in more and more microbatches, then with more and more computed again, as far
        as neither was said.

        A time to look is that of all searches together, and what was found tells how long they took together and what
        they proposed. Where nothing is left of it, a search still looks at the known plans. Raises NoPlanFits then,
        with a number that would do.
        """
        began, refused, num_proposals = clock(), list[NoPlanFits](), 0
        timed, is_settled = limits.begun(), limits.begun(1 + SETTLING).is_over
        enough = partial(self._enough, limits, timed.is_over)
        again = partial(self._again, limits, is_settled, progress)
        late = partial(self._late, limits, timed, again)
        piped, computed = None, filter(None, map(late, self._computed_again()))
        gathering, may_fill = Gathering(self._gatherings(timed)), self._may_fill and limits.seconds is None
        computing, is_gathered = Gathering(self._computings(timed), are_few=True), False
        for chosen in self._places(enough):
            is_hopeless = self._may_fill and not chosen.fits and self.is_dear and not self.foreseen(chosen).fitting
            try:
                if may_fill and self._gives_up(chosen):
                    gathering.expect()
                piped = sooner(chosen, self._others(chosen, timed, timed), again) if self._may_fill else None
                if piped is None and may_fill and self._gives_up(chosen):
                    piped = gathering.instead(chosen, again)
                    is_gathered = piped is not None
                if piped is None and is_hopeless:
                    piped = late(chosen) or next(computed, None)
                if piped is None:
                    chosen, left = self._in_time(chosen, limits, timed, began)
                    if may_fill and not chosen.fits:
                        self._expect(limits, chosen)
                    found = self._search(chosen, left, is_settled, progress, self.start)
            except NoPlanFits as error:
                num_proposals += error.num_proposals
                refused.append(error)
                if not is_hopeless:
                    piped = late(chosen)
                if piped is None:
                    continue
            chosen, found = piped or (chosen, found)
            break
        else:
            piped = next(computed, None) or gathering.sooner(inf, again)
            if piped is None:
                raise self._advised(refused[0], enough)
            chosen, found = piped
        if may_fill:
            first = chosen
            if not is_gathered and (self._gives_up(first) or found.lacks_room):
                chosen, found = gathering.beside(first, found, again)
            if self._gives_up(first) or found.lacks_room:
                chosen, found = computing.beside(chosen, found, again)
            if not is_gathered:
                last, found = filled(first, found, self._others(first, limits, limits), again)
                chosen = chosen if last is first else last
        num_proposals += found.num_proposals
        return chosen, replace(found, elapsed_seconds=clock() - began, num_proposals=num_proposals)

    def _gives_up(self, chosen: Chosen) -> bool:
        """Whether plans are in more microbatches than was asked for, or compute more again."""
        return (chosen.number, chosen.evaluator.lowering.recompute) != (self.microbatches, self.recompute)

    def _late(self, limits: Budget, timed: Budget, again: Look, chosen: Chosen) -> tuple[Chosen, Found] | None:
        """The soonest pipeline that fits, where a search looks at none, as late is better than nothing; or None."""
        return instead(chosen, self._others(chosen, limits, timed), again) if self._may_fill else None

    def _computed_again(self) -> Iterator[Chosen]:
        """From where on pipelines that compute more again are looked at, once nothing else fits."""
        for number, way in product(self._numbers[1:2], self._ways_left if self._may_fill else ()):
            with suppress(ValueError):  # a model that cannot be cut has no pipelines
                yield Chosen(number, *self.at(self.dropped(way), number))

    def _again(
        self, limits: Budget, is_settled: IsOver, progress: Progress | None, chosen: Chosen, plan: Strategy | None
    ) -> Found:
        """The same search in another number of microbatches, or, with a known plan, that one alone."""
        if plan is not None:
            return settled_known(chosen.evaluator, plan, chosen.pins, is_settled, (READY, PATH))
        return self._search(chosen, limits, is_settled, progress)

    @property
    def _may_fill(self) -> bool:
        """Whether pipelines in other numbers of microbatches may be looked at."""
        return self._is_free and self.command.objective == "time" and not self.names

    def _in_time(self, chosen: Chosen, limits: Budget, timed: Budget, began: float) -> tuple[Chosen, Budget]:
        """In how many microbatches what is left of a budget is spent, and how much of it: where more are looked at if
        no plan fits, that of a time is shared with these as long as no known plan is known, or taken, to fit.
        """
        share = 1.0
        if limits.seconds is not None and self._may_fill:
            chosen = cut_for(chosen, self._others(chosen, timed, timed))
            share = 1.0 if chosen.fits or self.foreseen(chosen).fitting else DOUBTED
        return chosen, _left(limits, clock() - began, share)

    def _others(self, chosen: Chosen, for_more: Budget, for_better: Budget) -> Others:
        """The other numbers of microbatches in which pipelines are looked at, from the least that fills one on: until
        when for more numbers, and until when for better plans once there is one.
        """
        counts = microbatch_counts(chosen.evaluator.lowering)[1:] if self._could_fit else ()
        outlook = self.outlook(chosen.evaluator.lowering.recompute, is_pipeline)
        return Others([n for n in counts if n != chosen.number], outlook, for_better.is_over, for_more.is_over)

    def _gatherings(self, timed: Budget) -> list[Others]:
        """Where plans are looked at whose parameters are gathered for each pass, and more and more computed again."""
        ways = (NOTHING, *self.recomputation.rising(SMALL_STEPS)) if self._may_fill and self._ways_left else ()
        each = (self.outlook(self.dropped(f"{way},{PARAMETERS}"), is_in_pieces) for way in ways)
        return self._in_all_numbers(timed, each)

    def _computings(self, timed: Budget) -> list[Others]:
        """The same of plans whose parameters stay: none but where a search takes a second or two."""
        is_quick = num_parts(self.desk.evaluator) <= QUICK_PARTS
        ways = (NOTHING, *self._ways_left) if self._may_fill and is_quick else ()
        return self._in_all_numbers(timed, (self.outlook(self.dropped(way)) for way in ways))

    def _in_all_numbers(self, timed: Budget, each: Iterable[Outlook]) -> list[Others]:
        """Each of them in every number of microbatches, as long as there is time."""
        return [Others(microbatch_counts(self.lowering), one, timed.is_over, timed.is_over) for one in each]

    @property
    def _is_free(self) -> bool:
        """Whether the batch may be cut into any number of microbatches."""
        return not (self.command.accumulate or self.start)

    @property
    def _ways(self) -> tuple[str, ...]:
        """Ways to compute more again than was said, beside `_gatherings`: none where anything was."""
        return self._said_by_none(gathering=not self._may_fill)

    def _said_by_none(self, gathering: bool) -> tuple[str, ...]:
        """All ways to compute more again, unless one was said; with those that gather parameters too, or without."""
        is_said = self.command.recompute or self.start or self.mode == "forward"
        return () if is_said else self.recomputation.ways(gathering=gathering)

    @cached_property
    def _ways_left(self) -> tuple[str, ...]:
        """Those that may help where no plan fits: none where there is not even room for what is carried."""
        return self._ways if self._could_fit else ()

    @cached_property
    def _could_fit(self) -> bool:
        return accumulating.could_fit(self.evaluator(self.microbatches, self.recompute))

    @property
    def _numbers(self) -> tuple[int, ...]:
        """Into how many microbatches the batch may be cut: into none where that does not help either."""
        is_cut = self.mode == "train" and self._could_fit
        return divisors(self.desk.evaluator.lowering.graph.batch) if is_cut else ()

    def _enough(self, limits: Budget, is_late: IsOver, recompute: Dropped, numbers: Iterable[int]) -> Chosen | None:
        """In which of these numbers of microbatches to search."""
        tell = partial(self._expect, limits)
        # Who wants an end waits for no further number.
        return accumulating.enough(self.outlook(recompute), numbers, is_late, limits.is_over, tell)

    def _expect(self, limits: Budget, chosen: Chosen) -> None:
        """That pipelines are likely to be looked at, while other known plans are simulated."""
        if self._may_fill and self.is_dear:
            expect(chosen.number, self._others(chosen, limits, limits))

    def _places(self, enough: Enough) -> Iterator[Chosen]:
        """In what to search, one after the other, until a plan fits."""
        first = Chosen(self.microbatches, *self.at(self.recompute, self.microbatches))
        numbers, chosen = self._numbers if self._is_free else (first.number,), None
        # A search takes long to say that it found none.
        if self._is_free and self.is_dear and self.foreseen(first).is_far:
            shares = {first.number: self.foreseen(first).share}
            left = [n for n in numbers if n > first.number and may_need(shares, n, NEAR)]
            chosen = enough(self.recompute, left)
        for way in (NOTHING, *self._ways_left):
            chosen = chosen or first if way == NOTHING else enough(self.dropped(way), numbers)
            while chosen is not None:
                yield chosen
                more = [n for n in numbers if n > chosen.number]
                chosen = enough(chosen.evaluator.lowering.recompute, more)

    def _advised(self, refused: NoPlanFits, enough: Enough) -> NoPlanFits:
        """That no plan fits: why none can, or where the number of microbatches was said one that would do, or that
        others were looked at too.
        """
        if not self._could_fit:
            return NoPlanFits(f"{refused}; none can: {self._too_much()}", refused.num_proposals)
        if self._is_free and len(self._numbers) > 1:
            also = "nor was one found in microbatches, or with results computed again"
            return NoPlanFits(f"{refused}; {also}", refused.num_proposals)
        numbers = [] if self._is_free else [n for n in self._numbers if n > self.microbatches]
        more = enough(self.recompute, numbers)
        if more is None:
            return refused
        # A plan that is given says into how many pieces it cuts the batch.
        free, near = "leave --from out and " if self.start else "", "fits" if more.fits else "comes near fitting"
        return NoPlanFits(f"{refused}; or {free}give --accumulate {more.number}, with which a known plan {near}")

    def _too_much(self) -> str:
        """That what any plan keeps has no room, in words."""
        machine = self.desk.machine
        carried, given = accumulating.kept_bytes(self.evaluator(self.microbatches, self.recompute))
        whose = "parameters" if self.mode == "forward" else "parameters and what updates them"
        return (
            f"{whose} take {written(carried)} and the samples of a step {written(given)}, each kept but once, of "
            f"{written(int(machine.capacity.sum()))} in all"
        )

    def _given(self, start: dict[str, Strategy], progress: Progress | None) -> dict[str, Any]:
        """What searches are given beside their budget and pins."""
        # A search begins without buckets.
        plain = {name: msgspec.structs.replace(plan, bucket_bytes=0) for name, plan in start.items()}
        return {
            "seed": self.command.seed, "progress": progress, "start": plain, "num_processes": self.command.processes,
            "seeds": self.names, "sizes": (*SIZES, *(plan.bucket_bytes for plan in start.values())),
        }  # fmt: skip

    def _search(
        self, chosen: Chosen, limits: Budget, is_settled: IsOver, progress: Progress | None,
        start: dict[str, Strategy] | None = None,
    ) -> Found:  # fmt: skip
        evaluator, pinned, given = chosen.evaluator, chosen.pins, self._given(start or {}, progress)

        def ended(found: Found, within: Pins | None) -> Found:
            return settled(evaluator, found, given["sizes"], is_settled, pins=within)

        def look(within: Pins | None, share: float = 1.0) -> Found:
            part = limits if limits.seconds is None else replace(limits, seconds=share * limits.seconds)
            found = search(self.command.search, evaluator, part, pins=within, **given)
            # What is best on some processors is known once it is settled; of a time that is done with the best alone.
            return ended(found, within) if limits.seconds is None else found

        found = on_fewer(evaluator, look(pinned), partial(look, share=FURTHER), pinned, is_settled)
        return found if limits.seconds is None else ended(found, pinned)


def _better(one: Looked, other: Looked) -> Looked:
    """The better of two, with the known plans of the first."""
    if one[1].evaluated.rank <= other[1].evaluated.rank:
        return one
    seeds = one[1].seeds
    equals = same(other[0].evaluator.lowering, seeds, other[1].evaluated)
    return other[0], replace(other[1], seeds=seeds, equals=equals)


def _left(limits: Budget, passed: float, share: float = 1.0) -> Budget:
    """So much of what is left of a budget after so many seconds: the least there is where nothing is."""
    if limits.seconds is None:
        return limits
    return replace(limits, seconds=max(LEAST_SECONDS, share * (limits.seconds - passed)), before=passed)
