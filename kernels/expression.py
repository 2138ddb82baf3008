"""Elementwise expressions, such as "x, y -> x * exp(y)": text that says what is computed of one element of each array.

Names left of the arrow are arrays; other names are constants. They do not know how they are computed.
"""

import ast
from functools import cache
from typing import NamedTuple

FUNCTIONS = (
    "abs", "cos", "exp", "expm1", "log", "log1p", "maximum", "minimum", "sigmoid", "sin", "sqrt", "tanh", "where",
)  # fmt: skip
_PARTS = (
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Name, ast.Load, ast.Constant),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq),
)  # fmt: skip


class Expression(NamedTuple):
    """A parsed expression: the arrays' names, and the value computed from one element of each."""

    names: tuple[str, ...]
    value: ast.expr


@cache
def parse(text: str) -> Expression:
    """The expression that `text` says; AssertionError where it holds anything but sums, products, comparisons and
    FUNCTIONS.
    """
    left, arrow, right = text.partition("->")
    names = tuple(name.strip() for name in left.split(","))
    value = ast.parse(right.strip(), mode="eval").body
    assert arrow and len(set(names)) == len(names), f"expression {text!r}: it needs names, '->' and a value"
    for part in ast.walk(value):
        assert isinstance(part, _PARTS), f"expression {text!r}: {ast.unparse(part)!r} is no arithmetic"
        if isinstance(part, ast.Call):
            known = isinstance(part.func, ast.Name) and part.func.id in FUNCTIONS
            assert known and not part.keywords, f"expression {text!r}: there is no function {ast.unparse(part.func)!r}"
    return Expression(names, value)
