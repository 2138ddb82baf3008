"""What loops share over arrays whose columns, not rows, are contiguous.

A loop over a column handles as many rows as the buffer on the stack holds. It knows no kernel.
"""

from collections.abc import Callable
from functools import partial
from math import log, prod
from typing import Any

import numpy as np

from castile.kernels.calls import chain
from castile.kernels.numpy.jit import compiled, exp
from castile.kernels.numpy.views import flat, has_forward_strides, merge_dims, outer_offsets


def by_columns(
    kernel: Callable[..., Any], arrays: list[np.ndarray], *constants: Any, bare: list[np.ndarray]
) -> Callable[[], Any] | None:
    """The work of `kernel(rows, cols, flat, step, ..., *constants)` over the last dim of `arrays`, of one shape.

    Every array becomes a 1-D `flat` and the distance `step` between its columns, in elements: row r holds
    flat[r :: step]. `bare` arrays have the leading dims only, one element a row; their flat and the distance between
    rows follow. None where rows do not lie side by side, a step is < 0 or there is nothing.
    """
    lead, every = arrays[0].shape[:-1], [*arrays, *bare]
    if prod(lead) == 0 or arrays[0].shape[-1] == 0:
        return None
    shape, strides = merge_dims(lead, [x.strides[: len(lead)] for x in every])
    columns = [(x.strides[-1],) for x in arrays]
    if not shape or not has_forward_strides([*every, *arrays], [*strides, *columns]):
        return None
    if any(one[-1] != x.itemsize for x, one in zip(arrays, strides, strict=False)):
        return None
    rows, cols, calls = shape[-1], arrays[0].shape[-1], []
    for offsets in outer_offsets(shape[:-1], [one[:-1] for one in strides]):
        operands: list[Any] = []
        for n, (x, one, offset) in enumerate(zip(every, strides, offsets, strict=True)):
            step = (x.strides[-1] if n < len(arrays) else one[-1]) // x.itemsize
            length = (cols - 1) * step + rows if n < len(arrays) else (rows - 1) * step + 1
            operands += [flat(x, offset // x.itemsize, length), step]
        calls.append(partial(kernel, rows, cols, *operands, *constants))
    return chain(calls)


@compiled
def log_sums(found, totals, x, step, cols, rows):  # type: ignore[no-untyped-def]
    """The log-sum-exps of so many rows that begin side by side at x, into found; totals: as much working memory."""
    for k in range(rows):
        found[k] = x[k]
    for j in range(1, cols):
        for k in range(rows):
            v = x[j * step + k]
            found[k] = v if v > found[k] else found[k]
    for k in range(rows):
        totals[k] = found[k] - found[k]
    for j in range(cols):
        for k in range(rows):
            totals[k] += exp(x[j * step + k] - found[k])
    for k in range(rows):
        found[k] += log(totals[k])
