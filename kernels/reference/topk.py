"""Definitions of the largest elements of rows in plain NumPy."""

import numpy as np

from castile.kernels.form import numbers
from castile.kernels.ids import check_ids


def top_k(x: np.ndarray, *, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest elements of each row of x [...,v], largest first, and their places [...,count] (int32).

    Of equals the first comes first.
    """
    places = np.argsort(-x, axis=-1, kind="stable")[..., :count]
    return np.array(np.take_along_axis(x, places, axis=-1)), places.astype(np.int32)


def pick(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The elements of each row of x [...,v] at its places [...,k]; IndexError for a place outside [0, v)."""
    check_ids("pick", places, x.shape[-1])
    return np.take_along_axis(x, places.astype(np.int64), axis=-1)


@numbers("size")
def pick_grad(dy: np.ndarray, places: np.ndarray, *, size: int) -> np.ndarray:
    """Gradient of `pick` to its x [...,size]: zero but at the places, where dy is added."""
    check_ids("pick_grad", places, size)
    dx = np.zeros((*dy.shape[:-1], size), dy.dtype)
    for column in range(dy.shape[-1]):
        at = places[..., column : column + 1].astype(np.int64)
        np.put_along_axis(dx, at, np.take_along_axis(dx, at, axis=-1) + dy[..., column : column + 1], axis=-1)
    return dx
