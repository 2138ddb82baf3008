"""Cases of the kernels of batch normalisation."""

from collections.abc import Iterator

import numpy as np

from castile.kernels import reference
from tests.kernel_cases import Case, Draw

# The last three have more places than are vectors' lanes, rows of neither 1, 2, 3 nor 4 dims, and all in a few vectors.
IMAGES = [(4, 3, 5, 7), (6, 5), (2, 3, 9), (1, 2, 1, 1), (3, 17, 12, 12), (2, 3, 2, 3, 5), (1, 1, 3, 7)]


def case_moments(draw: Draw) -> Iterator[Case]:
    for shape in IMAGES:
        yield (draw(*shape),), {"scale": 0.125}


def case_moments_grad(draw: Draw) -> Iterator[Case]:
    for (x,), params in case_moments(draw):
        yield (Draw("float64")(2, x.shape[1]), x), params


def _moments(c: int) -> np.ndarray:
    mean, variance = Draw("float64", 5)(c), np.abs(Draw("float64", 6)(c)) + 0.1
    return np.stack([mean, variance + mean * mean])


def case_norm_factors(draw: Draw) -> Iterator[Case]:
    for c in (1, 5, 64):
        yield (draw(c), draw(c), _moments(c)), {"eps": 1e-5}
    yield (draw(6), draw(6), draw(6), np.abs(draw(6))), {"eps": 0.1}


def case_norm_factors_grad(draw: Draw) -> Iterator[Case]:
    for (gain, _, *statistics), params in case_norm_factors(draw):
        yield (draw(3, gain.size), gain, *statistics), params


def case_norm(draw: Draw) -> Iterator[Case]:
    for shape in IMAGES:
        yield (draw(*shape), draw(3, shape[1])), {}


def case_norm_grad(draw: Draw) -> Iterator[Case]:
    for (x, factors), _ in case_norm(draw):
        yield (draw(*reference.norm(x, factors).shape), x, factors), {}


def case_norm_grad_pointwise(draw: Draw) -> Iterator[Case]:
    for (x, factors), _ in case_norm(draw):
        for keeps in (False, True):
            yield ("d, y -> where(y > 0, d, 0)", x, factors, draw(*x.shape), draw(*x.shape)), {"keeps": keeps}
    x, y, z = (draw(3, 4, 5, 6) for _ in range(3))
    # x may be among the arrays; names that a loop could have for itself
    yield ("x, c, h -> k * h - c / (1 + x * x) + l", x, draw(3, 4), x, y, z), {"k": 0.3, "l": 1.5}


def case_running_moment(draw: Draw) -> Iterator[Case]:
    for c, momentum, count, variance in [(1, 0.1, 2, True), (5, 0.3, 17, True), (64, 1.0, 1000, False)]:
        yield (draw(c), _moments(c)), {"momentum": momentum, "count": count, "variance": variance}
    several = tuple(x for c in (3, 64, 1) for x in (draw(c), _moments(c)))
    yield several, {"momentum": 0.2, "count": 9, "variance": True}
    yield several[:4], {"momentum": 0.2, "count": 9, "variance": False}
