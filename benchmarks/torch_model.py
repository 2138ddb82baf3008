"""A castile graph in PyTorch, eager on a CPU: one PyTorch call for each node, as one would write the model by hand.

It does not know plans: the whole graph runs in one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.torch_lstm import TorchLstm
from castile.launch.jobs.execution import initial
from castile.planner.graph import Graph
from castile.planner.op import Tensor as Whole
from castile.runtime.region import whole

T = torch.Tensor

# Models that PyTorch has layers of its own for.
WHOLE: dict[str, type[TorchLstm]] = {"lstm": TorchLstm}


class TorchModel(torch.nn.Module):
    """The graph with castile's own initial parameters of that seed, in float32."""

    def __init__(self, graph: Graph, seed: int) -> None:
        super().__init__()
        self.graph = graph
        numbers = {t.name: initial(t, seed, whole(t.shape)) for t in graph.params}
        # PyTorch allows no dots in the names of parameters.
        self.held = torch.nn.ParameterList(torch.nn.Parameter(torch.from_numpy(a)) for a in numbers.values())
        self._calls = [
            (getattr(Calls, node.op.name), node.op, graph.tensors[node.outputs[0]], node.inputs, node.outputs)
            for node in graph.nodes.values()
        ]
        self._names = tuple(numbers)
        # running statistics, which PyTorch's layer renews by itself
        self._kept = {t: torch.zeros(graph.tensors[t].shape) for t in graph.states}

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The loss of inputs by name."""
        values = {**inputs, **self._kept, **dict(zip(self._names, self.held))}
        for call, op, output, names, outputs in self._calls:
            kept = [name for name in self._kept if op.name == "batch_norm" and name.startswith(f"{output.name}.")]
            made = call(op, output, *(values[name] for name in (*names, *kept)))
            # what is kept for gradients alone is PyTorch's own affair
            values.update(zip(outputs, made if isinstance(made, tuple) else (made,)))
        return values[self.graph.loss]


class TorchStep:
    """One step of stochastic gradient descent with momentum: zeroed gradients, loss, gradients, update."""

    def __init__(self, graph: Graph, seed: int, rate: float, momentum: float) -> None:
        self.model: torch.nn.Module = WHOLE.get(graph.name, TorchModel)(graph, seed)
        learning = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(learning, lr=rate, momentum=momentum)
        self.loss = torch.zeros(())
        self._inputs: dict[str, torch.Tensor] = {}

    def feed(self, arrays: Mapping[str, np.ndarray]) -> None:
        """The inputs of the steps that follow."""
        self._inputs = {
            name: torch.from_numpy(np.ascontiguousarray(array, np.int64 if array.dtype.kind == "i" else np.float32))
            for name, array in arrays.items()
        }

    def run(self) -> None:
        """The step; `loss` holds the loss before its update."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = self.model(self._inputs)
        self.loss.backward()
        self.optimizer.step()


class Calls:
    """The nodes' operators in PyTorch, by name: (settings, what comes out, operands) -> result."""

    @staticmethod
    def embedding(op: Any, out: Whole, ids: T, table: T) -> T:
        return F.embedding(ids, table)

    @staticmethod
    def add(op: Any, out: Whole, x: T, other: T) -> T:
        return x + other

    @staticmethod
    def layer_norm(op: Any, out: Whole, x: T, gain: T, shift: T) -> T:
        return F.layer_norm(x, gain.shape, gain, shift, op.eps)

    @staticmethod
    def linear(op: Any, out: Whole, x: T, w: T, b: T | None = None) -> T:
        return F.linear(x, w, b)

    @staticmethod
    def attention(op: Any, out: Whole, q: T, k: T, v: T) -> T:
        heads = (x.unflatten(-1, (op.h, -1)).transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*heads, is_causal=op.causal).transpose(1, 2).flatten(2)

    @staticmethod
    def gelu(op: Any, out: Whole, x: T) -> T:
        return F.gelu(x, approximate=op.approximate)

    @staticmethod
    def relu(op: Any, out: Whole, x: T) -> T:
        return F.relu(x)

    @staticmethod
    def conv2d(op: Any, out: Whole, x: T, w: T, b: T | None = None) -> T:
        return F.conv2d(x, w, b, op.stride, op.padding, op.dilation, op.g)

    @staticmethod
    def max_pool2d(op: Any, out: Whole, x: T) -> T:
        return F.max_pool2d(x, op.kernel, op.stride, op.padding)

    @staticmethod
    def global_pool(op: Any, out: Whole, x: T) -> T:
        return x.mean(tuple(range(2, x.ndim)))

    @staticmethod
    def batch_moments(op: Any, out: Whole, x: T) -> T:
        return x

    @staticmethod
    def batch_factors(op: Any, out: Whole, x: T, gain: T, shift: T) -> list[Any]:
        return [gain, shift, op.eps]

    @staticmethod
    def batch_norm(op: Any, out: Whole, x: T, factors: list[Any], mean: T, variance: T) -> T:
        gain, shift, eps = factors
        return F.batch_norm(x, mean, variance, gain, shift, training=True, eps=eps)

    @staticmethod
    def reshape(op: Any, out: Whole, x: T) -> T:
        return x.reshape(out.shape)

    @staticmethod
    def contract(op: Any, out: Whole, x: T, y: T) -> T:
        left, right = op.text.replace(" ", "").split("->")
        return torch.einsum(f"{left}->{right}", x, y)

    @staticmethod
    def concat(op: Any, out: Whole, *xs: T) -> T:
        return torch.cat(xs, op.dim)

    @staticmethod
    def tanh(op: Any, out: Whole, x: T) -> T:
        return torch.tanh(x)

    @staticmethod
    def lstm_cell(
        op: Any, out: Whole, x: T, bias: T, h: T | None = None, c: T | None = None, w: T | None = None
    ) -> tuple[T, T]:
        gates = x[:, op.position : op.position + 1] + bias
        if h is not None and w is not None:
            gates = gates + (h @ w.flatten(0, 1).T).unflatten(-1, w.shape[:2])
        into, forget, candidate, outof = gates.unbind(2)
        new = into.sigmoid() * candidate.tanh() + (0 if c is None else forget.sigmoid() * c)
        return outof.sigmoid() * new.tanh(), new

    @staticmethod
    def cross_entropy(op: Any, out: Whole, logits: T, labels: T) -> T:
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())
