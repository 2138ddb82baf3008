"""Filling: whether a pipeline does a batch in microbatches sooner than the plan that was found without.

Walks keep the number of microbatches with which they began. It does not know how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.choices.pins import Pins
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import variants
from castile.planner.known.seeds import MOST_PIPED, PIPELINE, known_names
from castile.planner.search import Found, NoPlanFits
from castile.planner.searching.accumulating import Chosen, foresee
from castile.planner.sketch.sieve import num_parts
from castile.planner.strategy import ORDERS

# One is looked for where a step takes so many times as long as all processors' work, less than which none takes.
WORTH = 1.1
# And simulated where a sketch takes it for so many times what was found, or less: to simulate one takes long.
PROMISING = 0.95

At = Callable[[int], tuple[Evaluator, Pins | None]]


def filled(
    chosen: Chosen, found: Found, numbers: Iterable[int], at: At, look: Callable[[Chosen], Found]
) -> tuple[Chosen, Found]:
    """What was found, or the better plan that a search finds in the one of these numbers of microbatches that a known
    pipeline gets through soonest; and in how many.

    at     an evaluator for so many microbatches, and what plans must have
    look   the same search in such
    """
    evaluator = chosen.evaluator
    has_none = found.is_insisted or num_parts(evaluator) > MOST_PIPED
    bound = None if has_none else lower_bound(evaluator)
    if bound is None or found.evaluated.seconds <= WORTH * bound.work_seconds:
        return chosen, found
    soonest = _soonest(at, numbers, found.evaluated.seconds)
    if soonest is None:
        return chosen, found
    try:
        other = look(soonest)
    except NoPlanFits as error:  # live bytes fit, and arenas do not
        return chosen, replace(found, num_proposals=found.num_proposals + error.num_proposals)
    num_proposals = found.num_proposals + other.num_proposals
    if other.evaluated.rank >= found.evaluated.rank:
        return chosen, replace(found, num_proposals=num_proposals)
    return soonest, replace(other, seeds=found.seeds, num_proposals=num_proposals)


def _soonest(at: At, numbers: Iterable[int], seconds: float) -> Chosen | None:
    """The number in which a known pipeline takes least, if that is less than `seconds`.

    Of each number the pipeline that is taken for the best is simulated, in each order.
    """
    least, best = seconds, None
    for number in numbers:
        try:
            evaluator, pins = at(number)
            names = [name for name in known_names(evaluator.lowering) if name.startswith(PIPELINE)]
            fitting = foresee(evaluator, names, pins).fitting if names else ()
            if not fitting or fitting[0][0] > PROMISING * least:
                continue
            plans = variants(evaluator, fitting[0][1], (), orders=ORDERS)
        except ValueError:
            # What cannot be cut into so many may be cut into others.
            continue
        if (soonest := min((one.seconds for one in plans if one.fits), default=inf)) < least:
            least, best = soonest, Chosen(number, evaluator, pins, True)
    return best
