"""Filling: whether a pipeline does a batch in microbatches sooner than the plan that was found without.

Walks keep the number of microbatches with which they began. It does not know how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from operator import attrgetter
from typing import NamedTuple

from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.choices.pins import Pins
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import variants
from castile.planner.known.seeds import PIPELINE, has_many_parts, known_names
from castile.planner.search import Found, NoPlanFits
from castile.planner.searching.accumulating import Chosen, foresee
from castile.planner.strategy import ORDERS, READY, Strategy
from castile.runtime.transfer import TooManyTransfers

# One is looked for where a step takes so many times as long as all processors' work, less than which none takes.
WORTH = 1.1
# And simulated where a sketch, which begins nothing ahead, takes it for so many times what was found, or less; where
# there are many parts for less than that, as to simulate one takes long.
PROMISING, OF_MANY = 1.2, 0.95

At = Callable[[int], tuple[Evaluator, Pins | None]]
# The same search in another number of microbatches; with a name that known plan alone, on which it does not insist.
Look = Callable[[Chosen, str], Found]


def filled(chosen: Chosen, found: Found, numbers: Iterable[int], at: At, look: Look) -> tuple[Chosen, Found]:
    """What was found, or the better plan that a search finds in the one of these numbers of microbatches that a known
    pipeline gets through soonest; and in how many.

    at     an evaluator for so many microbatches, and what plans must have
    look   the same search in such
    """
    if found.is_insisted or _is_first(chosen) or not _is_worth(chosen, found.evaluated.seconds):
        return chosen, found
    soonest, name = _soonest(chosen, found.evaluated.seconds, numbers, at)
    if soonest is None:
        return chosen, found
    try:
        other = look(soonest, name)
    except NoPlanFits as error:  # live bytes fit, and arenas do not
        return chosen, replace(found, num_proposals=found.num_proposals + error.num_proposals)
    num_proposals = found.num_proposals + other.num_proposals
    if other.evaluated.rank >= found.evaluated.rank:
        return chosen, replace(found, num_proposals=num_proposals)
    return soonest, replace(other, seeds=found.seeds, num_proposals=num_proposals)


def sooner(chosen: Chosen, numbers: Iterable[int], at: At, look: Look) -> tuple[Chosen, Found] | None:
    """Where there are too many parts to simulate several pipelines: one that takes less than the best known plan, if
    that is known to fit, and in how many microbatches; None where there is none.

    numbers, at   as of `filled`, ascending
    look          at the known plan of that name
    """
    if not _is_first(chosen) or not _is_worth(chosen, chosen.seconds):
        return None
    return _looked_at(chosen, numbers, at, look)


def cut_for(chosen: Chosen, numbers: Iterable[int], at: At) -> Chosen:
    """Where there is time to search in one number of microbatches only, and plans have few enough parts for a search to
    look at pipelines: the one in which a known pipeline takes less than the best known plan, if that is known to fit;
    else the same.

    numbers   as long as there is time to look at one more
    """
    if has_many_parts(chosen.evaluator.lowering) or not chosen.fits or not _is_worth(chosen, chosen.seconds):
        return chosen
    return _simulated(_taken_for_best(at, numbers), chosen.seconds, (READY,), OF_MANY)[0] or chosen


def instead(chosen: Chosen, numbers: Iterable[int], at: At, look: Look) -> tuple[Chosen, Found] | None:
    """Where there are too many parts for a search to look at pipelines, and it found nothing that fits: the pipeline
    that does, and is soonest; None where there is none.
    """
    is_left_out = has_many_parts(chosen.evaluator.lowering)
    return _looked_at(replace(chosen, seconds=inf), numbers, at, look) if is_left_out else None


def _looked_at(chosen: Chosen, numbers: Iterable[int], at: At, look: Look) -> tuple[Chosen, Found] | None:
    soonest, name = _soonest(chosen, chosen.seconds, numbers, at)
    if soonest is None:
        return None
    try:
        return soonest, look(soonest, name)
    except NoPlanFits:
        return None


def _is_first(chosen: Chosen) -> bool:
    """Whether a pipeline is looked for before anything is searched: beside a known plan of many parts that fits."""
    return chosen.fits and has_many_parts(chosen.evaluator.lowering)


def _is_worth(chosen: Chosen, seconds: float) -> bool:
    bound = lower_bound(chosen.evaluator)
    return bound is not None and seconds > WORTH * bound.work_seconds


class _Candidate(NamedTuple):
    """A number of microbatches, and the pipeline that is taken for the best in so many, and for how many seconds."""

    seconds: float
    number: int
    evaluator: Evaluator
    pins: Pins | None
    plan: Strategy


def _soonest(chosen: Chosen, seconds: float, numbers: Iterable[int], at: At) -> tuple[Chosen | None, str]:
    """The number in which a pipeline takes least, if that is less than `seconds`; and where plans have many parts its
    name, else "".

    The most promising are simulated first, in every order where there are not many parts.
    """
    if not has_many_parts(chosen.evaluator.lowering):
        return _simulated(_taken_for_best(at, numbers), seconds, ORDERS, PROMISING)[0], ""
    return _simulated(_of_many_parts(chosen.number, numbers, at), seconds, (READY,), OF_MANY)


def _simulated(
    candidates: Iterable[_Candidate], seconds: float, orders: Sequence[str], promising: float
) -> tuple[Chosen | None, str]:
    """The one that takes least, if that is less than `seconds`, and the name of its pipeline."""
    least, best, name = seconds, None, ""
    # The others are let go of: each holds all that was worked out of its plans.
    left = sorted(candidates, key=attrgetter("seconds"), reverse=True)
    while left and left[-1].seconds <= promising * least:
        one = left.pop()
        try:
            plans = variants(one.evaluator, one.plan, (), orders=orders)
        except TooManyTransfers:
            continue
        if (soonest := min((plan.seconds for plan in plans if plan.fits), default=inf)) < least:
            least, best, name = soonest, Chosen(one.number, one.evaluator, one.pins, soonest), one.plan.search
    return best, name


def _taken_for_best(at: At, numbers: Iterable[int]) -> Iterator[_Candidate]:
    """For each number that has one the pipeline that fits and is taken for the best."""
    for number in numbers:
        try:
            evaluator, pins = at(number)
            names = [name for name in known_names(evaluator.lowering, pins) if name.startswith(PIPELINE)]
            fitting = foresee(evaluator, names, pins).fitting if names else ()
        except ValueError:
            # What cannot be cut into so many may be cut into others.
            continue
        if fitting:
            yield _Candidate(fitting[0][0], number, evaluator, pins, fitting[0][1])


def _of_many_parts(first: int, numbers: Iterable[int], at: At) -> Iterator[_Candidate]:
    """Those of the first number and of larger ones, as in fewer none fitted, up to one that is not taken for much less
    than one before: to look at each takes seconds.
    """
    least = inf
    for one in _taken_for_best(at, (first, *(number for number in numbers if number > first))):
        yield one
        if one.seconds > OF_MANY * least:
            return
        least = min(least, one.seconds)
