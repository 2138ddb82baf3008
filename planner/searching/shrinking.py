"""Least memory: with how many microbatches and with which recomputation plans need least memory.

It does not know how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple

from castile.planner.evaluation.budget import Budget
from castile.planner.search import NoPlanFits, search
from castile.planner.searching.accumulating import Chosen
from castile.planner.searching.foresight import Outlook
from castile.runtime.transfer import TooManyTransfers

# More microbatches or recomputation take longer: to be chosen they must need less memory by this share.
GAIN = 0.02
# Sketches gave plans up to so many times the memory that they need (docs/decisions/0178).
MOST_TAKEN = 1.5
# A short search looks at each place: what known plans need says little of what a search finds from them.
SEARCH, PROPOSALS = "mcmc", 2500

IsOver = Callable[[], bool]


class Small(NamedTuple):
    """A number of microbatches, and the bytes of the fullest processor in the smallest plan found with it."""

    chosen: Chosen
    nbytes: int


def smallest(outlooks: Sequence[Outlook], numbers: Sequence[int], is_over: IsOver) -> Chosen | None:
    """The number of microbatches and the recomputation with which short searches find the plan of least memory; where
    others need hardly more, that with the least recomputation, and then the fewest microbatches. None if none fits.

    outlooks   one for each recomputation, from least to most
    numbers    of microbatches, ascending
    is_over    once it is true nothing further is looked at
    The first number is chosen by sketches with the most recomputation.
    """
    number, least = _enough(outlooks[-1], numbers, is_over), inf
    found: list[tuple[Outlook, Small]] = []
    for outlook in reversed(outlooks):
        small = None if found and is_over() else _shrunk(outlook, number, least, is_over)
        if small is not None:
            found.append((outlook, small))
            least = min(least, small.nbytes)
    near = [(outlook, small) for outlook, small in found if (1 - GAIN) * small.nbytes <= least]
    if not near:
        return None
    outlook, best = near[-1]
    for fewer in [n for n in reversed(numbers) if n < number]:
        small = None if is_over() else _shrunk(outlook, fewer, least, is_over)
        if small is None or (1 - GAIN) * small.nbytes > least:
            break
        best, least = small, min(least, small.nbytes)
    return best.chosen


def _enough(outlook: Outlook, numbers: Sequence[int], is_over: IsOver) -> int:
    """The most microbatches with which by sketches the smallest known plan needs hardly more than with any number: the
    more there are the smaller are the copies made for each, of which sketches know little.
    """
    shares = {place.number: place.foreseen.share for place in outlook.places(numbers, inf, is_over)}
    least = min(shares.values(), default=inf)
    return max((number for number, share in shares.items() if (1 - GAIN) * share <= least), default=numbers[0])


def _shrunk(outlook: Outlook, number: int, least: float, is_over: IsOver) -> Small | None:
    """The smallest plan that fits which a short search from a known plan finds; None where by sketches the smallest
    known plan needs far more than `least` bytes, or none fits.
    """
    place = next(outlook.places([number], inf, lambda: False), None)
    if place is None or not (fitting := place.foreseen.fitting):
        return None
    evaluator, pins = place.evaluator, place.pins
    if place.foreseen.share * float(evaluator.capacity.min()) > MOST_TAKEN * least:
        return None
    budget = Budget(proposals=PROPOSALS, is_over=is_over)
    with suppress(NoPlanFits, TooManyTransfers):
        best = search(SEARCH, evaluator, budget, seeds=[fitting[0][1].search], pins=pins).evaluated
        return Small(Chosen(number, evaluator, pins, best.seconds), max(best.peak_bytes))
    return None
