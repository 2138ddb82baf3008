"""Metropolis search: random changes to a plan, kept when they shorten the step or, now and then, when they do not.

After Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019, section 6, with the
temperature relative to the plan's own time, moves over several nodes, and a start from every seed. It does not know
what a step takes, nor which moves there are.
"""

from __future__ import annotations

import math

from castile.planner.moves import Moves
from castile.planner.search import Evaluated, Run
from castile.planner.seeds import drawn

BUDGET = "2000"
# Of a plan's own time: at first, a plan that takes so much longer is kept with probability 1/e.
TEMPERATURE = 0.03
# The chains from the seeds share this part of the budget; one from the best plan found has the rest.
SEED_SHARE = 0.5
# Chains begin at the best of the seeds, and at a plan by chance where one is not too dear: its transfers are many.
MOST_STARTS = 6
MOST_BY_CHANCE = 2000


def search(run: Run) -> None:
    """A chain from each of the best seeds and from a plan by chance, then one from the best plan that these found."""
    moves = Moves.of(run.lowering)
    starts = sorted(run.seeds.values(), key=lambda seed: seed.energy)[:MOST_STARTS]
    graph, num_procs = run.lowering.piece, run.lowering.machine.num_procs
    if len(graph.nodes) * num_procs <= MOST_BY_CHANCE:
        by_chance = run.propose(drawn(graph, num_procs, run.rng))
        assert by_chance is not None
        starts.append(by_chance)
    for number, start in enumerate(starts):
        _chain(run, moves, start, SEED_SHARE * (number + 1) / len(starts))
    _chain(run, moves, run.best, 1.0)


def _chain(run: Run, moves: Moves, current: Evaluated, until: float) -> None:
    """Metropolis steps until that share of the budget is spent, ever cooler."""
    began = run.spent
    while (spent := run.spent) < until:
        heat = TEMPERATURE * (until - spent) / (until - began)
        # Drawn before the plan is known, so that a plan can be refused by a bound.
        threshold = current.energy * (1 - heat * math.log(1 - run.rng.random()))
        found = run.propose(moves.change(current.strategy.configs, run.rng), threshold)
        if found is not None and found.energy <= threshold:
            current = found
