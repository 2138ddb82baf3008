"""Searches that are Python files of the user's own: `mine.py:moves=3` is the function `search` of that file with a
setting.

It does not know what a search goes through, nor who looks for a plan.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from castile.launch.typed import settings, theirs
from castile.planner import searches
from castile.planner.evaluation.budget import parse_budget

# Of one that says none.
BUDGET = "500"


def file(text: str) -> str:
    """The Python file that a search is, "" where it is none."""
    name = text.partition(":")[0]
    return name if name.endswith(".py") else ""


def read(text: str) -> None:
    """Have a search that is a file be found by what was typed for it; others are castile's own.

    Raises ValueError in one sentence for a file without `search(run)`, and for settings or a budget that make no sense.
    """
    if not (path := file(text)):
        return
    found = theirs.module(path, "search file", "search(run), which proposes plans until run.spent is 1")
    budget = str(getattr(found, "BUDGET", BUDGET))
    try:
        parse_budget(budget)
    except ValueError as error:
        raise ValueError(f"search file {path}: BUDGET: {error}") from error
    does_walk = getattr(found, "WALKS", False)
    if not isinstance(does_walk, bool):
        raise ValueError(f"search file {path}: WALKS: {does_walk!r} should be True or False")
    values = settings.typed(found.search, settings.split(text)[1], f"search {path}", reserved=("run",))
    run = partial(_run, path, partial(found.search, **values))
    searches.register(text, searches.Registered(run, budget, does_walk))


def _run(path: str, function: Any, run: Any) -> None:
    """What fails in the user's function is told in one sentence."""
    with theirs.running(path, f"search file {path}: search(run)"):
        function(run)
