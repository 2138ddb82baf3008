"""Definition of arithmetic on each element and on numbers of its channel in plain NumPy."""

import numpy as np

from castile.kernels.reference.elementwise import pointwise


def channelwise(expression: str, *xs: np.ndarray, tables: int, **constants: float) -> np.ndarray:
    """`pointwise` of arrays that broadcast to [b,c,...] and of the rows of tables [n,c] or [c], the last of xs.

    "x, m, s -> (x - m) * s" takes x [b,c,...] and one table [2,c] of numbers of each channel.
    """
    arrays, last = xs[: len(xs) - tables], xs[len(xs) - tables :]
    ndim = max(x.ndim for x in arrays)
    rows = [row.reshape(-1, *[1] * (ndim - 2)) for table in last for row in np.atleast_2d(table)]
    return pointwise(expression, *arrays, *rows, **constants)
