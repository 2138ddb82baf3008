"""Definitions of rotary position embeddings in plain NumPy."""

import numpy as np


def rotary(x: np.ndarray, *, heads: int, base: float, offset: int, interleaved: bool, inverse: bool) -> np.ndarray:
    """Rotary position embedding (Su et al. 2021) of x [...,s,heads*d], d even, at the positions offset to offset+s-1.

    Pair j of a head's d/2 pairs turns by the angle position * base**(-2j/d), backwards if `inverse`. Pairs are
    neighbours if `interleaved`, else elements j and j+d/2.
    """
    apart = x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
    half = apart.shape[-1] // 2
    angles = (offset + np.arange(x.shape[-2]))[:, None, None] * base ** (-np.arange(half) / half)
    c, s = np.cos(angles).astype(x.dtype), np.sin(-angles if inverse else angles).astype(x.dtype)
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    y = np.empty_like(apart)
    y[..., first] = apart[..., first] * c - apart[..., second] * s
    y[..., second] = apart[..., second] * c + apart[..., first] * s
    return y.reshape(x.shape)
