"""Convolutions over one, two and three dims, and transposed ones; blocks put together as images.

Padding that is not alike at both ends comes before. A volume is convolved as so many images of its planes, with the
planes that a window reaches side by side as channels.
"""

from __future__ import annotations

from math import prod

import numpy as np

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.layout import padded
from castile.launch.importers.onnx.operators.products import uniform
from castile.launch.importers.onnx.values import Known, Unsupported, known
from castile.planner.op import Init, Tensor, find

Ends = list[tuple[int, int]]


def ends_of(c: Call, lengths: tuple[int, ...], kernel: list[int], stride: list[int], dilation: list[int]) -> Ends:
    """The padding before and after each dim."""
    how, count, pads = c.get("auto_pad", b"NOTSET").decode(), len(kernel), c.get("pads")
    if how in ("NOTSET", "VALID"):
        pads = pads if pads and how == "NOTSET" else [0] * 2 * count
        return list(zip(pads[:count], pads[count:], strict=True))
    if how not in ("SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"with auto_pad of {how}")
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


def _bias(c: Call) -> list[Tensor]:
    """What is added to each channel, if anything is.

    Zeros that are not trained are nothing, under whatever dims: PyTorch writes such for volumes, with one dim too many.
    """
    found = c.value(2) if c.has(2) else None
    if found is None or (isinstance(found, Known) and found.is_filler and not found.array.any()):
        return []
    return [c.weight(2, "o", Init("zeros"))]


@handles("Conv")
def conv(c: Call) -> Tensor:
    x, weight = c.tensor(0), c.value(1)
    count = len(x.shape) - 2
    if count not in (1, 2, 3):
        raise Unsupported(f"over {count} dims")
    kernel = list(c.get("kernel_shape", weight.shape[2:]))
    stride, dilation = c.get("strides", [1] * count), c.get("dilations", [1] * count)
    ends, groups = ends_of(c, x.shape[2:], kernel, stride, dilation), c.get("group", 1)
    if groups < 1:
        raise Unsupported(f"of {groups} groups")
    if count == 3:
        return _of_volumes(c, x, kernel, list(stride), list(dilation), ends)
    axes = "o i r s" if count == 2 else "o i r"
    params = [c.weight(1, axes, uniform(prod(weight.shape[1:]))), *_bias(c)]
    if count == 1:
        return c.g.apply(find("conv1d")(tuple(stride), ends[0], tuple(dilation), groups), c.name, x, *params)
    reaches = [(size - 1) * gap + 1 for size, gap in zip(kernel, dilation, strict=True)]
    x, padding = together(c, x, ends, reaches)
    op = find("conv2d")(tuple(stride), tuple(padding), tuple(dilation), groups)
    return c.g.apply(op, c.name, x, *params)


def _of_volumes(c: Call, x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], ends: Ends) -> Tensor:
    """The convolution [b, o, D, H, W] of x [b, c, d, h, w] by a weight [o, c / groups, k, r, s]."""
    weight, groups = c.value(1), c.get("group", 1)
    reaches = [(size - 1) * gap + 1 for size, gap in zip(kernel, dilation, strict=True)]
    count = (x.shape[2] + sum(ends[0]) - reaches[0]) // stride[0] + 1
    before, after = ends[0]
    # what is left of the last of planes taken in steps is there too
    x = padded(c, c.inner("depth"), x, [(0, 0), (0, 0), (before, after + stride[0] - 1), (0, 0), (0, 0)])
    taps = [_planes(c, x, tap * dilation[0], count, stride[0]) for tap in range(kernel[0])]
    b, channels, _, *image = x.shape
    apart = [
        shaping.reshaped(c.g, c.inner("group"), one, (b, groups, channels // groups, count, *image)) for one in taps
    ]
    wide = shaping.joined(c.g, c.inner("taps"), apart, 2)
    turned = shaping.permuted(c.g, c.inner("turned"), wide, (0, 3, 1, 2, 4, 5))
    planes = shaping.reshaped(c.g, c.inner("planes"), turned, (b * count, kernel[0] * channels, *image))
    planes, padding = together(c, planes, ends[1:], reaches[1:])
    shape = weight.shape[0], kernel[0] * weight.shape[1], *kernel[1:]
    init = uniform(prod(weight.shape[1:]))
    params = [c.weight(1, "o i r s", init, lambda w: w.turned((0, 2, 1, 3, 4)).reshaped(shape)), *_bias(c)]
    op = find("conv2d")(tuple(stride[1:]), tuple(padding), tuple(dilation[1:]), groups)
    y = c.g.apply(op, c.inner("images"), planes, *params)
    apart_again = shaping.reshaped(c.g, c.inner("samples"), y, (b, count, *y.shape[1:]))
    return shaping.permuted(c.g, c.name, apart_again, (0, 2, 1, 3, 4))


def _planes(c: Call, x: Tensor, start: int, count: int, step: int) -> Tensor:
    """So many planes of x [b, c, d, h, w] in steps."""
    found = shaping.sliced(c.g, c.inner("range"), x, 2, start, start + count * step)
    if step == 1:
        return found
    b, channels, _, *image = x.shape
    steps = shaping.reshaped(c.g, c.inner("steps"), found, (b, channels, count, step, *image))
    first = shaping.sliced(c.g, c.inner("first"), steps, 3, 0, 1)
    return shaping.reshaped(c.g, c.inner("tap"), first, (b, channels, count, *image))


@handles("Col2Im")
def images_of_blocks(c: Call) -> Tensor:
    """Blocks [b, c * r * s, places] summed where they overlap: a transposed convolution by ones at their places."""
    x, image, block = c.tensor(0), [int(n) for n in c.known(1)], [int(n) for n in c.known(2)]
    if len(image) != 2:
        raise Unsupported(f"over {len(image)} dims")
    stride, dilation, pads = (
        c.get(name, d) for name, d in (("strides", [1, 1]), ("dilations", [1, 1]), ("pads", [0] * 4))
    )
    reaches = [(size - 1) * gap + 1 for size, gap in zip(block, dilation, strict=True)]
    lengths = [image[n] + pads[n] + pads[n + 2] - reaches[n] for n in range(2)]
    counts = [lengths[n] // stride[n] + 1 for n in range(2)]
    own = [min(pads[n], pads[n + 2], reaches[n] - 1) for n in range(2)]
    more = [(own[n] - pads[n], own[n] - pads[n + 2]) for n in range(2)]
    spread = np.eye(prod(block), dtype=np.float32).reshape(-1, 1, *block)
    channels = x.shape[1] // prod(block)
    weight = c.net.constant(
        known(f"{c.name}.places", np.tile(spread, (channels, 1, 1, 1))), ("i", "o", "r", "s"), x.dtype
    )
    extra = tuple(lengths[n] % stride[n] for n in range(2))
    op = find("conv_transpose2d")(tuple(stride), tuple(own), extra, tuple(dilation), channels)
    places = shaping.reshaped(c.g, c.inner("places"), x, (*x.shape[:2], *counts))
    return padded(c, c.name, c.g.apply(op, c.inner("images"), places, weight), [(0, 0), (0, 0), *more])


@handles("ConvTranspose")
def conv_transpose(c: Call) -> Tensor:
    x, weight = c.tensor(0), c.value(1)
    count = len(x.shape) - 2
    if count not in (1, 2, 3) or not isinstance(weight, Known):
        raise Unsupported(f"over {count} dims" if count not in (1, 2, 3) else "with a weight that depends on samples")
    stride, dilation, extra = (
        list(c.get(name, [d] * count)) for name, d in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    kernel = list(c.get("kernel_shape", weight.shape[2:]))
    ends = _ends_before(c, x.shape[2:], kernel, stride, dilation, extra)
    if count == 1:
        x = shaping.reshaped(c.g, c.inner("rows"), x, (*x.shape[:2], 1, x.shape[2]))
        weight = weight.reshaped((*weight.shape[:2], 1, *kernel))
        stride, dilation, extra, ends = [1, *stride], [1, *dilation], [0, *extra], [(0, 0), *ends]
    if count == 3:
        return _onto_volumes(c, x, weight, stride, dilation, extra, ends)
    name = c.inner("whole") if count == 1 else c.name
    y = _spread(c, name, x, weight, _bias(c), stride, dilation, extra, ends)
    return shaping.reshaped(c.g, c.name, y, (*y.shape[:2], y.shape[3])) if count == 1 else y


def _spread(
    c: Call, name: str, x: Tensor, weight: Known, bias: list[Tensor], stride: list[int], dilation: list[int],
    extra: list[int], ends: Ends,
) -> Tensor:  # fmt: skip
    """The transposed convolution of images; what is not taken off alike at both ends is cut off behind."""
    params = [c.net.parameter(weight, ("i", "o", "r", "s"), uniform(prod(weight.shape[1:]))), *bias]
    own = [min(pair) for pair in ends]
    reaches = [(size - 1) * gap + 1 for size, gap in zip(weight.shape[2:], dilation, strict=True)]
    own = [n if n < reach else 0 for n, reach in zip(own, reaches, strict=True)]
    op = find("conv_transpose2d")(tuple(stride), tuple(own), tuple(extra), tuple(dilation), c.get("group", 1))
    more = [(n - before, n - after) for (before, after), n in zip(ends, own, strict=True)]
    y = c.g.apply(op, c.inner("uncut") if any(map(any, more)) else name, x, *params)
    return padded(c, name, y, [(0, 0), (0, 0), *more])


def _onto_volumes(
    c: Call, x: Tensor, weight: Known, stride: list[int], dilation: list[int], extra: list[int], ends: Ends
) -> Tensor:
    """The transposed convolution [b, o, D, H, W] of x [b, i, d, h, w] by a weight [i, o / groups, k, r, s].

    Of each plane there is an image for each tap of depth; each lies so many planes further.
    """
    groups, (b, channels, depth, *image), (_, out, taps, *window) = c.get("group", 1), x.shape, weight.shape
    turned = shaping.permuted(c.g, c.inner("turned"), x, (0, 2, 1, 3, 4))
    planes = shaping.reshaped(c.g, c.inner("planes"), turned, (b * depth, channels, *image))
    images = weight.turned((0, 2, 1, 3, 4)).reshaped((channels, taps * out, *window))
    y = _spread(c, c.inner("images"), planes, images, [], stride[1:], dilation[1:], extra[1:], ends[1:])
    apart = shaping.reshaped(c.g, c.inner("apart"), y, (b, depth, groups, taps, out, *y.shape[2:]))
    back = shaping.permuted(c.g, c.inner("back"), apart, (0, 3, 2, 4, 1, 5, 6))
    made = (depth - 1) * stride[0] + (taps - 1) * dilation[0] + 1 + extra[0]
    total: Tensor | None = None
    for tap in range(taps):
        one = shaping.sliced(c.g, c.inner("tap"), back, 1, tap, tap + 1)
        steps = shaping.reshaped(c.g, c.inner("steps"), one, (b, groups * out, depth, 1, *y.shape[2:]))
        steps = padded(c, c.inner("gaps"), steps, [(0, 0)] * 3 + [(0, stride[0] - 1)] + [(0, 0)] * 2)
        long = shaping.reshaped(c.g, c.inner("long"), steps, (b, groups * out, depth * stride[0], *y.shape[2:]))
        before = tap * dilation[0]
        own = before - ends[0][0], made - ends[0][1] - depth * stride[0] - before
        there = padded(c, c.inner("there"), long, [(0, 0), (0, 0), own, (0, 0), (0, 0)])
        total = there if total is None else c.g.add(c.inner("sum"), total, there)
    assert total is not None
    for bias in _bias(c):
        total = c.g.add(c.name, total, shaping.reshaped(c.g, c.inner("bias"), bias, (*bias.shape, 1, 1, 1)))
    return total


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
