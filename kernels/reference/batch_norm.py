"""Definitions of batch normalisation in plain NumPy (Ioffe and Szegedy, 2015): x [b,c,...], statistics of each c.

Moments [2,c] are the means of x and of its square over the whole batch, in float64 whatever x is: only sums add up over
pieces, and E[x^2] - E[x]^2 would lose as many digits of float32 as the mean outweighs the deviation, and twice as many.
The products of float32 numbers are exact in float64. Factors [3,c] are what x meets: mean, scale, shift.
"""

from functools import partial

import numpy as np

from castile.kernels.half_precision import castable
from castile.kernels.reference.elementwise import pointwise


def moments(x: np.ndarray, *, scale: float) -> np.ndarray:
    """Sums of x and of its square over all but c, times `scale` -> [2,c] in float64."""
    wide = x.astype(np.float64)
    return np.stack([_sum(wide), _sum(wide * wide)]) * scale


def moments_grad(dm: np.ndarray, x: np.ndarray, *, scale: float) -> np.ndarray:
    """Gradient of `moments` to its x, from dm [2,c]."""
    return ((_wide(dm[0], x) + 2 * _wide(dm[1], x) * x) * scale).astype(x.dtype)


def norm_factors(gain: np.ndarray, shift: np.ndarray, *statistics: np.ndarray, eps: float) -> np.ndarray:
    """[3,c]: mean, gain / deviation, shift; from moments [2,c], or from mean [c] and variance [c]."""
    mean, rate, _ = _deviation(statistics, eps)
    return np.stack([mean, gain * rate, shift]).astype(gain.dtype)


@castable
def norm_factors_grad(df: np.ndarray, gain: np.ndarray, *statistics: np.ndarray, eps: float) -> tuple[np.ndarray, ...]:
    """Gradients of `norm_factors` to gain, shift and the statistics, from df [3,c]."""
    mean, rate, held = _deviation(statistics, eps)
    d_mean, d_scale, d_shift = df.astype(np.float64)
    spread = -0.5 * d_scale * gain * rate**3 * held
    found = (d_mean, spread) if len(statistics) == 2 else (np.stack([d_mean - 2 * mean * spread, spread]),)
    params = (d_scale * rate).astype(gain.dtype), d_shift.astype(gain.dtype)
    return (*params, *(one.astype(given.dtype) for one, given in zip(found, statistics, strict=True)))


def norm(x: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """(x - mean) scale + shift with factors [3,c] = mean, scale, shift."""
    mean, scale, shift = (_wide(one, x) for one in factors)
    return (x - mean) * scale + shift


def norm_grad(dy: np.ndarray, x: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of `norm` to x, and to its factors [3,c].

    Forms take mean and scale out of sums, which makes NaN of their infinities, or of what is finite beside them.
    """
    mean, scale, _ = (_wide(one, x) for one in factors)
    total = _sum(dy)
    return dy * scale, np.stack([-factors[1] * total, _sum(dy * (x - mean)), total])


def norm_grad_pointwise(
    expression: str, x: np.ndarray, factors: np.ndarray, *ys: np.ndarray, keeps: bool = False, **constants: float
) -> tuple[np.ndarray, ...]:
    """`norm_grad` where dy is the value of an expression of ys; of infinities the same holds as there.

    keeps: dy is a result, too.
    """
    dy = pointwise(expression, *ys, **constants)
    return *norm_grad(dy, x, factors), *[dy] * keeps


def running_moment(
    old: np.ndarray, m: np.ndarray, *more: np.ndarray, momentum: float, count: int, variance: bool
) -> np.ndarray | tuple[np.ndarray, ...]:
    """Moving average [c]: old, and `momentum` of the mean or unbiased variance that moments m of `count` have.

    more: the same arrays of further averages, whose new ones follow.
    """
    renew = partial(_renewed, momentum=momentum, count=count, variance=variance)
    every = (old, m, *more)
    return tuple(map(renew, every[::2], every[1::2])) if more else renew(old, m)


def _renewed(old: np.ndarray, m: np.ndarray, momentum: float, count: int, variance: bool) -> np.ndarray:
    new = (m[1] - m[0] * m[0]) * (count / (count - 1)) if variance else m[0]
    return ((1 - momentum) * old + momentum * new).astype(old.dtype)


def _deviation(statistics: tuple[np.ndarray, ...], eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, one over the deviation, and where this depends on the variance, which rounding may leave below zero."""
    mean, second = (one.astype(np.float64) for one in (statistics if len(statistics) == 2 else statistics[0]))
    variance = second if len(statistics) == 2 else second - mean * mean
    return mean, 1 / np.sqrt(np.maximum(variance, 0) + eps), variance >= 0


def _sum(x: np.ndarray) -> np.ndarray:
    return x.sum(axis=(0, *range(2, x.ndim)))


def _wide(one: np.ndarray, x: np.ndarray) -> np.ndarray:
    return one.reshape(-1, *[1] * (x.ndim - 2))
