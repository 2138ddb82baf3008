"""Windows over rows and columns: padding, how many there are, and what a window's element meets.

They do not know what is done with what they meet.
"""

import numpy as np

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


def pad(x: np.ndarray, pads: Pads, value: float) -> np.ndarray:
    top, bottom, left, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def count(padded: tuple[int, ...], kernel: tuple[int, ...], stride: Pair) -> Pair:
    return (padded[0] - kernel[0]) // stride[0] + 1, (padded[1] - kernel[1]) // stride[1] + 1


def tap(padded: np.ndarray, r: int, s: int, size: tuple[int, ...], stride: Pair) -> np.ndarray:
    """What element (r, s) of the window meets in each of the size[0] x size[1] windows, as a view."""
    return padded[:, :, r :: stride[0], s :: stride[1]][:, :, : size[0], : size[1]]
