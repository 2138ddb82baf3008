"""Layers of drawn graphs: recurrent cells."""

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_lstm_cell(c: Canvas) -> Tensor | None:
    """A step from nothing, and where there is room one that follows it."""
    x = _shares(c, 4)
    if x is None:
        return None
    weights, first = c.name("weights"), c.name("lstm")
    h = c.graph.lstm_cell(first, x, 0, weights)
    if x.shape[1] > 1:
        h = c.graph.lstm_cell(c.name("lstm"), x, c.integer(1, x.shape[1] - 1), weights, (h, _cell(c, first)))
    elif c.integer(0, 1):
        c.pool.append(_cell(c, first))
    return h


@layer()
def layer_gru_cell(c: Canvas) -> Tensor | None:
    x = _shares(c, 3)
    if x is None:
        return None
    weights = c.name("weights")
    h = c.graph.gru_cell(c.name("gru"), x, 0, weights)
    return h if x.shape[1] == 1 else c.graph.gru_cell(c.name("gru"), x, c.integer(1, x.shape[1] - 1), weights, h)


def _cell(c: Canvas, step: str) -> Tensor:
    return c.graph.tensors[f"{step}:cell"]


def _shares(c: Canvas, gates: int) -> Tensor | None:
    """The gates' shares of a sequence [b, s, gates, h]."""
    x = c.choose(lambda t: len(t.shape) == 3)
    if x is None:
        return None
    x = c.graph.linear(c.name("linear"), x, features=gates * c.integer(1, 4))
    return c.graph.reshape(c.name("reshape"), x, "b s (n h) -> b s n h", n=gates)
