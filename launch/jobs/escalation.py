"""Escalation: searches with more and more microbatches, then with more recomputation, until a plan fits; then with
alternatives that may be faster.

It does not know how a search moves, nor how its result is reported.
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
from castile.planner.searching.screening import Alternatives, BatchedResult
from castile.planner.searching.subsets import SUBSET_SHARE, search_subsets
from castile.planner.sketch.sketched_plans import num_parts
from castile.planner.step.recompute import NOTHING, PARAMETERS, SMALL_STEPS
from castile.planner.strategy import Strategy
from castile.runtime.memory import written

# The budget in seconds of a search for which no time is left: it evaluates the known plans all the same.
LEAST_SECONDS = 1e-3
# The share of the remaining time for a search where no known plan is expected to fit: the rest is for the next search.
DOUBTFUL_SHARE = 0.5


@dataclass
class Escalation:
    """Searches for one request: first with the microbatches and recomputation that were asked for, then, as far as the
    user left these open, with more and more of both until a plan fits, at last with alternatives that may be faster.

    All searches share one budget, and the result has their time and proposals together. Once a budget of time is
    spent, a search still evaluates the known plans.

    limits     the budget of all searches
    failures   of the searches in which no plan fitted
    replaced   the batching that was not searched, as a plan that gathers its parameters was faster
    """

    request: Request
    limits: Budget
    progress: Progress | None
    failures: list[NoPlanFits] = field(default_factory=list)
    replaced: Batching | None = None

    def __post_init__(self) -> None:
        self.began = clock()
        self.timed, self.is_refined = self.limits.begun(), self.limits.begun(1 + REFINEMENT_SHARE).is_over

    def run(self) -> BatchedResult:
        """The best plan found. Raises NoPlanFits where none fits, naming a number of microbatches that would do."""
        batching, result = self._improved(*self._first_fitting())
        num_proposals = result.num_proposals + sum(error.num_proposals for error in self.failures)
        return batching, replace(result, elapsed_seconds=clock() - self.began, num_proposals=num_proposals)

    def _first_fitting(self) -> BatchedResult:
        """The first result that fits."""
        # Not an attribute: the generator refers to this object, which must not be part of a reference cycle.
        recomputing = filter(None, map(self._fallback_pipeline, self._recomputing_batchings()))
        for batching in self._batchings():
            found = self._without_search(batching, recomputing) or self._searched(batching)
            if found is not None:
                return found
        found = next(recomputing, None) or self._gathering_plans.search(inf, self._search_at)
        if found is None:
            raise self._advised(self.failures[0])
        return found

    def _without_search(self, batching: Batching, recomputing: Iterator[BatchedResult]) -> BatchedResult | None:
        """A result that is known to beat a search with this batching, or that is taken as such a search would hardly
        find any; None if the search is to be made.

        recomputing   pipelines that recompute more, the last resort
        """
        if not self.request.may_fill:
            return None
        may_replace = self._may_explore and self._is_escalated(batching)
        if may_replace:
            self._gathering_plans.prefetch()
        found = pipeline_before_search(batching, self._pipelines(batching, self.timed, self.timed), self._search_at)
        is_hopeless = found is None and self._is_hopeless(batching)
        if is_hopeless:
            found = self._fallback_pipeline(batching)
        if found is None and may_replace:
            found = self._gathering_plans.replace_search(batching, self._search_at)
            self.replaced = batching if found is not None else None
        if found is None and is_hopeless:
            found = next(recomputing, None)
        return found

    def _searched(self, batching: Batching) -> BatchedResult | None:
        """The result of a search, or, where no plan fits, the pipeline that such a search does not try; or None."""
        is_hopeless = self._is_hopeless(batching)
        batching, limits = self._within_budget(batching)
        if self._may_explore and not batching.fits:
            self._prefetch_pipelines(batching)
        try:
            return batching, self._search(batching, limits, self.request.start)
        except NoPlanFits as error:
            # A traceback would keep this object alive.
            self.failures.append(error.with_traceback(None))
            return None if is_hopeless else self._fallback_pipeline(batching)

    def _improved(self, batching: Batching, result: SearchResult) -> BatchedResult:
        """The result, or a better one: of plans that gather their parameters or recompute more, where memory is short,
        and of pipelines with other numbers of microbatches.
        """
        if not self._may_explore:
            return batching, result
        first, is_escalated = batching, self._is_escalated(batching)
        is_short = is_escalated or result.is_limited_by_memory
        if self.replaced is None and is_short:
            batching, result = self._gathering_plans.improve(first, result, self._search_at)
        if is_escalated or result.is_limited_by_memory:
            batching, result = self._recomputing_plans.improve(batching, result, self._search_at)
        if self.replaced is None or AHEAD_GAIN * first.seconds >= self.replaced.seconds:
            first = self.replaced or first
            pipelines = self._pipelines(first, self.limits, self.limits, self.replaced is None)
            last, result = improve_with_pipelines(first, result, pipelines, self._search_at)
            batching = batching if last is first else last
        return batching, result

    @property
    def _may_explore(self) -> bool:
        """Whether alternatives are searched from: a budget of time would leave nothing for them."""
        return self.request.may_fill and self.limits.seconds is None

    def _is_hopeless(self, batching: Batching) -> bool:
        """Whether a search would take a minute and hardly find a plan that fits."""
        is_slow_failure = self.request.may_fill and not batching.fits and self.request.is_dear
        return is_slow_failure and not self.request.forecast(batching).fitting

    def _is_escalated(self, batching: Batching) -> bool:
        """Whether it has more microbatches than were asked for, or recomputes more."""
        request = self.request
        recompute = batching.evaluator.lowering.recompute
        return (batching.num_microbatches, recompute) != (request.microbatches, request.recompute)

    def _fallback_pipeline(self, batching: Batching) -> BatchedResult | None:
        """The fastest pipeline that fits, where searches try none; or None. It may exceed a budget of time."""
        if not self.request.may_fill:
            return None
        return fallback_pipeline(batching, self._pipelines(batching, self.limits, self.timed), self._search_at)

    def _recomputing_batchings(self) -> Iterator[Batching]:
        """The batchings from which pipelines that recompute more are tried, once nothing else fits."""
        for count, way in product(self.request.numbers[1:2], self.request.ways_left if self.request.may_fill else ()):
            with suppress(ValueError):  # a model that cannot be cut has no pipelines
                yield Batching(count, *self.request.at(self.request.dropped(way), count))

    def _search_at(self, batching: Batching, plan: Strategy | None) -> SearchResult:
        """The result of a search with another batching; with a known plan, of refining that alone."""
        if plan is not None:
            return refine_known(batching.evaluator, plan, batching.pins, self.is_refined, KNOWN_PLAN_ORDERS)
        return self._search(batching, self.limits)

    def _within_budget(self, batching: Batching) -> tuple[Batching, Budget]:
        """The batching to search with and the budget for it.

        With a budget of time, pipelines may choose the number of microbatches; and a part of the time is kept for the
        next search as long as no known plan fits, or is expected to.
        """
        share = 1.0
        if self.limits.seconds is not None and self.request.may_fill:
            batching = batching_for_pipelines(batching, self._pipelines(batching, self.timed, self.timed))
            share = 1.0 if batching.fits or self.request.forecast(batching).fitting else DOUBTFUL_SHARE
        return batching, remaining(self.limits, clock() - self.began, share)

    def _pipelines(
        self, batching: Batching, for_counts: Budget, for_better: Budget, is_searched: bool = True
    ) -> Alternatives:
        """Pipelines with other numbers of microbatches, from two on; with that of `batching` if it is not searched.

        for_counts   budget within which further numbers are tried
        for_better   budget within which a pipeline that is known to be better is improved
        """
        counts = microbatch_counts(batching.evaluator.lowering)[1:] if self.request.could_fit else ()
        forecaster = self.request.forecaster(batching.evaluator.lowering.recompute, is_pipeline)
        others = [n for n in counts if n != batching.num_microbatches or not is_searched]
        return Alternatives(others, forecaster, for_better.is_over, for_counts.is_over)

    @cached_property
    def _gathering_plans(self) -> LowMemoryPlans:
        """Known plans that gather their parameters for each pass, with less and more recomputation."""
        may_help = self.request.may_fill and self.request.ways_left
        ways = (NOTHING, *self.request.recomputation.rising(SMALL_STEPS)) if may_help else ()
        each = (self.request.forecaster(self.request.dropped(f"{way},{PARAMETERS}"), is_in_pieces) for way in ways)
        return LowMemoryPlans(self._with_all_counts(each))

    @cached_property
    def _recomputing_plans(self) -> LowMemoryPlans:
        """Known plans that keep their parameters, with less and more recomputation; none where searches take long."""
        is_quick = num_parts(self.request.desk.evaluator) <= QUICK_PARTS
        ways = (NOTHING, *self.request.ways_left) if self.request.may_fill and is_quick else ()
        each = (self.request.forecaster(self.request.dropped(way)) for way in ways)
        return LowMemoryPlans(self._with_all_counts(each), has_few_parts=True)

    def _with_all_counts(self, forecasters: Iterable[Forecaster]) -> list[Alternatives]:
        """Alternatives with every number of microbatches, as long as there is time."""
        counts, is_over = microbatch_counts(self.request.lowering), self.timed.is_over
        return [Alternatives(counts, one, is_over, is_over) for one in forecasters]

    def _fitting_batching(self, recompute: Dropped, counts: Iterable[int]) -> Batching | None:
        """The batching to search with among these numbers of microbatches; None where no plan comes near fitting."""
        # A user who asks for an end waits for no further number.
        is_late, is_over = self.timed.is_over, self.limits.is_over
        forecaster = self.request.forecaster(recompute)
        return accumulation.fitting_batching(forecaster, counts, is_late, is_over, self._prefetch_pipelines)

    def _prefetch_pipelines(self, batching: Batching) -> None:
        """Prefetch forecasts of pipelines, which are likely to be tried, while other known plans are simulated."""
        if self.request.may_fill and self.request.is_dear:
            prefetch_pipelines(batching.num_microbatches, self._pipelines(batching, self.limits, self.limits))

    def _batchings(self) -> Iterator[Batching]:
        """The batchings to search with, one after the other, until a plan fits."""
        request = self.request
        smallest = request.smallest(self.timed.is_over) if request.command.objective == "memory" else None
        if smallest is not None:
            yield smallest
        first = Batching(request.microbatches, *request.at(request.recompute, request.microbatches))
        counts, batching = request.numbers if request.is_free else (first.num_microbatches,), None
        # A search takes half a minute to find that nothing fits; forecasts of known plans take a second or two.
        if request.is_free and request.is_long and request.forecast(first).is_far:
            shares = {first.num_microbatches: request.forecast(first).share}
            left = [n for n in counts if n > first.num_microbatches and may_fit(shares, n, NEARLY_FITS)]
            batching = self._fitting_batching(request.recompute, left)
        for way in (NOTHING, *request.ways_left):
            if way == NOTHING:
                batching = batching or first
            else:
                batching = self._fitting_batching(request.dropped(way), counts)
            while batching is not None:
                yield batching
                more = [n for n in counts if n > batching.num_microbatches]
                batching = self._fitting_batching(batching.evaluator.lowering.recompute, more)

    def _advised(self, refused: NoPlanFits) -> NoPlanFits:
        """The failure with its reason where no plan can fit; else with what was tried, or, where the user said the
        number of microbatches, with one that would do.
        """
        if not self.request.could_fit:
            return NoPlanFits(f"{refused}; none can: {self._too_much()}", refused.num_proposals)
        if self.request.is_free and len(self.request.numbers) > 1:
            also = "nor was one found in microbatches, or with results computed again"
            return NoPlanFits(f"{refused}; {also}", refused.num_proposals)
        counts = [] if self.request.is_free else [n for n in self.request.numbers if n > self.request.microbatches]
        more = self._fitting_batching(self.request.recompute, counts)
        if more is None:
            return refused
        # A plan that is given says into how many microbatches it cuts the batch.
        free = "leave --from out and " if self.request.start else ""
        near = "fits" if more.fits else "comes near fitting"
        count = more.num_microbatches
        return NoPlanFits(f"{refused}; or {free}give --accumulate {count}, with which a known plan {near}")

    def _too_much(self) -> str:
        """The bytes that every plan keeps beside those of the machine, in words."""
        request, machine = self.request, self.request.desk.machine
        carried, given = accumulation.kept_bytes(request.evaluator(request.microbatches, request.recompute))
        whose = "parameters" if self.request.mode == "forward" else "parameters and what updates them"
        return (
            f"{whose} take {written(carried)} and the samples of a step {written(given)}, each kept but once, of "
            f"{written(int(machine.capacity.sum()))} in all"
        )

    def _search(self, batching: Batching, limits: Budget, start: dict[str, Strategy] | None = None) -> SearchResult:
        """The result of a search on all processors or on the best subset of them, refined.

        start   plans to start from beside the known ones, by name
        """
        evaluator, pins, given = batching.evaluator, batching.pins, self.request.given(start or {}, self.progress)

        def refined(result: SearchResult, within: Pins | None) -> SearchResult:
            return refine(evaluator, result, given["sizes"], self.is_refined, pins=within)

        def search_within(within: Pins | None, share: float = 1.0) -> SearchResult:
            part = limits if limits.seconds is None else replace(limits, seconds=share * limits.seconds)
            began, starts = clock(), given["start"] | self._layer_wise(evaluator, part, within)
            left = remaining(part, clock() - began)
            result = search(self.request.command.search, evaluator, left, pins=within, **{**given, "start": starts})
            # Subsets are compared once refined; with a budget of time only the best one is refined.
            return refined(result, within) if limits.seconds is None else result

        on_subset = partial(search_within, share=SUBSET_SHARE)
        result = search_subsets(evaluator, search_within(pins), on_subset, pins, self.is_refined)
        return result if limits.seconds is None else refined(result, pins)

    def _layer_wise(self, evaluator: Evaluator, limits: Budget, pins: Pins | None) -> dict[str, Strategy]:
        """A layer-wise plan to start from, by its name; none where the user chose the known plans."""
        search = self.request.command.search
        if self.request.names is not None or not layerwise.is_worthwhile(evaluator, search, limits):
            return {}
        return layerwise.layer_wise_plan(evaluator, pins, limits.begun(layerwise.TIME_SHARE).is_over)


def remaining(limits: Budget, passed: float, share: float = 1.0) -> Budget:
    """A share of the budget that is left after `passed` seconds, at least LEAST_SECONDS."""
    if limits.seconds is None:
        return limits
    seconds, before = max(LEAST_SECONDS, share * (limits.seconds - passed)), limits.before + passed
    return replace(limits, seconds=seconds, before=before)
