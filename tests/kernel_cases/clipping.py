"""Cases of the kernels of clipping by the global norm."""

from collections.abc import Iterator

import numpy as np

from tests.kernel_cases import MANY, SHAPES, Case, Draw


def case_square_sum(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (draw(*shape),), {}
    yield tuple(draw(*shape) for shape in (*MANY, ())), {}
    yield tuple(draw(*shape) for shape in MANY[3:6]), {}


def case_clip_factor(draw: Draw) -> Iterator[Case]:
    for squares in (0.0, 0.25, 9.0, 1e8):
        yield (np.array(squares, draw.dtype),), {"most": 1.5}


def case_times(draw: Draw) -> Iterator[Case]:
    yield tuple(x for shape in MANY[1:6] for x in (draw(*shape), draw())), {}
    for shape in SHAPES:
        yield (draw(*shape), draw()), {}
