"""Low memory: known plans that need less memory than the one found, because they gather their parameters for each pass
or recompute more, and where memory is short may be faster.

A search keeps the recomputation with which it starts, so that is chosen here. It does not know how a search moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf

from castile.planner.searching.accumulation import Batching
from castile.planner.searching.forecasts import Candidate
from castile.planner.searching.pipelines import AHEAD_GAIN, PROMISING, THOROUGH
from castile.planner.searching.refinement import QUICK_PARTS, SEARCHED_PARTS
from castile.planner.searching.results import SearchResult
from castile.planner.searching.screening import (
    Alternatives,
    BatchedPlan,
    BatchedResult,
    RunSearch,
    fastest_plans,
    search_first_fitting,
)
from castile.planner.sketch.sketched_plans import num_parts
from castile.planner.strategy import READY

# A plan whose sketch needs at most this share of the memory does fit.
ROOMY = 0.9
# Where memory is short a search from such a plan gains more than from a pipeline: with at most QUICK_PARTS the plan may
# take up to this many times as long as the one found.
SEARCH_GAIN = 1.25
# With few parts, how many numbers of microbatches are tried with each recomputation, as pipelines need some.
COUNTS_OF_EACH = 3


@dataclass(frozen=True)
class LowMemoryPlans:
    """Known plans that gather their parameters for each pass or recompute more.

    ways            one for each recomputation, the least first
    has_few_parts   whether plans have few parts. Then several numbers of microbatches are tried with each
                    recomputation, as pipelines may be faster with more. Otherwise the smallest number with which a plan
                    should fit is tried, and no larger one than with the recomputation before
    _cache          what `fastest` returned, by its `seconds`
    """

    ways: Sequence[Alternatives]
    has_few_parts: bool = False
    _cache: dict[float, list[BatchedPlan]] = field(default_factory=dict)

    def prefetch(self) -> None:
        """Prefetch forecasts of all recomputations, the least first, once nothing else is to be prefetched."""
        for alternatives in self.ways:
            alternatives.forecaster.prefetch(*alternatives.counts, can_wait=True)

    def fastest(self, seconds: float, to_beat: float = inf) -> list[BatchedPlan]:
        """The plans that take less than `seconds`, the fastest first: a low limit leaves few to simulate.

        Plans found under another limit are reused, and so is the knowledge that a higher limit had none.

        to_beat   a plan is of no use if it takes this many seconds even after a search from it
        """
        if not self.ways:
            return []
        for limit, plans in self._cache.items():
            if plans or seconds <= limit:
                return [one for one in plans if one[0].seconds < seconds]
        candidates = self._candidates(PROMISING * seconds, to_beat)
        plans = fastest_plans(candidates, seconds, (READY,), THOROUGH, self.ways[0].is_over)
        self._cache[seconds] = plans
        return plans

    def _candidates(self, most_seconds: float, to_beat: float) -> Iterator[Candidate]:
        if self.has_few_parts:
            for alternatives in self.ways:
                yield from islice(alternatives.fitting_candidates(to_beat), COUNTS_OF_EACH)
        else:
            yield from self._first_fitting(most_seconds, to_beat)

    def _first_fitting(self, most_seconds: float, to_beat: float) -> Iterator[Candidate]:
        """For each recomputation the smallest number of microbatches with which a plan should fit, unless a plan that
        does not fit already takes more than `most_seconds`: more microbatches are no faster, nor is more recomputation.

        The next recomputation is tried with as many microbatches where memory is scarce, else with fewer.
        """
        most = inf
        for alternatives in self.ways:
            few = replace(alternatives, counts=[count for count in alternatives.counts if count <= most])
            for candidate in few.candidates(to_beat):
                count, forecast = candidate.num_microbatches, candidate.forecast
                if forecast.least_seconds > most_seconds:
                    most = count - 1
                    break
                if forecast.fitting:
                    most = count - (forecast.share <= ROOMY)
                    yield candidate
                    break

    def search(self, seconds: float, run_search: RunSearch, to_beat: float = inf) -> BatchedResult | None:
        """The result of a search from the fastest of these plans, or that plan itself where plans have many parts; None
        if none takes less than `seconds`, or less than `to_beat` after a search.
        """
        plans = self.fastest(seconds, to_beat)
        starts = [(one, plan if num_parts(one.evaluator) > SEARCHED_PARTS else None) for one, plan in plans]
        return search_first_fitting(starts, run_search)[0]

    def replace_search(self, batching: Batching, run_search: RunSearch) -> BatchedResult | None:
        """The result of `search` if it makes a search in `batching` needless; otherwise None.

        It does if it is so much faster than the best known plan there, pipelines included, that neither a search from
        that plan nor beginning microbatches ahead makes up for it. Where such a search takes a minute, it does if it is
        faster at all.
        """
        is_quick = num_parts(batching.evaluator) <= SEARCHED_PARTS
        return self.search(batching.seconds / AHEAD_GAIN if is_quick else batching.seconds, run_search)

    def improve(self, batching: Batching, result: SearchResult, run_search: RunSearch) -> BatchedResult:
        """The given result, or the better one of `search`.

        Where plans have few parts, that search is also made from a plan much slower than the result, if it is faster
        than the known plan from which the result came: search, fewer processors and buckets may gain as much on it.
        """
        seconds = result.evaluated.seconds
        if num_parts(batching.evaluator) <= QUICK_PARTS:
            seconds = max(SEARCH_GAIN * seconds, batching.seconds if batching.fits else 0.0)
        other = self.search(seconds, run_search, result.evaluated.seconds)
        if other is None or other[1].evaluated.rank >= result.evaluated.rank:
            return batching, result
        num_proposals = result.num_proposals + other[1].num_proposals
        return other[0], replace(other[1], seeds=result.seeds, num_proposals=num_proposals)
