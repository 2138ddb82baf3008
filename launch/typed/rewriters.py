"""Rewrites that are Python files of the user's own: `mine.py` is the function `rewrite` of that file.

It does not know what a rewrite does, nor whether that is right.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from castile.launch.typed import theirs
from castile.planner import rewrite as rewrites
from castile.planner.graph import Graph


def files(names: str) -> list[str]:
    """Those of several rewrites that are Python files."""
    return [name for name in names.split(rewrites.AND) if name.endswith(".py")]


def read(names: str) -> None:
    """Have rewrites that are files be found by their names. Raises ValueError for a file without `rewrite(graph)`."""
    for path in files(names):
        found = theirs.module(path, "rewrite file", "rewrite(graph), which gives another graph")
        rewrites.register(path, partial(_run, path, found.rewrite))


def _run(path: str, function: Any, graph: Graph) -> Graph:
    """What fails in the user's function is told in one sentence."""
    with theirs.running(path, f"rewrite file {path}: rewrite(graph)"):
        made: Graph = function(graph)
    return made
