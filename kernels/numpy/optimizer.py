"""The optimizer's update in one pass over memory.

It knows no schedule of learning rates.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.gemm import address
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.lanes import after, pointer, spare
from castile.kernels.numpy.views import chain
from castile.kernels.numpy.walk import FIRST, SECOND, THIRD, block_size, elementwise, fetch, num_rows, settle


@prepares
def sgd(
    out: tuple[np.ndarray, np.ndarray],
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    lr: np.ndarray,
    *,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> Callable[[], Any] | None:
    """See the definition. In place: the loop vectorises only if it sees that it writes what it read."""
    real = w.dtype.type
    step = elementwise(_sgd, [out[0], g, out[1]], lr.reshape(1), real(momentum), real(decay), nesterov)
    if step is None:
        return None
    moves = [partial(np.copyto, to, x) for to, x in zip(out, (w, m), strict=True) if not _same(to, x)]
    return chain([*moves, step])


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
