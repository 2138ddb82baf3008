"""Normalisations: by statistics of the batch, of a sample's channels or features, of neighbouring channels."""

from __future__ import annotations

from math import prod

import numpy as np

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.arithmetic import scaled
from castile.launch.importers.onnx.operators.layout import padded
from castile.launch.importers.onnx.values import Known, Unsupported, known
from castile.planner.op import Init, Tensor, find
from castile.planner.ops.batch_norm import BatchNorm

ONES, ZEROS = Init("ones"), Init("zeros")


@handles("BatchNormalization")
def batch_norm(c: Call) -> Tensor:
    if c.results > 1:
        raise Unsupported("that gives its statistics")
    c.get("training_mode"), c.get("is_test"), c.get("consumed_inputs")
    if c.get("spatial", 1) != 1:
        raise Unsupported("with statistics of each place")
    x, gain, shift = c.tensor(0), c.weight(1, "c", ONES), c.weight(2, "c", ZEROS)
    statistics = [c.value(n) for n in (3, 4)]
    if not all(isinstance(one, Known) for one in statistics):
        raise Unsupported("with statistics that depend on samples")
    names = [c.net.kept(one) for one in statistics if isinstance(one, Known)]
    momentum, eps = 1 - c.get("momentum", 0.9), c.get("epsilon", 1e-5)
    return BatchNorm.normalised(c.g, c.name, x, gain, shift, (names[0], names[1]), momentum, eps, c.net.training)


@handles("LayerNormalization")
def layer_norm(c: Call) -> tuple[Tensor, ...]:
    # in what it computes is castile's choice
    c.get("stash_type")
    x, dim = c.tensor(0), c.get("axis", -1) % len(c.shape(0))
    width = prod(x.shape[dim:])
    gain = _feature(c, 1, width, ONES)
    shift = _feature(c, 2, width, ZEROS) if c.has(2) else _zeros(c, width)
    rows = shaping.reshaped(c.g, c.inner("rows"), x, (*x.shape[:dim], width))
    name = c.name if rows is x else c.inner("normal")
    y = c.g.apply(find("layer_norm")(c.get("epsilon", 1e-5)), name, rows, gain, shift)
    shape = (*x.shape[:dim], *(1 for _ in x.shape[dim:]))
    statistics = [
        shaping.reshaped(c.g, c.inner(label), c.g.tensors[f"{name}:{label}"], shape)
        for label in ("mean", "rstd")[: c.results - 1]
    ]
    return (shaping.reshaped(c.g, c.name, y, x.shape), *statistics)


def _feature(c: Call, number: int, width: int, init: Init) -> Tensor:
    """A weight of each feature, which may be stretched over what it is meant for."""
    if prod(c.shape(number)) != width:
        raise Unsupported(f"with a weight of shape {c.shape(number)} for {width} features")
    return c.weight(number, "d", init, lambda w: w.reshaped((width,)))


def _zeros(c: Call, width: int) -> Tensor:
    """A shift that the file leaves out."""
    return c.net.constant(known(f"{c.name}.bias", np.zeros(width, np.float32)), ("d",))


@handles("RMSNormalization")
def rms_norm(c: Call) -> Tensor:
    c.get("stash_type")
    x, dim = c.tensor(0), c.get("axis", -1) % len(c.shape(0))
    width = prod(x.shape[dim:])
    rows = shaping.reshaped(c.g, c.inner("rows"), x, (*x.shape[:dim], width))
    name = c.name if rows is x else c.inner("normal")
    y = c.g.apply(find("rms_norm")(c.get("epsilon", 1e-5)), name, rows, _feature(c, 1, width, ONES))
    return shaping.reshaped(c.g, c.name, y, x.shape)


@handles("InstanceNormalization")
def instance_norm(c: Call) -> Tensor:
    params = c.weight(1, "c", ONES), c.weight(2, "c", ZEROS)
    return c.g.apply(find("group_norm")(c.shape(0)[1], c.get("epsilon", 1e-5)), c.name, c.tensor(0), *params)


@handles("GroupNormalization")
def group_norm(c: Call) -> Tensor:
    if c.shape(1) != c.shape(0)[1:2]:
        raise Unsupported("with a weight for each group: from version 21 on there is one for each channel")
    c.get("stash_type")
    params = c.weight(1, "c", ONES), c.weight(2, "c", ZEROS)
    return c.g.apply(find("group_norm")(c.get("num_groups"), c.get("epsilon", 1e-5)), c.name, c.tensor(0), *params)


@handles("LRN")
def local_response(c: Call) -> Tensor:
    """x / (bias + alpha times the mean of squares of neighbouring channels) ** beta, the channels as rows."""
    x, size = c.tensor(0), c.get("size")
    square = c.g.square(c.inner("square"), x)
    rows = shaping.reshaped(c.g, c.inner("rows"), square, (x.shape[0], 1, x.shape[1], prod(x.shape[2:])))
    before, after = (size - 1) // 2, size // 2
    if before == after:
        means = c.g.avg_pool2d(c.inner("means"), rows, (size, 1), 1, (before, 0))
    else:
        wide = padded(c, c.inner("ends"), rows, [(0, 0), (0, 0), (before, after), (0, 0)])
        means = c.g.avg_pool2d(c.inner("means"), wide, (size, 1), 1)
    grown = scaled(c, c.inner("alpha"), shaping.reshaped(c.g, c.inner("back"), means, x.shape), c.get("alpha", 1e-4))
    log = c.g.log(c.inner("log"), c.g.shift(c.inner("shift"), grown, amount=c.get("bias", 1.0)))
    factor = c.g.exp(c.inner("factor"), c.g.scale(c.inner("beta"), log, factor=-c.get("beta", 0.75)))
    return c.g.mul(c.name, x, factor)


@handles("LpNormalization")
def lp_norm(c: Call) -> Tensor:
    x, dim, p = c.tensor(0), c.get("axis", -1), c.get("p", 2)
    dim %= len(x.shape)
    each = c.g.abs(c.inner("abs"), x) if p == 1 else c.g.square(c.inner("square"), x)
    total = c.g.sum(c.inner("sum"), each, dims=dim)
    total = total if p == 1 else c.g.sqrt(c.inner("root"), total)
    kept = shaping.reshaped(c.g, c.inner("kept"), total, (*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    # where all is zero so is the result
    return c.g.div(c.name, x, c.g.clamp(c.inner("above"), kept, low=1e-30))
