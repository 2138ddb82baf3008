"""Operators of castile's that files often write in several pieces, found by looking back from the last piece.

What is left of the pieces, where nobody else reads it, is no part of the graph in the end.
"""

from __future__ import annotations

from math import isclose, sqrt

from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.values import Erf, Known, Value
from castile.launch.importers.onnx.views import made, view, whole
from castile.planner.graph import Graph, Node
from castile.planner.op import Init, Tensor, find

CLOSE = 1e-4


def maker(g: Graph, x: Tensor, *names: str) -> Node | None:
    """The node that gives x as its first result, if it is one of these operators."""
    node = g.nodes.get(x.name)
    return node if node is not None and (not names or node.op.name in names) else None


def operand(g: Graph, node: Node, number: int) -> Tensor:
    return g.tensors[node.inputs[number]]


def without_factor(g: Graph, x: Tensor) -> tuple[Tensor, float]:
    """What x is a number times of, and that number."""
    node = maker(g, x, "scale")
    return (operand(g, node, 0), node.op.factor) if node else (x, 1.0)  # type: ignore[attr-defined]


def with_bias(c: Call, x: Tensor, other: Value) -> Tensor | None:
    """A product without a bias and the numbers that are added to each of its features as one node.

    Of a product whose rows were joined behind it they are joined behind that node.
    """
    of = view(c.g, x)
    node = maker(c.g, of.source, "linear")
    if node is None or len(node.inputs) > 2 or not isinstance(other, Known) or not other.is_floating:
        return None
    if other.shape[-1:] != x.shape[-1:] or other.size != x.shape[-1] or len(other.shape) > len(x.shape):
        return None
    if of.source is not x and (() in of.dims or of.dims[-1:] != whole(of.source).dims[-1:]):
        return None
    bias = c.net.parameter(other.reshaped(x.shape[-1:]), ("o",), Init("zeros"))
    y = c.g.apply(node.op, c.name, operand(c.g, node, 0), operand(c.g, node, 1), bias)
    return y if of.source is x else made(c.g, c.inner("joined"), of.over(y))


def silu(c: Call, x: Tensor, y: Tensor) -> Tensor | None:
    """x times sigmoid(x)."""
    node = maker(c.g, y, "sigmoid")
    return c.g.silu(c.name, x) if node and node.inputs[0] == x.name else None


def gelu(c: Call, x: Tensor, y: Erf) -> Tensor | None:
    """x times 1 + erf(x / sqrt(2)), half of which is the exact Gaussian error linear unit of x."""
    x, factor = without_factor(c.g, x)
    root, inside = without_factor(c.g, y.inner)
    if (
        root.name != x.name
        or not isclose(inside, sqrt(0.5), rel_tol=CLOSE)
        or not isclose(y.times, y.plus, rel_tol=CLOSE)
    ):
        return None
    times = 2 * factor * y.times
    if isclose(times, 1.0, rel_tol=CLOSE):
        return c.g.gelu(c.name, x, approximate="none")
    return c.g.scale(c.name, c.g.gelu(c.inner("gelu"), x, approximate="none"), factor=times)


def layer_norm(c: Call, x: Tensor, other: Value) -> Tensor | None:
    """Layer normalisation over the last dim, from the mean that is taken off to the shift that is added."""
    gained = maker(c.g, x, "mul")
    if gained is None or not isinstance(other, Known) or other.shape != x.shape[-1:]:
        return None
    for n in range(2):
        gain, normal = operand(c.g, gained, n), operand(c.g, gained, 1 - n)
        found = _normalised(c.g, normal)
        if gain.param and gain.shape == x.shape[-1:] and found is not None:
            of, eps = found
            shift = c.net.parameter(other, ("d",), Init("zeros"))
            # a gain begins with ones, whatever a factor may begin with
            return c.g.apply(find("layer_norm")(eps), c.name, of, _beginning(c.g, gain, Init("ones")), shift)
    return None


def rms_norm(c: Call, x: Tensor, gain: Value) -> Tensor | None:
    """What is divided by the root of its mean square over the last dim, times a gain, as one normalisation."""
    normal = maker(c.g, x, "mul")
    if normal is None or not isinstance(gain, Known) or not gain.is_floating or gain.shape != x.shape[-1:]:
        return None
    for n in range(2):
        of, inverse = operand(c.g, normal, n), operand(c.g, normal, 1 - n)
        shift = maker(c.g, _rooted(c.g, inverse) or of, "shift")
        squares = _mean_of(c.g, operand(c.g, shift, 0)) if shift else None
        square = maker(c.g, squares, "square") if squares else None
        if shift is not None and square is not None and square.inputs[0] == of.name and of.shape == x.shape:
            params = c.net.parameter(gain, ("d",), Init("ones"))
            return c.g.apply(find("rms_norm")(shift.op.amount), c.name, of, params)  # type: ignore[attr-defined]
    return None


def _rooted(g: Graph, x: Tensor) -> Tensor | None:
    """Of what x is one over the root."""
    node = maker(g, x, "rsqrt", "reciprocal")
    if node is None or node.op.name == "rsqrt":
        return operand(g, node, 0) if node else None
    root = maker(g, operand(g, node, 0), "sqrt")
    return operand(g, root, 0) if root else None


def _beginning(g: Graph, param: Tensor, init: Init) -> Tensor:
    g.tensors[param.name] = found = Tensor(param.name, param.shape, param.dtype, param.axes, True, init)
    return found


def _normalised(g: Graph, x: Tensor) -> tuple[Tensor, float] | None:
    """Of what x is the last dim without its mean and in its deviations, and what is added to the mean square."""
    quotient = maker(g, x, "div")
    if quotient is None:
        return None
    centred, deviation = operand(g, quotient, 0), operand(g, quotient, 1)
    less, root = maker(g, centred, "sub"), maker(g, deviation, "sqrt")
    shift = maker(g, operand(g, root, 0), "shift") if root else None
    if less is None or shift is None:
        return None
    squares = _mean_of(g, operand(g, shift, 0))
    square = maker(g, squares, "square") if squares else None
    of = _mean_of(g, operand(g, less, 1))
    if square is None or of is None or square.inputs[0] != centred.name or of.name != less.inputs[0]:
        return None
    return of, shift.op.amount  # type: ignore[attr-defined]


def _mean_of(g: Graph, x: Tensor) -> Tensor | None:
    """Of what x is the mean over the last dim, which stays as a dim of one."""
    kept = maker(g, x, "reshape")
    mean = maker(g, operand(g, kept, 0), "mean") if kept else None
    if mean is None:
        return None
    of = operand(g, mean, 0)
    last = len(of.shape) - 1
    same = x.shape == (*of.shape[:-1], 1)
    return of if same and mean.op.gone(len(of.shape)) == (last,) else None  # type: ignore[attr-defined]
