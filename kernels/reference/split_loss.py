"""Definitions of the two halves of a cross-entropy over blocks of classes in plain NumPy."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from castile.kernels.form import numbers
from castile.kernels.ids import check_ids


@numbers("classes")
def block_entropy(
    logits: np.ndarray, labels: np.ndarray, *, blocks: int, first: int, of: int, classes: int
) -> np.ndarray:
    """What `blocks` blocks of logits [...,c] tell of a cross-entropy -> [...,blocks,2].

    The first is the log-sum-exp of the block, the second the logit at the integer label [...] where the block has it,
    else 0. All `classes` are cut into `of` blocks, block n from class ceil(n * classes / of) on; these are number
    `first` and following. Labels count from the first of all classes; IndexError for a label outside [0, classes).
    """
    check_ids("block_entropy", labels, classes)
    made = np.empty((*labels.shape, blocks, 2), logits.dtype)
    for n, (here, hit) in enumerate(_blocks(logits, labels, blocks, first, of, classes)):
        own = logits[..., here]
        top = own.max(axis=-1, keepdims=True)
        made[..., n, 0] = (top + np.log(np.exp(own - top).sum(axis=-1, keepdims=True)))[..., 0]
        made[..., n, 1] = np.where(hit, own, logits.dtype.type(0)).sum(axis=-1)
    return made


@numbers("classes")
def block_entropy_grad(
    dy: np.ndarray, logits: np.ndarray, labels: np.ndarray, y: np.ndarray, *, first: int, of: int, classes: int
) -> np.ndarray:
    """Gradient of `block_entropy` to its logits, from dy like its result y."""
    check_ids("block_entropy_grad", labels, classes)
    made = np.empty_like(logits)
    for n, (here, hit) in enumerate(_blocks(logits, labels, y.shape[-2], first, of, classes)):
        grad = dy[..., n, :1] * np.exp(logits[..., here] - y[..., n, :1])
        made[..., here] = grad + np.where(hit, dy[..., n, 1:], logits.dtype.type(0))
    return made


def split_cross_entropy(parts: np.ndarray, *, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """scale times the sum of -log softmax at the labels, from the results [...,p,2] of all `block_entropy`.

    -> loss [], and the log-sum-exp of each whole row [...].
    """
    blocks = parts[..., 0]
    top = blocks.max(axis=-1, keepdims=True)
    lse = (top + np.log(np.exp(blocks - top).sum(axis=-1, keepdims=True)))[..., 0]
    return np.array(np.sum(lse - parts[..., 1].sum(axis=-1)) * parts.dtype.type(scale)), np.array(lse)


def split_cross_entropy_grad(dy: np.ndarray, parts: np.ndarray, lse: np.ndarray, *, scale: float) -> np.ndarray:
    """Gradient of `split_cross_entropy`'s loss to its parts, times dy []."""
    share = np.exp(parts[..., 0] - lse[..., None])
    return np.stack([share, np.full_like(share, -1)], axis=-1) * (dy * parts.dtype.type(scale))


def _blocks(
    logits: np.ndarray, labels: np.ndarray, blocks: int, first: int, of: int, classes: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Of each block which logits are its own, and where in [...,c] of these each label's is."""
    begins = [-(-n * classes // of) for n in range(first, first + blocks + 1)]
    for lo, hi in pairwise(begins):
        yield slice(lo - begins[0], hi - begins[0]), np.arange(lo, hi) == labels[..., None]
