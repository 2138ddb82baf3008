"""No search: data parallelism with shares in proportion to speed, as its name says, for whoever wants to compare.

It does not know other plans.
"""

from __future__ import annotations

from castile.planner.search import Evaluated, Run

BUDGET = "1"


def search(run: Run) -> Evaluated:
    """Insist on shares in proportion to speed, whatever they cost."""
    return run.insist("balanced")
