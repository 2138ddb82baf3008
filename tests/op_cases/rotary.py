"""Cases of operators: rotary position embeddings."""

from castile.planner.op import find
from tests.op_cases import case


def cases_rotary(rng):
    for shape, axes, heads, interleaved in (
        ((5, 4), "s d", 1, False),
        ((2, 5, 12), "b s d", 3, True),
        ((3, 4, 8), "b s d", 4, False),
        ((2, 3, 5, 4), "b c s d", 2, False),
    ):
        yield case(find("rotary")(heads, 100.0, interleaved), (rng.normal(size=shape), axes))
