"""Cases of the kernels of losses."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import Case, Draw


def case_cross_entropy(draw: Draw) -> Iterator[Case]:
    for shape, classes in [((5,), 7), ((2, 3), 1), ((1, 63), 129)]:
        yield (3 * draw(*shape, classes), draw.ids(classes, *shape)), {"scale": 0.3}


def case_cross_entropy_grad(draw: Draw) -> Iterator[Case]:
    for (logits, labels), params in case_cross_entropy(draw):
        yield (draw(), logits, labels, reference.cross_entropy(logits, labels, **params)[1]), params
