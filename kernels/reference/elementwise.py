"""Definitions of arithmetic on each element in plain NumPy."""

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit

from castile.kernels.expression import parse

_OPERATIONS: dict[type, Any] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Eq: np.equal,
}


def pointwise(expression: str, *xs: np.ndarray, **constants: float) -> np.ndarray:
    """The expression's value of each element of xs, broadcast as NumPy does: "x, y -> a * x + exp(y)" of x, y and a."""
    names, value = parse(expression)
    known = dict(zip(names, xs, strict=True)) | constants
    with np.errstate(all="ignore"):
        result = _value(value, known)
    return np.array(np.broadcast_to(result, np.broadcast_shapes(*(x.shape for x in xs))), xs[0].dtype)


def real(x: np.ndarray, *, dtype: str) -> np.ndarray:
    """Numbers, whole or not, as floating-point numbers of a dtype, rounded where it does not hold them."""
    return x.astype(dtype)


def whole(x: np.ndarray) -> np.ndarray:
    """Floating-point numbers as whole ones of 32 bits, without what is behind the point."""
    return x.astype(np.int32)


def _value(part: ast.expr, known: Mapping[str, Any]) -> Any:
    match part:
        case ast.Constant(value=number):
            return number
        case ast.Name(id=name):
            return known[name]
        case ast.UnaryOp(operand=operand):
            return -_value(operand, known)
        case ast.BinOp(left=left, op=operation, right=right):
            return _OPERATIONS[type(operation)](_value(left, known), _value(right, known))
        case ast.Compare(left=left, ops=[operation], comparators=[right]):
            return _OPERATIONS[type(operation)](_value(left, known), _value(right, known))
        case ast.Call(func=ast.Name(id=name), args=args):
            function = expit if name == "sigmoid" else getattr(np, name)
            return function(*(_value(arg, known) for arg in args))
    raise AssertionError(f"{ast.unparse(part)} is no arithmetic")
