"""Layers of drawn graphs: reductions over dims but the first, which bears the samples, and the softmax."""

from math import inf

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


def reduced(c: Canvas, op: str) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) > 2)
    if x is None:
        return None
    dims = c.draw(st.lists(st.integers(1, len(x.shape) - 1), min_size=1, max_size=len(x.shape) - 2, unique=True))
    return getattr(c.graph, op)(c.name(op), x, dims=dims)


@layer(exact=True)
def layer_sum(c: Canvas) -> Tensor | None:
    return reduced(c, "sum")


@layer()
def layer_mean(c: Canvas) -> Tensor | None:
    return reduced(c, "mean")


@layer()
def layer_max(c: Canvas) -> Tensor | None:
    return reduced(c, "max")


@layer()
def layer_softmax(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) > 1)
    return None if x is None else c.graph.softmax(c.name("softmax"), x)


@layer()
def layer_safe_softmax(c: Canvas) -> Tensor | None:
    """Of rows of which some elements, and at times all, are hidden."""
    x = c.choose(lambda t: len(t.shape) > 1)
    if x is None:
        return None
    seen = c.graph.compare(c.name("seen"), x, ">", 0.0)
    return c.graph.safe_softmax(c.name("softmax"), c.graph.masked(c.name("hidden"), x, seen, other=-inf))


@layer()
def layer_log_softmax(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) > 1)
    return None if x is None else c.graph.log_softmax(c.name("softmax"), x)
