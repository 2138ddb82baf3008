"""Cases of the kernels of a cross-entropy over blocks of classes."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import Case, Draw


def case_block_entropy(draw: Draw) -> Iterator[Case]:
    for shape, width, blocks, first, of, classes in [
        ((5,), 7, 1, 0, 1, 7),
        ((2, 3), 6, 3, 1, 6, 12),
        ((2, 3), 1, 1, 4, 5, 5),
        ((1, 63), 130, 2, 2, 6, 390),
        # blocks that are not all as long: of 3, 3, 2, 3, 2
        ((2, 3), 7, 3, 2, 5, 13),
        ((4,), 13, 5, 0, 5, 13),
        ((1, 40), 133, 2, 1, 5, 332),
    ]:
        logits, labels = 3 * draw(*shape, width), draw.ids(classes, *shape)
        yield (logits, labels), {"blocks": blocks, "first": first, "of": of, "classes": classes}


def case_block_entropy_grad(draw: Draw) -> Iterator[Case]:
    for (logits, labels), params in case_block_entropy(draw):
        y = reference.block_entropy(logits, labels, **params)
        yield (draw(*y.shape), logits, labels, y), {name: params[name] for name in ("first", "of", "classes")}


def case_split_cross_entropy(draw: Draw) -> Iterator[Case]:
    for shape in [(5, 1, 2), (2, 3, 4, 2), (130, 8, 2)]:
        yield (3 * draw(*shape),), {"scale": 0.3}


def case_split_cross_entropy_grad(draw: Draw) -> Iterator[Case]:
    for (parts,), params in case_split_cross_entropy(draw):
        yield (draw(), parts, reference.split_cross_entropy(parts, **params)[1]), params
