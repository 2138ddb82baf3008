"""Cases of operators: recurrent cells."""

from castile.planner.ops.gru_cell import GruCell
from castile.planner.ops.lstm_cell import LstmCell
from tests.op_cases import case

# Samples, positions, units, the position that is read.
SIZES = ((5, 3, 4, 1), (1, 2, 7, 1), (3, 1, 3, 0))


def cases_lstm_cell(rng):
    for b, s, h, position in SIZES:
        x, bias, state, cell, w = _drawn(rng, (b, s, 4, h), (4, h), (b, 1, h), (b, 1, h), (4, h, h))
        operands = (x, "b s g h"), (bias, "*g h"), (state, "b t i"), (cell, "b t h"), (w, "*g h i")
        yield case(LstmCell(position), *operands)


def cases_gru_cell(rng):
    for b, s, h, position in SIZES:
        x, one, other, state, w = _drawn(rng, (b, s, 3, h), (3, h), (3, h), (b, 1, h), (3, h, h))
        states = (state, "b t i"), (state, "b t h")
        yield case(GruCell(position), (x, "b s g h"), (one, "*g h"), (other, "*g h"), *states, (w, "*g h i"))


def _drawn(rng, *shapes):
    return [rng.normal(size=shape) for shape in shapes]
