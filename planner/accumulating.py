"""Accumulating: into how many microbatches to cut a batch of which no plan fits, as known plans in sketches tell.

It does not know how plans are found; whether one fits, and what it takes, the simulator says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from castile.planner.evaluator import Evaluator
from castile.planner.pins import Pins
from castile.planner.seeds import one_processor, seeds
from castile.planner.sketch.sieve import Sieve
from castile.planner.spaces import Spaces
from castile.planner.strategy import Strategy
from castile.runtime.transfer import TooManyTransfers

ALONE = "alone"
# Of the known plans that are taken to fit so many are simulated, the best, until one does.
MOST_TRIED = 3


@dataclass(frozen=True)
class Foreseen:
    """What known plans in so many microbatches are taken for.

    share     what activations, parameters and updates take if nothing lies twice, of all memory there is
    fitting   those that are taken to fit, by the seconds that they are taken for
    """

    share: float
    fitting: tuple[tuple[float, Strategy], ...]

    @property
    def is_hopeless(self) -> bool:
        """Whether no plan at all can fit."""
        return self.share > 1


def counts(batch: int) -> tuple[int, ...]:
    """Into how many equal microbatches a batch may be cut: each the least divisor at least twice the one before."""
    found = [1]
    while more := [n for n in range(2 * found[-1], batch + 1) if batch % n == 0]:
        found.append(more[0])
    return tuple(found)


def foresee(evaluator: Evaluator, names: Sequence[str] | None = None, pins: Pins | None = None) -> Foreseen:
    """What the known plans (of these names) take in the microbatches of an evaluator's lowering.

    Raises ValueError where the model cannot be cut into as many.
    """
    lowering, cost = evaluator.lowering, evaluator.cost
    known = seeds(lowering, names, cost, pins)
    plans = {**known, ALONE: Strategy(one_processor(lowering.piece))}
    sieve = Sieve(evaluator, plans, Spaces(lowering, cost, pins))
    share, fitting = 0.0, []
    for name, configs in sieve.configs.items():
        sieve.sketch.update(name in sieve.in_pieces)
        seconds, held = sieve.sketch.seconds(configs), sieve.sketch.room.held
        if name == ALONE:
            share = float(held.max() / evaluator.capacity.sum())
        elif (held <= evaluator.capacity).all():
            fitting.append((seconds, known[name]))
    return Foreseen(share, tuple(sorted(fitting, key=lambda one: one[0])))


def enough(
    at: Callable[[int], tuple[Evaluator, Pins | None]], numbers: Sequence[int], names: Sequence[str] | None = None
) -> int | None:
    """Of these numbers of microbatches, ascending, the one in which the best known plan that fits takes least.

    at      an evaluator for so many, and what plans must have
    When none is taken for less than one that was simulated, no more are looked at; None where no known plan fits.
    """
    least, best = inf, None
    for number in numbers:
        try:
            evaluator, pins = at(number)
            fitting = foresee(evaluator, names, pins).fitting
        except ValueError:
            # What cannot be cut into so many may be cut into others.
            continue
        if fitting and fitting[0][0] >= least:
            break
        found = next((seconds for _, plan in fitting[:MOST_TRIED] if (seconds := _seconds(evaluator, plan)) < inf), inf)
        if found < least:
            least, best = found, number
    return best


def _seconds(evaluator: Evaluator, plan: Strategy) -> float:
    """What a plan takes, infinitely much where it does not fit or cannot be looked at."""
    try:
        found = evaluator.evaluate(plan)
    except TooManyTransfers:
        return inf
    return found.seconds if found.fits else inf
