"""Random search: plans drawn by chance alone, the baseline of every other search.

It does not know moves, nor what was good before.
"""

from __future__ import annotations

from castile.planner.search import Run
from castile.planner.seeds import drawn

BUDGET = "500"


def search(run: Run) -> None:
    """Draw plans until the budget is spent."""
    while run.spent < 1:
        run.propose(drawn(run.lowering.piece, run.lowering.machine.num_procs, run.rng))
