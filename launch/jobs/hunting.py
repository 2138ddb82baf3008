"""Hunting: one search after another until a plan fits, and then for what may be better than that.

It does not know how a search moves, nor what is told of what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import inf

from castile.launch.jobs.request import Dropped, Request
from castile.planner.choices.pins import Pins
from castile.planner.evaluation.budget import Budget, clock
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import is_in_pieces, is_pipeline, microbatch_counts
from castile.planner.search import Progress, search
from castile.planner.searching import accumulation, layerwise
from castile.planner.searching.accumulation import NEARLY_FITS, Batching
from castile.planner.searching.forecasts import Forecaster, may_fit
from castile.planner.searching.low_memory import LowMemoryPlans
from castile.planner.searching.pipelines import (
    AHEAD_GAIN,
    batching_for_pipelines,
    fallback_pipeline,
    improve_with_pipelines,
    pipeline_before_search,
    prefetch_pipelines,
)
from castile.planner.searching.refinement import KNOWN_PLAN_ORDERS, QUICK_PARTS, REFINEMENT_SHARE, refine, refine_known
from castile.planner.searching.results import NoPlanFits, SearchResult
from castile.planner.searching.screening import Alternatives
from castile.planner.searching.subsets import SUBSET_SHARE, search_subsets
from castile.planner.sketch.sieve import num_parts
from castile.planner.step.recompute import NOTHING, PARAMETERS, SMALL_STEPS
from castile.planner.strategy import Strategy
from castile.runtime.memory import written

# What a search gets of a budget that others have spent: it looks at the known plans all the same.
LEAST_SECONDS = 1e-3
# So much of what is left of a time goes into a search where no known plan is taken to fit: the rest is for the next.
DOUBTED = 0.5

# In how many microbatches a plan was found, and the plan.
Looked = tuple[Batching, SearchResult]


@dataclass
class Hunt:
    """A way to what is wanted: searches where no plan fits in more and more microbatches, then with more and more
    computed again, as far as neither was said.

    A time to look is that of all searches together, and what was found tells how long they took together and what they
    proposed. Where nothing is left of it, a search still looks at the known plans.

    limits       the budget of all searches
    refused      what was said where no plan was found to fit
    replaced     where a search among plans that keep parameters was left for one that gathers them for each pass
    """

    request: Request
    limits: Budget
    progress: Progress | None
    refused: list[NoPlanFits] = field(default_factory=list)
    replaced: Batching | None = None

    def __post_init__(self) -> None:
        self.began = clock()
        self.timed, self.is_refined = self.limits.begun(), self.limits.begun(1 + REFINEMENT_SHARE).is_over

    def look(self) -> Looked:
        """The best plan that is found. Raises NoPlanFits where none is, with a number of microbatches that would do."""
        chosen, found = self._bettered(*self._first())
        num_proposals = found.num_proposals + sum(error.num_proposals for error in self.refused)
        return chosen, replace(found, elapsed_seconds=clock() - self.began, num_proposals=num_proposals)

    def _first(self) -> Looked:
        """The first plan that is found to fit, and where."""
        # held nowhere else, as it holds who hunts
        computed = filter(None, map(self._late, self._computed_again()))
        for chosen in self._places():
            one = self._unsearched(chosen, computed) or self._searched(chosen)
            if one is not None:
                return one
        one = next(computed, None) or self._gathering.search(inf, self._again)
        if one is None:
            raise self._advised(self.refused[0])
        return one

    def _unsearched(self, chosen: Batching, computed: Iterator[Looked]) -> Looked | None:
        """What is known to be better than a search there would find, or taken where that would hardly find any, at last
        the next of those that compute more again; or None.
        """
        if not self.request.may_fill:
            return None
        instead_of = self._may_gather and self._gives_up(chosen)
        if instead_of:
            self._gathering.prefetch()
        one = pipeline_before_search(chosen, self._others(chosen, self.timed, self.timed), self._again)
        is_hopeless = one is None and self._is_hopeless(chosen)
        if is_hopeless:
            # What gathers is looked at beside it.
            one = self._late(chosen)
        if one is None and instead_of:
            one = self._gathering.replace_search(chosen, self._again)
            self.replaced = chosen if one is not None else None
        if one is None and is_hopeless:
            one = next(computed, None)
        return one

    def _searched(self, chosen: Batching) -> Looked | None:
        """What a search finds, or, where it finds none, the pipeline that it does not look at; or None."""
        is_hopeless = self._is_hopeless(chosen)
        chosen, left = self._in_time(chosen)
        if self._may_gather and not chosen.fits:
            self._expect(chosen)
        try:
            return chosen, self._search(chosen, left, self.request.start)
        except NoPlanFits as error:
            # its traceback holds who hunts
            self.refused.append(error.with_traceback(None))
            return None if is_hopeless else self._late(chosen)

    def _bettered(self, chosen: Batching, found: SearchResult) -> Looked:
        """What was found, or what is better: plans whose parameters are gathered or that compute more again, where
        memory is short, and pipelines in other numbers of microbatches.
        """
        if not self._may_gather:
            return chosen, found
        first, is_short = chosen, self._gives_up(chosen)
        if self.replaced is None and (is_short or found.is_limited_by_memory):
            chosen, found = self._gathering.improve(first, found, self._again)
        if is_short or found.is_limited_by_memory:
            chosen, found = self._computing.improve(chosen, found, self._again)
        if self.replaced is None or AHEAD_GAIN * first.seconds >= self.replaced.seconds:
            first = self.replaced or first
            others = self._others(first, self.limits, self.limits, self.replaced is None)
            last, found = improve_with_pipelines(first, found, others, self._again)
            chosen = chosen if last is first else last
        return chosen, found

    @property
    def _may_gather(self) -> bool:
        """Whether plans in other numbers of microbatches are searched from: of a time nothing would be left for it."""
        return self.request.may_fill and self.limits.seconds is None

    def _is_hopeless(self, chosen: Batching) -> bool:
        """Whether a search would take a minute and hardly find a plan that fits."""
        is_refused_late = self.request.may_fill and not chosen.fits and self.request.is_dear
        return is_refused_late and not self.request.forecast(chosen).fitting

    def _gives_up(self, chosen: Batching) -> bool:
        """Whether plans are in more microbatches than was asked for, or compute more again."""
        request = self.request
        recompute = chosen.evaluator.lowering.recompute
        return (chosen.num_microbatches, recompute) != (request.microbatches, request.recompute)

    def _late(self, chosen: Batching) -> Looked | None:
        """The soonest pipeline that fits, where a search looks at none, as late is better than nothing; or None."""
        if not self.request.may_fill:
            return None
        return fallback_pipeline(chosen, self._others(chosen, self.limits, self.timed), self._again)

    def _computed_again(self) -> Iterator[Batching]:
        """From where on pipelines that compute more again are looked at, once nothing else fits."""
        for number, way in product(self.request.numbers[1:2], self.request.ways_left if self.request.may_fill else ()):
            with suppress(ValueError):  # a model that cannot be cut has no pipelines
                yield Batching(number, *self.request.at(self.request.dropped(way), number))

    def _again(self, chosen: Batching, plan: Strategy | None) -> SearchResult:
        """The same search in another number of microbatches, or, with a known plan, that one alone."""
        if plan is not None:
            return refine_known(chosen.evaluator, plan, chosen.pins, self.is_refined, KNOWN_PLAN_ORDERS)
        return self._search(chosen, self.limits)

    def _in_time(self, chosen: Batching) -> tuple[Batching, Budget]:
        """In how many microbatches what is left of a budget is spent, and how much of it: where more are looked at if
        no plan fits, that of a time is shared with these as long as no known plan is known, or taken, to fit.
        """
        share = 1.0
        if self.limits.seconds is not None and self.request.may_fill:
            chosen = batching_for_pipelines(chosen, self._others(chosen, self.timed, self.timed))
            share = 1.0 if chosen.fits or self.request.forecast(chosen).fitting else DOUBTED
        return chosen, remaining(self.limits, clock() - self.began, share)

    def _others(self, chosen: Batching, for_more: Budget, for_better: Budget, is_searched: bool = True) -> Alternatives:
        """The numbers of microbatches in which pipelines are looked at, from the least that fills one on, but that one
        if it is searched: until when for more numbers, and until when for better plans once there is one.
        """
        counts = microbatch_counts(chosen.evaluator.lowering)[1:] if self.request.could_fit else ()
        forecaster = self.request.forecaster(chosen.evaluator.lowering.recompute, is_pipeline)
        numbers = [n for n in counts if n != chosen.num_microbatches or not is_searched]
        return Alternatives(numbers, forecaster, for_better.is_over, for_more.is_over)

    @cached_property
    def _gathering(self) -> LowMemoryPlans:
        """Where plans are looked at whose parameters are gathered for each pass, and more and more computed again."""
        may_help = self.request.may_fill and self.request.ways_left
        ways = (NOTHING, *self.request.recomputation.rising(SMALL_STEPS)) if may_help else ()
        each = (self.request.forecaster(self.request.dropped(f"{way},{PARAMETERS}"), is_in_pieces) for way in ways)
        return LowMemoryPlans(self._in_all_numbers(each))

    @cached_property
    def _computing(self) -> LowMemoryPlans:
        """The same of plans whose parameters stay: none but where a search takes a second or two."""
        is_quick = num_parts(self.request.desk.evaluator) <= QUICK_PARTS
        ways = (NOTHING, *self.request.ways_left) if self.request.may_fill and is_quick else ()
        each = (self.request.forecaster(self.request.dropped(way)) for way in ways)
        return LowMemoryPlans(self._in_all_numbers(each), has_few_parts=True)

    def _in_all_numbers(self, each: Iterable[Forecaster]) -> list[Alternatives]:
        """Each of them in every number of microbatches, as long as there is time."""
        is_over = self.timed.is_over
        return [Alternatives(microbatch_counts(self.request.lowering), one, is_over, is_over) for one in each]

    def _enough(self, recompute: Dropped, numbers: Iterable[int]) -> Batching | None:
        """In which of these numbers of microbatches to search."""
        # Who wants an end waits for no further number.
        is_late, is_over = self.timed.is_over, self.limits.is_over
        forecaster = self.request.forecaster(recompute)
        return accumulation.fitting_batching(forecaster, numbers, is_late, is_over, self._expect)

    def _expect(self, chosen: Batching) -> None:
        """That pipelines are likely to be looked at, while other known plans are simulated."""
        if self.request.may_fill and self.request.is_dear:
            prefetch_pipelines(chosen.num_microbatches, self._others(chosen, self.limits, self.limits))

    def _places(self) -> Iterator[Batching]:
        """In what to search, one after the other, until a plan fits."""
        request = self.request
        smallest = request.smallest(self.timed.is_over) if request.command.objective == "memory" else None
        if smallest is not None:
            yield smallest
        first = Batching(request.microbatches, *request.at(request.recompute, request.microbatches))
        numbers, chosen = request.numbers if request.is_free else (first.num_microbatches,), None
        # A search takes half a minute to say that it found none, known plans in sketches a second or two.
        if request.is_free and request.is_long and request.forecast(first).is_far:
            shares = {first.num_microbatches: request.forecast(first).share}
            left = [n for n in numbers if n > first.num_microbatches and may_fit(shares, n, NEARLY_FITS)]
            chosen = self._enough(request.recompute, left)
        for way in (NOTHING, *request.ways_left):
            chosen = chosen or first if way == NOTHING else self._enough(request.dropped(way), numbers)
            while chosen is not None:
                yield chosen
                more = [n for n in numbers if n > chosen.num_microbatches]
                chosen = self._enough(chosen.evaluator.lowering.recompute, more)

    def _advised(self, refused: NoPlanFits) -> NoPlanFits:
        """That no plan fits: why none can, or where the number of microbatches was said one that would do, or that
        others were looked at too.
        """
        if not self.request.could_fit:
            return NoPlanFits(f"{refused}; none can: {self._too_much()}", refused.num_proposals)
        if self.request.is_free and len(self.request.numbers) > 1:
            also = "nor was one found in microbatches, or with results computed again"
            return NoPlanFits(f"{refused}; {also}", refused.num_proposals)
        numbers = [] if self.request.is_free else [n for n in self.request.numbers if n > self.request.microbatches]
        more = self._enough(self.request.recompute, numbers)
        if more is None:
            return refused
        # A plan that is given says into how many pieces it cuts the batch.
        free = "leave --from out and " if self.request.start else ""
        near = "fits" if more.fits else "comes near fitting"
        count = more.num_microbatches
        return NoPlanFits(f"{refused}; or {free}give --accumulate {count}, with which a known plan {near}")

    def _too_much(self) -> str:
        """That what any plan keeps has no room, in words."""
        request, machine = self.request, self.request.desk.machine
        carried, given = accumulation.kept_bytes(request.evaluator(request.microbatches, request.recompute))
        whose = "parameters" if self.request.mode == "forward" else "parameters and what updates them"
        return (
            f"{whose} take {written(carried)} and the samples of a step {written(given)}, each kept but once, of "
            f"{written(int(machine.capacity.sum()))} in all"
        )

    def _search(self, chosen: Batching, limits: Budget, start: dict[str, Strategy] | None = None) -> SearchResult:
        evaluator, pinned, given = chosen.evaluator, chosen.pins, self.request.given(start or {}, self.progress)

        def ended(found: SearchResult, within: Pins | None) -> SearchResult:
            return refine(evaluator, found, given["sizes"], self.is_refined, pins=within)

        def look(within: Pins | None, share: float = 1.0) -> SearchResult:
            part = limits if limits.seconds is None else replace(limits, seconds=share * limits.seconds)
            began, starts = clock(), given["start"] | self._layer_wise(evaluator, part, within)
            left = remaining(part, clock() - began)
            found = search(self.request.command.search, evaluator, left, pins=within, **{**given, "start": starts})
            # What is best on some processors is known once it is refined; of a time that is done with the best alone.
            return ended(found, within) if limits.seconds is None else found

        found = search_subsets(evaluator, look(pinned), partial(look, share=SUBSET_SHARE), pinned, self.is_refined)
        return found if limits.seconds is None else ended(found, pinned)

    def _layer_wise(self, evaluator: Evaluator, limits: Budget, pins: Pins | None) -> dict[str, Strategy]:
        """A plan to begin from besides the known ones, by its name, unless only some of these are to be begun from."""
        search = self.request.command.search
        if self.request.names is not None or not layerwise.is_worthwhile(evaluator, search, limits):
            return {}
        return layerwise.layer_wise_plan(evaluator, pins, limits.begun(layerwise.TIME_SHARE).is_over)


def remaining(limits: Budget, passed: float, share: float = 1.0) -> Budget:
    """So much of what is left of a budget after so many seconds: the least there is where nothing is."""
    if limits.seconds is None:
        return limits
    seconds, before = max(LEAST_SECONDS, share * (limits.seconds - passed)), limits.before + passed
    return replace(limits, seconds=seconds, before=before)
