"""Activations and their gradients.

It knows no layer.
"""

from math import pi, sqrt
from typing import Any

from castile.kernels.triton.codegen import elementwise_plan
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.snippet import Snippet, snippet
from castile.kernels.triton.views import view

_RELU = snippet("x -> maximum(x, 0)")
_RELU_GRAD = snippet("dy, x -> where(x > 0, dy, 0)")

_EXACT = f"gate = 0.5 * (1.0 + erf(x * {sqrt(0.5)}))"
_EXACT_SLOPE = f"slope = exp(-0.5 * x * x) * {1 / sqrt(2 * pi)}"
# (1 + tanh(u)) / 2 is the sigmoid of 2 u.
_TANH = f"gate = sigmoid({2 * sqrt(2 / pi)} * (x + 0.044715 * x * x * x))"
_TANH_SLOPE = f"slope = gate * (1.0 - gate) * {2 * sqrt(2 / pi)} * (1.0 + {3 * 0.044715} * x * x)"
_GATES = {"none": (_EXACT, _EXACT_SLOPE), "tanh": (_TANH, _TANH_SLOPE)}


@planned
def relu(out: Any, x: Any, *, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    return elementwise_plan(_RELU, [view(out)], [view(x)], {}, accumulate) if are_floats(out, x) else None


@planned
def relu_grad(out: Any, dy: Any, x: Any, *, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    return (
        elementwise_plan(_RELU_GRAD, [view(out)], [view(dy), view(x)], {}, accumulate)
        if are_floats(out, dy, x)
        else None
    )


@planned
def gelu(out: Any, x: Any, *, approximate: str, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    what = Snippet(("x",), (), _GATES[approximate][:1], ("x * gate",))
    return elementwise_plan(what, [view(out)], [view(x)], {}, accumulate) if are_floats(out, x) else None


@planned
def gelu_grad(out: Any, dy: Any, x: Any, *, approximate: str, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    what = Snippet(("dy", "x"), (), _GATES[approximate], ("dy * (gate + x * slope)",))
    return elementwise_plan(what, [view(out)], [view(dy), view(x)], {}, accumulate) if are_floats(out, dy, x) else None
