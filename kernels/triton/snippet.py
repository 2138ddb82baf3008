"""Snippets: code that computes values from single elements, made from elementwise expressions, and kernels made from
templates with code inserted.

It does not know which kernels there are.
"""

import ast
import linecache
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.expression import FUNCTIONS, parse
from castile.kernels.triton import functions
from castile.kernels.triton.views import View


class Snippet(NamedTuple):
    """Code that computes values from one element of each array in `names`: statements in order, and a value for each
    result.

    constants  names that stand for scalars
    is_copy    whether values are the elements themselves, of any dtype, instead of float32
    """

    names: tuple[str, ...]
    constants: tuple[str, ...]
    statements: tuple[str, ...]
    values: tuple[str, ...]
    is_copy: bool = False


class Epilogue(NamedTuple):
    """What is applied to sums before they are written: code whose first name is the sum, the others are xs.

    xs       arrays of the result's shape
    numbers  the code's constants
    """

    code: Snippet
    xs: tuple[View, ...]
    numbers: tuple[float, ...]


COPY = Snippet(("x",), (), (), ("x",), is_copy=True)


def snippet(line: str, *constants: str) -> Snippet:
    """The Snippet of an elementwise expression; "x, y -> x * y; x" has two results."""
    left, _, right = line.partition("->")
    values = [parse(f"{left}->{value}").value for value in right.split(";")]
    written = (ast.unparse(_Floats().visit(ast.parse(ast.unparse(value), mode="eval"))) for value in values)
    return Snippet(parse(f"{left}->0").names, constants, (), tuple(written))


class _Floats(ast.NodeTransformer):
    """Makes integer literals floats: a quotient of two integers would be one of integers."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        assert isinstance(node.value, int | float)
        return ast.Constant(float(node.value))


@cache
def device_function(code: Snippet) -> Any:
    """A device function that computes a Snippet's value from elements of its arrays, and its constants."""
    names = ", ".join((*code.names, *code.constants))
    return generated_kernel("{line}", {"line": [f"def {{name}}({names}):", f"    return {code.values[0]}"]}, {})


def epilogue_names(code: Snippet) -> tuple[list[str], list[str]]:
    """The names that a kernel gives the arrays and the constants of an epilogue."""
    return [f"y{n}" for n in range(1, len(code.names))], [f"z{n}" for n in range(len(code.constants))]


def epilogue_value(code: Snippet, total: str) -> str:
    """The expression that applies an epilogue to a sum, in a kernel that knows its `device_function`."""
    arrays, constants = epilogue_names(code)
    return f"{device_function(code).__name__}({', '.join((total, *arrays, *constants))})"


@cache
def num_operations(code: Snippet) -> int:
    """The number of operations on one element."""
    trees = [ast.parse(one) for one in (*code.statements, *code.values)]
    return sum(
        isinstance(part, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call) for t in trees for part in ast.walk(t)
    )


def generated_kernel(
    template: str, parts: dict[str, list[str]], words: dict[str, str], known: dict[str, Any] | None = None
) -> Any:
    """The kernel made from a template.

    parts  lines that replace a line of the template which names them alone, as in {load}
    words  text that is inserted within lines
    known  what the kernel may call beside `functions`
    The kernel's `made_of` are these arguments.
    """
    lines: list[str] = []
    for line in template.strip().splitlines():
        part = parts.get(line.strip().strip("{}"))
        indent = line[: len(line) - len(line.lstrip())]
        lines += [line] if part is None else [indent + one for one in part]
    body = "\n".join(lines)
    name = f"line_{sha256(body.encode()).hexdigest()[:12]}"
    body = body.format(name=name, **words)
    # Triton reads the text of what it compiles, and finds it here.
    file = f"<castile {name}>"
    linecache.cache[file] = (len(body), None, body.splitlines(keepends=True), file)
    names: dict[str, Any] = (known or {}) | {"tl": tl, "__name__": __name__}
    names |= {key: value for key, value in vars(functions).items() if not key.startswith("_")}
    assert all(word in names for word in FUNCTIONS)
    exec(compile(body, file, "exec"), names)
    made = triton.jit(names[name])
    made.made_of = template, parts, words, known
    return made
