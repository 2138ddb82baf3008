"""Cases of the kernels of pooling."""

from collections.abc import Iterator

import numpy as np

from castile.kernels import reference
from tests.kernel_cases import Case, Draw


def case_max_pool2d(draw: Draw) -> Iterator[Case]:
    for x, kernel, stride, pads in [
        ((2, 3, 8, 8), (2, 2), (2, 2), (0, 0, 0, 0)),
        ((1, 2, 7, 5), (3, 3), (2, 1), (1, 1, 1, 0)),
        ((3, 1, 1, 9), (1, 2), (1, 3), (0, 0, 0, 1)),
        ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
        ((3, 5, 17, 16), (2, 2), (2, 2), (0, 1, 1, 1)),
        ((3, 5, 8, 4), (2, 2), (2, 2), (0, 0, 0, 0)),
        ((2, 3, 6, 5), (2, 2), (1, 1), (1, 1, 1, 1)),
        ((2, 2, 8, 9), (2, 3), (2, 2), (0, -2, 1, -1)),
        ((2, 3, 22, 16), (3, 3), (2, 2), (1, 1, 1, 1)),
        ((2, 2, 9, 7), (3, 3), (1, 1), (0, 0, 1, 1)),
        ((1, 3, 11, 12), (5, 5), (2, 3), (2, 2, 2, 1)),
    ]:
        image = draw(*x)
        # Ties show which of several maxima is taken.
        yield (np.round(image),), {"kernel": kernel, "stride": stride, "pads": pads}
        yield (image,), {"kernel": kernel, "stride": stride, "pads": pads}


def case_max_pool2d_grad(draw: Draw) -> Iterator[Case]:
    for (x,), params in case_max_pool2d(draw):
        yield (draw(*reference.max_pool2d(x, **params).shape), x), params
    # windows that see padding alone
    yield (draw(2, 2, 6, 7), draw(2, 2, 4, 5)), {"kernel": (2, 2), "stride": (1, 1), "pads": (0, 3, 0, 3)}


def case_avg_pool2d(draw: Draw) -> Iterator[Case]:
    for n, ((x,), params) in enumerate(case_max_pool2d(draw)):
        yield (draw(*x.shape),), params | {"padded": n % 4 < 2}


def case_avg_pool2d_grad(draw: Draw) -> Iterator[Case]:
    for (x,), params in case_avg_pool2d(draw):
        yield (draw(*reference.avg_pool2d(x, **params).shape),), params | {"shape": x.shape}


def case_global_pool(draw: Draw) -> Iterator[Case]:
    for shape in [(2, 3, 4, 5), (3, 5), (1, 2, 63), (2, 3, 1, 1), (2, 3, 2, 3, 4), (3, 17, 28, 28)]:
        yield (draw(*shape),), {"scale": 0.3}


def case_global_pool_grad(draw: Draw) -> Iterator[Case]:
    for (x,), params in case_global_pool(draw):
        yield (draw(*x.shape[:2]),), params | {"shape": x.shape}
