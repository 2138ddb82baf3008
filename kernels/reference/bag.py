"""Definitions of bags of embeddings in plain NumPy."""

import numpy as np

from castile.kernels.ids import check_ids
from castile.kernels.narrow import casts


def embedding_bag(ids: np.ndarray, table: np.ndarray, *weights: np.ndarray, scale: float) -> np.ndarray:
    """scale times the sums of the rows of table [rows,d] at the integers of each bag, ids [...,n] -> [...,d].

    weights [...,n], if given, weigh the rows. IndexError for an id outside [0, rows).
    """
    check_ids("embedding_bag", ids, len(table))
    found = table[ids] * weights[0][..., None] if weights else table[ids]
    return np.array(found.sum(axis=-2, dtype=table.dtype) * table.dtype.type(scale))


@casts
def embedding_bag_grad(dy: np.ndarray, ids: np.ndarray, *weights: np.ndarray, rows: int, scale: float) -> np.ndarray:
    """Gradient of `embedding_bag` to its table [rows,d]."""
    check_ids("embedding_bag_grad", ids, rows)
    share = np.broadcast_to((dy * dy.dtype.type(scale))[..., None, :], (*ids.shape, dy.shape[-1]))
    d_table = np.zeros((rows, dy.shape[-1]), dy.dtype)
    np.add.at(d_table, ids, share * weights[0][..., None] if weights else share)
    return d_table


def embedding_bag_weights_grad(dy: np.ndarray, ids: np.ndarray, table: np.ndarray, *, scale: float) -> np.ndarray:
    """Gradient of `embedding_bag` to its weights [...,n]."""
    check_ids("embedding_bag_weights_grad", ids, len(table))
    return np.array((table[ids] * dy[..., None, :]).sum(axis=-1) * dy.dtype.type(scale))
