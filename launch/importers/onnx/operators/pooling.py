"""Windows of images, of which the largest or the mean is taken; means and maxima of whole images.

Of a volume's windows it is taken over rows and columns, and over depth of what that gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.convolution import Ends, ends_of, together
from castile.launch.importers.onnx.operators.layout import padded
from castile.launch.importers.onnx.values import Unsupported, known
from castile.planner.op import Tensor

# Kernel, stride, padding, and what counts of it, of a dim without windows.
ALONE = (1, 1, (0, 0), (0, 0))


def _windows(c: Call, x: Tensor, whole: bool = True) -> tuple[Tensor, list[int], list[int], Ends]:
    """x as an image or a volume, kernel, stride and padding of its dims.

    whole   whether what ceil_mode has more at the ends belongs to the padding
    """
    kernel = list(c.get("kernel_shape"))
    count = len(kernel)
    stride, dilation = list(c.get("strides", [1] * count)), list(c.get("dilations", [1] * count))
    if count not in (1, 2, 3) or any(n != 1 for n in dilation):
        raise Unsupported(f"over {count} dims" if count not in (1, 2, 3) else "with gaps in its windows")
    ends = ends_of(c, x.shape[2:], kernel, stride, dilation)
    if whole and c.get("ceil_mode", 0) and c.get("auto_pad", b"NOTSET") == b"NOTSET":
        ends = [_rounded_up(*given) for given in zip(x.shape[2:], kernel, stride, ends, strict=True)]
    if count == 1:
        x = shaping.reshaped(c.g, c.inner("rows"), x, (*x.shape[:2], 1, x.shape[2])) if whole else x
        kernel, stride, ends = [1, *kernel], [1, *stride], [(0, 0), *ends]
    return x, kernel, stride, ends


def _rounded_up(length: int, size: int, step: int, ends: tuple[int, int]) -> tuple[int, int]:
    """The padding with which the last window, which begins before the end, is whole."""
    before, after = ends
    count = -(-(length + before + after - size) // step) + 1
    if (count - 1) * step >= length + before:
        count -= 1
    return before, max(after, (count - 1) * step + size - length - before)


def _back(c: Call, y: Tensor) -> Tensor:
    """The result without the rows that an image of one dim was given."""
    return shaping.reshaped(c.g, c.name, y, (*y.shape[:2], y.shape[3])) if len(c.shape(0)) == 3 else y


def _name(c: Call) -> str:
    return c.inner("pool") if len(c.shape(0)) == 3 else c.name


@handles("MaxPool")
def max_pool(c: Call) -> Tensor:
    if c.results > 1 or c.get("storage_order", 0):
        raise Unsupported("whose places are used")
    x, kernel, stride, ends = _windows(c, c.tensor(0))

    def largest(name: str, x: Tensor, kernel: list[int], stride: list[int], ends: Ends) -> Tensor:
        x, padding = together(c, x, ends, kernel, -np.inf)
        return c.g.max_pool2d(name, x, tuple(kernel), tuple(stride), tuple(padding))

    return _back(c, _by_planes(c, largest, x, kernel, stride, ends))


def _by_planes(c: Call, pool: Callable[..., Tensor], x: Tensor, *windows: Sequence[Any]) -> Tensor:
    """What is taken of the windows of images x, or of volumes, whose dims the windows' settings are lists of."""
    if len(x.shape) == 4:
        return pool(_name(c), x, *windows)
    b, channels, depth, *image = x.shape
    flat = shaping.reshaped(c.g, c.inner("flat"), x, (b, channels * depth, *image))
    y = pool(c.inner("planes"), flat, *(one[1:] for one in windows))
    rows = shaping.reshaped(c.g, c.inner("columns"), y, (b, channels, depth, prod(y.shape[2:])))
    z = pool(c.inner("depth"), rows, *([one[0], other] for one, other in zip(windows, ALONE, strict=False)))
    return shaping.reshaped(c.g, c.name, z, (b, channels, z.shape[2], *y.shape[2:]))


@handles("AveragePool")
def average_pool(c: Call) -> Tensor:
    counted = bool(c.get("count_include_pad", 0))
    x, kernel, stride, ends = _windows(c, c.tensor(0))
    bounded = _windows(c, c.tensor(0), whole=False)[3] if counted else [(0, 0)] * len(kernel)
    return _back(c, _by_planes(c, partial(_mean, c, counted), x, kernel, stride, ends, bounded))


def _mean(
    c: Call, counted: bool, name: str, x: Tensor, kernel: list[int], stride: list[int], ends: Ends, bounded: Ends
) -> Tensor:
    """Means of an image's windows, in which padding counts, up to where it is bounded, or not."""
    alike = all(before == after < size for (before, after), size in zip(ends, kernel, strict=True))
    if alike and (not counted or bounded == ends):
        padding = tuple(before for before, _ in ends)
        return c.g.avg_pool2d(name, x, tuple(kernel), tuple(stride), padding, padded=counted)
    wide = padded(c, c.inner("padded"), x, [(0, 0), (0, 0), *ends])
    means = c.g.avg_pool2d(c.inner("means"), wide, tuple(kernel), tuple(stride))
    shares = [_share(*given) for given in zip(x.shape[2:], kernel, stride, ends, bounded, strict=True)]
    factor = known(f"{name}.share", np.multiply.outer(*shares).astype(np.float32))
    return c.g.mul(name, means, c.net.operand(factor))


def _share(length: int, size: int, step: int, ends: tuple[int, int], bounded: tuple[int, int]) -> np.ndarray:
    """How many times as many elements as count a window has."""
    starts = np.arange(0, length + sum(ends) - size + 1, step) - ends[0]
    there = np.minimum(starts + size, length + bounded[1]) - np.maximum(starts, -bounded[0])
    return size / there


@handles("GlobalAveragePool")
def global_average(c: Call) -> Tensor:
    x = c.tensor(0)
    pooled = c.g.global_pool(c.inner("mean"), x)
    return shaping.reshaped(c.g, c.name, pooled, (*x.shape[:2], *(1 for _ in x.shape[2:])))


@handles("GlobalMaxPool")
def global_max(c: Call) -> Tensor:
    x = c.tensor(0)
    pooled = c.g.max(c.inner("max"), x, dims=tuple(range(2, len(x.shape))))
    return shaping.reshaped(c.g, c.name, pooled, (*x.shape[:2], *(1 for _ in x.shape[2:])))
