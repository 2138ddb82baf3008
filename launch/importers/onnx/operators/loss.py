"""Losses that a file brings: the softmax cross-entropy, at once or after its logarithm, as a mean over all labels."""

from __future__ import annotations

from castile.launch.importers.onnx import pieces, trained
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.values import Unsupported
from castile.planner.op import Tensor


@handles("SoftmaxCrossEntropyLoss")
def cross_entropy(c: Call) -> Tensor:
    """Of logits [b, classes, ...] and labels [b, ...]."""
    if c.results > 1:
        raise Unsupported("whose logarithms are used")
    return _mean(c, trained.classes_last(c.g, c.inner("last"), c.tensor(0)))


@handles("NegativeLogLikelihoodLoss")
def likelihood(c: Call) -> Tensor:
    """Of what a logarithm of a softmax [b, classes] gives."""
    log = pieces.maker(c.g, c.tensor(0), "log_softmax")
    if log is None or len(c.shape(0)) != 2:
        raise Unsupported("of what is no logarithm of a softmax of classes")
    return _mean(c, pieces.operand(c.g, log, 0))


def _mean(c: Call, logits: Tensor) -> Tensor:
    if c.get("reduction", b"mean") != b"mean":
        raise Unsupported("that is no mean")
    # no label is below zero
    if c.get("ignore_index", -1) >= 0:
        raise Unsupported("that ignores a class")
    return c.g.cross_entropy(c.name, logits, c.tensor(1))
