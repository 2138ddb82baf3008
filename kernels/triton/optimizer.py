"""Optimizers that treat each element alike, of several parameters in one launch where they lie dense.

Results may be written over what they are made of. It knows no schedule of learning rates.
"""

from math import log
from typing import Any

from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.multi_tensor import guarded_by, multi_tensor
from castile.kernels.triton.snippet import Snippet


@planned
def sgd(
    out: tuple[Any, ...],
    w: Any,
    g: Any,
    m: Any,
    lr: Any,
    *more: Any,
    momentum: float,
    decay: float,
    nesterov: bool,
    guarded: bool = False,
) -> LaunchPlan | None:
    """See the definition."""
    step = "g + momentum * m" if nesterov else "m"
    statements = ("g = g + decay * w", "m = momentum * m + g")
    what = Snippet(("w", "g", "m", "lr"), ("momentum", "decay"), statements, (f"w - lr * ({step})", "m"))
    return _steps(what, out, (w, g, m, lr, *more), {"momentum": momentum, "decay": decay}, guarded)


@planned
def adam(
    out: tuple[Any, ...],
    w: Any,
    g: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    *more: Any,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    decoupled: bool,
    guarded: bool = False,
) -> LaunchPlan | None:
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
    what = Snippet(names, tuple(constants), statements, (f"{kept} - rate * m / size", "m", "v"))
    return _steps(what, out, (w, g, m, v, lr, step, *more), constants, guarded)


@planned
def lion(
    out: tuple[Any, ...],
    w: Any,
    g: Any,
    m: Any,
    lr: Any,
    *more: Any,
    beta1: float,
    beta2: float,
    decay: float,
    guarded: bool = False,
) -> LaunchPlan | None:
    """See the definition."""
    statements = ("moved = sign(beta1 * m + share1 * g)",)
    values = ("(1.0 - lr * decay) * w - lr * moved", "beta2 * m + share2 * g")
    constants = {"beta1": beta1, "share1": 1 - beta1, "beta2": beta2, "share2": 1 - beta2, "decay": decay}
    what = Snippet(("w", "g", "m", "lr"), tuple(constants), statements, values)
    return _steps(what, out, (w, g, m, lr, *more), constants, guarded)


def _steps(
    what: Snippet, out: tuple[Any, ...], arrays: tuple[Any, ...], constants: dict[str, float], guarded: bool
) -> LaunchPlan | None:
    """What is done to each parameter, whose arrays are as many as the text has names, and a guard where there is one:
    parameter, gradient, states, numbers.
    """
    if not are_floats(*out, *arrays):
        return None
    # All but the gradient is made anew.
    states = ("w", *what.names[2 : 1 + len(what.values)])
    numbers = len(what.names) - len(what.values) - 1 + guarded
    return multi_tensor(guarded_by(what, states, guarded), out, arrays, numbers, constants)


def _log(beta: float) -> float:
    return log(beta) if beta > 0 else float("-inf")
