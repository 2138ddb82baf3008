"""Random search: plans drawn by chance alone, the baseline of every other search.

It does not know moves, nor what was good before.
"""

from __future__ import annotations

from castile.planner.search import Run

BUDGET = "500"


def search(run: Run) -> None:
    """Draw plans until the budget is spent, each node's Config of its space with equal probability."""
    while run.spent < 1:
        run.propose({name: run.spaces[name].draw(run.rng) for name in run.lowering.piece.nodes})
