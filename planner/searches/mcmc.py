"""Metropolis search: random changes to a plan, kept when they shorten the step or, now and then, when they do not.

After Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019, section 6, with the
temperature relative to the plan's own time, moves over several nodes, and starts from the best seeds. It does not know
what a step takes, nor which moves there are.
"""

from __future__ import annotations

from castile.planner.moves import Moves
from castile.planner.search import Run
from castile.planner.walks import walk

BUDGET = "2000"
# Of a plan's own time: at first, a plan that takes so much longer is kept with probability 1/e.
TEMPERATURE = 0.02
# The chains from the seeds share this part of the budget; one from the best plan found has the rest.
SEED_SHARE = 0.5
# Chains begin at so many of the seeds: with more, each is too short.
MOST_STARTS = 3


def search(run: Run) -> None:
    """A chain from each of the best seeds, then one from the best plan that these found."""
    moves = Moves.of(run.lowering)
    starts = sorted(run.seeds.values(), key=lambda seed: seed.energy)[:MOST_STARTS]
    for number, start in enumerate(starts):
        walk(run, moves, start, SEED_SHARE * (number + 1) / len(starts), _cooling)
    walk(run, moves, run.best, 1.0, _cooling)


def _cooling(left: float) -> float:
    return TEMPERATURE * left
