"""Parallel tempering: walks at several temperatures, of which the colder take over what the hotter come upon.

After Swendsen, Wang, "Replica Monte Carlo Simulation of Spin-Glasses", Physical Review Letters 57, 1986, with
temperatures relative to the best plan's own time. Walks may go on in processes of their own
(`planner/searching/walkers`); what is found does not depend on how many. It does not know what a step takes, nor which
moves there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from castile.planner.search import Evaluated, Run
from castile.planner.searching.walkers import Leg, Walked, Walkers

BUDGET, WALKS = "4000", True
# Of the best plan's own time: what a walk's plans may take longer and still be kept with probability 1/e.
LADDER = (0.002, 0.006, 0.02, 0.06)
# Walks go on in at most so many processes.
PROCESSES = len(LADDER)
# Proposals of a walk between two exchanges.
LEG = 50


def search(run: Run) -> None:
    """Walks from the best of the seeds, the best of them coldest, until the budget is spent."""
    best = sorted(run.seeds.values(), key=lambda seed: seed.energy)
    current = [best[min(n, len(best) - 1)] for n in range(len(LADDER))]
    num_processes = min(run.num_processes, PROCESSES)
    with Walkers(run.evaluator, num_processes, run.pins, run.budget.is_over) as walkers:
        while run.spent < 1:
            legs = [
                Leg(found.strategy.configs, heat, count, run.rng.getrandbits(32))
                for found, heat, count in zip(current, LADDER, _counts(run), strict=True)
                if count
            ]
            current[: len(legs)] = [_come_to(run, walked) for walked in walkers.walk(legs)]
            _exchange(current, run.best.energy, run.rng.random)


def _counts(run: Run) -> list[int]:
    """The proposals of the next legs, fewer where fewer are left; the coldest go on longest."""
    if run.budget.proposals is None:
        return [LEG] * len(LADDER)
    left, num_walks = run.budget.proposals - run.num_proposals, len(LADDER)
    return [min(LEG, left // num_walks + (n < left % num_walks)) for n in range(num_walks)]


def _come_to(run: Run, walked: Walked) -> Evaluated:
    """Where a walk has come to; what it met counts as proposed. Without time left only the best of that is seen."""
    is_late = run.spent >= 1
    seen = walked.best[:1] if is_late else walked.best
    run.adopt(walked.num_proposals, [run.evaluator.evaluate(run.lowering.plan(configs)) for configs in seen])
    return run.best if is_late else run.evaluator.evaluate(run.lowering.plan(walked.configs))


def _exchange(current: list[Evaluated], scale: float, draw: Callable[[], float]) -> None:
    """Neighbours swap plans by the Metropolis rule, the coldest last, so that a good one may come all the way down."""
    for hot, cold in pairwise(reversed(range(len(LADDER)))):
        gain = (current[cold].energy - current[hot].energy) / scale * (1 / LADDER[cold] - 1 / LADDER[hot])
        if gain >= 0 or draw() < math.exp(gain):
            current[hot], current[cold] = current[cold], current[hot]
