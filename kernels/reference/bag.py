"""Definitions of bags of embeddings in plain NumPy."""

import numpy as np

from castile.kernels.form import numbers
from castile.kernels.half_precision import castable
from castile.kernels.ids import check_ids
from castile.kernels.reference.embedding import embedding, embedding_grad


@numbers("known")
def embedding_bag(
    ids: np.ndarray, table: np.ndarray, *weights: np.ndarray, scale: float, first: int, known: int
) -> np.ndarray:
    """scale times the sums of the rows of a table at the integers of each bag, ids [...,n] -> [...,d].

    table [rows,d] has row `first` and following; what lies elsewhere adds nothing. weights [...,n], if given, weigh
    the rows. IndexError for an id outside [0, known).
    """
    check_ids("embedding_bag", ids, known)
    found = embedding(ids, table, first=first, known=known)
    weighed = found * weights[0][..., None] if weights else found
    mine = weighed.sum(axis=-2, dtype=table.dtype, where=_here(ids, table, first)[..., None])
    return np.array(mine * table.dtype.type(scale))


@castable
@numbers("known")
def embedding_bag_grad(
    dy: np.ndarray, ids: np.ndarray, *weights: np.ndarray, rows: int, scale: float, first: int, known: int
) -> np.ndarray:
    """Gradient of `embedding_bag` to its table [rows,d]."""
    check_ids("embedding_bag_grad", ids, known)
    share = np.broadcast_to((dy * dy.dtype.type(scale))[..., None, :], (*ids.shape, dy.shape[-1]))
    weighed = share * weights[0][..., None] if weights else share
    return embedding_grad(weighed, ids, rows=rows, first=first, known=known)


@numbers("known")
def embedding_bag_weights_grad(
    dy: np.ndarray, ids: np.ndarray, table: np.ndarray, *, scale: float, first: int, known: int
) -> np.ndarray:
    """Gradient of `embedding_bag` to its weights [...,n]."""
    check_ids("embedding_bag_weights_grad", ids, known)
    found = embedding(ids, table, first=first, known=known)
    grads = (found * dy[..., None, :]).sum(axis=-1) * dy.dtype.type(scale)
    return np.where(_here(ids, table, first), grads, dy.dtype.type(0))


def _here(ids: np.ndarray, table: np.ndarray, first: int) -> np.ndarray:
    """Which integers name rows of a table that has row `first` and following."""
    return (ids >= first) & (ids < first + len(table))
