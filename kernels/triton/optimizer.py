"""Optimizers that treat each element alike; results may be written over what they are made of.

It knows no schedule of learning rates.
"""

from math import log
from typing import Any

from castile.kernels.triton.launch import Plan, planned, takes
from castile.kernels.triton.lines import Text, each
from castile.kernels.triton.views import View, view


@planned
def sgd(
    out: tuple[Any, Any], w: Any, g: Any, m: Any, lr: Any, *, momentum: float, decay: float, nesterov: bool
) -> Plan | None:
    """See the definition."""
    step = "g + momentum * m" if nesterov else "m"
    statements = ("g = g + decay * w", "m = momentum * m + g")
    what = Text(("w", "g", "m", "lr"), ("momentum", "decay"), statements, (f"w - lr * ({step})", "m"))
    return _step(what, out, (w, g, m), (lr,), {"momentum": momentum, "decay": decay})


@planned
def adam(
    out: tuple[Any, Any, Any],
    w: Any,
    g: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    decoupled: bool,
) -> Plan | None:
    """See the definition. 1 - beta^step comes from expm1, which loses no digits where it is small."""
    statements = (
        *(() if decoupled else ("g = g + decay * w",)),
        "m = m + share1 * (g - m)",
        "v = beta2 * v + share2 * g * g",
        "size = sqrt(v) / sqrt(-expm1(step * log2)) + eps",
        "rate = lr / -expm1(step * log1)",
    )
    kept = "(1.0 - lr * decay) * w" if decoupled else "w"
    constants = {"share1": 1 - beta1, "share2": 1 - beta2, "beta2": beta2, "eps": eps, "decay": decay}
    constants |= {"log1": _log(beta1), "log2": _log(beta2)}
    names = ("w", "g", "m", "v", "lr", "step")
    what = Text(names, tuple(constants), statements, (f"{kept} - rate * m / size", "m", "v"))
    return _step(what, out, (w, g, m, v), (lr, step), constants)


@planned
def lion(
    out: tuple[Any, Any], w: Any, g: Any, m: Any, lr: Any, *, beta1: float, beta2: float, decay: float
) -> Plan | None:
    """See the definition."""
    statements = ("moved = sign(beta1 * m + share1 * g)",)
    values = ("(1.0 - lr * decay) * w - lr * moved", "beta2 * m + share2 * g")
    constants = {"beta1": beta1, "share1": 1 - beta1, "beta2": beta2, "share2": 1 - beta2, "decay": decay}
    what = Text(("w", "g", "m", "lr"), tuple(constants), statements, values)
    return _step(what, out, (w, g, m), (lr,), constants)


def _step(
    what: Text, out: tuple[Any, ...], arrays: tuple[Any, ...], scalars: tuple[Any, ...], constants: dict[str, float]
) -> Plan | None:
    if not takes(*out, *arrays, *scalars):
        return None
    shape = tuple(arrays[0].shape)
    stretched = [View(one, shape, (0,) * len(shape)) for one in scalars]
    return each(what, [*map(view, out)], [*map(view, arrays), *stretched], constants)


def _log(beta: float) -> float:
    return log(beta) if beta > 0 else float("-inf")
