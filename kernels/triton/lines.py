"""Arithmetic on each element, written down or folded over dims, as kernels: a line is put as text into one of two.

It knows no form. `Text` may set names on its way, so that several results share what they have in common. A line may be
worked out on sums before these are written.
"""

import ast
import linecache
from functools import cache
from hashlib import sha256
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import triton
from triton import language as tl

from castile.kernels.arithmetic import FUNCTIONS, parse
from castile.kernels.triton import functions
from castile.kernels.triton.launch import Launch, Plan, Room
from castile.kernels.triton.views import Nest, Shape, View, nest, ordered, permuted, power_of_two, wide

# So many arrays are few.
_FEW = 3
# Rows of a block whose rows have numbers in common, and columns that lie on whole lines and are not divided for that.
_SHARED, _LINE = 16, 64
# A fold is cut into parts until there are so many programs: about as many as the largest chip holds at once, since the
# loads of one are few; no more, as those that come later run alone.
FILL = 1056
# Elements of parts that a program folds at once: all, where few results are made of many parts.
_PARTS = 2048
# Rows, columns and warps of a fold, and how many blocks are on their way at once; neighbours in rows, in columns.
_DOWN = ((64, 32, 4, 1), (64, 32, 4, 3), (128, 16, 4, 1), (128, 32, 8, 3), (32, 32, 4, 1))
_ACROSS = ((2, 1024, 4, 1), (1, 2048, 4, 1), (1, 1024, 4, 3), (1, 4096, 8, 1), (8, 256, 4, 1))

_EACH = """
def {name}({pointers}rows, cols, lead, {constants}{last}ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    blocks = tl.cdiv(cols, COLS)
    row, col = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    if WIDE:
        row, col = row.to(tl.int64), col.to(tl.int64)
    row = row * ROWS + tl.arange(0, ROWS)
    col = col * COLS + tl.arange(0, COLS)
    here = (row < rows)[:, None] & (col < cols)[None, :]
    {load}
    {body}
    {store}
"""

# The dims of the results are walked by rows, those that vanish by columns, of which each part folds its own.
_FOLD = """
def {name}({pointers}rows, cols, kept, gone, span, {constants}ROWS: tl.constexpr, COLS: tl.constexpr,
           WIDE: tl.constexpr, STAGES: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    if WIDE:
        row, part = row.to(tl.int64), part.to(tl.int64)
    row = row * ROWS + tl.arange(0, ROWS)
    {begin}
    for start in tl.range(part * span, tl.minimum(part * span + span, cols), COLS, num_stages=STAGES):
        col = start + tl.arange(0, COLS)
        here = (row < rows)[:, None] & (col < cols)[None, :]
        {load}
        {body}
        {fold}
    {store}
"""


class Text(NamedTuple):
    """What is computed of one element of each array in `names`: statements in order, and a value for each result.

    Other names are constants. With `moves` the values are the elements themselves, of any dtype.
    """

    names: tuple[str, ...]
    constants: tuple[str, ...]
    statements: tuple[str, ...]
    values: tuple[str, ...]
    moves: bool = False


class Finish(NamedTuple):
    """What becomes of sums before they are written: a line's Text, whose first name is the sum and the others are xs.

    xs have the result's shape; numbers are the line's constants.
    """

    what: Text
    xs: tuple[View, ...]
    numbers: tuple[float, ...]


class Fold(NamedTuple):
    """How values are folded: a function of `functions`, which has one of rows too, and a number that it leaves out."""

    function: str
    start: float


PLUS, MAXIMUM = Fold("plus", 0.0), Fold("maximum", -inf)
MOVE = Text(("x",), (), (), ("x",), moves=True)


def text(line: str, *constants: str) -> Text:
    """The Text of a line as `pointwise` takes it; "x, y -> x * y; x" gives two results."""
    left, _, right = line.partition("->")
    values = [parse(f"{left}->{value}").value for value in right.split(";")]
    written = (ast.unparse(_Floats().visit(ast.parse(ast.unparse(value), mode="eval"))) for value in values)
    return Text(parse(f"{left}->0").names, constants, (), tuple(written))


@cache
def function_of(what: Text) -> Any:
    """A function for use inside kernels: the value of a Text of elements of its arrays, and of its constants."""
    names = ", ".join((*what.names, *what.constants))
    return kernel_of("{line}", {"line": [f"def {{name}}({names}):", f"    return {what.values[0]}"]}, {})


