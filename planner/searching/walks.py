"""Metropolis walks: from plan to plan by moves, to better ones always and to worse ones now and then.

They do not know where to begin, nor how the temperature goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from castile.planner.choices.moves import Moves
from castile.planner.search import Evaluated, Run


def walk(run: Run, moves: Moves, current: Evaluated, until: float, heat: Callable[[float], float]) -> Evaluated:
    """Walk until that share of the run's budget is spent; gives where that led to.

    heat   by how much more of its time (or memory) the plan that follows another may take, times a draw whose mean is
           1; given the share of the walk that is left, from 1 to 0
    """
    began = run.spent
    while (spent := run.spent) < until:
        # Drawn before the plan is known, so that a plan can be refused by a bound.
        most = current.energy * (1 - heat((until - spent) / (until - began)) * math.log(1 - run.rng.random()))
        found = run.propose(moves.change(current.strategy.configs, run.rng), most)
        if found is not None and found.energy <= most:
            current = found
    return current
