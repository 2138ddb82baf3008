"""Copies of contiguous arrays by the CUDA runtime. It does not know what is copied."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from castile.kernels.form import offers, prepares
from castile.kernels.triton.views import view

_ON_DEVICE = 3  # cudaMemcpyDeviceToDevice


def _settings(out: Any, x: Any, *more: Any) -> list[str]:
    if more:
        return []
    is_run = out.shape == x.shape and out.dtype == x.dtype and out.size > 0 and _lies_dense(out) and _lies_dense(x)
    return [""] if is_run else []


@prepares
@offers(_settings)
def copy(out: Any, x: Any, *more: Any) -> Callable[[], Any] | None:
    """See the definition. Follows CuPy's current device and stream at the time when it is bound."""
    if isinstance(x, np.ndarray) or not _settings(out, x, *more):
        return None
    cuda = import_module("cupy").cuda
    words = (out.data.ptr, x.data.ptr, out.size * out.itemsize, _ON_DEVICE, cuda.get_current_stream().ptr)
    work = partial(cuda.runtime.memcpyAsync, *words)
    # CUDA is given addresses, which keep nothing alive.
    work.operands = (out, x)  # type: ignore[attr-defined]
    return work


def _lies_dense(x: Any) -> bool:
    shape, steps = view(x).shape, view(x).steps
    return all(n == 1 or step == prod(shape[dim + 1 :]) for dim, (n, step) in enumerate(zip(shape, steps, strict=True)))
