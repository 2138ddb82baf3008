"""Expressions as compiled loops: the expression's text is inserted into a loop's template, which Numba compiles.

It knows no kernel. A loop is compiled once for each expression and dtype, and kept on disk under a name that hashes its
text.
"""

import ast
import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.expression import FUNCTIONS, parse
from castile.kernels.numpy import functions, jit, pointers, strided
from castile.kernels.numpy.expression_call import BY_LOOP, OVERWRITTEN, UPDATED, expression_call, signature
from castile.kernels.numpy.jit import addressed

assert all(hasattr(functions, name) or name == "abs" for name in FUNCTIONS)

# Over contiguous rows, whose positions in each array `expression_call` passes.
_WRITE = """
def {name}(rows, cols, places, steps, constants, plan, first):
    {begin}
    v_out = places[0]
    for row in range(rows):
        for j in range(cols):
            {load}
            v_out[j] {assign} {value}
        v_out = after(v_out, steps[0])
        {advance}
"""

# The result stands still along the dims that vanish, so a row falls on one element of it or on as many as it has.
_SUM = """
def {name}(rows, cols, places, steps, constants, plan, first):
    s_out, p_out = after(plan, FIRST), places[0]
    step = s_out[3]
    {begin}
    for row in range(first, first + rows):
        v_out = after(p_out, offset(plan, s_out, row))
        if step == 0:
            total = real(0)
            for j in range(cols):
                {load}
                total += {value}
            v_out[0] += total
        else:
            for j in range(cols):
                {load}
                v_out[j * step] += {value}
        {advance}
"""


class LoopSpec(NamedTuple):
    """What a loop computes: the expression, which of its arrays are one number, and its constants in order."""

    expression: str
    single: tuple[bool, ...]
    constants: tuple[str, ...]
    dtype: str


class CompiledLoop(NamedTuple):
    """A compiled loop, whose address is valid as long as this exists.

    num_walked   arrays that are walked, the result among them
    first        what is done to the result, as `expression_call` takes it
    """

    made: Any
    num_walked: int
    num_arrays: int
    first: int
    dtype: np.dtype


def bind_loop(line: CompiledLoop, walk: np.ndarray, *given: Any) -> Call:
    """The call of a loop on the result, arrays, arrays of one number, and constants."""
    arrays, constants = given[: line.num_arrays], np.array(given[line.num_arrays :], line.dtype)
    return expression_call(line.made.address, line.first, line.num_walked, constants, walk, *arrays)


@cache
def compile_write(loop: LoopSpec) -> CompiledLoop:
    """The loop out[...] = value."""
    return _compiled(loop, _WRITE, OVERWRITTEN, assign="=")


@cache
def compile_add(loop: LoopSpec) -> CompiledLoop:
    """The loop out[...] += value."""
    return _compiled(loop, _WRITE, UPDATED, assign="+=")


@cache
def compile_update(loop: LoopSpec) -> CompiledLoop:
    """The loop out[...] = value, in which the expression's first name is out itself."""
    return _compiled(loop, _WRITE, UPDATED, own=1, assign="=")


@cache
def compile_sum(loop: LoopSpec) -> CompiledLoop:
    """As `compile_add`, where out may be broadcast along some dims."""
    return _compiled(loop, _SUM, BY_LOOP)


def _compiled(loop: LoopSpec, template: str, first: int, own: int = 0, **words: str) -> CompiledLoop:
    dtype, num = np.dtype(loop.dtype), len(loop.single)
    made = addressed(from_text(_filled(loop, template, own, **words), loop.dtype), signature(dtype))
    return CompiledLoop(made, 1 + num - sum(loop.single), 1 + num, first, dtype)


def from_text(body: str, dtype: str) -> Callable[..., Any]:
    """The compiled loop of a text in which {name} stands for its name, and `real` makes a number of that dtype."""
    name = f"line_{hashlib.sha256((body + dtype).encode()).hexdigest()[:16]}"
    # Under this file's name, because Numba keeps compiled loops beside the file that they come from.
    code = compile(body.replace("{name}", name), __file__, "exec")
    names: dict[str, Any] = {"np": np, "real": np.dtype(dtype).type, "__name__": __name__}
    for module in (jit, functions, pointers, strided):
        names |= {key: value for key, value in vars(module).items() if not key.startswith("_")}
    exec(code, names)
    return jit.compiled(names[name])


def _filled(loop: LoopSpec, template: str, own: int, **words: str) -> str:
    """The text of a loop; the first `own` of the expression's names stand for the result itself."""
    names, value = parse(loop.expression)
    many = [name for name, one in zip(names[own:], loop.single, strict=True) if not one]
    single = [name for name in names[own:] if name not in many]
    begin = [f"{x} = constants[{n}]" for n, x in enumerate(loop.constants)]
    # Read by its own name, so that the compiler sees that no element depends on another.
    load, advance = [f"{x} = v_out[j]" for x in names[:own]], []
    for number, x in enumerate(many, start=1):
        begin.append(f"v_{x} = places[{number}]")
        load.append(f"{x} = v_{x}[j]")
        advance.append(f"v_{x} = after(v_{x}, steps[{number}])")
    begin += [f"{x} = places[{number}][0]" for number, x in enumerate(single, start=1 + len(many))]
    parts = {"begin": begin, "load": load, "advance": advance}
    return fill_template(template, parts, value=typed_text(value), **words)


def fill_template(template: str, parts: dict[str, list[str]], **words: str) -> str:
    """The text of a template: `parts` replace lines that name them alone, as in {load}; `words` are inserted within
    lines.
    """
    lines = []
    for line in template.splitlines():
        key = line.strip().strip("{}")
        indent = line[: len(line) - len(line.lstrip())]
        lines += [indent + part for part in parts[key]] if key in parts else [line]
    return "\n".join(lines).format(name="{name}", **words)


class _Typed(ast.NodeTransformer):
    """Makes literals the loop's dtype: a float64 among float32 would make it a loop of float64."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Call(ast.Name("real"), [node], [])


def typed_text(value: ast.expr) -> str:
    """The text of a value, with its literals in the loop's dtype."""
    # Parsed anew, as a transformer changes the tree that it is given.
    return ast.unparse(_Typed().visit(ast.parse(ast.unparse(value), mode="eval")))
