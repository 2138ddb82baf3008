"""Definitions of embeddings in plain NumPy."""

import numpy as np

from castile.kernels.ids import check_ids
from castile.kernels.narrow import casts


def embedding(ids: np.ndarray, table: np.ndarray, *, first: int, known: int) -> np.ndarray:
    """Rows of a table at the integers ids -> ids.shape + (d,), of which table [rows, d] has row `first` and following.

    Zeros where it has not; IndexError for an id outside [0, known).
    """
    check_ids("embedding", ids, known)
    found = np.zeros((*ids.shape, table.shape[1]), table.dtype)
    here = _here(ids, first, len(table))
    found[here] = table[ids[here].astype(np.int64) - first]
    return found


@casts
def embedding_grad(dy: np.ndarray, ids: np.ndarray, *, rows: int, first: int, known: int) -> np.ndarray:
    """Gradient of `embedding` to its table [rows, d]: rows of dy added in the order of the ids."""
    check_ids("embedding_grad", ids, known)
    d_table = np.zeros((rows, dy.shape[-1]), dy.dtype)
    here = _here(ids, first, rows)
    np.add.at(d_table, ids[here].astype(np.int64) - first, dy[here])
    return d_table


def _here(ids: np.ndarray, first: int, rows: int) -> np.ndarray:
    """Which integers name rows `first` and following of so many."""
    return (ids >= first) & (ids < first + rows)
