"""Screening: simulates those known plans, in several numbers of microbatches, that by their forecasts are fastest.

It does not know which known plans are wanted, nor how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from operator import attrgetter
from typing import NamedTuple

from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import variants
from castile.planner.searching.accumulation import Batching
from castile.planner.searching.forecasts import Candidate, Forecaster
from castile.planner.searching.refinement import MOST_SLOWDOWN
from castile.planner.searching.results import NoPlanFits, SearchResult
from castile.planner.strategy import Strategy
from castile.runtime.transfer import TooManyTransfers

# The packed size of arenas is known only once a plan is refined, which may take as long as all simulations before it:
# this many plans whose arenas do not fit are refined before giving up.
MOST_REFUSED = 3

# A known plan, and its number of microbatches and recomputation.
BatchedPlan = tuple[Batching, Strategy]
# The result of a search, and its number of microbatches and recomputation.
BatchedResult = tuple[Batching, SearchResult]
# Searches with another number of microbatches; or, if given a known plan, refines that one alone.
RunSearch = Callable[[Batching, Strategy | None], SearchResult]


class Effort(NamedTuple):
    """How many plans are simulated.

    slowdown         plans whose sketch takes at most this many times as long as the best plan so far
    num_candidates   numbers of microbatches
    num_plans        plans that fit, for each number
    """

    slowdown: float
    num_candidates: int
    num_plans: int


@dataclass(frozen=True)
class Alternatives:
    """Numbers of microbatches whose known plans may be better than a given plan.

    counts       the numbers, ascending
    forecaster   of the known plans
    is_over      once true, the first plan that is known to be better is taken
    is_late      once true, no further number is tried
    """

    counts: Sequence[int]
    forecaster: Forecaster
    is_over: Callable[[], bool]
    is_late: Callable[[], bool] = lambda: False

    def candidates(self, to_beat: float = inf) -> Iterator[Candidate]:
        """The numbers for which there are known plans, whether these should fit or not.

        Stops at a number with which no plan takes less than `to_beat` seconds.
        """
        return self.forecaster.candidates(self.counts, 1.0, self.is_late, to_beat)

    def fitting_candidates(self, to_beat: float = inf) -> Iterator[Candidate]:
        """Those with which, by its sketch, some known plan should fit."""
        return (one for one in self.candidates(to_beat) if one.forecast.fitting)


def fastest_plans(
    candidates: Iterable[Candidate], seconds: float, orders: Sequence[str], effort: Effort, is_over: Callable[[], bool]
) -> list[BatchedPlan]:
    """Simulated plans that fit and take less than `seconds`, the fastest first; empty if there are none.

    orders   task orders in which each plan is tried
    """
    ranking = _Ranking(seconds)
    # Popped one by one, the fastest first, so that each is freed: it holds all that was computed of its plans.
    remaining = sorted(candidates, key=attrgetter("seconds"))[: effort.num_candidates][::-1]
    while remaining and remaining[-1].seconds <= effort.slowdown * ranking.least:
        if ranking.plans and is_over():
            break
        candidate = remaining.pop()
        for evaluated in islice(_simulated(candidate, ranking, orders, effort.slowdown, is_over), effort.num_plans):
            ranking.add(candidate, evaluated)
    return ranking.plans


def _simulated(
    candidate: Candidate, ranking: _Ranking, orders: Sequence[str], slowdown: float, is_over: Callable[[], bool]
) -> Iterator[Evaluated]:
    """The candidate's promising plans that fit, each in its best order, as they are simulated."""
    evaluator = candidate.evaluator
    for seconds, plan in candidate.forecast.fitting:
        # A plan's kernels take as long in every order, and bounding them is faster than simulating any order.
        if seconds <= slowdown * ranking.least and evaluator.bound(plan.configs) < ranking.least:
            evaluated = in_best_order(evaluator, plan, orders, is_over, MOST_SLOWDOWN * ranking.least)
            if evaluated is not None:
                yield evaluated


@dataclass
class _Ranking:
    """Plans that take less than `seconds`, the fastest first. Only the fastest one keeps its evaluator's cache."""

    seconds: float
    plans: list[BatchedPlan] = field(default_factory=list)

    @property
    def least(self) -> float:
        return self.plans[0][0].seconds if self.plans else self.seconds

    def add(self, candidate: Candidate, evaluated: Evaluated) -> None:
        if evaluated.seconds < self.seconds:
            batching = Batching(candidate.num_microbatches, candidate.evaluator, candidate.pins, evaluated.seconds)
            plans = [*self.plans, (batching, evaluated.strategy)]
            first, *others = sorted(plans, key=lambda one: one[0].seconds)
            self.plans = [first, *((one.without_cache, plan) for one, plan in others)]


def in_best_order(
    evaluator: Evaluator, plan: Strategy, orders: Sequence[str], is_over: Callable[[], bool], most_seconds: float
) -> Evaluated | None:
    """The plan in its fastest task order; only in the first order if it takes more than `most_seconds` in that.

    None if it does not fit, or has too many transfers to simulate.
    """
    try:
        is_near = evaluator.evaluate(plan).seconds <= most_seconds
        tried = variants(evaluator, plan, (), is_over, orders if is_near else orders[:1], most=most_seconds)
    except TooManyTransfers:
        return None
    return min((one for one in tried if one.fits), key=attrgetter("seconds"), default=None)


def search_first_fitting(
    starts: Sequence[tuple[Batching, Strategy | None]], run_search: RunSearch
) -> tuple[BatchedResult | None, int]:
    """The result of the first of these searches that finds a plan whose arenas fit, and the number of proposals of
    those before it; None if the first MOST_REFUSED find none.
    """
    num_proposals = 0
    for batching, plan in starts[:MOST_REFUSED]:
        try:
            return (batching, run_search(batching, plan)), num_proposals
        except NoPlanFits as error:
            num_proposals += error.num_proposals
    return None, num_proposals
