"""Pipelines: whether one with another number of microbatches is faster than the plan that was found.

A search keeps the number of microbatches with which it starts, so that number is chosen here. It does not know how a
search moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf

from castile.planner.bounds.lower_bound import work_bound
from castile.planner.known.large import has_many_parts
from castile.planner.searching.accumulation import Batching
from castile.planner.searching.forecasts import Candidate
from castile.planner.searching.refinement import KNOWN_PLAN_ORDERS, QUICK_PARTS, SEARCHED_PARTS
from castile.planner.searching.results import SearchResult
from castile.planner.searching.screening import (
    Alternatives,
    BatchedResult,
    Effort,
    RunSearch,
    fastest_plans,
    search_first_fitting,
)
from castile.planner.sketch.sketched_plans import num_parts
from castile.planner.strategy import ORDERS, READY, Strategy

# Pipelines are tried only where a step takes more than this many times the least that all processors need for its work.
NEAR_BOUND = 1.1
# A sketch begins no microbatches ahead and does not know which plan gains most by that: it may take up to this many
# times as long as the plan to beat. Plans of many parts take long to simulate, so fewer of them are.
PROMISING, AHEAD_GAIN = 1.2, 1.1
# A pipeline that replaces a plan that would have been searched must be faster by this factor.
CLEARLY_FASTER = 0.95
THOROUGH, MANY_PARTS, ONE_EACH = Effort(PROMISING, 16, 3), Effort(AHEAD_GAIN, 4, 2), Effort(CLEARLY_FASTER, 16, 1)
# A search from a known pipeline improves it by some percent. Where plans have at most QUICK_PARTS it takes a second or
# two: it is made from a pipeline that takes up to this many times as long as the plan to beat.
SEARCH_GAIN = 1.03
# How many larger numbers of microbatches are prefetched.
NUM_PREFETCHED = 4


def improve_with_pipelines(
    batching: Batching, result: SearchResult, alternatives: Alternatives, run_search: RunSearch
) -> BatchedResult:
    """The result of a search, or the better one of a search with that number of microbatches with which a known
    pipeline is fastest.
    """
    if result.is_insisted or _precedes_search(batching) or not _is_far_from_bound(batching, result.evaluated.seconds):
        return batching, result
    to_beat = result.evaluated.seconds * (SEARCH_GAIN if num_parts(batching.evaluator) <= QUICK_PARTS else 1)
    other, num_proposals = search_first_fitting(_fastest_pipelines(batching, to_beat, alternatives), run_search)
    num_proposals += result.num_proposals + (other[1].num_proposals if other else 0)
    if other is None or other[1].evaluated.rank >= result.evaluated.rank:
        return batching, replace(result, num_proposals=num_proposals)
    return other[0], replace(other[1], seeds=result.seeds, num_proposals=num_proposals)


def prefetch_pipelines(first: int, alternatives: Alternatives) -> None:
    """Prefetch forecasts of pipelines of many parts: with the first number of microbatches, then with the next smaller
    one, then with larger ones.

    Of each two larger numbers the farther is computed first. If it is still being computed when this process gets
    there, this process computes the nearer one meanwhile.
    """
    fewer, more = _outward(first, alternatives)
    pairs = [more[at : at + 2][::-1] for at in range(0, NUM_PREFETCHED, 2)]
    for count in (first, *fewer[:1], *chain(*pairs))[::-1]:
        alternatives.forecaster.prefetch(count)


def pipeline_before_search(
    batching: Batching, alternatives: Alternatives, run_search: RunSearch
) -> BatchedResult | None:
    """Where plans have too many parts for a search to try pipelines: one faster than the best known plan, if that plan
    fits; None if there is none.
    """
    if not _precedes_search(batching) or not _is_far_from_bound(batching, batching.seconds):
        return None
    return _search_fastest(batching, alternatives, run_search)


def batching_for_pipelines(batching: Batching, alternatives: Alternatives) -> Batching:
    """The number of microbatches with which a known pipeline is faster than the best known plan, if that plan fits;
    otherwise the given one.

    For a budget of time, which goes into a search with one number only, and plans of few enough parts that the search
    tries pipelines.
    """
    if has_many_parts(batching.evaluator.lowering) or not batching.fits:
        return batching
    if not _is_far_from_bound(batching, batching.seconds):
        return batching
    candidates, is_over = alternatives.fitting_candidates(), alternatives.is_over
    fastest = fastest_plans(candidates, batching.seconds, (READY,), ONE_EACH, is_over)
    return fastest[0][0] if fastest else batching


def fallback_pipeline(batching: Batching, alternatives: Alternatives, run_search: RunSearch) -> BatchedResult | None:
    """Where plans have too many parts for a search to try pipelines, and the search found no plan that fits: the
    fastest pipeline that does; None if there is none.
    """
    if not has_many_parts(batching.evaluator.lowering):
        return None
    return _search_fastest(replace(batching, seconds=inf), alternatives, run_search)


def _search_fastest(batching: Batching, alternatives: Alternatives, run_search: RunSearch) -> BatchedResult | None:
    return search_first_fitting(_fastest_pipelines(batching, batching.seconds, alternatives), run_search)[0]


def _precedes_search(batching: Batching) -> bool:
    """Whether pipelines are tried before any search: where a known plan of many parts fits."""
    return batching.fits and has_many_parts(batching.evaluator.lowering)


def _is_far_from_bound(batching: Batching, seconds: float) -> bool:
    """Whether a step of `seconds` is far enough from the work bound for a pipeline to be worth trying."""
    return 0 < NEAR_BOUND * work_bound(batching.evaluator) < seconds


def _fastest_pipelines(
    batching: Batching, seconds: float, alternatives: Alternatives
) -> Sequence[tuple[Batching, Strategy | None]]:
    """The numbers of microbatches with which pipelines take less than `seconds`, the fastest first, each with its
    pipeline where no search is to follow.

    Where there are not many parts, pipelines are tried in every order that may be chosen.
    """
    is_over = alternatives.is_over
    if has_many_parts(batching.evaluator.lowering):
        candidates = _candidates_of_many_parts(batching.num_microbatches, alternatives)
        return fastest_plans(candidates, seconds, (READY,), MANY_PARTS, is_over)
    is_refined_only = num_parts(batching.evaluator) > SEARCHED_PARTS
    orders = KNOWN_PLAN_ORDERS if is_refined_only else ORDERS
    plans = fastest_plans(alternatives.fitting_candidates(), seconds, orders, THOROUGH, is_over)
    return [(one, plan if is_refined_only else None) for one, plan in plans]


def _candidates_of_many_parts(first: int, alternatives: Alternatives) -> Iterator[Candidate]:
    """The first number of microbatches, then smaller and larger ones: each takes seconds to forecast.

    Smaller ones as long as a pipeline should fit: its stages keep less than the known plans for which the first number
    was chosen. Larger ones up to twice the best number so far, and beyond that only while pipelines become faster.
    """
    least, best = inf, first
    fewer, more = _outward(first, alternatives)
    for count in fewer[:1]:
        alternatives.forecaster.prefetch(count)
    for count in (first, *fewer):
        candidate = next(replace(alternatives, counts=(count,)).fitting_candidates(), None)
        if candidate is None:
            break
        yield candidate
        if candidate.seconds < least:
            least, best = candidate.seconds, count
    for candidate in replace(alternatives, counts=more).fitting_candidates():
        yield candidate
        if candidate.seconds > CLEARLY_FASTER * least and candidate.num_microbatches >= 2 * best:
            break
        if candidate.seconds < least:
            least, best = candidate.seconds, candidate.num_microbatches
    alternatives.forecaster.cancel()


def _outward(first: int, alternatives: Alternatives) -> tuple[list[int], list[int]]:
    """The numbers of microbatches below the first, descending, and those above it, ascending."""
    fewer, more = ([n for n in alternatives.counts if n < first], [n for n in alternatives.counts if n > first])
    return fewer[::-1], more