def named(what: Text) -> tuple[list[str], list[str]]:
    """What a kernel calls the arrays and the constants of a Finish."""
    return [f"y{n}" for n in range(1, len(what.names))], [f"z{n}" for n in range(len(what.constants))]


def finished(what: Text, total: str) -> str:
    """The value that a Finish has for a sum, in a kernel to which `function_of` is known."""
    arrays, constants = named(what)
    return f"{function_of(what).__name__}({', '.join((total, *arrays, *constants))})"


class _Floats(ast.NodeTransformer):
    """Numbers as floats: a quotient of two integers would be one of integers."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        assert isinstance(node.value, int | float)
        return ast.Constant(float(node.value))


def each(what: Text, outs: list[View], xs: list[View], constants: dict[str, float], adds: bool = False) -> Plan:
    """The work of writing `what` of xs, all of the shape of outs, into outs, or adding it to them."""
    views = ordered([*outs, *xs])
    walk = nest(views)
    if walk.extent == 0:
        return Plan((None,), lambda _: [])
    moves = tuple((any(steps[:-1]), bool(steps[-1])) for steps in walk.steps[len(outs) :])
    kernel = _each(what, len(outs), moves, adds)
    cols, lead = walk.sizes[-1], walk.sizes[:-1] or (1,)
    rows = walk.extent // cols
    operands = [part for one, steps in zip(views, walk.steps, strict=True) for part in (one, steps[:-1] or (0,))]
    numbers = [float(constants[name]) for name in what.constants]
    # What is the same for all rows is read by each warp for its own: of few columns these are several.
    shared = cols % _LINE == 0 and any(across and not down for down, across in moves)
    last: dict[str, Any] = {f"t{n}": steps[-1] for n, steps in enumerate(walk.steps)}

    def launches(setting: tuple[int, int]) -> list[Launch]:
        tile, warps = setting
        across = min(max(tile // _SHARED, _LINE) if shared else tile, power_of_two(cols))
        down = min(tile // across, power_of_two(rows))
        across = min(tile // down, power_of_two(cols))
        grid = (-(-rows // down) * -(-cols // across),)
        blocks = {"ROWS": down, "COLS": across, "WIDE": _far(views, walk)}
        args = (*operands, rows, cols, lead, *numbers)
        return [Launch(kernel, grid, args, last | blocks, warps, flops=walk.extent * operations(what))]

    # Of few arrays 16 elements a thread are on their way before any is needed, of many 8 are as much. What is added to
    # is read too. Of float64 programs of four warps would leave out registers on an A100, for one more at once.
    sizes = ((2048, 4), (1024, 4)) if len(views) + adds <= _FEW else ((1024, 4), (2048, 4))
    long = ((2048, 8),) if any(np.dtype(one.array.dtype) == np.float64 for one in views) else ()
    return Plan((*long, *sizes, (4096, 8), (512, 2)), launches)


def folded(
    what: Text,
    outs: list[View],
    xs: list[View],
    dims: Shape,
    constants: dict[str, float],
    fold: Fold = PLUS,
    adds: bool = False,
    finish: Finish | None = None,
) -> Plan:
    """The work of folding `what` of xs, all of one shape, over `dims`, which outs lack, into outs or onto them.

    In an order that depends on the shapes alone. What is folded into one result may be `finish`ed.
    """
    num_dims = len(xs[0].shape)
    away = tuple(dim for dim in range(num_dims) if dim in {dim % num_dims for dim in dims})
    stay = tuple(dim for dim in range(num_dims) if dim not in away)
    others = finish.xs if finish else ()
    kept = nest(ordered([*outs, *(permuted(x, stay) for x in xs), *others]))
    gone = nest(ordered([permuted(x, away) for x in xs]))
    if kept.extent == 0:
        return Plan((None,), lambda _: [])
    # Neighbours in memory are to be read together, be they those that stay or those that vanish.
    stays = any(a[-1] < b[-1] for a, b in zip(kept.steps[len(outs) :], gone.steps, strict=False) if b[-1])
    settings = _DOWN if stays else _ACROSS
    near = [*outs, *(permuted(x, stay) for x in xs), *others]
    far = _far(near, kept) or _far(xs, Nest((kept.extent * gone.extent,), ()))
    numbers = tuple(constants[c] for c in what.constants)
    plan = _Folding(what, tuple(outs), tuple(xs), kept, gone, numbers, fold, adds, finish)
    return Plan(settings, lambda setting: plan.launches(setting, far))


class _Folding(NamedTuple):
    """A fold whose dims are known; steps of kept are those of outs, xs and what finishes, steps of gone those of xs."""

    what: Text
    outs: tuple[View, ...]
    xs: tuple[View, ...]
    kept: Nest
    gone: Nest
    numbers: tuple[float, ...]
    fold: Fold
    adds: bool
    finish: Finish | None = None

    def launches(self, setting: tuple[int, int, int, int], far: bool) -> list[Launch]:
        """One launch, or one for the parts and one that folds those; a setting is one of _DOWN or _ACROSS."""
        down, across, warps, stages = setting
        rows, cols = self.kept.extent, self.gone.extent
        tile, across = down * across, min(across, power_of_two(max(1, cols)))
        down = min(tile // across, power_of_two(rows))
        across = min(tile // down, power_of_two(max(1, cols)))
        programs, blocks = -(-rows // down), max(1, -(-cols // across))
        parts = max(1, min(FILL // programs, blocks // 4))
        span = -(-blocks // parts) * across
        parts = max(1, -(-cols // span))
        block = {"ROWS": down, "COLS": across, "WIDE": far, "STAGES": stages}
        if parts == 1:
            return [self._launch((programs, 1), span, block, warps, self.outs, self.kept.steps, self.adds)]
        rooms = [View(Room(parts * rows), (parts, rows), (rows, 1)) for _ in self.outs]
        dense = packed(self.kept.sizes)
        outs, last = self.kept.steps[: len(rooms)], len(rooms) + len(self.xs)
        steps = (*(dense for _ in rooms), *self.kept.steps[len(rooms) : last])
        first = self._replace(finish=None)._launch((programs, parts), span, block, warps, tuple(rooms), steps, False)
        names = tuple(f"x{n}" for n in range(len(rooms)))
        kept = Nest(self.kept.sizes, (*outs, *(dense for _ in rooms), *self.kept.steps[last:]))
        gone = Nest((parts,), tuple((rows,) for _ in rooms))
        plain = Text(names, (), (), names)
        second = _Folding(plain, self.outs, tuple(rooms), kept, gone, (), self.fold, self.adds, self.finish)
        down = min(32, power_of_two(rows))
        block = {"ROWS": down, "COLS": min(_PARTS // down, power_of_two(parts)), "WIDE": far, "STAGES": 1}
        grid = (-(-rows // down), 1)
        return [first, second._launch(grid, parts, block, 4, self.outs, kept.steps, self.adds)]

    def _launch(
        self,
        grid: tuple[int, int],
        span: int,
        block: dict[str, int],
        warps: int,
        outs: tuple[View, ...],
        steps: tuple[Shape, ...],
        adds: bool,
    ) -> Launch:
        last = len(outs) + len(self.xs)
        walked = list(zip(self.xs, steps[len(outs) : last], self.gone.steps, strict=True))
        moves = tuple((any(own), any(along)) for _, own, along in walked)
        what, others, last_numbers = self.finish or (None, (), ())
        kernel = _fold(self.what, len(outs), moves, self.fold, adds, what)
        operands: list[Any] = []
        for out, own in zip(outs, steps, strict=False):
            operands += [out, own, self.kept.extent]
        for x, own, along in walked:
            operands += [x, own, along]
        for y, own in zip(others, steps[last:], strict=True):
            operands += [y, own]
        counts = (self.kept.extent, self.gone.extent, self.kept.sizes, self.gone.sizes, span)
        flops = self.kept.extent * self.gone.extent * (operations(self.what) + len(outs))
        args = (*operands, *counts, *self.numbers, *last_numbers)
        return Launch(kernel, grid, args, dict(block), warps, flops=flops)


def packed(sizes: Shape) -> Shape:
    """The steps of an array of these sizes that lies dense."""
    return tuple(prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


def _far(views: list[View], walk: Nest) -> bool:
    """Whether places need 64 bits."""
    return wide([*views, View(None, walk.sizes, (0,) * len(walk.sizes))])


@cache
def operations(what: Text) -> int:
    """Operations on one element."""
    trees = [ast.parse(one) for one in (*what.statements, *what.values)]
    return sum(
        isinstance(part, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call) for t in trees for part in ast.walk(t)
    )


@cache
def _each(what: Text, num_outs: int, moves: tuple[tuple[bool, bool], ...], adds: bool) -> Any:
    """The kernel of `each`, for xs that move along rows and columns or stand still: each element is read once."""
    number = len(moves) + num_outs
    operands = [*(f"o{n}" for n in range(num_outs)), *what.names]
    load, store = [], []
    for n, (x, (down, across)) in enumerate(zip(what.names, moves, strict=True), start=num_outs):
        load.append(_loaded(what, x, f"p_{x}", f"places(row, lead, s_{x})" * down, f"col * t{n}" * across))
    for n, value in enumerate(what.values):
        store.append(f"a{n} = p_o{n} + places(row, lead, s_o{n})[:, None] + (col * t{n})[None, :]")
        store += _stored(n, value if what.moves else f"tl.where(here, {value}, 0.0)", "here", adds)
    parts = {"load": load, "body": list(what.statements), "store": store}
    words = {
        "pointers": "".join(f"p_{x}, s_{x}, " for x in operands),
        "constants": "".join(f"{name}, " for name in what.constants),
        "last": "".join(f"t{n}: tl.constexpr, " for n in range(number)),
    }
    return kernel_of(_EACH, parts, words)


@cache
def _fold(
    what: Text, num_outs: int, moves: tuple[tuple[bool, bool], ...], fold: Fold, adds: bool, finish: Text | None
) -> Any:
    """The kernel of `folded`, for xs that move along what stays and what vanishes or stand still there."""
    start = f"float('{fold.start}')"
    begin: list[str] = []
    load: list[str] = []
    folding, store = [], []
    for x, (down, across) in zip(what.names, moves, strict=True):
        begin += [f"r_{x} = places(row, kept, s_{x})"] * down
        line = _loaded(what, x, f"p_{x}", f"r_{x}" * down, f"places(col, gone, t_{x})" * across)
        (load if across else begin).append(line)
    for n, value in enumerate(what.values):
        begin.append(f"v{n} = tl.full((ROWS, COLS), {start}, tl.float32)")
        folding.append(f"v{n} = {fold.function}(v{n}, tl.where(here, {value}, {start}))")
        store.append(f"a{n} = p_o{n} + places(row, kept, s_o{n}) + part * d_o{n}")
        value = f"all_{fold.function}(v{n})"
        store += _stored(n, finished(finish, value) if finish else value, "row < rows", adds)
    others, numbers = named(finish) if finish else ([], [])
    begin += [f"{y} = tl.load(p_{y} + places(row, kept, s_{y}), mask=row < rows).to(tl.float32)" for y in others]
    parts = {"begin": begin, "load": load, "body": list(what.statements), "fold": folding, "store": store}
    outs = "".join(f"p_o{n}, s_o{n}, d_o{n}, " for n in range(num_outs))
    words = {
        "pointers": outs + "".join(f"p_{x}, s_{x}, t_{x}, " for x in what.names)
        + "".join(f"p_{y}, s_{y}, " for y in others),
        "constants": "".join(f"{name}, " for name in (*what.constants, *numbers)),
    }  # fmt: skip
    return kernel_of(_FOLD, parts, words, {(call := function_of(finish)).__name__: call} if finish else None)


def _loaded(what: Text, x: str, pointer: str, down: str, across: str) -> str:
    """What reads x at places of rows and of columns."""
    return f"{x} = {block_of(pointer, down, across)}{_real(what)}"


def block_of(
    pointer: str, down: str, across: str, here: str = "here", rows: str = "row < rows", cols: str = "col < cols"
) -> str:
    """A block of an array at places of rows and of columns: what lacks one of them is read once along the other.

    here, rows, cols: which of its elements, rows and columns there are.
    """
    if down and across:
        return f"tl.load({pointer} + {down}[:, None] + ({across})[None, :], mask={here})"
    if down:
        return f"tl.load({pointer} + {down}, mask={rows})[:, None]"
    return f"tl.load({pointer} + {across}, mask={cols})[None, :]" if across else f"tl.load({pointer})"


def _real(what: Text) -> str:
    return "" if what.moves else ".to(tl.float32)"


def _stored(n: int, value: str, mask: str, adds: bool) -> list[str]:
    """What writes a value to the places a<n>, or adds it to what is there."""
    real = f".to(p_o{n}.dtype.element_ty)"
    if not adds:
        return [f"tl.store(a{n}, ({value}){real}, mask={mask})"]
    return [f"tl.store(a{n}, (tl.load(a{n}, mask={mask}).to(tl.float32) + {value}){real}, mask={mask})"]


def kernel_of(
    template: str, parts: dict[str, list[str]], words: dict[str, str], known: dict[str, Any] | None = None
) -> Any:
    """The kernel of a template: lines of `parts` where a line of it names them alone, `words` within its lines.

    It may call `functions`, and what else is `known`. These are its `made_of`.
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
