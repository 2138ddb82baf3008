"""Cases of the kernel of dropout."""

from collections.abc import Iterator

import numpy as np

from tests.kernel_cases import SHAPES, Case, Draw


def case_dropout(draw: Draw) -> Iterator[Case]:
    noise = np.array(draw.random.integers(-(2**63), 2**63), np.int64)
    for shape in [*SHAPES, ()]:
        params = {"rate": 0.3, "salt": 2**63 + 5, "offset": (0,) * len(shape), "whole": shape}
        yield (draw(*shape), noise), params
        shifted = {"offset": tuple(range(len(shape))), "whole": tuple(n + dim + 1 for dim, n in enumerate(shape))}
        yield (draw(*shape), noise), params | shifted
    # The index has more than 32 bits.
    far = {"rate": 0.5, "salt": 1, "offset": (2**33, 1), "whole": (2**34, 7)}
    yield (draw(9, 5), noise), far
