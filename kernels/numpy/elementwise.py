"""Arithmetic on each element of arrays that broadcast, written down or summed, in one pass over memory.

It knows no line of arithmetic.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.form import prepares
from castile.kernels.numpy.lines import Line, Loop, adds, alters, bound, sums, writes
from castile.kernels.numpy.moving import onto_zeros
from castile.kernels.numpy.views import Shape
from castile.kernels.numpy.walk import elementwise


@prepares
def pointwise(
    out: np.ndarray, line: str, *xs: np.ndarray, accumulate: bool, **constants: float
) -> Callable[[], Any] | None:
    """See the definition."""
    loop, arrays, numbers = _operands(line, xs, out.shape, constants, out.dtype)
    return _work((adds if accumulate else writes)(loop), [out, *arrays], numbers)


@prepares
def sum_pointwise(
    out: np.ndarray, line: str, *xs: np.ndarray, dims: Shape, accumulate: bool, **constants: float
) -> Callable[[], Any] | None:
    """See the definition."""
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    loop, arrays, numbers = _operands(line, xs, shape, constants, out.dtype)
    return onto_zeros(_work(sums(loop), [standing(out, shape, dims), *arrays], numbers), accumulate, out)


def real(out: np.ndarray, x: np.ndarray, *, dtype: str) -> None:
    """See the definition."""
    np.copyto(out, x, casting="unsafe")


def whole(out: np.ndarray, x: np.ndarray) -> None:
    """See the definition."""
    np.copyto(out, x, casting="unsafe")


def altered(
    out: np.ndarray, line: str, xs: tuple[np.ndarray, ...], constants: dict[str, float]
) -> Callable[[], Any] | None:
    """The work that makes each element of out what the line says of it, which its first name is, and of xs."""
    loop, arrays, numbers = _operands(line, xs, out.shape, constants, out.dtype)
    return _work(alters(loop), [out, *arrays], numbers)


def _work(line: Line, arrays: list[np.ndarray], numbers: list[Any]) -> Callable[[], Any] | None:
    return elementwise(line, arrays, *numbers, bind=bound)


def _operands(
    line: str, xs: tuple[np.ndarray, ...], shape: Shape, constants: dict[str, float], dtype: np.dtype
) -> tuple[Loop, list[np.ndarray], list[Any]]:
    """The loop, the arrays it runs over, stretched to `shape`, and what is the same for all elements."""
    assert all(x.dtype == dtype for x in xs), f"{line}: other arrays than {dtype} are the definition's"
    single = tuple(x.size == 1 and prod(shape) > 1 for x in xs)
    many = [_stretched(x, shape) for x, one in zip(xs, single, strict=True) if not one]
    numbers = [x.reshape(1) for x, one in zip(xs, single, strict=True) if one]
    loop = Loop(line, single, tuple(constants), dtype.name)
    return loop, many, [*numbers, *(dtype.type(value) for value in constants.values())]


def _stretched(x: np.ndarray, shape: Shape) -> np.ndarray:
    own = (0 if size == 1 else step for size, step in zip(x.shape, x.strides, strict=True))
    return as_strided(x, shape, (*[0] * (len(shape) - x.ndim), *own))


def standing(out: np.ndarray, shape: Shape, dims: Shape) -> np.ndarray:
    """out in the shape of what is summed: along the summed dims it stands still."""
    gone = {dim % len(shape) for dim in dims}
    kept = iter(out.strides)
    return as_strided(out, shape, tuple(0 if dim in gone else next(kept) for dim in range(len(shape))))
