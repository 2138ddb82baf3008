"""Code generation: elementwise expressions become kernels that write or reduce their values.

Generated code is inserted into one of two templates. A reduction may have an epilogue, an expression that is applied to
sums before they are written. It knows no form.
"""

from functools import cache
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.triton.launch import Launch, LaunchPlan, Workspace
from castile.kernels.triton.snippet import (
    Epilogue,
    Snippet,
    device_function,
    epilogue_names,
    epilogue_value,
    generated_kernel,
    num_operations,
)
from castile.kernels.triton.views import (
    LoopNest,
    Shape,
    View,
    in_memory_order,
    loop_nest,
    needs_64_bits,
    permuted,
    power_of_two,
)

# At most this many arrays are few: programs are then larger.
_FEW_ARRAYS = 3
# Rows of a block whose rows share loads, and the fewest columns of it, which are whole cache lines.
_SHARED_ROWS, _LINE_COLS = 16, 64
# A reduction is split into parts up to this many programs: about as many as the largest chip holds at once, since one
# has few loads in flight; no more, as a last wave would run alone.
FULL_GRID = 1056
# Partial results that a program reduces at once: all, where few results have many parts.
_PARTIAL_ELEMENTS = 2048
# Rows, columns, warps and stages of a reduction, where rows or columns are contiguous.
_ROWS_CONTIGUOUS = ((64, 32, 4, 1), (64, 32, 4, 3), (128, 16, 4, 1), (128, 32, 8, 3), (32, 32, 4, 1))
_COLS_CONTIGUOUS = ((2, 1024, 4, 1), (1, 2048, 4, 1), (1, 1024, 4, 3), (1, 4096, 8, 1), (8, 256, 4, 1))

_ELEMENTWISE = """
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

# Rows loop over the dims of the results, columns over those that are reduced; each part reduces its own columns.
_REDUCTION = """
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


class Reduction(NamedTuple):
    """A reduction: a function of `functions`, which has a variant over rows (`all_...`), and its neutral element."""

    function: str
    start: float


SUM, MAX = Reduction("plus", 0.0), Reduction("maximum", -inf)


