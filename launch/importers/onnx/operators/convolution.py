"""Convolutions over one and two dims, and transposed ones; padding that is not alike at both ends comes before."""

from __future__ import annotations

from math import prod

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.layout import padded
from castile.launch.importers.onnx.operators.products import uniform
from castile.launch.importers.onnx.values import Known, Unsupported
from castile.planner.op import Init, Tensor, find

Ends = list[tuple[int, int]]


def ends_of(c: Call, lengths: tuple[int, ...], kernel: list[int], stride: list[int], dilation: list[int]) -> Ends:
    """The padding before and after each dim."""
    how, count, pads = c.get("auto_pad", b"NOTSET").decode(), len(kernel), c.get("pads")
    if how in ("NOTSET", "VALID"):
        pads = pads if pads and how == "NOTSET" else [0] * 2 * count
        return list(zip(pads[:count], pads[count:], strict=True))
    found = []
    for length, size, step, gap in zip(lengths, kernel, stride, dilation, strict=True):
        total = max((-(-length // step) - 1) * step + (size - 1) * gap + 1 - length, 0)
        less, more = total // 2, total - total // 2
        found.append((less, more) if how == "SAME_UPPER" else (more, less))
    return found


def together(c: Call, x: Tensor, ends: Ends, least: list[int], value: float = 0.0) -> tuple[Tensor, list[int]]:
    """The padding that an operator does by itself, alike at both ends, fewer than `least`; x with what is more."""
    own = [
        min(before, after) if before == after < most else 0 for (before, after), most in zip(ends, least, strict=True)
    ]
    more = [(before - n, after - n) for (before, after), n in zip(ends, own, strict=True)]
    return padded(c, c.inner("padded"), x, [(0, 0), (0, 0), *more], value) if any(map(any, more)) else x, own


@handles("Conv")
def conv(c: Call) -> Tensor:
    x, weight = c.tensor(0), c.value(1)
    count = len(x.shape) - 2
    if count not in (1, 2):
        raise Unsupported(f"over {count} dims")
    kernel = list(c.get("kernel_shape", weight.shape[2:]))
    stride, dilation = c.get("strides", [1] * count), c.get("dilations", [1] * count)
    ends, groups = ends_of(c, x.shape[2:], kernel, stride, dilation), c.get("group", 1)
    axes = "o i r s" if count == 2 else "o i r"
    params = [c.weight(1, axes, uniform(prod(weight.shape[1:])))]
    if c.has(2):
        params.append(c.weight(2, "o", Init("zeros")))
    if count == 1:
        return c.g.apply(find("conv1d")(tuple(stride), ends[0], tuple(dilation), groups), c.name, x, *params)
    reaches = [(size - 1) * gap + 1 for size, gap in zip(kernel, dilation, strict=True)]
    x, padding = together(c, x, ends, reaches)
    op = find("conv2d")(tuple(stride), tuple(padding), tuple(dilation), groups)
    return c.g.apply(op, c.name, x, *params)


@handles("ConvTranspose")
def conv_transpose(c: Call) -> Tensor:
    x, weight = c.tensor(0), c.value(1)
    count = len(x.shape) - 2
    if count not in (1, 2) or not isinstance(weight, Known):
        raise Unsupported(f"over {count} dims" if count not in (1, 2) else "with a weight that depends on samples")
    stride, dilation, extra = (
        list(c.get(name, [d] * count)) for name, d in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    kernel = list(c.get("kernel_shape", weight.shape[2:]))
    ends = _ends_before(c, x.shape[2:], kernel, stride, dilation, extra)
    if count == 1:
        x = shaping.reshaped(c.g, c.inner("rows"), x, (*x.shape[:2], 1, x.shape[2]))
        weight = weight.reshaped((*weight.shape[:2], 1, *kernel))
        stride, dilation, extra, ends = [1, *stride], [1, *dilation], [0, *extra], [(0, 0), *ends]
    params = [c.net.parameter(weight, ("i", "o", "r", "s"), uniform(prod(weight.shape[1:])))]
    if c.has(2):
        params.append(c.weight(2, "o", Init("zeros")))
    # what is not taken off alike at both ends is cut off behind
    own = [min(pair) for pair in ends]
    reaches = [(size - 1) * gap + 1 for size, gap in zip(weight.shape[2:], dilation, strict=True)]
    own = [n if n < reach else 0 for n, reach in zip(own, reaches, strict=True)]
    op = find("conv_transpose2d")(tuple(stride), tuple(own), tuple(extra), tuple(dilation), c.get("group", 1))
    more = [(n - before, n - after) for (before, after), n in zip(ends, own, strict=True)]
    is_cut = any(map(any, more))
    y = c.g.apply(op, c.inner("whole") if is_cut or count == 1 else c.name, x, *params)
    y = padded(c, c.inner("cut") if count == 1 else c.name, y, [(0, 0), (0, 0), *more])
    return shaping.reshaped(c.g, c.name, y, (*y.shape[:2], y.shape[3])) if count == 1 else y


def _ends_before(
    c: Call, lengths: tuple[int, ...], kernel: list[int], stride: list[int], dilation: list[int], extra: list[int]
) -> Ends:
    """What is taken off a transposed convolution's result before and after each dim."""
    shape, how = c.get("output_shape"), c.get("auto_pad", b"NOTSET").decode()
    if shape is None and how in ("NOTSET", "VALID"):
        return ends_of(c, lengths, kernel, stride, dilation)
    wanted = shape[-len(lengths) :] if shape else [n * step for n, step in zip(lengths, stride, strict=True)]
    found = []
    for n, length in enumerate(lengths):
        total = stride[n] * (length - 1) + extra[n] + (kernel[n] - 1) * dilation[n] + 1 - wanted[n]
        less, more = total // 2, total - total // 2
        found.append((less, more) if how == "SAME_UPPER" else (more, less))
    return found
