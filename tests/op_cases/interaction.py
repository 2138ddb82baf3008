"""Cases of operators: products of pairs."""

from castile.planner.op import find
from tests.op_cases import case


def cases_pair_dots(rng):
    for shape in ((3, 4, 5), (1, 2, 3), (5, 3, 1)):
        yield case(find("pair_dots")(), (rng.normal(size=shape), "b f d"))
