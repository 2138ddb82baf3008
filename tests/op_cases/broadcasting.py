"""Cases of operators: two arrays that broadcast."""

import numpy as np

from castile.planner.op import find
from castile.planner.ops.compare import SIGNS
from tests.op_cases import case


def broadcasts(op, rng, numbers=None):
    """Either operand smaller, lacking leading dims or with dims of one; either a parameter."""
    draw = numbers or (lambda *shape: rng.normal(size=shape))
    x = draw(5, 4, 3)
    yield case(op, (x, "b s d"), (draw(5, 4, 3), "b s d"))
    yield case(op, (x, "b s d"), (draw(4, 3), "*s d"))
    yield case(op, (draw(3), "*d"), (x, "b s d"))
    yield case(op, (x, "b s d"), (draw(5, 1, 3), "b s d"))
    yield case(op, (draw(1, 3), "*s d"), (draw(5, 4, 1), "b s e"))
    yield case(op, (draw(), ""), (draw(7), "*d"))


def cases_add(rng):
    x = rng.normal(size=(5, 4, 3))
    yield case(find("add")(), (x, "b s d"), (rng.normal(size=()), ""))
    yield case(find("add")(), (rng.normal(size=7), "b"), (rng.normal(size=7), "*d"))
    yield from broadcasts(find("add")(), rng)


def cases_sub(rng):
    yield from broadcasts(find("sub")(), rng)


def cases_mul(rng):
    yield from broadcasts(find("mul")(), rng)


def cases_div(rng):
    yield from broadcasts(find("div")(), rng, lambda *shape: np.asarray(rng.uniform(0.5, 2, shape)))


def cases_maximum(rng):
    yield from broadcasts(find("maximum")(), rng)


def cases_minimum(rng):
    yield from broadcasts(find("minimum")(), rng)


def cases_masked(rng):
    # a mask is zeros and ones; near zero it has no slope to compare with
    yield from broadcasts(find("masked")(), rng, lambda *shape: np.asarray(rng.choice((-2.0, -1.0, 1.0, 2.0), shape)))
    yield case(find("masked")(-1.5), (rng.normal(size=(5, 4)), "b d"), (rng.choice((-1.0, 1.0), 4), "d"))


def cases_where(rng):
    mask = rng.choice((-1.0, 1.0), (5, 4, 3))
    yield case(find("where")(), (mask, "b s d"), (rng.normal(size=(5, 4, 3)), "b s d"), (rng.normal(size=3), "*d"))
    yield case(find("where")(), (mask[:, :1], "b s d"), (rng.normal(size=(4, 3)), "*s d"), (rng.normal(size=()), ""))
    yield case(find("where")(), (mask[0, 0], "d"), (rng.normal(size=(5, 1)), "b e"), (rng.normal(size=(5, 3)), "b d"))


def cases_compare(rng):
    few = lambda *shape: rng.integers(-2, 3, shape) * 1.0  # noqa: E731
    for sign in SIGNS:
        yield case(find("compare")(sign, 1.0), (few(5, 4), "b d"))
        yield case(find("compare")(sign), (few(5, 4, 3), "b s d"), (few(4, 1), "s e"))
    yield case(find("compare")("==", 0.0, -2.5, 3.0), (few(3, 1, 5, 2), "b c h w"))
    yield case(find("compare")("<"), (few(7), "*d"), (few(), ""))
