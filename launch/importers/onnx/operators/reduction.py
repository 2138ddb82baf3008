"""Sums, means and largest elements over some dims, and where the largest are."""

from __future__ import annotations

from math import prod

import numpy as np

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.layout import listed
from castile.launch.importers.onnx.operators.products import along
from castile.launch.importers.onnx.values import Unsupported, known
from castile.planner.op import Tensor

# A matrix of sums up to each of more elements would take as much memory as many a network.
MOST_SUMS = 4096
# What is taken over the dims, what is done to each element before, and to the result after.
TAKEN = {
    "ReduceSum": ("sum", "", ""), "ReduceMean": ("mean", "", ""), "ReduceMax": ("max", "", ""),
    "ReduceMin": ("max", "neg", "neg"), "ReduceSumSquare": ("sum", "square", ""), "ReduceL1": ("sum", "abs", ""),
    "ReduceL2": ("sum", "square", "sqrt"), "ReduceLogSum": ("sum", "", "log"),
}  # fmt: skip


@handles(*TAKEN)
def reduced(c: Call) -> Tensor:
    layer, before, after = TAKEN[c.op]
    x, gone = c.floating(0), _gone(c)
    keep = bool(c.get("keepdims", 1))
    y = getattr(c.g, before)(c.inner(before), x) if before else x
    y = taken(c, layer, y, gone, c.inner(layer) if after else c.name, keep) if gone else y
    return getattr(c.g, after)(c.name, y) if after else y


def _gone(c: Call) -> list[int]:
    """The dims that are reduced."""
    dims, ndim, is_noop = listed(c, 1, "axes"), len(c.shape(0)), c.get("noop_with_empty_axes", 0)
    if not dims and is_noop:
        return []
    return sorted({dim % ndim for dim in dims}) if dims else list(range(ndim))


def taken(c: Call, layer: str, x: Tensor, gone: list[int], name: str, keep: bool) -> Tensor:
    """What a layer takes over some dims, which stay as dims of one where `keep` says so."""
    if not keep:
        return getattr(c.g, layer)(name, x, dims=gone)
    shape = tuple(1 if dim in gone else n for dim, n in enumerate(x.shape))
    if len(gone) == len(x.shape):
        x, gone = shaping.reshaped(c.g, c.inner("row"), x, (1, prod(x.shape))), [1]
    y = getattr(c.g, layer)(c.inner(layer), x, dims=gone)
    return shaping.reshaped(c.g, name, y, shape)


@handles("ReduceLogSumExp")
def log_sum_exp(c: Call) -> Tensor:
    """With the largest taken off before, so that nothing overflows."""
    x, gone = c.floating(0), _gone(c)
    top = taken(c, "max", x, gone, c.inner("top"), True)
    exp = c.g.exp(c.inner("exp"), c.g.sub(c.inner("less"), x, top))
    y = c.g.add(c.name, c.g.log(c.inner("log"), taken(c, "sum", exp, gone, c.inner("total"), True)), top)
    if c.get("keepdims", 1):
        return y
    return shaping.reshaped(c.g, c.inner("dims"), y, tuple(n for dim, n in enumerate(x.shape) if dim not in gone))


@handles("TopK")
def top_k(c: Call) -> tuple[Tensor, Tensor]:
    x = c.floating(0)
    count = int(c.known(1).reshape(())) if c.has(1) else c.get("k")
    dim = c.get("axis", -1) % len(x.shape)
    if not c.get("largest", 1) or not c.get("sorted", 1):
        raise Unsupported("of the smallest, or in no order")
    return _top(c, x, dim, count, c.inner("top"))


def _top(c: Call, x: Tensor, dim: int, count: int, name: str) -> tuple[Tensor, Tensor]:
    last = len(x.shape) - 1
    dims = (*(n for n in range(last + 1) if n != dim), dim)
    found = c.g.topk(name, shaping.permuted(c.g, f"{name}.last", x, dims), k=count)
    back = tuple(dims.index(n) for n in range(last + 1))
    places = c.g.tensors[f"{name}:places"]
    return shaping.permuted(c.g, f"{name}.values", found, back), shaping.permuted(c.g, f"{name}.places", places, back)


@handles("ArgMax", "ArgMin")
def arg_max(c: Call) -> Tensor:
    if c.get("select_last_index", 0):
        raise Unsupported("that takes the last of equals")
    x, dim = c.floating(0), c.get("axis", 0) % len(c.shape(0))
    x = c.g.neg(c.inner("neg"), x) if c.op == "ArgMin" else x
    _, places = _top(c, x, dim, 1, c.inner("top"))
    if c.get("keepdims", 1):
        return places
    return shaping.reshaped(c.g, c.name, places, (*x.shape[:dim], *x.shape[dim + 1 :]))


@handles("CumSum")
def running(c: Call) -> Tensor:
    """Sums up to each element of a dim: its product with a triangle of ones."""
    x, dim = c.floating(0), int(c.known(1).reshape(())) % len(c.shape(0))
    length, is_reversed = x.shape[dim], c.get("reverse", 0)
    if length > MOST_SUMS:
        raise Unsupported(f"over {length} elements")
    ones = np.tri(length, k=-1 if c.get("exclusive", 0) else 0, dtype=np.float32)
    return along(c, c.name, x, dim, known(f"{c.name}.ones", ones[::-1, ::-1] if is_reversed else ones))
