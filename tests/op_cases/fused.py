"""Cases of chains of operators on each element."""

from castile.planner.op import find
from castile.planner.ops.fused import Fused, Member
from castile.planner.ops.gelu import Gelu
from castile.planner.ops.scale import Scale
from tests.op_cases import case


def cases_fused(rng):
    norm, relu, add, mul = (find(name)() for name in ("batch_norm", "relu", "add", "mul"))
    images = rng.normal(size=(3, 2, 5, 4)), "b c h w"
    factors = rng.normal(size=(3, 2)), "f c"
    yield case(Fused((Member(norm, (0, 1)), Member(relu, (2,)))), images, factors)
    # what two norms make of two images, added and rectified
    ends = (Member(norm, (0, 1)), Member(norm, (2, 3)), Member(add, (4, 5)), Member(relu, (6,)))
    yield case(
        Fused(ends), images, factors, (rng.normal(size=(3, 2, 5, 4)), "b c h w"), (rng.normal(size=(3, 2)), "f c")
    )
    tokens, bias = (rng.normal(size=(3, 5, 4)), "b s d"), (rng.normal(size=4), "f")
    yield case(Fused((Member(add, (0, 1)), Member(Gelu("tanh"), (2,)))), tokens, bias)
    # of the same shapes, and other gradients
    for last in (add, mul):
        others = rng.normal(size=(3, 5, 4)), "n t e"
        yield case(Fused((Member(add, (0, 1)), Member(last, (2, 3)))), tokens, bias, others)
    # one operand read twice, and one of a single row
    twice = (Member(find("silu")(), (0,)), Member(mul, (2, 0)), Member(find("sub")(), (3, 1)), Member(Scale(0.3), (4,)))
    yield case(Fused(twice), tokens, (rng.normal(size=(1, 4)), "s d"))
    # what a comparison chooses, of an operand that it alone reads, and of one that it is made of
    above, where = find("compare")(">", 0.25), find("where")()
    yield case(Fused((Member(above, (0,)), Member(find("masked")(), (1, 2)))), tokens, (rng.normal(size=4), "f"))
    yield case(Fused((Member(above, (0,)), Member(mul, (0, 1)), Member(where, (2, 3, 0)))), tokens, bias)
    yield case(Fused((Member(find("tanh")(), (0,)), Member(find("square")(), (1,)))), (rng.normal(size=()), ""))


def cases_channel_bias(rng):
    for shape, axes in (((4, 3), "b c"), ((2, 3, 5), "b c w"), ((2, 3, 4, 2), "b c h w")):
        yield case(find("channel_bias")(), (rng.normal(size=shape), axes), (rng.normal(size=3), "o"))
