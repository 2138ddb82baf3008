"""Cases of the kernels of the largest elements."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import SHAPES, Case, Draw


def case_top_k(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for count in sorted({1, min(3, shape[-1]), min(20, shape[-1])}):
            yield (draw(*shape),), {"count": count}
    yield (draw.ids(3, 5, 9).astype(draw.dtype),), {"count": 4}


def case_pick(draw: Draw) -> Iterator[Case]:
    for (x,), params in case_top_k(draw):
        yield (x, reference.top_k(x, **params)[1]), {}
    yield (draw(4, 6), draw.ids(6, 4, 9)), {}


def case_pick_grad(draw: Draw) -> Iterator[Case]:
    for (x, places), _ in case_pick(draw):
        yield (draw(*places.shape), places), {"size": x.shape[-1]}
