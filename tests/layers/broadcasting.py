"""Layers of drawn graphs: two arrays that broadcast."""

from hypothesis import strategies as st

from castile.planner.op import Init, Tensor
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


@layer(exact=True)
def layer_masked(c: Canvas) -> Tensor | None:
    return two(c, "masked")
