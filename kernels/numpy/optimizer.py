"""Optimizers' updates in one pass over memory, skipped where a guard says so.

It knows no learning-rate schedule.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import chain
from castile.kernels.form import each_of, prepares
from castile.kernels.numpy.gemm import address
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.pointers import after, pointer, spare
from castile.kernels.numpy.strided import FIRST, SECOND, THIRD, block_size, elementwise, fetch, num_rows, settle

_FOURTH = 20


@prepares
def sgd(
    out: tuple[np.ndarray, ...],
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    lr: np.ndarray,
    *more: np.ndarray,
    momentum: float,
    decay: float,
    nesterov: bool,
    guarded: bool = False,
) -> Callable[[], Any] | None:
    """See the definition. In place: the loop vectorises only if it sees that it writes what it read."""
    real = w.dtype.type
    settings = (real(momentum), real(decay), nesterov)
    return _each(_sgd, out, (w, g, m, lr, *more), 2, settings, guarded)


@prepares
def adam(
    out: tuple[np.ndarray, ...],
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
) -> Callable[[], Any] | None:
    """See the definition. In place."""
    return _each(_adam, out, (w, g, m, v, lr, step, *more), 3, (beta1, beta2, eps, decay, decoupled), guarded)


@prepares
def lion(
    out: tuple[np.ndarray, ...],
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    lr: np.ndarray,
    *more: np.ndarray,
    beta1: float,
    beta2: float,
    decay: float,
    guarded: bool = False,
) -> Callable[[], Any] | None:
    """See the definition. In place."""
    return _each(_lion, out, (w, g, m, lr, *more), 2, (beta1, beta2, decay), guarded)


def _each(
    loop: Any,
    out: tuple[np.ndarray, ...],
    arrays: tuple[np.ndarray, ...],
    num_results: int,
    settings: tuple[Any, ...],
    guarded: bool,
) -> Callable[[], Any] | None:
    """One parameter after the other; each has so many results, a gradient after the first array, and scalars last."""
    works: list[Callable[[], Any]] = []
    for made, (w, g, *others) in each_of(out, arrays, num_results):
        states, scalars = others[: num_results - 1], [one.reshape(1) for one in others[num_results - 1 :]]
        guards = [scalars.pop()] if guarded else []
        work = elementwise(loop, [made[0], g, *made[1:]], *scalars, *settings)
        if work is None:
            return None
        works += [*moves(made, (w, *states)), guarding(work, *guards)]
    return chain(works)


def guarding(work: Callable[[], Any], *guard: np.ndarray) -> Callable[[], Any]:
    """The work; with a guard, one number, only where that is above 0."""
    return partial(_where, guard[0], work) if guard else work


def _where(guard: np.ndarray, work: Callable[[], Any]) -> None:
    if guard.item() > 0:
        work()


def moves(out: tuple[np.ndarray, ...], before: tuple[np.ndarray, ...]) -> list[Callable[[], Any]]:
    """Parameter and states brought to where they are renewed, unless they lie there."""
    return [partial(np.copyto, to, x) for to, x in zip(out, before, strict=True) if not _same(to, x)]


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return address(a) == address(b) and a.strides == b.strides


@compiled
def _sgd(walk, w, g, m, rate, momentum, decay, nesterov):  # type: ignore[no-untyped-def]
    lr = rate[0]
    plan, p_w, p_g, p_m = pointer(walk), pointer(w), pointer(g), pointer(m)
    s_w, s_g, s_m = after(plan, FIRST), after(plan, SECOND), after(plan, THIRD)
    a, b, c = spare(w), spare(g), spare(m)
    for first in range(0, num_rows(plan), plan[4]):
        v, d, u = fetch(plan, s_w, p_w, first, a), fetch(plan, s_g, p_g, first, b), fetch(plan, s_m, p_m, first, c)
        for j in range(block_size(plan, first)):
            step = d[j] + decay * v[j]
            u[j] = momentum * u[j] + step
            v[j] -= lr * (step + momentum * u[j] if nesterov else u[j])
        settle(plan, s_w, p_w, first, a)
        settle(plan, s_m, p_m, first, c)


@compiled
def _adam(walk, w, g, m, v, rate, count, beta1, beta2, eps, decay, decoupled):  # type: ignore[no-untyped-def]
    real = w.dtype.type
    size, spread = real(rate[0] / (1 - beta1 ** count[0])), real(1 / np.sqrt(1 - beta2 ** count[0]))
    kept, added = real(1 - rate[0] * decay if decoupled else 1), real(0 if decoupled else decay)
    share, before, now, least = real(1 - beta1), real(beta2), real(1 - beta2), real(eps)
    plan, p_w, p_g, p_m, p_v = pointer(walk), pointer(w), pointer(g), pointer(m), pointer(v)
    s_w, s_g, s_m, s_v = after(plan, FIRST), after(plan, SECOND), after(plan, THIRD), after(plan, _FOURTH)
    a, b, c, d = spare(w), spare(g), spare(m), spare(v)
    for first in range(0, num_rows(plan), plan[4]):
        x, y = fetch(plan, s_w, p_w, first, a), fetch(plan, s_g, p_g, first, b)
        mean, square = fetch(plan, s_m, p_m, first, c), fetch(plan, s_v, p_v, first, d)
        for j in range(block_size(plan, first)):
            grad = y[j] + added * x[j]
            mean[j] += share * (grad - mean[j])
            square[j] = before * square[j] + now * grad * grad
            x[j] = kept * x[j] - size * mean[j] / (math.sqrt(square[j]) * spread + least)
        settle(plan, s_w, p_w, first, a)
        settle(plan, s_m, p_m, first, c)
        settle(plan, s_v, p_v, first, d)


@compiled
def _lion(walk, w, g, m, rate, beta1, beta2, decay):  # type: ignore[no-untyped-def]
    real = w.dtype.type
    lr, kept, zero = rate[0], real(1 - rate[0] * decay), real(0)
    old, new, before, now = real(beta1), real(1 - beta1), real(beta2), real(1 - beta2)
    plan, p_w, p_g, p_m = pointer(walk), pointer(w), pointer(g), pointer(m)
    s_w, s_g, s_m = after(plan, FIRST), after(plan, SECOND), after(plan, THIRD)
    a, b, c = spare(w), spare(g), spare(m)
    for first in range(0, num_rows(plan), plan[4]):
        x, y, mean = fetch(plan, s_w, p_w, first, a), fetch(plan, s_g, p_g, first, b), fetch(plan, s_m, p_m, first, c)
        for j in range(block_size(plan, first)):
            along = old * mean[j] + new * y[j]
            # zero itself, and what is no number
            step = lr if along > zero else (-lr if along < zero else along)
            x[j] = kept * x[j] - step
            mean[j] = before * mean[j] + now * y[j]
        settle(plan, s_w, p_w, first, a)
        settle(plan, s_m, p_m, first, c)
