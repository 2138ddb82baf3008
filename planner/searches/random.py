"""Random search: independent random plans, the baseline of every other search.

It does not know moves, nor which plans were good before.
"""

from __future__ import annotations

from castile.planner.search import Run

BUDGET = "500"


def search(run: Run) -> None:
    """Propose random plans until the budget is spent, each node's Config drawn uniformly from its space."""
    while run.spent < 1:
        run.propose({name: run.spaces[name].draw(run.rng) for name in run.lowering.piece.nodes})
