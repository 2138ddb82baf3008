"""Cases of the kernel of arithmetic on each element and on numbers of its channel."""

from collections.abc import Iterator

from tests.kernel_cases import Case, Draw

NORM = "x, m, s, t -> (x - m) * s + t"


def case_channelwise(draw: Draw) -> Iterator[Case]:
    for shape in ((2, 3), (1, 1, 1), (3, 5, 7), (2, 3, 4, 5), (2, 4, 9, 17), (3, 2, 2, 3, 4)):
        yield (NORM, draw(*shape), draw(3, shape[1])), {"tables": 1}
    line = "x, y, z, m, s, a, b -> maximum((x - m) * s + y * a - b, k * z)"
    yield (line, draw(2, 5, 6, 7), draw(2, 5, 6, 7), draw(7), draw(2, 5), draw(2, 5)), {"tables": 2, "k": 0.3}
    # names that a loop could have for itself
    yield ("b, c, h, w -> b * h + c * w", draw(3, 4, 5, 6), draw(3, 4, 5, 6), draw(2, 4)), {"tables": 1}
    yield ("x, m -> x * m", draw(1, 70, 11, 13), draw(70)), {"tables": 1}
    yield ("x, y, m, s, t -> x * m + y * s - t", draw(3, 4, 6), draw(3, 4, 6), draw(4), draw(2, 4)), {"tables": 2}
