"""What kernels of arithmetic on each element give, work in and refuse."""

import ast
from functools import cache

from castile.planner.bodies.vocabulary import Results, Shape, Spec, computed, kernel, need

# What a line may call.
FUNCTIONS = tuple("abs cos exp expm1 log log1p maximum minimum sigmoid sin sqrt tanh where".split())
_TAKES = dict.fromkeys(FUNCTIONS, 1) | {"maximum": 2, "minimum": 2, "where": 3}


@kernel(adds=True)
def pointwise(line: str, *xs: Spec, **constants: float) -> Results:
    """The shape that xs broadcast to."""
    names, arrow, _ = line.partition("->")
    fits = bool(arrow) and len(names.split(",")) == len(xs) > 0
    need(fits, f'pointwise "{line}": it needs a name for each of its {len(xs)} arrays, "->" and a value')
    _check(line, frozenset(constants))
    dtype = computed(f'pointwise "{line}": dtypes', **{f"array {i}": x.dtype for i, x in enumerate(xs)})
    return (Spec(_broadcast(line, [x.shape for x in xs]), dtype),)


@kernel()
def real(x: Spec, *, dtype: str) -> Results:
    """x's shape, in the dtype."""
    need(dtype.startswith(("float", "bfloat")), f"real: {dtype!r} is no dtype of floating-point numbers")
    return (Spec(x.shape, dtype),)


@kernel()
def whole(x: Spec) -> Results:
    """x's shape, int32."""
    need(x.dtype.startswith(("float", "bfloat")), f"whole: x must be floating-point numbers, not {x.dtype}")
    return (Spec(x.shape, "int32"),)


@cache
def _check(line: str, constants: frozenset[str]) -> None:
    """That a line is arithmetic of its arrays, its constants and FUNCTIONS."""
    names, _, value = line.partition("->")
    try:
        parts = list(ast.walk(ast.parse(value.strip(), mode="eval")))
    except SyntaxError:
        parts = []
    need(bool(parts), f'pointwise "{line}": {value.strip()!r} is no arithmetic')
    called = {part.func.id for part in parts if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)}
    among = ", ".join(FUNCTIONS)
    for name in sorted(called - {*FUNCTIONS}):
        need(False, f'pointwise "{line}": there is no function {name!r}; there are {among}')
    known = {*(name.strip() for name in names.split(",")), *constants, *called}
    for name in sorted({part.id for part in parts if isinstance(part, ast.Name)} - known):
        need(False, f'pointwise "{line}": {name!r} is neither an array of the line nor a setting')
    for part in [part for part in parts if isinstance(part, ast.expr) and not _is_arithmetic(part)]:
        need(False, f'pointwise "{line}": {ast.unparse(part)!r} is none of + - * / > >= < <= == of two and {among}')


def _is_arithmetic(part: ast.expr) -> bool:
    """Whether kernels know how to compute this of the values of its parts."""
    match part:
        case ast.Constant(value=number):
            return type(number) in (int, float)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return len(args) == _TAKES[name]
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
            return True
        case ast.Compare(ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE() | ast.Eq()]):
            return True
    return isinstance(part, ast.Name) or (isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub))


def _broadcast(line: str, shapes: list[Shape]) -> Shape:
    """Shapes aligned at the right, missing dims and dims of one stretched."""
    ndim = max(map(len, shapes))
    columns = zip(*((1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    lengths = [{length for length in column if length != 1} or {1} for column in columns]
    listed = " and ".join(map(str, shapes))
    need(all(len(found) == 1 for found in lengths), f'pointwise "{line}": shapes {listed} do not broadcast')
    return tuple(next(iter(found)) for found in lengths)
