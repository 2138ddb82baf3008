"""Cases of the kernels of arithmetic on each element."""

from collections.abc import Iterator

import numpy as np

from tests.kernel_cases import SHAPES, Case, Draw

FUNCTIONS = "x -> exp(x) + expm1(x) + tanh(x) + sigmoid(x) + log(sqrt(x * x) + 1) + log1p(abs(x)) + sin(9 * x) + cos(x)"


def case_pointwise(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (FUNCTIONS, draw(*shape)), {}
        yield ("x, y -> where(x >= y, a * x, y / b)", draw(*shape), draw(*shape)), {"a": 0.1, "b": -3}
    yield ("x, y -> maximum(x, y) - minimum(x, 2 * y)", draw(2, 3, 4), draw(3, 1)), {}
    yield ("x, y -> x + y", draw(4, 1, 300), draw(5, 1)), {}
    yield ("x, y, z -> x * y - z", draw(5, 700), draw(), draw(700)), {}
    yield ("x, y -> -x * y", draw(), draw(1, 1)), {}
    # A tie shows that neither comparison takes equals for less.
    yield ("x, y -> where(x > y, 2, where(x == y, 1, 0)) + where(x < y, 4, 0)", *(np.round(draw(9, 70)),) * 2), {}


def case_real(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (draw.ids(100, *shape, dtype="int32") - 50,), {"dtype": draw.dtype}
    yield (draw.ids(1000, 3, 40)[:, ::2],), {"dtype": draw.dtype}
    yield (draw.ids(2**24, 7),), {"dtype": draw.dtype}
    yield (draw(5, 30),), {"dtype": draw.dtype}


def case_whole(draw: Draw) -> Iterator[Case]:
    # far enough from whole numbers that these stay the same in 16 bits
    for shape in SHAPES:
        yield (np.asarray(draw.ids(60, *shape) - 30.0 + 0.25, draw.dtype),), {}
    yield (np.asarray(draw.ids(60, 3, 40) + 0.25, draw.dtype)[:, ::2],), {}
