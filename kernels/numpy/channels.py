"""Arrays of samples and channels, with any dims after these, as loops over channels see them.

It knows no kernel.
"""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.numpy.views import element_strides, merge_dims, row_major_span

Steps = tuple[int, ...]


class Channels(NamedTuple):
    """Arrays of one shape [b,c,h,w]: each as 1-D from its first to its last element, and its steps along b, c and h."""

    shape: tuple[int, ...]
    flats: list[np.ndarray]
    steps: list[Steps]


def channels(*arrays: np.ndarray) -> Channels | None:
    """Arrays [b,c,...] of one shape with the fewest rows of places; None where these do not lie dense in all."""
    shape, strides = merge_dims(arrays[0].shape[2:], [x.strides[2:] for x in arrays])
    if len(shape) > 2:
        return None
    missing = 2 - len(shape)
    shape = (1,) * missing + shape
    flats, found = [], []
    for x, own in zip(arrays, strides, strict=True):
        own = (x.itemsize,) * missing + own
        image = as_strided(x, (*x.shape[:2], *shape), (*x.strides[:2], *own))
        flats.append(row_major_span(image))
        found.append(element_strides(image)[:3])
    dense = [flat for flat in flats if flat is not None]
    return Channels((*arrays[0].shape[:2], *shape), dense, found) if len(dense) == len(flats) else None
