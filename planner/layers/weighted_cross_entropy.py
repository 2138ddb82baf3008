"""Weighted cross-entropy: the mean over all labels of -log softmax(logits) at the label, weighted by its class."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from castile.planner.graph import Graph
from castile.planner.op import Tensor
from castile.planner.ops.compare import Compare


def layer(g: Graph, name: str, logits: Tensor, labels: Tensor, weights: Sequence[float]) -> Tensor:
    """Add to graph `g` the mean over the labels of the whole batch, to which microbatches add their shares.

    weights   of each class, above 0: classes that are rare, or dear to miss, count for more. Where labels have weights
              of 1 on average, gradients are as long as those of `cross_entropy`. (PyTorch's mean divides by the sum of
              a batch's weights, which no microbatch knows.)
    Raises ValueError unless there is one for each class.
    """
    classes = logits.shape[-1]
    if len(weights) != classes or not all(isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"{name}: {classes} classes take as many weights above 0, got {tuple(weights)}")
    axes = " ".join(labels.axes)
    label = g.reshape(f"{name}.label", g.real(f"{name}.real", labels), f"{axes} -> {axes} one", one=1)
    each = [
        g.apply(Compare("==", float(c), float(weight)), f"{name}.is.{c}", label) for c, weight in enumerate(weights)
    ]
    shares = g.concat(f"{name}.weights", -1, *each) if classes > 1 else each[0]
    told = g.mul(f"{name}.told", shares, g.log_softmax(f"{name}.log", logits))
    return g.neg(name, g.mean(f"{name}.mean", g.sum(f"{name}.each", told, dims=(-1,))))
