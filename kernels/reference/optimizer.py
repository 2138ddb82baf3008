"""Definitions of optimizers in plain NumPy.

Where one is `guarded`, a number [] follows each parameter's arrays: unless it is above 0, they stay as they are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray, ...]


def sgd(
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    lr: np.ndarray,
    *more: np.ndarray,
    momentum: float,
    decay: float,
    nesterov: bool,
    guarded: bool = False,
) -> Arrays:
    """One step of stochastic gradient descent with momentum as PyTorch defines it; lr is [] -> new w, new m.

    more: the same arrays of further parameters, whose results follow.
    """
    again = partial(sgd, momentum=momentum, decay=decay, nesterov=nesterov)
    before = w, m
    g = g + w.dtype.type(decay) * w
    m = w.dtype.type(momentum) * m + g
    step = g + w.dtype.type(momentum) * m if nesterov else m
    return _with_others((w - lr.astype(w.dtype) * step, m), before, again, more, guarded)


def adam(
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    lr: np.ndarray,
    step: np.ndarray,
    *more: np.ndarray,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    decoupled: bool,
    guarded: bool = False,
) -> Arrays:
    """One step of Adam (Kingma and Ba 2015) -> new w, new mean m and new mean square v of gradients.

    lr and step [], which counts from 1. The weight decay is added to the gradient, or with `decoupled` taken from w
    beside it (Loshchilov and Hutter 2019). more: the same arrays of further parameters, whose results follow. Forms add
    a decay of zero, too: of a parameter that is infinite m and v are NaN then.
    """
    again = partial(adam, beta1=beta1, beta2=beta2, eps=eps, decay=decay, decoupled=decoupled)
    before = w, m, v
    real, count = w.dtype.type, float(step)
    if not decoupled:
        g = g + real(decay) * w
    m = m + real(1 - beta1) * (g - m)
    v = real(beta2) * v + real(1 - beta2) * g * g
    size = np.sqrt(v) / real(np.sqrt(1 - beta2**count)) + real(eps)
    kept = real(1 - float(lr) * decay) * w if decoupled else w
    w = kept - real(float(lr) / (1 - beta1**count)) * m / size
    return _with_others((w, m, v), before, again, more, guarded)


def lion(
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    lr: np.ndarray,
    *more: np.ndarray,
    beta1: float,
    beta2: float,
    decay: float,
    guarded: bool = False,
) -> Arrays:
    """One step of Lion (Chen et al. 2023) with decoupled weight decay; lr [] -> new w, new mean m of gradients.

    more: the same arrays of further parameters, whose results follow.
    """
    again = partial(lion, beta1=beta1, beta2=beta2, decay=decay)
    real = w.dtype.type
    direction = np.sign(real(beta1) * m + real(1 - beta1) * g)
    kept = real(1 - float(lr) * decay) * w
    made = kept - lr.astype(w.dtype) * direction, real(beta2) * m + real(1 - beta2) * g
    return _with_others(made, (w, m), again, more, guarded)


def _with_others(
    made: Arrays, before: Arrays, again: Callable[..., Arrays], more: tuple[Any, ...], guarded: bool
) -> Arrays:
    """A parameter's results, or what was there before where its guard says so, and those of further ones."""
    if guarded:
        made, more = made if more[0] > 0 else before, more[1:]
    return (*made, *(again(*more, guarded=guarded) if more else ()))


def adafactor(
    w: np.ndarray,
    g: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    lr: np.ndarray,
    step: np.ndarray,
    *more: np.ndarray,
    beta2_decay: float,
    eps1: float,
    eps2: float,
    clip: float,
    decay: float,
    guarded: bool = False,
) -> Arrays:
    """One step of Adafactor (Shazeer and Stern 2018) as PyTorch defines it -> new w, new rows, new columns.

    rows [...,r] and columns [...,c] are mean squares of gradients over the columns and rows of the matrices that the
    last two dims of w [...,r,c] make. Of a vector w [c] columns [c] are the squares themselves, and rows [c] stay as
    they are. lr and step [], which counts from 1. more: the same arrays of further parameters, whose results follow.
    """
    again = partial(adafactor, beta2_decay=beta2_decay, eps1=eps1, eps2=eps2, clip=clip, decay=decay)
    before = w, rows, columns
    real, count = w.dtype.type, float(step)
    share, left = real(count**beta2_decay), real(1 - count**beta2_decay)
    rate = max(eps2, float(np.sqrt(_mean(w * w)))) * min(float(lr), count**-0.5)
    if w.ndim < 2:
        columns = left * columns + share * (g * g)
        squares = columns
    else:
        rows = left * rows + share * _mean(g * g, -1)
        columns = left * columns + share * _mean(g * g, -2)
        mean = np.maximum(_mean(rows, -1)[..., None], real(eps1))
        squares = (rows / mean)[..., None] * columns[..., None, :]
    move = g / np.sqrt(np.maximum(squares, real(eps1 * eps1)))
    longest = max(1.0, float(np.sqrt(_mean(move * move))) / clip)
    w = np.array(real(1 - float(lr) * decay) * w - real(rate / longest) * move)
    return _with_others((w, np.array(rows), np.array(columns)), before, again, more, guarded)


def _mean(x: np.ndarray, dim: int | None = None) -> np.ndarray:
    return np.asarray(x.mean(axis=dim, dtype=np.float64), x.dtype)
