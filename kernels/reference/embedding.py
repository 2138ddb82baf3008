"""Definitions of embeddings in plain NumPy."""

import numpy as np

from castile.kernels.ids import check_ids
from castile.kernels.narrow import casts


def embedding(ids: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Rows of table [rows, d] at the integers ids -> ids.shape + (d,); IndexError for an id outside [0, rows)."""
    check_ids("embedding", ids, len(table))
    return table[ids]


@casts
def embedding_grad(dy: np.ndarray, ids: np.ndarray, *, rows: int) -> np.ndarray:
    """Gradient of `embedding` to its table [rows, d]: rows of dy added in the order of the ids."""
    check_ids("embedding_grad", ids, rows)
    d_table = np.zeros((rows, dy.shape[-1]), dy.dtype)
    np.add.at(d_table, ids, dy)
    return d_table
