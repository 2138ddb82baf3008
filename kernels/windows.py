"""Windows over rows and columns: padding, how many windows there are, and what an element of theirs sees.

They do not know what is done with it.
"""

import numpy as np

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


def pad(x: np.ndarray, pads: Pads, value: float) -> np.ndarray:
    """x with `value` around its rows and columns; a negative number of pads takes rows or columns away."""
    top, bottom, left, right = (max(0, n) for n in pads)
    wide = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)
    return inside(wide, tuple(max(0, -n) for n in pads))


def inside(x: np.ndarray, pads: tuple[int, ...]) -> np.ndarray:
    """A view of x without its outer rows and columns."""
    top, bottom, left, right = pads
    return x[:, :, top : x.shape[2] - bottom, left : x.shape[3] - right]


def unpad(x: np.ndarray, pads: Pads, shape: tuple[int, ...]) -> np.ndarray:
    """An array of the shape that `pad` made x of: without the padding, with zeros where it took something away."""
    whole = np.zeros(shape, x.dtype)
    inside(whole, tuple(max(0, -n) for n in pads))[...] = inside(x, tuple(max(0, n) for n in pads))
    return whole


def extents(kernel: tuple[int, ...], dilation: Pair) -> Pair:
    """Rows and columns from the first to the last that a window meets."""
    return (kernel[0] - 1) * dilation[0] + 1, (kernel[1] - 1) * dilation[1] + 1


def count(padded: tuple[int, ...], kernel: tuple[int, ...], stride: Pair) -> Pair:
    return (padded[0] - kernel[0]) // stride[0] + 1, (padded[1] - kernel[1]) // stride[1] + 1


def tap(padded: np.ndarray, r: int, s: int, size: tuple[int, ...], stride: Pair) -> np.ndarray:
    """What element (r, s) of the window sees in each of the size[0] x size[1] windows, as a view."""
    return padded[:, :, r :: stride[0], s :: stride[1]][:, :, : size[0], : size[1]]
