"""Cases of the kernels of sums and maxima over dims, and of the way back."""

from collections.abc import Iterator

import numpy as np

from tests.kernel_cases import SHAPES, Case, Draw

DIMS = [(0,), (0, 1), (1, 2), (0, 2, 3), (-1,), (0, 1, 2, 3)]


def case_sum_over(draw: Draw) -> Iterator[Case]:
    for dims in DIMS:
        yield (draw(2, 3, 4, 5),), {"dims": dims}
    yield (draw(63),), {"dims": (0,)}
    for dims in [(0, 2, 3), (0,)]:
        yield (draw(9, 7, 17, 16),), {"dims": dims}
        yield (draw(9, 70, 8, 4),), {"dims": dims}


def case_sum_pointwise(draw: Draw) -> Iterator[Case]:
    for (x,), params in case_sum_over(draw):
        yield ("x, y -> a * x * exp(y)", x, draw(*x.shape)), params | {"a": 0.5}
        yield ("x, y -> x - y", x, draw(*x.shape[1:])), params
    yield ("x, y -> x * y", draw(2, 1030), draw(2, 1)), {"dims": (1,)}
    yield ("x, y -> x * y", draw(), draw(70, 3)), {"dims": ()}
    yield ("x -> x * x", draw()), {"dims": ()}


def case_max_over(draw: Draw) -> Iterator[Case]:
    for (x,), params in case_sum_over(draw):
        yield (x,), params
        yield (np.round(x),), params


def case_expand(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES, ()]:
        yield (draw(),), {"shape": shape}
    for dims in DIMS:
        kept = [n for dim, n in enumerate((2, 3, 4, 5)) if dim not in {d % 4 for d in dims}]
        yield (draw(*kept),), {"shape": (2, 3, 4, 5), "dims": dims}
    yield (draw(2, 3),), {"shape": (2, 3), "dims": ()}
