"""Least memory: the number of microbatches and the recomputation with which plans need least memory.

It does not know how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple

from castile.planner.evaluation.budget import Budget
from castile.planner.search import search
from castile.planner.searching.accumulation import Batching
from castile.planner.searching.forecasts import Forecaster
from castile.planner.searching.results import NoPlanFits
from castile.runtime.transfer import TooManyTransfers

# More microbatches or recomputation take longer: to be chosen they must need less memory by this share.
GAIN = 0.02
# Sketches gave plans up to this many times the memory that they need (docs/decisions/0178).
MOST_OVERESTIMATE = 1.5
# Each number is tried by a short search: what known plans need says little of what a search finds from them.
SEARCH, PROPOSALS = "mcmc", 2500

IsOver = Callable[[], bool]


class _Smallest(NamedTuple):
    """The smallest plan found with a number of microbatches: bytes of its fullest processor."""

    batching: Batching
    nbytes: int


def least_memory_batching(forecasters: Sequence[Forecaster], counts: Sequence[int], is_over: IsOver) -> Batching | None:
    """The number of microbatches and the recomputation with which short searches find the plan of least memory.

    Of those that need hardly more, the one with the least recomputation and then the fewest microbatches. None if no
    plan fits. Recomputation is compared with the number of microbatches that sketches prefer for the most of it.

    forecasters   one for each recomputation, from least to most
    counts        numbers of microbatches, ascending
    is_over       once true, nothing further is tried
    """
    first, least = _forecast_count(forecasters[-1], counts, is_over), inf
    found: list[tuple[Forecaster, _Smallest]] = []
    for forecaster in reversed(forecasters):
        small = None if found and is_over() else _smallest(forecaster, first, least, is_over)
        if small is not None:
            found.append((forecaster, small))
            least = min(least, small.nbytes)
    near = [(forecaster, small) for forecaster, small in found if (1 - GAIN) * small.nbytes <= least]
    if not near:
        return None
    forecaster, best = near[-1]
    for fewer in [count for count in reversed(counts) if count < first]:
        small = None if is_over() else _smallest(forecaster, fewer, least, is_over)
        if small is None or (1 - GAIN) * small.nbytes > least:
            break
        best, least = small, min(least, small.nbytes)
    return best.batching


def _forecast_count(forecaster: Forecaster, counts: Sequence[int], is_over: IsOver) -> int:
    """The largest number of microbatches with which the smallest known plan, by its sketch, needs hardly more memory
    than with any other: more microbatches have smaller copies, of which sketches know little.
    """
    candidates = forecaster.candidates(counts, inf, is_over)
    shares = {one.num_microbatches: one.forecast.share for one in candidates}
    least = min(shares.values(), default=inf)
    return max((count for count, share in shares.items() if (1 - GAIN) * share <= least), default=counts[0])


def _smallest(forecaster: Forecaster, count: int, least: float, is_over: IsOver) -> _Smallest | None:
    """The smallest plan that a short search from a known plan finds with `count` microbatches.

    None where no plan fits, or where the smallest known plan, by its sketch, needs far more than `least` bytes.
    """
    candidate = next(forecaster.candidates([count], inf, lambda: False), None)
    if candidate is None or not candidate.forecast.fitting:
        return None
    evaluator, pins = candidate.evaluator, candidate.pins
    if candidate.forecast.share * float(evaluator.capacity.min()) > MOST_OVERESTIMATE * least:
        return None
    start = candidate.forecast.fitting[0][1].search
    budget = Budget(proposals=PROPOSALS, is_over=is_over)
    with suppress(NoPlanFits, TooManyTransfers):
        best = search(SEARCH, evaluator, budget, seeds=[start], pins=pins).evaluated
        return _Smallest(Batching(count, evaluator, pins, best.seconds), max(best.peak_bytes))
    return None
