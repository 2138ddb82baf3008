"""Definitions of arrays: sums of products, sums, shapes and copies in plain NumPy."""

from string import ascii_letters

import numpy as np

from castile.kernels.half_precision import castable
from castile.kernels.reference.elementwise import pointwise


@castable
def contract(spec: str, *xs: np.ndarray) -> np.ndarray:
    """Einstein sum of `xs` under `spec`, for example "...i,oi->...o"; what the result does not name is summed.

    `...` stands for the same leading dims wherever it stands, and is summed where the result has none.
    """
    left, result = spec.replace(" ", "").split("->")
    widths = [x.ndim - len(term.replace("...", "")) for term, x in zip(left.split(","), xs, strict=True)]
    leading = [c for c in ascii_letters if c not in spec][: max(widths)]
    return np.array(np.einsum(f"{left}->{result}".replace("...", "".join(leading)), *xs))


@castable
def contract_pointwise(spec: str, expression: str, *xs: np.ndarray, **constants: float) -> np.ndarray:
    """The expression's value of each element of the Einstein sum of the first two of xs, and of the others, which
    broadcast.

    "s, b -> s + b" under "...i,oi->...o" of x, w and b is a linear layer.
    """
    return pointwise(expression, contract(spec, *xs[:2]), *xs[2:], **constants)


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Sum of x and y, y broadcast to x with shapes aligned at the right."""
    return x + y


def add_bias(x: np.ndarray, b: np.ndarray, *, dim: int) -> np.ndarray:
    """Sum of x and b [x.shape[dim]], b running along dim `dim` of x."""
    shape = [1] * x.ndim
    shape[dim] = b.size
    return x + b.reshape(shape)


def reshape(x: np.ndarray, *, shape: tuple[int, ...]) -> np.ndarray:
    """The elements of x in C order, as an array of `shape`."""
    return np.array(x.reshape(shape))


@castable
def copy(x: np.ndarray, *more: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
    """The same numbers in another array; more: further arrays, whose copies follow."""
    return (np.array(x), *map(np.array, more)) if more else np.array(x)


def zero(*, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros."""
    return np.zeros(shape, dtype)
