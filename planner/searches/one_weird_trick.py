"""No search: convolutions cut by samples and dense layers by channels, as its name says, for whoever wants to compare.

It does not know other plans.
"""

from __future__ import annotations

from castile.planner.search import Evaluated, Run

BUDGET = "1"


def search(run: Run) -> Evaluated:
    """Insist on the trick, whatever it costs."""
    return run.insist("one_weird_trick")
