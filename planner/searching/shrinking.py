"""Shrinking: in how many microbatches, and with what computed again, plans need least memory.

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

# Twice as many microbatches, or more computed again, take longer: they have to need less by such a share.
GAIN = 0.02
# Sketches took plans for up to so many times what they need (docs/decisions/0178).
MOST_TAKEN = 1.5
# The search that looks at a place, and how long: what known plans need says little of what is found from them.
SEARCH, PROPOSALS = "mcmc", 2500

IsOver = Callable[[], bool]


class Small(NamedTuple):
    """A place, and the bytes of the fullest processor in the smallest plan that was found there."""

    chosen: Chosen
    nbytes: int


def smallest(outlooks: Sequence[Outlook], numbers: Sequence[int], is_over: IsOver) -> Chosen | None:
    """Where short searches find the plan that needs least memory; of places where it needs hardly more the one where
    least is computed again, and of these the one of fewest microbatches. None where none fits.

    outlooks   by what is computed again, from least to most
    numbers    of microbatches, ascending
    is_over    once it says so no further place is looked at
    In how many to begin is what sketches say of what computes most again.
    """
    number, least = _enough(outlooks[-1], numbers, is_over), inf
    found: list[tuple[Outlook, Small]] = []
    for outlook in reversed(outlooks):
        small = None if found and is_over() else _found(outlook, number, least, is_over)
        if small is not None:
            found.append((outlook, small))
            least = min(least, small.nbytes)
    near = [(outlook, small) for outlook, small in found if (1 - GAIN) * small.nbytes <= least]
    if not near:
        return None
    outlook, best = near[-1]
    for fewer in [n for n in reversed(numbers) if n < number]:
        small = None if is_over() else _found(outlook, fewer, least, is_over)
        if small is None or (1 - GAIN) * small.nbytes > least:
            break
        best, least = small, min(least, small.nbytes)
    return best.chosen


def _enough(outlook: Outlook, numbers: Sequence[int], is_over: IsOver) -> int:
    """In how many microbatches the smallest known plan is taken to need hardly more than in any number, or less: the
    most of them, as copies for a microbatch, of which sketches know little, are the smaller the more there are.
    """
    shares = {place.number: place.foreseen.share for place in outlook.places(numbers, inf, is_over)}
    least = min(shares.values(), default=inf)
    return max((number for number, share in shares.items() if (1 - GAIN) * share <= least), default=numbers[0])


def _found(outlook: Outlook, number: int, least: float, is_over: IsOver) -> Small | None:
    """What a short search from the smallest known plan finds that fits; None where a sketch puts that one far behind so
    many bytes, and where none is taken to fit.
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
