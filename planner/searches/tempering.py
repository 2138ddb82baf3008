"""Parallel tempering: walks at several temperatures, which exchange plans so that good ones move to colder walks.

After Swendsen, Wang, "Replica Monte Carlo Simulation of Spin-Glasses", Physical Review Letters 57, 1986, with
temperatures relative to the best plan's own time. Walks may run in processes of their own
(`planner/searching/walkers`); what is found does not depend on how many. It does not know how long a step takes, nor
which moves there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from castile.planner.search import Evaluated, Run
from castile.planner.searching.walkers import Leg, LegResult, Walkers

BUDGET, WALKS = "4000", True
# The temperatures, as shares of a plan's time: a plan that is worse by this share is accepted with probability 1/e.
LADDER = (0.002, 0.006, 0.02, 0.06)
# Walks run in at most this many processes.
PROCESSES = len(LADDER)
# Proposals of a walk between two exchanges.
LEG = 50


def search(run: Run) -> None:
    """Walk from the best seeds, from the very best at the lowest temperature, until the budget is spent."""
    best = sorted(run.seeds.values(), key=lambda seed: seed.energy)
    current = [best[min(n, len(best) - 1)] for n in range(len(LADDER))]
    num_processes = min(run.num_processes, PROCESSES)
    with Walkers(run.evaluator, num_processes, run.pins, run.budget.is_over) as walkers:
        while run.spent < 1:
            legs = [
                Leg(found.strategy.configs, temperature, count, run.rng.getrandbits(32))
                for found, temperature, count in zip(current, LADDER, _counts(run), strict=True)
                if count
            ]
            current[: len(legs)] = [_adopted(run, leg) for leg in walkers.walk(legs)]
            _exchange(current, run.best.energy, run.rng.random)


def _counts(run: Run) -> list[int]:
    """The numbers of proposals of the next legs; of the last proposals of a budget the coldest walks get more."""
    if run.budget.proposals is None:
        return [LEG] * len(LADDER)
    left, num_walks = run.budget.proposals - run.num_proposals, len(LADDER)
    return [min(LEG, left // num_walks + (n < left % num_walks)) for n in range(num_walks)]


def _adopted(run: Run, leg: LegResult) -> Evaluated:
    """The plan at the end of a leg, after its proposals are counted and its best plans recorded.

    With no time left only the best of these is, and the best plan so far is returned.
    """
    is_late = run.spent >= 1
    best = leg.best[:1] if is_late else leg.best
    run.adopt(leg.num_proposals, [run.evaluator.evaluate(run.lowering.plan(configs)) for configs in best])
    return run.best if is_late else run.evaluator.evaluate(run.lowering.plan(leg.configs))


def _exchange(current: list[Evaluated], scale: float, draw: Callable[[], float]) -> None:
    """Swap plans of neighbouring temperatures by the Metropolis rule.

    The coldest pair comes last, so that a good plan may move all the way down.
    """
    for hot, cold in pairwise(reversed(range(len(LADDER)))):
        gain = (current[cold].energy - current[hot].energy) / scale * (1 / LADDER[cold] - 1 / LADDER[hot])
        if gain >= 0 or draw() < math.exp(gain):
            current[hot], current[cold] = current[cold], current[hot]
