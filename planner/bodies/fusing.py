"""Chains of arithmetic: calls of a body of which each makes what only the next one reads become one call.

What lies between is then neither written to memory nor read again. Kernels that work on each element alone are lines of
arithmetic here, and a chain of them is the line that follows by putting one into the other. A product may stand before
it: its sums become what the line makes of them before they are written. It does not know machines, nor what a line
costs to compute.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import pi, sqrt
from typing import Any, cast

from castile.planner.bodies import vocabulary
from castile.planner.bodies.symbols import Step, Symbol

# Beyond so many arrays, or parts of a line, a loop has no registers left for what it works on.
MOST_ARRAYS = 10
MOST_PARTS = 400
NO_ROW = -1

_GATE = "sigmoid(x * (a + b * x * x))"
_TANH = {"a": sqrt(8 / pi), "b": sqrt(8 / pi) * 0.044715}
# What kernels do to an element of each array; the last of those in TABLES is one, of whose rows each has a name.
LINES = {
    "add": "x, y -> x + y",
    "add_bias": "x, b -> x + b",
    "norm": "x, m, s, t -> (x - m) * s + t",
    # asked this way round, a NaN stays
    "relu": "x -> where(x <= 0, 0, x)",
    "relu_grad": "d, x -> where(x > 0, d, 0)",
    "gelu": f"x -> x * {_GATE}",
    "gelu_grad": f"d, x -> d * {_GATE} * (1 + x * (1 - {_GATE}) * (a + 3 * b * x * x))",
}
TABLES = {"norm": 1, "add_bias": 1}
SUMS = ("sum_over", "sum_pointwise")
_ALONE = ("pointwise", "channelwise", *LINES)


@dataclass(frozen=True)
class Chain:
    """What is computed of one element of arrays of one shape: `value` of v<n>, one of each source, and constants c<n>.

    sources   arrays that broadcast to the shape, or with a number a row of a table, which has one for each channel
    """

    shape: tuple[int, ...]
    sources: tuple[tuple[Symbol, int], ...]
    constants: tuple[float, ...]
    value: ast.expr


def is_line(step: Step) -> bool:
    """Whether a call works on each element alone, and is a line."""
    return step.kernel in _ALONE and _chain(step) is not None


def collapsed(steps: Sequence[Step], results: Iterable[Symbol | None]) -> list[Step]:
    """The calls of a body that makes `results`, chains made one call each, at the place of their last."""
    if len(steps) < 2:
        return list(steps)
    kept = set(results)
    first = [s.kernel for s in steps if s.kernel in (*_ALONE, "contract") or vocabulary.adds_onto(s.kernel)]
    if not _inner(steps, kept, first):
        return _before_norms(steps, kept)
    return _onto(_before_norms(_after_products(_in_lines(steps, kept), kept), kept), kept)


def _in_lines(steps: Sequence[Step], kept: set[Symbol | None]) -> list[Step]:
    """The calls with lines of which each reads what only the one before makes as one line."""
    inner = _inner(steps, kept, _ALONE)
    if not any(inner.intersection(s.symbols) for s in steps if s.kernel in _ALONE or s.kernel in SUMS):
        return list(steps)
    made: dict[Symbol, Step] = {}
    open_: dict[Symbol, Chain] = {}
    for step in steps:
        chain = _chain(step)
        if chain is not None:
            for symbol in dict.fromkeys(step.symbols):
                longer = _put(chain, symbol, open_.get(symbol)) if symbol in inner else None
                written = _written(longer, step) if longer is not None else None
                if longer is not None and written is not None:
                    chain, step = longer, written
                    del made[symbol]
            if step.kernel not in SUMS:
                open_[step.outs[0]] = chain
        made[step.outs[0]] = step
    return list(made.values())


def _after_products(steps: Sequence[Step], kept: set[Symbol | None]) -> list[Step]:
    """The calls with a product and the line that alone reads it as one; of two that a line reads, the first."""
    inner = _inner(steps, kept, ("contract",))
    made: dict[Symbol, Step] = {}
    for step in steps:
        product = next((made[symbol] for symbol in step.symbols if symbol in inner), None)
        chain = _chain(step) if product is not None else None
        written = _written(chain, step, product) if chain is not None else None
        if product is not None and written is not None:
            del made[product.outs[0]]
        made[step.outs[0]] = written or step
    return list(made.values())


def _before_norms(steps: Sequence[Step], kept: set[Symbol | None]) -> list[Step]:
    """The calls with the gradient of a norm and the line that makes that of the norm's result as one, which keeps this
    where others read it after that or it is a result.
    """
    inner = _inner(steps, kept, _ALONE)
    made: dict[Symbol, Step] = {}
    read: set[Symbol] = set()
    for step in steps:
        slope = step.symbols[0] if step.kernel == "norm_grad" else None
        line = made.get(slope) if slope is not None and slope not in read else None
        chain = _chain(line) if line is not None and line.kernel in _ALONE else None
        read.update(step.symbols)
        if slope and chain is not None and all(row == NO_ROW and x.shape == chain.shape for x, row in chain.sources):
            del made[slope]
            names = ", ".join(f"v{n}" for n in range(len(chain.sources)))
            args = (f"{names} -> {ast.unparse(chain.value)}", *step.symbols[1:], *(x for x, _ in chain.sources))
            params: dict[str, object] = {f"c{n}": constant for n, constant in enumerate(chain.constants)}
            outs = step.outs
            if slope not in inner:
                outs, params["keeps"] = (*outs, slope), True
            step = replace(step, kernel="norm_grad_pointwise", args=args, outs=outs, params=params)
        made[step.outs[0]] = step
    return list(made.values())


def _onto(steps: Sequence[Step], kept: set[Symbol | None]) -> list[Step]:
    """The calls with one that can add its result to an array and the sum of the two, which alone reads it, as one."""
    inner = _inner(steps, kept, [step.kernel for step in steps if vocabulary.adds_onto(step.kernel)])
    made: dict[Symbol, Step] = {}
    for step in steps:
        last = next((made[symbol] for symbol in step.symbols if symbol in inner), None)
        other = _added(step, last.outs[0]) if last is not None else None
        if last is not None and other is not None:
            del made[last.outs[0]]
            step = replace(last, args=(*last.args, other), outs=step.outs)
        made[step.outs[0]] = step
    return list(made.values())


def _added(step: Step, symbol: Symbol) -> Symbol | None:
    """What a call adds to an array of the same spec; None where it does anything else."""
    chain = _chain(step)
    if chain is None or ast.unparse(chain.value) not in ("v0 + v1", "v1 + v0"):
        return None
    arrays = [array for array, row in chain.sources if row == NO_ROW and array.spec == symbol.spec == step.outs[0].spec]
    return next((array for array in arrays if array is not symbol), None) if len(arrays) == 2 else None


def _inner(steps: Sequence[Step], kept: set[Symbol | None], kernels: Iterable[str]) -> set[Symbol]:
    """What some kernels make that is read once, and not kept."""
    made = {step.outs[0] for step in steps if step.kernel in kernels} - kept
    if not made:
        return set()
    readers = Counter([symbol for step in steps for symbol in set(step.symbols)])
    return {symbol for symbol in made if readers[symbol] == 1}


def _chain(step: Step) -> Chain | None:
    """The chain of one call, None where it is none."""
    found = said(step)
    if found is None or any(not s.dtype.startswith(("float", "bfloat")) for s in (*step.symbols, *step.outs)):
        return None
    line, tables, constants = found
    arrays, last = step.symbols[: len(step.symbols) - tables], step.symbols[len(step.symbols) - tables :]
    sources = [(array, NO_ROW) for array in arrays] + _rows(last)
    names, value = _parsed(line)
    renamed = {name: ast.Name(f"v{n}", ast.Load()) for n, name in enumerate(names)}
    renamed |= {name: ast.Name(f"c{n}", ast.Load()) for n, name in enumerate(constants)}
    shape = step.outs[0].shape
    if step.kernel in SUMS:
        shape = vocabulary.results("pointwise", (line, *(a.spec for a in arrays)), dict(constants))[0].shape
    return _plain(Chain(shape, tuple(sources), tuple(constants.values()), _renamed(value, renamed)))


def _plain(chain: Chain) -> Chain:
    """The chain with each source and each constant named once."""
    sources: dict[tuple[Symbol, int], int] = {}
    constants: dict[float, int] = {}
    value = _numbered(chain, sources, constants, {})
    return Chain(chain.shape, tuple(sources), tuple(constants), value)


def said(step: Step) -> tuple[str, int, Mapping[str, float]] | None:
    """The line of a call, how many of its last arrays are tables, and its constants; None where it is no line."""
    params: dict[str, Any] = dict(step.params)
    if step.kernel in ("pointwise", "channelwise", "sum_pointwise"):
        params.pop("dims", None)
        return str(step.args[0]), params.pop("tables", 0), params
    if step.kernel == "sum_over":
        return "x -> x", 0, {}
    other = params.get("approximate", "tanh") != "tanh" or params.get("dim", 1) != 1
    if step.kernel not in LINES or other or (TABLES.get(step.kernel) and step.outs[0].ndim < 2):
        return None
    return LINES[step.kernel], TABLES.get(step.kernel, 0), _TANH if "approximate" in params else {}


def _put(outer: Chain, symbol: Symbol, inner: Chain | None) -> Chain | None:
    """The chain in which what `symbol` held is computed where it is read; None where that is no chain, or too long."""
    if inner is None or inner.shape != outer.shape or any(s is symbol and row != NO_ROW for s, row in outer.sources):
        return None
    sources: dict[tuple[Symbol, int], int] = {}
    constants: dict[float, int] = {}
    within = _numbered(inner, sources, constants, {})
    value = _numbered(outer, sources, constants, {(symbol, NO_ROW): within})
    fits = len(sources) <= MOST_ARRAYS and sum(1 for _ in ast.walk(value)) <= MOST_PARTS
    return Chain(outer.shape, tuple(sources), tuple(constants), value) if fits else None


def _numbered(
    chain: Chain,
    sources: dict[tuple[Symbol, int], int],
    constants: dict[float, int],
    known: Mapping[tuple[Symbol, int], ast.expr],
) -> ast.expr:
    """The chain's value with numbers that sources and constants have, or get, in common with others."""
    renamed: dict[str, ast.expr] = {}
    for n, source in enumerate(chain.sources):
        renamed[f"v{n}"] = known.get(source) or ast.Name(f"v{sources.setdefault(source, len(sources))}", ast.Load())
    for n, constant in enumerate(chain.constants):
        renamed[f"c{n}"] = ast.Name(f"c{constants.setdefault(constant, len(constants))}", ast.Load())
    return _renamed(chain.value, renamed)


