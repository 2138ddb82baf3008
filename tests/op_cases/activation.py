"""Cases of operators: activation."""

from castile.planner.op import find
from castile.planner.ops.gelu import Gelu
from tests.op_cases import elementwise


def cases_relu(rng):
    yield from elementwise(find("relu")(), rng)


def cases_gelu(rng):
    yield from elementwise(Gelu("tanh"), rng)
    yield from elementwise(Gelu("none"), rng)
