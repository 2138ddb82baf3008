"""Maxima over dims.

It knows no gradient.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import chain
from castile.kernels.form import prepares
from castile.kernels.numpy.elementwise import broadcast_result
from castile.kernels.numpy.functions import maximum
from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.pointers import after, copy_run, pointer, spare
from castile.kernels.numpy.strided import FIRST, SECOND, block_size, elementwise, fetch, num_rows, offset
from castile.kernels.numpy.views import Shape

# One comparison waits for the one before it, so a long row is compared in so many chains, which are vectors.
_CHAINS = 32


@prepares
def max_over(out: np.ndarray, x: np.ndarray, *, dims: Shape) -> Callable[[], Any] | None:
    """See the definition."""
    work = elementwise(_raise, [broadcast_result(out, x.shape, dims), x])
    return work and chain([partial(out.fill, -np.inf), work])


@compiled
def _raise(walk, out, x):  # type: ignore[no-untyped-def]
    plan, p_out, p_x = pointer(walk), pointer(out), pointer(x)
    s_out, s_x, h_x, chains = after(plan, FIRST), after(plan, SECOND), spare(x), spare(x)
    cols, step = plan[3], s_out[3]
    for first in range(0, num_rows(plan), plan[4]):
        v = fetch(plan, s_x, p_x, first, h_x)
        for row in range(first, first + block_size(plan, first) // cols):
            o = after(p_out, offset(plan, s_out, row))
            if step == 0:
                o[0] = maximum(o[0], _largest(v, cols, chains))
            else:
                for j in range(cols):
                    o[j * step] = maximum(o[j * step], v[j])
            v = after(v, cols)


@inlined
def _largest(v, num, chains):  # type: ignore[no-untyped-def]
    start, top = 0, v[0]
    if num >= _CHAINS:
        copy_run(chains, v, _CHAINS)
        for start in range(_CHAINS, num - _CHAINS + 1, _CHAINS):
            for j in range(_CHAINS):
                chains[j] = maximum(chains[j], v[start + j])
        _halve(chains, 16)
        _halve(chains, 8)
        _halve(chains, 4)
        _halve(chains, 2)
        top = maximum(chains[0], chains[1])
        start = num // _CHAINS * _CHAINS
    for j in range(start, num):
        top = maximum(top, v[j])
    return top


@inlined
def _halve(chains, half):  # type: ignore[no-untyped-def]
    for j in range(half):
        chains[j] = maximum(chains[j], chains[j + half])
