"""Networks of one node out of ONNX's own suite, imported and computed by the definitions of castile's kernels.

What a case gives beside its first arrays stands for weights and settings, as files hold these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from castile.launch.importers.onnx.network import Network
from castile.launch.importers.onnx.values import Known, Whole, known
from castile.planner.graph import Graph
from castile.planner.op import Tensor
from tests.test_models import forward

# What samples are made of.
DTYPES = ("float32", "float64", "int32", "int64", "bool")


@dataclass(frozen=True)
class Answer:
    """What became of a case: its results, or in words what castile lacks; nodes: how many of castile's it took."""

    results: list[np.ndarray] | None = None
    lacks: str = ""
    nodes: int = 0


def answer(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> Answer:
    """The answer of the first way to import a case that castile takes."""
    found = []
    for of_samples in ways(inputs):
        found.append(computed(model, inputs, of_samples))
        if found[-1].results is not None and found[-1].nodes:
            return found[-1]
    return next((one for one in found if one.lacks), Answer(lacks="nothing that depends on samples"))


def ways(inputs: Sequence[np.ndarray]) -> Iterator[set[int]]:
    """Which inputs are samples: as many as can be, the first, or another one."""
    there = {n for n, one in enumerate(inputs) if one.size and one.dtype.name in DTYPES}
    floating = {n for n in there if inputs[n].dtype.kind == "f"}
    every = [floating, there, *({n} for n in sorted(there))]
    yield from (way for n, way in enumerate(every) if way and way not in every[:n])


def computed(model: onnx.ModelProto, inputs: Sequence[np.ndarray], of_samples: set[int]) -> Answer:
    """A case whose inputs of these numbers are samples."""
    kinds = [one.dtype.name for one in inputs if one.dtype.kind == "f"]
    graph = Graph("case", kinds[0] if kinds else "float32")
    net = Network("case", graph, 0, 0, False, {one.domain: one.version for one in model.opset_import})
    env: dict[str, Any] = {}
    weights = {tensor.name for tensor in model.graph.initializer}
    # of old files weights are inputs too
    asked = [told for told in model.graph.input if told.name not in weights]
    for n, (told, array) in enumerate(zip(asked, inputs, strict=True)):
        if n in of_samples:
            axes, kind = " ".join(f"a{dim}" for dim in range(array.ndim)), array.dtype
            array = array.astype(np.int32) if kind.kind == "b" else array
            net.input(told.name, told.name, array.shape, axes, kind, array.dtype.name)
            env[net.operand(net.values[told.name]).name] = array
        else:
            net.values[told.name] = known(told.name, array, learned=array.dtype.kind == "f")
    for tensor in model.graph.initializer:
        net.values[tensor.name] = known(tensor.name, onnx.numpy_helper.to_array(tensor), learned=True)
    names = [one.name for one in model.graph.output]
    net.add(model.graph.node, names)
    if net.lacking:
        return Answer(lacks="; ".join(f"{op} {how}" for op, how in net.lacking))
    values = [net.values[name] for name in names]
    if any(isinstance(value, Known) for value in values):
        return Answer(lacks="folded away")
    found = forward(graph, env | {name: source.array for name, source in net.sources.items()})
    told = [net.operand(value) if isinstance(value, Tensor | Whole) else None for value in values]
    return Answer([np.zeros(0) if one is None else found[one.name] for one in told], "", len(graph.nodes))
