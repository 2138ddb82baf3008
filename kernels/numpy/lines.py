"""Lines of arithmetic as compiled loops: one loop is written here, and a line is put into it as text.

It knows no kernel. A loop is compiled once for each line and dtype and kept on disk with the other compiled loops, by
a name that tells its text.
"""

import ast
import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.arithmetic import FUNCTIONS, parse
from castile.kernels.calls import Call
from castile.kernels.numpy import functions, jit, lanes, walk
from castile.kernels.numpy.jit import addressed
from castile.kernels.numpy.walking import ALTERED, LEFT, WRITTEN, signature, walking

assert all(hasattr(functions, name) or name == "abs" for name in FUNCTIONS)

# Of rows of neighbours: where each array has them, `walking` says.
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


class Loop(NamedTuple):
    """What a loop does: the line, which of its arrays are one number everywhere, its constants in order."""

    line: str
    single: tuple[bool, ...]
    constants: tuple[str, ...]
    dtype: str


class Line(NamedTuple):
    """A loop that is compiled, and lies at an address for as long as this does.

    num_walked   arrays of blocks, the result among them
    first        what is done to the result's, as `walking` says it
    """

    made: Any
    num_walked: int
    num_arrays: int
    first: int
    dtype: np.dtype


def bound(line: Line, walk: np.ndarray, *given: Any) -> Call:
    """The work of a line; given are the result, arrays, arrays of one number, and constants."""
    arrays, constants = given[: line.num_arrays], np.array(given[line.num_arrays :], line.dtype)
    return walking(line.made.address, line.first, line.num_walked, constants, walk, *arrays)


@cache
def writes(loop: Loop) -> Line:
    """The loop out[...] = value."""
    return _compiled(loop, _WRITE, WRITTEN, assign="=")


@cache
def adds(loop: Loop) -> Line:
    """The loop out[...] += value."""
    return _compiled(loop, _WRITE, ALTERED, assign="+=")


@cache
def alters(loop: Loop) -> Line:
    """The loop out[...] = value, in which the line's first name is what stands in out."""
    return _compiled(loop, _WRITE, ALTERED, own=1, assign="=")


@cache
def sums(loop: Loop) -> Line:
    """As `adds`, where out may stand still along some dims."""
    return _compiled(loop, _SUM, LEFT)


def _compiled(loop: Loop, template: str, first: int, own: int = 0, **words: str) -> Line:
    dtype, num = np.dtype(loop.dtype), len(loop.single)
    made = addressed(from_text(_filled(loop, template, own, **words), loop.dtype), signature(dtype))
    return Line(made, 1 + num - sum(loop.single), 1 + num, first, dtype)


def from_text(body: str, dtype: str) -> Callable[..., Any]:
    """The loop of a text in which {name} stands for its name, and `real` makes a number of that dtype."""
    name = f"line_{hashlib.sha256((body + dtype).encode()).hexdigest()[:16]}"
    # Under this file's name, because Numba keeps compiled loops beside the file that they come from.
    code = compile(body.replace("{name}", name), __file__, "exec")
    names: dict[str, Any] = {"np": np, "real": np.dtype(dtype).type, "__name__": __name__}
    for module in (jit, functions, lanes, walk):
        names |= {key: value for key, value in vars(module).items() if not key.startswith("_")}
    exec(code, names)
    return jit.compiled(names[name])


def _filled(loop: Loop, template: str, own: int, **words: str) -> str:
    """The text of a loop; the first `own` of the line's names stand in the result itself."""
    names, value = parse(loop.line)
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
    return filled(template, parts, value=typed(value), **words)


def filled(template: str, parts: dict[str, list[str]], **words: str) -> str:
    """The text of a template: lines of `parts` where a line of it names them alone, `words` within its lines."""
    lines = []
    for line in template.splitlines():
        key = line.strip().strip("{}")
        indent = line[: len(line) - len(line.lstrip())]
        lines += [indent + part for part in parts[key]] if key in parts else [line]
    return "\n".join(lines).format(name="{name}", **words)


class _Typed(ast.NodeTransformer):
    """Numbers in the dtype of the loop: a float64 among float32 would make it a loop of float64."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Call(ast.Name("real"), [node], [])


def typed(value: ast.expr) -> str:
    """The text of a value, its numbers in the dtype of the loop."""
    # Parsed anew, as a transformer changes the tree that it is given.
    return ast.unparse(_Typed().visit(ast.parse(ast.unparse(value), mode="eval")))
