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


@layer()
def layer_weighted_cross_entropy(c: Canvas) -> Tensor | None:
    """Added to its logits, so that the result is one to go on with."""
    x = c.choose(lambda t: len(t.shape) >= 2 and t.shape[0] == c.batch and t.shape[-1] <= 6)
    if x is None:
        return None
    labels, weights = c.tokens(x.shape[-1], *x.shape[1:-1]), [1.0 + n / 4 for n in range(x.shape[-1])]
    loss = c.graph.weighted_cross_entropy(c.name("weighted"), x, labels, weights)
    return c.graph.add(c.name("both"), x, loss)


def _prediction(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) > 1)
    return None if x is None else c.graph.linear(c.name("linear"), x, features=c.integer(1, 4))


def _target(c: Canvas, x: Tensor) -> Tensor:
    axes = " ".join(["b", *(f"y{n}" for n in range(1, len(x.shape)))])
    return c.graph.input(f"target{len(c.graph.inputs)}", x.shape, axes)
