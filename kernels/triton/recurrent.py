"""Gates of recurrent cells and their gradients, each in one pass over memory.

A gate is a view of its own of what holds all of them. It knows no product with the state.
"""

from typing import Any

from castile.kernels.triton.codegen import elementwise_plan
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.snippet import Snippet
from castile.kernels.triton.views import View, broadcast, view

_FOUR = ("0", "1", "2", "3")


def _named(*words: str) -> tuple[str, ...]:
    """The names of arrays, and of the gates of those that end in a number: "x4" is x0 to x3."""
    return tuple(
        name for word in words for name in ([word[0] + n for n in _FOUR[: int(word[1:])]] if word[1:] else word)
    )


_LSTM = Snippet(
    _named("x4", "b4", "r4", "c"),
    (),
    (
        "i = sigmoid(x0 + r0 + b0)",
        "f = sigmoid(x1 + r1 + b1)",
        "g = tanh(x2 + r2 + b2)",
        "o = sigmoid(x3 + r3 + b3)",
        "n = f * c + i * g",
    ),
    ("o * tanh(n)", "n", "i", "f", "g", "o"),
)
_LSTM_GRAD = Snippet(
    ("y", "z", "i", "f", "g", "o", "before", "c"),
    (),
    ("shown = tanh(c)", "d = z + y * o * (1.0 - shown * shown)"),
    (
        "d * g * i * (1.0 - i)",
        "d * before * f * (1.0 - f)",
        "d * i * (1.0 - g * g)",
        "y * shown * o * (1.0 - o)",
        "d * f",
    ),
)
_GRU = Snippet(
    _named("x3", "b3", "r3", "s3", "h"),
    (),
    (
        "reset = sigmoid(x0 + b0 + r0 + s0)",
        "update = sigmoid(x1 + b1 + r1 + s1)",
        "recalled = r2 + s2",
        "candidate = tanh(x2 + b2 + reset * recalled)",
    ),
    ("candidate + update * (h - candidate)", "reset", "update", "candidate", "recalled"),
)
_GRU_GRAD = Snippet(
    ("y", "reset", "update", "candidate", "recalled", "h"),
    (),
    (
        "c = y * (1.0 - update) * (1.0 - candidate * candidate)",
        "u = y * (h - candidate) * update * (1.0 - update)",
        "r = c * recalled * reset * (1.0 - reset)",
    ),
    ("r", "u", "c", "r", "u", "c * reset", "y * update"),
)


@planned
def lstm_cell(out: tuple[Any, Any, Any], x: Any, bias: Any, r: Any, c: Any) -> LaunchPlan | None:
    """See the definition."""
    return _cell(_LSTM, [out[0], out[1], *_gates(out[2])], [*_gates(x), *_gates(bias), *_gates(r), c])


@planned
def lstm_cell_grad(out: tuple[Any, Any], dh: Any, dc: Any, gates: Any, before: Any, c: Any) -> LaunchPlan | None:
    """See the definition."""
    return _cell(_LSTM_GRAD, [*_gates(out[0]), out[1]], [dh, dc, *_gates(gates), before, c])


@planned
def gru_cell(out: tuple[Any, Any], x: Any, bias_x: Any, r: Any, bias_r: Any, h: Any) -> LaunchPlan | None:
    """See the definition."""
    xs = [part for one in (x, bias_x, r, bias_r) for part in _gates(one)]
    return _cell(_GRU, [out[0], *_gates(out[1])], [*xs, h])


@planned
def gru_cell_grad(out: tuple[Any, Any, Any], dh: Any, gates: Any, h: Any) -> LaunchPlan | None:
    """See the definition."""
    return _cell(_GRU_GRAD, [*_gates(out[0]), *_gates(out[1]), out[2]], [dh, *_gates(gates), h])


def _gates(x: Any) -> list[Any]:
    """The gates of x [...,g,h]."""
    return [x[..., n, :] for n in range(x.shape[-2])]


def _cell(what: Snippet, outs: list[Any], xs: list[Any]) -> LaunchPlan | None:
    if not are_floats(*outs, *xs):
        return None
    shape = tuple(outs[0].shape)
    stretched: list[View] = [broadcast(view(x), shape) for x in xs]
    return elementwise_plan(what, [view(out) for out in outs], stretched, {})
