"""Cases of the kernels of recurrent cells."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import Case, Draw

# Samples and units.
SIZES = [(1, 1), (3, 1), (2, 7), (5, 64), (1, 130), (17, 33)]


def case_lstm_cell(draw: Draw) -> Iterator[Case]:
    for b, h in SIZES:
        yield (2 * draw(b, 1, 4, h), draw(4, h), draw(b, 1, 4, h), draw(b, 1, h)), {}


def case_lstm_cell_grad(draw: Draw) -> Iterator[Case]:
    for (x, bias, r, before), _ in case_lstm_cell(draw):
        _, c, gates = reference.lstm_cell(x, bias, r, before)
        yield (draw(*c.shape), draw(*c.shape), gates, before, c), {}


def case_gru_cell(draw: Draw) -> Iterator[Case]:
    for b, h in SIZES:
        yield (2 * draw(b, 1, 3, h), draw(3, h), draw(b, 1, 3, h), draw(3, h), draw(b, 1, h)), {}


def case_gru_cell_grad(draw: Draw) -> Iterator[Case]:
    for args, _ in case_gru_cell(draw):
        h, gates = reference.gru_cell(*args)
        yield (draw(*h.shape), gates, args[-1]), {}
