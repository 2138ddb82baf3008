"""Weighted cross-entropy: the mean over all labels of -log softmax(logits) at the label, weighted by its class."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from castile.planner.bodies.vocabulary import wide
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor


def layer(g: Graph, name: str, logits: Tensor, labels: Tensor, weights: Sequence[float]) -> Tensor:
    """Add to graph `g` the mean over the labels of the whole batch, to which microbatches add their shares.

    weights   of each class, above 0: classes that are rare, or dear to miss, count for more. Where labels have weights
              of 1 on average, gradients are as long as those of `cross_entropy`. (PyTorch's mean divides by the sum of
              a batch's weights, which no microbatch knows.) A training goes on with those that it began with alone; one
              that begins with parameters out of a file may have others.
    Raises ValueError unless there is one for each class.
    """
    classes = logits.shape[-1]
    if len(weights) != classes or not all(isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"{name}: {classes} classes take as many weights above 0, got {tuple(weights)}")
    dtype, axis = wide(g.dtype), logits.axes[-1:]
    numbers, factors = (
        g.state(f"{name}.{what}", (classes,), axis, Init("given", values=np.asarray(values, dtype), fixed=True))
        for what, values in (("classes", np.arange(classes)), ("weights", weights))
    )
    axes = " ".join(labels.axes)
    label = g.reshape(f"{name}.label", g.real(f"{name}.real", labels), f"{axes} -> {axes} one", one=1)
    shares = g.mul(f"{name}.shares", g.compare(f"{name}.is", label, "==", numbers), factors)
    weighted = g.mul(f"{name}.told", shares, g.log_softmax(f"{name}.log", logits))
    return g.neg(name, g.mean(f"{name}.mean", g.sum(f"{name}.each", weighted, dims=(-1,))))
