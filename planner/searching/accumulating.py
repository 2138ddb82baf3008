"""Accumulating: into how many microbatches to cut a batch of which no plan fits, as known plans in sketches tell.

It does not know how plans are found; whether one fits, and what it takes, the simulator says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from castile.planner.bodies.vocabulary import itemsize
from castile.planner.choices.pins import Pins
from castile.planner.choices.spaces import Spaces
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import seeds
from castile.planner.sketch.sieve import Sieve
from castile.planner.strategy import Strategy
from castile.runtime.transfer import TooManyTransfers

# Of the known plans that are taken to fit so many are simulated, the best, until one does; then the smallest.
MOST_TRIED = 3
# Known plans need as much memory where what they need differs by less than this share.
ALIKE = 0.02
# A search may find a plan that fits where a sketch takes the smallest known one for so many times the memory: searches
# were seen to save a quarter.
NEAR = 1.5
# Sketches of whole batches took the smallest known plan for up to 1.45 times what it needed (docs/decisions/0046), and
# those of cut ones for no more than it needed. From so many times the memory on none comes near fitting.
FAR = 3.0


@dataclass(frozen=True)
class Foreseen:
    """What known plans in so many microbatches are taken for.

    share     of its memory the fullest processor needs in the plan that needs least: more than 1 where none fits
    fitting   of those that are taken to fit the best, by the seconds that they are taken for, and the smallest
    least     the seconds that the soonest is taken for, whether it fits or not
    """

    share: float
    fitting: tuple[tuple[float, Strategy], ...]
    least: float

    @property
    def is_far(self) -> bool:
        """Whether no known plan comes near fitting. That no other fits is not known."""
        return self.share > FAR


@dataclass(frozen=True)
class Chosen:
    """A number of microbatches, and what is known of it.

    evaluator  for so many; it knows the plans that were simulated to find the number
    pins       what plans must have
    seconds    what the best known plan takes that was simulated and fits; inf where none was
    """

    number: int
    evaluator: Evaluator
    pins: Pins | None
    seconds: float = inf

    @property
    def fits(self) -> bool:
        """Whether a known plan was simulated and fits."""
        return self.seconds < inf


def foresee(evaluator: Evaluator, names: Sequence[str] | None = None, pins: Pins | None = None) -> Foreseen:
    """What the known plans (of these names) take in the microbatches of an evaluator's lowering.

    Raises ValueError where the model cannot be cut into as many.
    """
    lowering, cost = evaluator.lowering, evaluator.cost
    known = seeds(lowering, names, cost, pins)
    sieve = Sieve(evaluator, known, Spaces(lowering, cost, pins))
    found = [(seen.seconds, seen.share, known[name]) for name, seen in sieve.seen.items() if seen.share <= 1]
    found.sort(key=lambda one: one[:2])
    # A sketch took a small vit for half the memory that it needs: where the best do not fit, the smallest may.
    last = sorted(found[MOST_TRIED:], key=lambda one: one[1])[:1]
    fitting = tuple((seconds, plan) for seconds, _, plan in (*found[:MOST_TRIED], *last))
    every = sieve.seen.values()
    return Foreseen(min(seen.share for seen in every), fitting, min(seen.seconds for seen in every))


def may_need(shares: Mapping[int, float], number: int, most: float) -> bool:
    """Whether the smallest known plan in so many microbatches may need at most `most` times the memory.

    shares   how many times it needs in other numbers: in twice as many never less than half, also with twice the stages
    """
    least = min(shares.values(), default=0.0)
    return max([n for n, share in shares.items() if share <= (1 + ALIKE) * least], default=0) * least <= most * number


def could_fit(evaluator: Evaluator) -> bool:
    """Whether all memory together has room for what is carried from step to step, each element once: else no plan fits,
    however little it keeps beside.
    """
    lowering = evaluator.lowering.shortened(2)
    carried = [flow for flow in lowering.program(lowering.plan({})).flows if flow.home is not None]
    nbytes = sum(prod(flow.shape) * itemsize(flow.dtype) for flow in carried)
    return nbytes <= int(evaluator.capacity.sum())


def enough(
    at: Callable[[int], tuple[Evaluator, Pins | None]],
    numbers: Iterable[int],
    names: Sequence[str] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Chosen | None:
    """Of these numbers of microbatches, ascending, the one in which the best known plan that fits takes least.

    at        an evaluator for so many, and what plans must have
    is_over   once it says so one in which a known plan fits will do
    When none is taken for less than one that was simulated, no more are looked at. Where no known plan fits, the number
    in which the smallest lacks least, if it comes so near that a search may find one; else None.
    """
    least, best = inf, None
    share, nearest = NEAR, None
    shares: dict[int, float] = {}
    for number in numbers:
        if best is not None and is_over():
            break
        if not may_need(shares, number, NEAR):
            continue
        try:
            evaluator, pins = at(number)
            foreseen = foresee(evaluator, names, pins)
        except ValueError:
            # What cannot be cut into so many may be cut into others.
            continue
        fitting = foreseen.fitting
        shares[number] = foreseen.share
        if fitting and fitting[0][0] >= least:
            break
        found = next((seconds for _, plan in fitting if (seconds := _seconds(evaluator, plan)) < inf), inf)
        if found < least:
            least, best = found, Chosen(number, evaluator, pins, found)
        elif best is None and foreseen.share < share:
            share, nearest = foreseen.share, Chosen(number, evaluator, pins)
    return best or nearest


def _seconds(evaluator: Evaluator, plan: Strategy) -> float:
    """What a plan takes, infinitely much where it does not fit or cannot be looked at."""
    try:
        found = evaluator.evaluate(plan) if evaluator.is_small(plan) else None
    except TooManyTransfers:
        return inf
    return found.seconds if found is not None and found.fits else inf
