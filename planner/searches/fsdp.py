"""No search: data parallelism with parameters in pieces, as its name says, for whoever wants to compare.

It does not know other plans.
"""

from __future__ import annotations

from castile.planner.search import Evaluated, Run

BUDGET = "1"


def search(run: Run) -> Evaluated:
    """Insist on parameters in pieces, whatever it costs."""
    return run.insist("fsdp")
