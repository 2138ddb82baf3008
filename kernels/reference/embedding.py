"""Definitions of embeddings in plain NumPy."""

import numpy as np

from castile.kernels.form import numbers
from castile.kernels.half_precision import castable
from castile.kernels.ids import check_ids


@numbers("known")
def embedding(ids: np.ndarray, table: np.ndarray, *, first: int, known: int) -> np.ndarray:
    """Rows of a table at the integers ids -> ids.shape + (d,), of which table [rows, d] has row `first` and following.

    Zeros where it has not; IndexError for an id outside [0, known).
    """
    check_ids("embedding", ids, known)
    found = np.zeros((*ids.shape, table.shape[1]), table.dtype)
    here, at = _places(ids, len(table), first)
    found[here] = table[at]
    return found


@castable
@numbers("known")
def embedding_grad(dy: np.ndarray, ids: np.ndarray, *, rows: int, first: int, known: int) -> np.ndarray:
    """Gradient of `embedding` to its table [rows, d]: rows of dy added in the order of the ids."""
    check_ids("embedding_grad", ids, known)
    d_table = np.zeros((rows, dy.shape[-1]), dy.dtype)
    here, at = _places(ids, rows, first)
    np.add.at(d_table, at, dy[here])
    return d_table


def _places(ids: np.ndarray, rows: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Which integers name row `first` and following, of so many, and which of these they name."""
    here = (ids >= first) & (ids < first + rows)
    return here, ids[here].astype(np.int64) - first
