"""Metropolis walks: from plan to plan by moves, to better plans always and to worse ones now and then.

They do not know where to start, nor how the temperature falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from castile.planner.choices.moves import Moves
from castile.planner.search import Evaluated, Run


def walk(run: Run, moves: Moves, current: Evaluated, until: float, temperature: Callable[[float], float]) -> Evaluated:
    """Walk until the share `until` of the run's budget is spent; return the plan with which the walk ends.

    temperature   of the share of the walk that is left, from 1 to 0. A plan may be worse than the one before it by this
                  share of its time (or memory), times a random draw of mean 1
    """
    began = run.spent
    while (spent := run.spent) < until:
        # Drawn before the plan is evaluated, so that a bound can refuse it.
        left = (until - spent) / (until - began)
        most = current.energy * (1 - temperature(left) * math.log(1 - run.rng.random()))
        found = run.propose(moves.change(current.strategy.configs, run.rng), most)
        if found is not None and found.energy <= most:
            current = found
    return current