def _written(chain: Chain, last: Step, product: Step | None = None) -> Step | None:
    """The call that computes a chain, of a product if there is one, in place of its last call; None where none does."""
    arrays = [source for source in chain.sources if source[1] == NO_ROW]
    tables = list(dict.fromkeys(symbol for symbol, row in chain.sources if row != NO_ROW))
    if product is not None:
        # of a product's result the line speaks first
        arrays.sort(key=lambda source: source[0] is not product.outs[0])
    order = arrays + _rows(tables)
    number = {source: n for n, source in enumerate(chain.sources)}
    names = ", ".join(f"v{number[source]}" for source in order)
    line = f"{names} -> {ast.unparse(chain.value)}"
    operands = (*(symbol for symbol, _ in arrays), *tables)
    params: dict[str, object] = {f"c{n}": constant for n, constant in enumerate(chain.constants)}
    kernel, args = "channelwise" if tables else "pointwise", (line, *operands)
    if tables:
        params["tables"] = len(tables)
    if last.kernel in SUMS:
        if tables or product is not None:
            return None
        kernel, params["dims"] = "sum_pointwise", last.params["dims"]
    if product is not None:
        if tables or len(product.symbols) != 2 or product.outs[0].shape != chain.shape:
            return None
        kernel, args = "contract_pointwise", (product.args[0], line, *product.symbols, *operands[1:])
    specs = tuple(a.spec if isinstance(a, Symbol) else a for a in args)
    same = vocabulary.results(kernel, specs, params) == tuple(o.spec for o in last.outs)
    return replace(last, kernel=kernel, args=args, params=params) if same else None


def _rows(tables: Sequence[Symbol]) -> list[tuple[Symbol, int]]:
    """The rows of tables [n,c], or [c] of one."""
    return [(table, row) for table in tables for row in range(table.shape[0] if table.ndim == 2 else 1)]


@cache
def _parsed(line: str) -> tuple[tuple[str, ...], ast.expr]:
    left, _, right = line.partition("->")
    return tuple(name.strip() for name in left.split(",")), ast.parse(right.strip(), mode="eval").body


class _Renaming(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self.known = known

    def visit_Call(self, node: ast.Call) -> ast.expr:
        # the function's name is no name of an array
        return ast.Call(node.func, [self.visit(arg) for arg in node.args], [])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.known.get(node.id, node)


def _renamed(value: ast.expr, known: Mapping[str, ast.expr]) -> ast.expr:
    """A copy of a value in which names stand for what is known of them."""
    return cast(ast.expr, _Renaming(known).visit(ast.parse(ast.unparse(value), mode="eval").body))
