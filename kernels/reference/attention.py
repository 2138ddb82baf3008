"""Definitions of attention in plain NumPy."""

import numpy as np


def attention(
    q: np.ndarray, kk: np.ndarray, v: np.ndarray, *, heads: int, causal: bool, offset: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Scaled dot-product attention (Vaswani et al. 2017) of q [b,s,heads*d] over keys kk and values v [b,t,groups*d].

    Neighbouring heads / groups heads of queries share the keys and values of one group (Ainslie et al. 2023).

    -> y like q, and lse [b,heads,s]: the log of the sum of exponentials of the scaled scores. With `causal`, query row
    i sees the keys j <= offset + i; offset >= 0.

    Forms read nothing that a row does not see, where an infinity among the values makes NaN of it here.
    """
    scores = _scores(q, kk, heads, causal, offset, scale)
    top = scores.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(scores - top).sum(axis=-1, keepdims=True))
    y = np.einsum("bhst,bthd->bshd", np.exp(scores - lse), _shared(v, q, heads))
    return y.reshape(q.shape), lse[..., 0]


def attention_grad(
    dy: np.ndarray,
    q: np.ndarray,
    kk: np.ndarray,
    v: np.ndarray,
    y: np.ndarray,
    lse: np.ndarray,
    *,
    heads: int,
    causal: bool,
    offset: int,
    scale: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of `attention` to q, kk and v; the probabilities are computed again from lse (Dao et al. 2022).

    Forms read nothing that a row does not see, where an infinity makes NaN of it here.
    """
    p = np.exp(_scores(q, kk, heads, causal, offset, scale) - lse[..., None])
    dy4, y4 = _heads(dy, heads), _heads(y, heads)
    dp = np.einsum("bshd,bthd->bhst", dy4, _shared(v, q, heads))
    ds = p * (dp - np.einsum("bshd,bshd->bhs", dy4, y4)[..., None]) * q.dtype.type(scale)
    dq = np.einsum("bhst,bthd->bshd", ds, _shared(kk, q, heads))
    dk = np.einsum("bhst,bshd->bthd", ds, _heads(q, heads))
    dv = np.einsum("bhst,bshd->bthd", p, dy4)
    return dq.reshape(q.shape), _gathered(dk, kk), _gathered(dv, v)


def _heads(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads)


def _shared(x: np.ndarray, q: np.ndarray, heads: int) -> np.ndarray:
    """Keys or values [b,t,groups*d] as [b,t,heads,d], those of a group repeated for each of its heads."""
    width = q.shape[2] // heads
    return np.repeat(_heads(x, x.shape[2] // width), q.shape[2] // x.shape[2], axis=2)


def _gathered(d: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Gradients [b,t,heads,d] summed over the heads that share a group, like x [b,t,groups*d]."""
    groups = x.shape[2] // d.shape[3]
    return d.reshape(*d.shape[:2], groups, -1, d.shape[3]).sum(axis=3).reshape(x.shape)


def _scores(q: np.ndarray, kk: np.ndarray, heads: int, causal: bool, offset: int, scale: float) -> np.ndarray:
    scores = np.einsum("bshd,bthd->bhst", _heads(q, heads), _shared(kk, q, heads)) * q.dtype.type(scale)
    if causal:
        seen = np.arange(kk.shape[1])[None, :] <= offset + np.arange(q.shape[1])[:, None]
        scores = np.where(seen, scores, q.dtype.type(-np.inf))
    return scores
