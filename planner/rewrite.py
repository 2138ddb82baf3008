"""Rewrites: a graph becomes another one that computes the same, found by name as the files of `rewrites/`, or brought.

They keep parameters, states, inputs and the names of what nodes give that others read. They do not know strategies,
machines or costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import msgspec

from castile.planner.graph import Graph, with_orders
from castile.planner.op import Op
from castile.runtime.strict import suggestion

# Between the names of several.
AND = "+"

Rewrite = Callable[[Graph], Graph]
# A node's name, its operator, and the names of the tensors that it reads.
Row = tuple[str, Op, tuple[str, ...]]

FIELDS = tuple(field.name for field in fields(Graph) if field.init)

_registered: dict[str, Rewrite] = {}


@cache
def available() -> tuple[str, ...]:
    """The names of all rewrites, found by walking the folder."""
    package = import_module("castile.planner.rewrites")
    return tuple(sorted(m.name for m in iter_modules(package.__path__)))


def register(name: str, rewrite: Rewrite) -> None:
    """Let `find` return a rewrite by this name, which must not be one of castile's, in this process."""
    _registered[name] = rewrite


def find(name: str) -> Rewrite:
    """The rewrite of that name. Raises ValueError where there is none."""
    if name in _registered:
        return _registered[name]
    if name not in available():
        hint = suggestion(name, list(available()))
        among = f"there are {', '.join(available())}, several as in A{AND}B"
        raise ValueError(f"no rewrite {name!r}{hint}; {among}; or name a Python file with rewrite()")
    found: Rewrite = import_module(f"castile.planner.rewrites.{name}").rewrite
    return found


def check(names: str) -> None:
    """Raises ValueError for a rewrite that is not there."""
    for name in names.split(AND):
        find(name)


def apply(names: str, graph: Graph) -> Graph:
    """The graph that a rewrite makes of a graph, which stays as it is; of NAME+NAME the first one comes first.

    Raises ValueError for an unknown name, and where a registered rewrite makes what is no graph in the place of this.
    """
    for name in names.split(AND):
        graph = _checked(name, graph) if name in _registered else find(name)(graph)
    return graph


def made_of(graph: Graph, rows: Iterable[Row]) -> Graph:
    """The graph with other nodes, in an order in which each reads what is there; all else stays, orders of dims too.

    Raises ValueError as `Graph.apply` does, and for a tensor that no row before gives.
    """
    given = {name for node in graph.nodes.values() for name in node.outputs}
    made = replace(graph, nodes={}, tensors={n: t for n, t in graph.tensors.items() if n not in given})
    for name, op, inputs in rows:
        if missing := [tensor for tensor in inputs if tensor not in made.tensors]:
            raise ValueError(f"{name} reads {missing[0]!r}, which no node before it gives")
        made.apply(op, name, *(made.tensors[tensor] for tensor in inputs))
        if name in graph.nodes:
            members = graph.nodes[name].members
            made.nodes[name] = msgspec.structs.replace(made.nodes[name], members=members)
    orders = graph.orders
    made.nodes = {name: with_orders(node, orders) for name, node in made.nodes.items()}
    # where all nodes stay it is the same graph, for which the same plans are
    made.tensors = {name: made.tensors[name] for name in (*graph.tensors, *made.tensors) if name in made.tensors}
    return made


def _checked(name: str, graph: Graph) -> Graph:
    """What a rewrite that was brought makes of a graph. Raises ValueError where it did what none may do."""
    before = {field: copy(getattr(graph, field)) for field in FIELDS}
    made = find(name)(graph)
    if before != {field: getattr(graph, field) for field in FIELDS}:
        raise ValueError(f"rewrite {name} changes the graph that it is given: it should make another, as made_of does")
    if wrong := _wrong(graph, made):
        raise ValueError(f"rewrite {name} {wrong}")
    return made


def _wrong(graph: Graph, made: object) -> str:
    """What a rewrite did that none may do, in words; "" for nothing."""
    if not isinstance(made, Graph):
        return f"gives {type(made).__name__}, and not a Graph"
    for what in FIELDS:
        if what not in ("nodes", "tensors") and getattr(made, what) != getattr(graph, what):
            return f"changes the graph's {what}, which has to stay"
    kept = {*graph.inputs, *graph.scalars, *graph.states, *(param.name for param in graph.params)}
    seen = {*graph.outputs, *filter(None, [graph.loss])}
    if lost := sorted(name for name in kept | seen if made.tensors.get(name) != graph.tensors[name]):
        return f"changes {lost[0]!r}, which has to stay as it is"
    for node in made.nodes.values():
        if missing := [name for name in node.inputs if name not in kept]:
            return f"leaves {node.name} reading {missing[0]!r}, which no node before it gives"
        kept.update(node.outputs)
    read = {name for node in graph.updates.values() for name in node.inputs}
    return f"drops {min(gone)!r}, which is read" if (gone := (seen | read) - kept) else ""
