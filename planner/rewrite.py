"""Rewrites: a graph becomes another one that computes the same, found by name as the files of `rewrites/`.

They keep parameters, states, inputs and the names of what nodes give that others read. They do not know strategies,
machines or costs.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from castile.planner.graph import Graph
from castile.runtime.strict import suggestion

# Between the names of several.
AND = "+"


@cache
def available() -> tuple[str, ...]:
    """The names of all rewrites, found by walking the folder."""
    package = import_module("castile.planner.rewrites")
    return tuple(sorted(m.name for m in iter_modules(package.__path__)))


def check(names: str) -> None:
    """Raises ValueError for a rewrite that is not there."""
    for name in names.split(AND):
        if name not in available():
            hint = suggestion(name, list(available()))
            raise ValueError(f"no rewrite {name!r}{hint}; there are {', '.join(available())}, several as in A{AND}B")


def apply(names: str, graph: Graph) -> Graph:
    """The graph that a rewrite makes of a graph, which stays as it is; of NAME+NAME the first one comes first.

    Raises ValueError for an unknown name.
    """
    check(names)
    for name in names.split(AND):
        graph = import_module(f"castile.planner.rewrites.{name}").rewrite(graph)
    return graph
