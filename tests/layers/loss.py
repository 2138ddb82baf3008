"""Layers of drawn graphs: losses that compare with numbers what a linear layer gives; a loss itself is a leaf."""

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_mse(c: Canvas) -> Tensor | None:
    x = _prediction(c)
    if x is not None:
        c.graph.mse(c.name("mse"), x, _target(c, x))
    return x


@layer()
def layer_bce(c: Canvas) -> Tensor | None:
    x = _prediction(c)
    if x is not None:
        c.graph.bce(c.name("bce"), x, _target(c, x))
    return x


def _prediction(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) > 1)
    return None if x is None else c.graph.linear(c.name("linear"), x, features=c.integer(1, 4))


def _target(c: Canvas, x: Tensor) -> Tensor:
    axes = " ".join(["b", *(f"y{n}" for n in range(1, len(x.shape)))])
    return c.graph.input(f"target{len(c.graph.inputs)}", x.shape, axes)
