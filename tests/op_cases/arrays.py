"""Cases of operators: arrays."""

from castile.planner.op import find
from castile.planner.ops.reshape import Reshape
from tests.op_cases import case, elementwise


def cases_linear(rng):
    linear = find("linear")()
    for shape, axes, features in (((5, 3), "b i", 4), ((4, 3, 5), "b s d", 7), ((6,), "i", 3), ((3, 4, 1), "o s i", 1)):
        x, w, b = rng.normal(size=shape), rng.normal(size=(features, shape[-1])), rng.normal(size=features)
        yield case(linear, (x, axes), (w, "*o i"), (b, "*o"))
        yield case(linear, (x, axes), (w, "*o i"))


def cases_reshape(rng):
    x = rng.normal(size=(5, 3, 2, 4))
    yield case(Reshape("b c h w -> b (c h w)"), (x, "b c h w"))
    yield case(Reshape("b c h w -> (b c) (h w)"), (x, "b c h w"))
    yield case(Reshape("b (c h w) -> b c h w", (("c", 3), ("h", 2))), (x.reshape(5, 24), "b d"))
    yield case(Reshape("(b s) d -> b s d", (("s", 3),)), (x.reshape(15, 8), "t d"))
    yield case(Reshape("... (h d) -> ... h d", (("d", 2),)), (x, "b c h w"))
    yield case(Reshape("b c h w -> b (c h) o w", (("o", 1),)), (x, "b c h w"))
    yield case(Reshape("b c h w -> b c h (w o)", (("o", 1),)), (x, "b c h w"))


def cases_fetch(rng):
    yield from elementwise(find("fetch")(), rng)


def cases_accumulate(rng):
    yield from elementwise(find("accumulate")(), rng)
