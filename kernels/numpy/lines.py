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
from castile.kernels.numpy import functions, jit, lanes, walk

assert all(hasattr(functions, name) or name == "abs" for name in FUNCTIONS)

_WRITE = """
def {name}(walk, out{arguments}):
    plan, p_out = pointer(walk), pointer(out)
    s_out, h_out = after(plan, FIRST), spare(out)
    {begin}
    for first in range(0, num_rows(plan), plan[4]):
        v_out = {find}(plan, s_out, p_out, first, h_out)
        {fetch}
        for j in range(block_size(plan, first)):
            {load}
            v_out[j] {assign} {value}
        settle(plan, s_out, p_out, first, h_out)
"""

# The result stands still along the dims that vanish, so a row falls on one element of it or on as many as it has.
_SUM = """
def {name}(walk, out{arguments}):
    plan, p_out = pointer(walk), pointer(out)
    s_out = after(plan, FIRST)
    cols, step = plan[3], s_out[3]
    {begin}
    for first in range(0, num_rows(plan), plan[4]):
        {fetch}
        for row in range(first, first + block_size(plan, first) // cols):
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


@cache
def writes(loop: Loop) -> Callable[..., Any]:
    """The loop out[...] = value; arguments: the walk, out, arrays, arrays of one number, constants."""
    return _compiled(loop, _WRITE, find="room", assign="=")


@cache
def adds(loop: Loop) -> Callable[..., Any]:
    """The loop out[...] += value."""
    return _compiled(loop, _WRITE, find="fetch", assign="+=")


@cache
def alters(loop: Loop) -> Callable[..., Any]:
    """The loop out[...] = value, in which the line's first name is what stands in out; arguments: the other arrays."""
    return _compiled(loop, _WRITE, find="fetch", assign="=", own=1)


@cache
def sums(loop: Loop) -> Callable[..., Any]:
    """As `adds`, where out may stand still along some dims."""
    return _compiled(loop, _SUM)


def _compiled(loop: Loop, template: str, own: int = 0, **words: str) -> Callable[..., Any]:
    return from_text(_filled(loop, template, own, **words), loop.dtype)


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
    begin = [f"{x} = a_{x}[0]" for x in single]
    # Read by its own name, so that the compiler sees that no element depends on another.
    fetch, load, advance = [], [f"{x} = v_out[j]" for x in names[:own]], []
    for number, x in enumerate(many, start=1):
        begin.append(f"p_{x}, s_{x}, h_{x} = pointer(a_{x}), after(plan, {walk.FIRST * (number + 1)}), spare(a_{x})")
        fetch.append(f"v_{x} = fetch(plan, s_{x}, p_{x}, first, h_{x})")
        load.append(f"{x} = v_{x}[j]")
        advance.append(f"v_{x} = after(v_{x}, cols)")
    parts = {"begin": begin, "fetch": fetch, "load": load, "advance": advance}
    arguments = "".join(f", {x}" for x in (*(f"a_{x}" for x in many + single), *loop.constants))
    return filled(template, parts, arguments=arguments, value=typed(value), **words)


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
