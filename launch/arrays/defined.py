"""What nodes and graphs give by the definitions of the kernels, in float64, at numbers that are drawn.

It does not know plans, nor what anybody makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from castile.kernels.table import definitions
from castile.planner.graph import Graph, Node
from castile.planner.op import PASSES, Tensor
from castile.runtime.region import slices

Arrays = list[np.ndarray]
Draw = Callable[[np.random.Generator, Tensor], np.ndarray]


def run(node: Node, which: str, arrays: Arrays, pulls: Sequence[Any] = (), results: Sequence[Any] = ()) -> Arrays:
    """One pass (F, B or W) of the whole node."""
    part = node.whole()
    context = {"at": part, "y": tuple(results)}
    given: list[Any] = [np.array(array[slices(part.reads(n))]) for n, array in enumerate(arrays)]
    if which != "F":
        given.insert(0, pulls[0] if node.op.flows == 1 else tuple(pulls))
    body: Callable[..., Any] = getattr(node.op, PASSES[which])
    made = body(SimpleNamespace(**definitions()), *given, **{name: context[name] for name in node.op.asks(which)})
    return list(made) if isinstance(made, tuple | list) else [made]


def given(graph: Graph, draw: Draw) -> dict[str, np.ndarray]:
    """Numbers for all that a graph is given: inputs, scalars, states and parameters, the same for the same names."""
    names = sorted({*graph.inputs, *graph.scalars, *graph.states, *(param.name for param in graph.params)})
    return {name: draw(np.random.default_rng(n), graph.tensors[name]) for n, name in enumerate(names)}


def made(graph: Graph, known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of what is known the graph's outputs, its loss and what its states become."""
    values = dict(known)
    for node in graph.nodes.values():
        values |= zip(node.outputs, run(node, "F", [values[name] for name in node.inputs]), strict=True)
    made = {name: values[name] for name in (*graph.outputs, graph.loss) if name}
    return made | {n.name: run(n, "F", [values[name] for name in n.inputs])[0] for n in graph.updates.values()}


def normal(random: np.random.Generator, tensor: Tensor) -> np.ndarray:
    """Numbers of any sign; whole ones are 0 or 1."""
    return random.normal(size=tensor.shape) if tensor.floating else random.integers(0, 2, tensor.shape, np.int32)


def positive(random: np.random.Generator, tensor: Tensor) -> np.ndarray:
    """Numbers for what takes no others, as roots do."""
    return random.uniform(0.5, 1.5, tensor.shape) if tensor.floating else normal(random, tensor)


# How numbers are drawn: the second way where the first leads to none.
DRAWS: tuple[Draw, ...] = (normal, positive)