def elementwise_plan(
    code: Snippet, outs: list[View], xs: list[View], constants: dict[str, float], adds: bool = False
) -> LaunchPlan:
    """The plan that writes the code's values of xs, all of one shape, into outs, or adds them."""
    views = in_memory_order([*outs, *xs])
    walk = loop_nest(views)
    if walk.extent == 0:
        return LaunchPlan((None,), lambda _: [])
    moves = tuple((any(steps[:-1]), bool(steps[-1])) for steps in walk.steps[len(outs) :])
    kernel = _elementwise_kernel(code, len(outs), moves, adds)
    cols, lead = walk.sizes[-1], walk.sizes[:-1] or (1,)
    rows = walk.extent // cols
    operands = [part for one, steps in zip(views, walk.steps, strict=True) for part in (one, steps[:-1] or (0,))]
    numbers = [float(constants[name]) for name in code.constants]
    # What is the same for all rows is read by each warp for its own: of few columns these are several.
    shared = cols % _LINE_COLS == 0 and any(across and not down for down, across in moves)
    last: dict[str, Any] = {f"t{n}": steps[-1] for n, steps in enumerate(walk.steps)}

    def launches(setting: tuple[int, int]) -> list[Launch]:
        tile, warps = setting
        across = min(max(tile // _SHARED_ROWS, _LINE_COLS) if shared else tile, power_of_two(cols))
        down = min(tile // across, power_of_two(rows))
        across = min(tile // down, power_of_two(cols))
        grid = (-(-rows // down) * -(-cols // across),)
        blocks = {"ROWS": down, "COLS": across, "WIDE": _needs_64_bits(views, walk)}
        args = (*operands, rows, cols, lead, *numbers)
        return [Launch(kernel, grid, args, last | blocks, warps, flops=walk.extent * num_operations(code))]

    # Of few arrays 16 elements a thread are on their way before any is needed, of many 8 are as much. What is added to
    # is read too. Of float64 programs of four warps would leave out registers on an A100, for one more at once.
    sizes = ((2048, 4), (1024, 4)) if len(views) + adds <= _FEW_ARRAYS else ((1024, 4), (2048, 4))
    long = ((2048, 8),) if any(np.dtype(one.array.dtype) == np.float64 for one in views) else ()
    return LaunchPlan((*long, *sizes, (4096, 8), (512, 2)), launches)


def reduction_plan(
    code: Snippet,
    outs: list[View],
    xs: list[View],
    dims: Shape,
    constants: dict[str, float],
    fold: Reduction = SUM,
    adds: bool = False,
    epilogue: Epilogue | None = None,
) -> LaunchPlan:
    """The plan that reduces the code's values of xs, all of one shape, over `dims`, which outs lack.

    adds      whether the results are added to outs
    epilogue  applied to each result before it is written
    The order of a sum depends on the shapes alone.
    """
    num_dims = len(xs[0].shape)
    away = tuple(dim for dim in range(num_dims) if dim in {dim % num_dims for dim in dims})
    stay = tuple(dim for dim in range(num_dims) if dim not in away)
    others = epilogue.xs if epilogue else ()
    kept = loop_nest(in_memory_order([*outs, *(permuted(x, stay) for x in xs), *others]))
    gone = loop_nest(in_memory_order([permuted(x, away) for x in xs]))
    if kept.extent == 0:
        return LaunchPlan((None,), lambda _: [])
    # Neighbours in memory are to be read together, be they those that stay or those that vanish.
    stays = any(a[-1] < b[-1] for a, b in zip(kept.steps[len(outs) :], gone.steps, strict=False) if b[-1])
    settings = _ROWS_CONTIGUOUS if stays else _COLS_CONTIGUOUS
    near = [*outs, *(permuted(x, stay) for x in xs), *others]
    far = _needs_64_bits(near, kept) or _needs_64_bits(xs, LoopNest((kept.extent * gone.extent,), ()))
    numbers = tuple(constants[c] for c in code.constants)
    plan = _ReductionPlan(code, tuple(outs), tuple(xs), kept, gone, numbers, fold, adds, epilogue)
    return LaunchPlan(settings, lambda setting: plan.launches(setting, far))


class _ReductionPlan(NamedTuple):
    """A reduction whose loops are known: kept has the steps of outs, xs and epilogue arrays, gone those of xs."""

    code: Snippet
    outs: tuple[View, ...]
    xs: tuple[View, ...]
    kept: LoopNest
    gone: LoopNest
    numbers: tuple[float, ...]
    fold: Reduction
    adds: bool
    epilogue: Epilogue | None = None

    def launches(self, setting: tuple[int, int, int, int], far: bool) -> list[Launch]:
        """One launch, or one for partial results and one that reduces those; `setting` is of _ROWS_CONTIGUOUS or
        _COLS_CONTIGUOUS.
        """
        down, across, warps, stages = setting
        rows, cols = self.kept.extent, self.gone.extent
        tile, across = down * across, min(across, power_of_two(max(1, cols)))
        down = min(tile // across, power_of_two(rows))
        across = min(tile // down, power_of_two(max(1, cols)))
        programs, blocks = -(-rows // down), max(1, -(-cols // across))
        parts = max(1, min(FULL_GRID // programs, blocks // 4))
        span = -(-blocks // parts) * across
        parts = max(1, -(-cols // span))
        block = {"ROWS": down, "COLS": across, "WIDE": far, "STAGES": stages}
        if parts == 1:
            return [self._launch((programs, 1), span, block, warps, self.outs, self.kept.steps, self.adds)]
        rooms = [View(Workspace(parts * rows), (parts, rows), (rows, 1)) for _ in self.outs]
        dense = contiguous_steps(self.kept.sizes)
        outs, last = self.kept.steps[: len(rooms)], len(rooms) + len(self.xs)
        steps = (*(dense for _ in rooms), *self.kept.steps[len(rooms) : last])
        first = self._replace(epilogue=None)._launch((programs, parts), span, block, warps, tuple(rooms), steps, False)
        names = tuple(f"x{n}" for n in range(len(rooms)))
        kept = LoopNest(self.kept.sizes, (*outs, *(dense for _ in rooms), *self.kept.steps[last:]))
        gone = LoopNest((parts,), tuple((rows,) for _ in rooms))
        plain = Snippet(names, (), (), names)
        second = _ReductionPlan(plain, self.outs, tuple(rooms), kept, gone, (), self.fold, self.adds, self.epilogue)
        down = min(32, power_of_two(rows))
        block = {"ROWS": down, "COLS": min(_PARTIAL_ELEMENTS // down, power_of_two(parts)), "WIDE": far, "STAGES": 1}
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
        code, others, last_numbers = self.epilogue or (None, (), ())
        kernel = _reduction_kernel(self.code, len(outs), moves, self.fold, adds, code)
        operands: list[Any] = []
        for out, own in zip(outs, steps, strict=False):
            operands += [out, own, self.kept.extent]
        for x, own, along in walked:
            operands += [x, own, along]
        for y, own in zip(others, steps[last:], strict=True):
            operands += [y, own]
        counts = (self.kept.extent, self.gone.extent, self.kept.sizes, self.gone.sizes, span)
        flops = self.kept.extent * self.gone.extent * (num_operations(self.code) + len(outs))
        args = (*operands, *counts, *self.numbers, *last_numbers)
        return Launch(kernel, grid, args, dict(block), warps, flops=flops)


def contiguous_steps(sizes: Shape) -> Shape:
    """The steps of a contiguous array of these sizes."""
    return tuple(prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


def _needs_64_bits(views: list[View], walk: LoopNest) -> bool:
    """Whether offsets need 64 bits."""
    return needs_64_bits([*views, View(None, walk.sizes, (0,) * len(walk.sizes))])


@cache
def _elementwise_kernel(code: Snippet, num_outs: int, moves: tuple[tuple[bool, bool], ...], adds: bool) -> Any:
    """The kernel of `elementwise_plan`.

    moves  of each x whether its offset depends on the row, and on the column
    """
    number = len(moves) + num_outs
    operands = [*(f"o{n}" for n in range(num_outs)), *code.names]
    load, store = [], []
    for n, (x, (down, across)) in enumerate(zip(code.names, moves, strict=True), start=num_outs):
        load.append(_load_line(code, x, f"p_{x}", f"offsets(row, lead, s_{x})" * down, f"col * t{n}" * across))
    for n, value in enumerate(code.values):
        store.append(f"a{n} = p_o{n} + offsets(row, lead, s_o{n})[:, None] + (col * t{n})[None, :]")
        store += _store_lines(n, value if code.is_copy else f"tl.where(here, {value}, 0.0)", "here", adds)
    parts = {"load": load, "body": list(code.statements), "store": store}
    words = {
        "pointers": "".join(f"p_{x}, s_{x}, " for x in operands),
        "constants": "".join(f"{name}, " for name in code.constants),
        "last": "".join(f"t{n}: tl.constexpr, " for n in range(number)),
    }
    return generated_kernel(_ELEMENTWISE, parts, words)


@cache
def _reduction_kernel(
    code: Snippet,
    num_outs: int,
    moves: tuple[tuple[bool, bool], ...],
    fold: Reduction,
    adds: bool,
    epilogue: Snippet | None,
) -> Any:
    """The kernel of `reduction_plan`.

    moves  of each x whether its offset depends on the kept dims, and on those that are reduced
    """
    start = f"float('{fold.start}')"
    begin: list[str] = []
    load: list[str] = []
    folding, store = [], []
    for x, (down, across) in zip(code.names, moves, strict=True):
        begin += [f"r_{x} = offsets(row, kept, s_{x})"] * down
        line = _load_line(code, x, f"p_{x}", f"r_{x}" * down, f"offsets(col, gone, t_{x})" * across)
        (load if across else begin).append(line)
    for n, value in enumerate(code.values):
        begin.append(f"v{n} = tl.full((ROWS, COLS), {start}, tl.float32)")
        folding.append(f"v{n} = {fold.function}(v{n}, tl.where(here, {value}, {start}))")
        store.append(f"a{n} = p_o{n} + offsets(row, kept, s_o{n}) + part * d_o{n}")
        value = f"all_{fold.function}(v{n})"
        store += _store_lines(n, epilogue_value(epilogue, value) if epilogue else value, "row < rows", adds)
    others, numbers = epilogue_names(epilogue) if epilogue else ([], [])
    begin += [f"{y} = tl.load(p_{y} + offsets(row, kept, s_{y}), mask=row < rows).to(tl.float32)" for y in others]
    parts = {"begin": begin, "load": load, "body": list(code.statements), "fold": folding, "store": store}
    outs = "".join(f"p_o{n}, s_o{n}, d_o{n}, " for n in range(num_outs))
    words = {
        "pointers": outs + "".join(f"p_{x}, s_{x}, t_{x}, " for x in code.names)
        + "".join(f"p_{y}, s_{y}, " for y in others),
        "constants": "".join(f"{name}, " for name in (*code.constants, *numbers)),
    }  # fmt: skip
    return generated_kernel(
        _REDUCTION, parts, words, {(call := device_function(epilogue)).__name__: call} if epilogue else None
    )


def _load_line(code: Snippet, x: str, pointer: str, down: str, across: str) -> str:
    """The line that loads x at offsets of rows and columns."""
    return f"{x} = {load_block(pointer, down, across)}{_to_float(code)}"


def load_block(
    pointer: str, down: str, across: str, here: str = "here", rows: str = "row < rows", cols: str = "col < cols"
) -> str:
    """The expression that loads a block at offsets of rows and columns; an array that lacks one of them is loaded once
    along the other.

    here, rows, cols  masks of elements, rows and columns
    """
    if down and across:
        return f"tl.load({pointer} + {down}[:, None] + ({across})[None, :], mask={here})"
    if down:
        return f"tl.load({pointer} + {down}, mask={rows})[:, None]"
    return f"tl.load({pointer} + {across}, mask={cols})[None, :]" if across else f"tl.load({pointer})"


def _to_float(code: Snippet) -> str:
    return "" if code.is_copy else ".to(tl.float32)"


def _store_lines(n: int, value: str, mask: str, adds: bool) -> list[str]:
    """The lines that write a value to a<n>, or add it to what is there."""
    real = f".to(p_o{n}.dtype.element_ty)"
    if not adds:
        return [f"tl.store(a{n}, ({value}){real}, mask={mask})"]
    return [f"tl.store(a{n}, (tl.load(a{n}, mask={mask}).to(tl.float32) + {value}){real}, mask={mask})"]


