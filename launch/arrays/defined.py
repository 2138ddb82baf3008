"""What nodes and graphs give by the definitions of the kernels, in float64, at numbers that are drawn.

It does not know plans, nor what anybody makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from castile.kernels.table import definitions
from castile.planner.graph import Graph, Node
from castile.planner.op import PASSES, Op, Part, Tensor
from castile.runtime.region import slices

Arrays = list[np.ndarray]
Draw = Callable[[np.random.Generator, Tensor], np.ndarray]


def run(
    node: Node, which: str, arrays: Arrays, pulls: Sequence[Any] = (), results: Sequence[Any] = (),
    part: Part | None = None,
) -> Arrays:  # fmt: skip
    """One pass (F, B or W) of a part of a node, by default of the whole, given whole arrays."""
    part = part or node.whole()
    local = [[np.array(one[slices(part.writes(j))]) for j, one in enumerate(every)] for every in (pulls, results)]
    context = {"at": part, "y": tuple(local[1])}
    given: list[Any] = [np.array(array[slices(part.reads(n))]) for n, array in enumerate(arrays)]
    if which != "F":
        given.insert(0, local[0][0] if node.op.flows == 1 else tuple(local[0]))
    made = _body(node.op, which)(*given, **{name: context[name] for name in node.op.asks(which)})
    return list(made) if isinstance(made, tuple | list) else [made]


def through(ops: Iterable[Op], array: np.ndarray) -> np.ndarray:
    """What operators of one operand make of each number of an array, one after another."""
    for op in ops:
        array = _body(op, "F")(array)
    return array


def _body(op: Op, which: str) -> Callable[..., Any]:
    """A pass of an operator, with the definitions as its kernels."""
    return partial(getattr(op, PASSES[which]), SimpleNamespace(**definitions()))


def drawn(node: Node, tensors: Sequence[Tensor]) -> tuple[Arrays, Arrays]:
    """Operands, and the results of these. Raises ValueError where results are no numbers."""
    for draw in DRAWS:
        arrays = [draw(np.random.default_rng(n), tensor) for n, tensor in enumerate(tensors)]
        results = run(node, "F", arrays)
        if all(np.isfinite(y).all() for y in results):
            return arrays, results
    raise ValueError(f"{node.name}: no results that are numbers")


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
