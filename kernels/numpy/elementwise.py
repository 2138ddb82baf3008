"""Elementwise expressions over arrays that broadcast, written or summed, in one pass over memory.

It knows no expression.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.form import prepares
from castile.kernels.numpy.codegen import (
    CompiledLoop,
    LoopSpec,
    bind_loop,
    compile_add,
    compile_sum,
    compile_update,
    compile_write,
)
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.strided import elementwise
from castile.kernels.numpy.views import Shape


@prepares
def pointwise(
    out: np.ndarray, expression: str, *xs: np.ndarray, accumulate: bool, **constants: float
) -> Callable[[], Any] | None:
    """See the definition."""
    loop, arrays, numbers = _operands(expression, xs, out.shape, constants, out.dtype)
    return _work((compile_add if accumulate else compile_write)(loop), [out, *arrays], numbers)


@prepares
def sum_pointwise(
    out: np.ndarray, expression: str, *xs: np.ndarray, dims: Shape, accumulate: bool, **constants: float
) -> Callable[[], Any] | None:
    """See the definition."""
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    loop, arrays, numbers = _operands(expression, xs, shape, constants, out.dtype)
    return onto_zeros(_work(compile_sum(loop), [broadcast_result(out, shape, dims), *arrays], numbers), accumulate, out)


def real(out: np.ndarray, x: np.ndarray, *, dtype: str) -> None:
    """See the definition."""
    np.copyto(out, x, casting="unsafe")


def whole(out: np.ndarray, x: np.ndarray) -> None:
    """See the definition."""
    np.copyto(out, x, casting="unsafe")


def updated_in_place(
    out: np.ndarray, expression: str, xs: tuple[np.ndarray, ...], constants: dict[str, float]
) -> Callable[[], Any] | None:
    """The call that replaces each element of out, the expression's first name, by the expression's value of it and xs.
    """
    loop, arrays, numbers = _operands(expression, xs, out.shape, constants, out.dtype)
    return _work(compile_update(loop), [out, *arrays], numbers)


def _work(expression: CompiledLoop, arrays: list[np.ndarray], numbers: list[Any]) -> Callable[[], Any] | None:
    return elementwise(expression, arrays, *numbers, bind=bind_loop)


def _operands(
    expression: str, xs: tuple[np.ndarray, ...], shape: Shape, constants: dict[str, float], dtype: np.dtype
) -> tuple[LoopSpec, list[np.ndarray], list[Any]]:
    """The loop, the arrays that it runs over, broadcast to `shape`, and what is one number for all elements."""
    assert all(x.dtype == dtype for x in xs), f"{expression}: other arrays than {dtype} are the definition's"
    single = tuple(x.size == 1 and prod(shape) > 1 for x in xs)
    many = [_broadcast(x, shape) for x, one in zip(xs, single, strict=True) if not one]
    numbers = [x.reshape(1) for x, one in zip(xs, single, strict=True) if one]
    loop = LoopSpec(expression, single, tuple(constants), dtype.name)
    return loop, many, [*numbers, *(dtype.type(value) for value in constants.values())]


def _broadcast(x: np.ndarray, shape: Shape) -> np.ndarray:
    own = (0 if size == 1 else step for size, step in zip(x.shape, x.strides, strict=True))
    return as_strided(x, shape, (*[0] * (len(shape) - x.ndim), *own))


def broadcast_result(out: np.ndarray, shape: Shape, dims: Shape) -> np.ndarray:
    """out broadcast along the summed dims to the shape that is summed."""
    gone = {dim % len(shape) for dim in dims}
    kept = iter(out.strides)
    return as_strided(out, shape, tuple(0 if dim in gone else next(kept) for dim in range(len(shape))))
