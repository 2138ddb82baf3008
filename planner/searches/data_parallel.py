"""No search: data parallelism, as its name says, for whoever wants to compare.

It does not know other plans.
"""

from __future__ import annotations

from castile.planner.search import Evaluated, Run

BUDGET = "1"


def search(run: Run) -> Evaluated:
    """Insist on data parallelism, whatever it costs."""
    return run.insist("data_parallel")
