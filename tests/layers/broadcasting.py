"""Layers of drawn graphs: two arrays that broadcast."""

from hypothesis import strategies as st

from castile.planner.op import Init, Tensor
from castile.planner.ops.compare import SIGNS
from tests.layers import Canvas, layer
from tests.layers.activation import bounded, positive


def two(c: Canvas, op: str, other: Tensor | None = None) -> Tensor | None:
    """A residual, a tensor twice, or a parameter that lacks leading dims or has dims of one, on either side."""
    x = c.any()
    if x is None:
        return None
    alike = [t for t in ([other] if other is not None else c.pool) if t.shape == x.shape]
    if alike and c.draw(st.booleans()):
        pair = [x, c.draw(st.sampled_from(alike))]
    else:
        shape = tuple(n if c.draw(st.booleans()) else 1 for n in x.shape[c.integer(1, len(x.shape)) :])
        axes = tuple(f"t{n}" for n in range(len(shape)))
        name = c.name("table")
        pair = [x, c.graph.param(name, shape, axes, Init("zeros"))]
        if c.draw(st.booleans()):
            pair.reverse()
    return getattr(c.graph, op)(c.name(op), *pair)


@layer(exact=True)
def layer_add(c: Canvas) -> Tensor | None:
    return two(c, "add")


@layer(exact=True)
def layer_sub(c: Canvas) -> Tensor | None:
    return two(c, "sub")


@layer(exact=True)
def layer_maximum(c: Canvas) -> Tensor | None:
    return two(c, "maximum")


@layer(exact=True)
def layer_minimum(c: Canvas) -> Tensor | None:
    return two(c, "minimum")


@layer()
def layer_mul(c: Canvas) -> Tensor | None:
    """By a gate, so that products of products stay small."""
    return two(c, "mul", bounded(c))


@layer()
def layer_div(c: Canvas) -> Tensor | None:
    """By what is never near zero, with dims of one at times."""
    x, y = c.any(), positive(c)
    if x is None or y is None:
        return None
    if x.shape != y.shape:
        y = c.graph.exp(c.name("positive"), c.graph.tanh(c.name("bound"), x))
    if len(x.shape) > 2 and c.draw(st.booleans()):
        y = c.graph.sum(c.name("total"), y, dims=tuple(range(len(x.shape) - 1)))
    return c.graph.div(c.name("div"), x, y)


def smaller(c: Canvas, x: Tensor) -> Tensor:
    """What may mask a tensor: itself, or sums over some dims; its parameters have a gradient by the tensor alone."""
    dims = c.draw(st.lists(st.integers(0, len(x.shape) - 1), max_size=len(x.shape) - 1, unique=True))
    if not dims:
        return x
    line = " ".join(f"a{n}" for n in range(len(x.shape)) if n not in dims)
    long = " ".join(f"a{n}" if n not in dims else f"o{n}" for n in range(len(x.shape)))
    total = c.graph.sum(c.name("total"), x, dims=dims)
    return c.graph.reshape(c.name("ones"), total, f"{line} -> {long}", **{f"o{n}": 1 for n in dims})


@layer(exact=True)
def layer_masked(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.masked(c.name("masked"), x, smaller(c, x), other=c.integer(-2, 2))


@layer(exact=True)
def layer_where(c: Canvas) -> Tensor | None:
    """By a comparison with a number, of a tensor and of another of its shape, or a parameter."""
    x = c.any()
    if x is None:
        return None
    mask = c.graph.compare(c.name("mask"), x, c.draw(st.sampled_from(SIGNS)), 0.0)
    other = c.choose(lambda t: t.shape == x.shape)
    if other is x or c.draw(st.booleans()):
        axes = tuple(f"t{n}" for n in range(len(x.shape) - 1))
        other = c.graph.param(c.name("other"), x.shape[1:], axes, Init("zeros"))
    return c.graph.where(c.name("where"), mask, x, other)


@layer(exact=True)
def layer_compare(c: Canvas) -> Tensor | None:
    """What is left of a tensor where it is so to sums of its elements."""
    x = c.any()
    if x is None:
        return None
    mask = c.graph.compare(c.name("mask"), x, c.draw(st.sampled_from(SIGNS)), smaller(c, x))
    return c.graph.masked(c.name("left"), x, mask)
