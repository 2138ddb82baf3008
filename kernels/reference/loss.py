"""Definitions of losses in plain NumPy."""

import numpy as np

from castile.kernels.ids import check_ids


def cross_entropy(logits: np.ndarray, labels: np.ndarray, *, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """scale times the sum of -log softmax(logits [...,c]) at the integer labels [...].

    -> loss [], and the log-sum-exp of each row [...]; IndexError for a label outside [0, c).
    """
    check_ids("cross_entropy", labels, logits.shape[-1])
    top = logits.max(axis=-1, keepdims=True)
    lse = (top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)))[..., 0]
    picked = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return np.array(np.sum(lse - picked) * logits.dtype.type(scale)), np.array(lse)


def cross_entropy_grad(
    dy: np.ndarray, logits: np.ndarray, labels: np.ndarray, lse: np.ndarray, *, scale: float
) -> np.ndarray:
    """Gradient of `cross_entropy`'s loss to its logits, times dy []."""
    check_ids("cross_entropy_grad", labels, logits.shape[-1])
    d_logits = np.exp(logits - lse[..., None])
    picked = np.take_along_axis(d_logits, labels[..., None], axis=-1)
    np.put_along_axis(d_logits, labels[..., None], picked - logits.dtype.type(1), axis=-1)
    return d_logits * (dy * logits.dtype.type(scale))
