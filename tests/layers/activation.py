"""Layers of drawn graphs: functions of one array."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


def bounded(c: Canvas) -> Tensor | None:
    """A tensor between -1 and 1, so that what follows stays of the size that it has."""
    x = c.any()
    return None if x is None else c.graph.tanh(c.name("bound"), x)


def positive(c: Canvas) -> Tensor | None:
    """A tensor between 1/e and e."""
    x = bounded(c)
    return None if x is None else c.graph.exp(c.name("positive"), x)


@layer(exact=True)
def layer_relu(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.relu(c.name("relu"), x)


@layer()
def layer_gelu(c: Canvas) -> Tensor | None:
    x = c.any()
    if x is None:
        return None
    return c.graph.gelu(c.name("gelu"), x, approximate=c.draw(st.sampled_from(("tanh", "none"))))


@layer(exact=True)
def layer_leaky_relu(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.leaky_relu(c.name("leaky"), x, below=0.5)


@layer()
def layer_elu(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.elu(c.name("elu"), x, alpha=1.5)


@layer(exact=True)
def layer_scale(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.scale(c.name("scale"), x, factor=-2)


@layer()
def layer_softplus(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.softplus(c.name("softplus"), x)


@layer()
def layer_silu(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.silu(c.name("silu"), x)


@layer()
def layer_sigmoid(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.sigmoid(c.name("sigmoid"), x)


@layer()
def layer_tanh(c: Canvas) -> Tensor | None:
    return bounded(c)


@layer()
def layer_sin(c: Canvas) -> Tensor | None:
    x = bounded(c)
    return None if x is None else c.graph.sin(c.name("sin"), x)


@layer()
def layer_cos(c: Canvas) -> Tensor | None:
    x = bounded(c)
    return None if x is None else c.graph.cos(c.name("cos"), x)


@layer()
def layer_exp(c: Canvas) -> Tensor | None:
    return positive(c)


@layer()
def layer_log(c: Canvas) -> Tensor | None:
    x = positive(c)
    return None if x is None else c.graph.log(c.name("log"), x)


@layer()
def layer_sqrt(c: Canvas) -> Tensor | None:
    x = positive(c)
    return None if x is None else c.graph.sqrt(c.name("sqrt"), x)


@layer()
def layer_rsqrt(c: Canvas) -> Tensor | None:
    x = positive(c)
    return None if x is None else c.graph.rsqrt(c.name("rsqrt"), x)


@layer()
def layer_square(c: Canvas) -> Tensor | None:
    x = bounded(c)
    return None if x is None else c.graph.square(c.name("square"), x)


@layer(exact=True)
def layer_abs(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.abs(c.name("abs"), x)


@layer(exact=True)
def layer_neg(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.neg(c.name("neg"), x)


@layer(exact=True)
def layer_shift(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.shift(c.name("shift"), x, amount=2)


@layer()
def layer_reciprocal(c: Canvas) -> Tensor | None:
    x = positive(c)
    return None if x is None else c.graph.reciprocal(c.name("reciprocal"), x)


@layer(exact=True)
def layer_clamp(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.clamp(c.name("clamp"), x, low=-1, high=2)


@layer(exact=True)
def layer_sign(c: Canvas) -> Tensor | None:
    """A tensor without its sign."""
    x = c.any()
    return None if x is None else c.graph.mul(c.name("abs"), x, c.graph.sign(c.name("sign"), x))


@layer(exact=True)
def layer_real(c: Canvas) -> Tensor | None:
    return c.graph.real(c.name("real"), c.tokens(c.integer(2, 5), c.integer(1, 4)))


@layer(exact=True)
def layer_whole(c: Canvas) -> Tensor | None:
    """Rows of a table by numbers that were floating-point ones before."""
    rows = c.integer(2, 5)
    tokens = c.graph.real(c.name("real"), c.tokens(rows, c.integer(1, 4)))
    places = c.graph.whole(c.name("whole"), c.graph.clamp(c.name("bound"), tokens, high=rows - 2))
    return c.graph.embedding(c.name("embedding"), places, rows=rows, features=c.integer(1, 6))
