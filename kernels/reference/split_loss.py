"""Definitions of the two halves of a cross-entropy over blocks of classes in plain NumPy."""

import numpy as np

from castile.kernels.ids import check_ids


def block_entropy(logits: np.ndarray, labels: np.ndarray, *, blocks: int, first: int, classes: int) -> np.ndarray:
    """What `blocks` equal blocks of logits [...,c] tell of a cross-entropy -> [...,blocks,2].

    The first is the log-sum-exp of the block, the second the logit at the integer label [...] where the block has it,
    else 0. Labels count from the first of all `classes`, of which these are number `first` and following; IndexError
    for a label outside [0, classes).
    """
    check_ids("block_entropy", labels, classes)
    apart = logits.reshape(*labels.shape, blocks, -1)
    top = apart.max(axis=-1, keepdims=True)
    lse = (top + np.log(np.exp(apart - top).sum(axis=-1, keepdims=True)))[..., 0]
    hit = _hits(apart.shape, labels, first)
    return np.stack([lse, np.where(hit, apart, logits.dtype.type(0)).sum(axis=-1)], axis=-1)


def block_entropy_grad(
    dy: np.ndarray, logits: np.ndarray, labels: np.ndarray, y: np.ndarray, *, first: int, classes: int
) -> np.ndarray:
    """Gradient of `block_entropy` to its logits, from dy like its result y."""
    check_ids("block_entropy_grad", labels, classes)
    apart = logits.reshape(*y.shape[:-1], -1)
    slope = dy[..., :1] * np.exp(apart - y[..., :1])
    hit = np.where(_hits(apart.shape, labels, first), dy[..., 1:], logits.dtype.type(0))
    return np.array((slope + hit).reshape(logits.shape))


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


def _hits(shape: tuple[int, ...], labels: np.ndarray, first: int) -> np.ndarray:
    """Where in [...,blocks,c] each label's logit is."""
    numbers = first + np.arange(shape[-2] * shape[-1]).reshape(shape[-2:])
    return numbers == labels[..., None, None]
