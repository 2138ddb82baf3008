"""Elementwise work on many tensors, such as parameters, in one launch where they are contiguous (multi-tensor apply).

Results may be summed instead of written. It knows no form.
"""

from functools import cache
from itertools import accumulate
from typing import Any

from castile.kernels.triton.codegen import FULL_GRID, elementwise_plan, reduction_plan
from castile.kernels.triton.launch import Launch, LaunchPlan, Workspace, fixed_plan, in_sequence, in_sequence_alike
from castile.kernels.triton.snippet import Snippet, generated_kernel, num_operations, snippet
from castile.kernels.triton.views import View, view

# The arrays of so many are walked by one launch: each has lines of its own in the kernel, and few arrays.
_MOST_TENSORS = 16
# Elements and warps of a program.
_SETTINGS = ((1024, 4), (2048, 4), (4096, 8), (512, 2))

# Programs are shared out: those below end0 do the first one's work, and so on.
_MULTI_TENSOR = """
def {name}({pointers}{constants}BLOCK: tl.constexpr):
    program, at = tl.program_id(0), tl.arange(0, BLOCK)
    {each}
"""

# Elements that a program adds up at once, and its warps.
_SUM_SETTINGS = ((2048, 4), (1024, 4), (4096, 8), (8192, 8))
_PLUS = snippet("x -> x")

# The same; each program adds up a span of one array.
_SUMS = """
def {name}(parts, span, {pointers}BLOCK: tl.constexpr):
    program, at = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    {each}
    tl.store(parts + program, tl.sum(total))
"""

Row = tuple[tuple[Any, ...], tuple[Any, ...]]


def guarded_by(code: Snippet, before: tuple[str, ...], guarded: bool) -> Snippet:
    """The code with one more array if `guarded`, a scalar: unless it is above 0, the first results are what `before`
    names.
    """
    if not guarded:
        return code
    held = tuple(f"{x}_before = {x}" for x in before)
    chosen = tuple(f"tl.where(guard > 0, {new}, {x}_before)" for new, x in zip(code.values, before, strict=False))
    values = (*chosen, *code.values[len(before) :])
    return code._replace(names=(*code.names, "guard"), statements=(*held, *code.statements), values=values)


def multi_tensor(
    code: Snippet, outs: tuple[Any, ...], arrays: tuple[Any, ...], numbers: int, constants: dict[str, float]
) -> LaunchPlan:
    """The plan of the same code for several rows of arrays.

    outs     the results of each row, as many as the code has values
    arrays   the arrays of each row, as many as the code has names
    numbers  how many arrays of each row, the last ones, are scalars []; the others have the shape of its results
    """
    results, length = len(code.values), len(code.names)
    rows = [(outs[n * results :][:results], arrays[n * length :][:length]) for n in range(len(outs) // results)]
    rows = [row for row in rows if row[0][0].size]
    if not rows:
        return fixed_plan()
    if len(rows) == 1 or not all(_are_contiguous(*made, *given) for made, given in rows):
        return in_sequence_alike([_one_tensor(code, *row, numbers, constants) for row in rows])
    few = [rows[n : n + _MOST_TENSORS] for n in range(0, len(rows), _MOST_TENSORS)]
    return LaunchPlan(_SETTINGS, lambda setting: [_launch(code, some, numbers, constants, *setting) for some in few])


def _one_tensor(
    code: Snippet, outs: tuple[Any, ...], arrays: tuple[Any, ...], numbers: int, constants: dict[str, float]
) -> LaunchPlan:
    shape, moving = tuple(outs[0].shape), len(arrays) - numbers
    views = [view(one) if n < moving else View(one, shape, (0,) * len(shape)) for n, one in enumerate(arrays)]
    return elementwise_plan(code, [*map(view, outs)], views, constants)


def _are_contiguous(*arrays: Any) -> bool:
    return all(one.flags.c_contiguous for one in arrays)


def _launch(
    code: Snippet, rows: list[Row], numbers: int, constants: dict[str, float], block: int, warps: int
) -> Launch:
    """One launch for some rows of results and arrays."""
    sizes = [made[0].size for made, _ in rows]
    ends = accumulate(-(-size // block) for size in sizes)
    args: list[Any] = []
    for (made, given), size, end in zip(rows, sizes, ends, strict=True):
        args += [*made, *given, size, end]
    known = [float(constants[name]) for name in code.constants]
    flops = sum(sizes) * num_operations(code)
    kernel = _multi_tensor_kernel(code, len(rows), numbers)
    return Launch(kernel, (args[-1],), (*args, *known), {"BLOCK": block}, warps, flops=flops)


@cache
def _multi_tensor_kernel(code: Snippet, num: int, numbers: int) -> Any:
    """The kernel for `num` rows, each with programs of its own."""
    lines, pointers, moving = [], [], len(code.names) - numbers
    real = "" if code.is_copy else ".to(tl.float32)"
    for n in range(num):
        begin = f"end{n - 1}" if n else "0"
        inside = [f"base = (program - {begin}).to(tl.int64) * BLOCK", f"here = at < num{n} - base"]
        for k, x in enumerate(code.names):
            place = f"p_{x}{n} + base + at, mask=here" if k < moving else f"p_{x}{n}"
            inside.append(f"{x} = tl.load({place}){real}")
        inside += code.statements
        for k, value in enumerate(code.values):
            inside.append(f"tl.store(p_o{k}_{n} + base + at, ({value}).to(p_o{k}_{n}.dtype.element_ty), mask=here)")
        lines += [f"if (program >= {begin}) & (program < end{n}):", *("    " + line for line in inside)]
        pointers += [f"p_o{k}_{n}" for k in range(len(code.values))]
        pointers += [*(f"p_{x}{n}" for x in code.names), f"num{n}", f"end{n}"]
    words = {
        "pointers": "".join(f"{name}, " for name in pointers),
        "constants": "".join(f"{name}, " for name in code.constants),
    }
    return generated_kernel(_MULTI_TENSOR, {"each": lines}, words)


def multi_tensor_sum(code: Snippet, out: Any, arrays: tuple[Any, ...], adds: bool) -> LaunchPlan:
    """The sum of the code's value over all elements of all arrays, into `out` [] or added to it.

    code  of one array, without constants
    The order of the sum depends on the arrays' sizes alone.
    """
    assert len(code.names) == len(code.values) == 1 and not (code.constants or code.is_copy), code
    found = [one for one in arrays if one.size] or [arrays[0]]
    if len(found) == 1 or not _are_contiguous(*found):
        dims = [tuple(range(one.ndim)) for one in found]
        return in_sequence(*(
            reduction_plan(code, [view(out)], [view(one)], over, {}, adds=adds or n > 0)
            for n, (one, over) in enumerate(zip(found, dims, strict=True))
        ))  # fmt: skip
    if len(found) > _MOST_TENSORS:
        few = [tuple(found[n : n + _MOST_TENSORS]) for n in range(0, len(found), _MOST_TENSORS)]
        return in_sequence(*(multi_tensor_sum(code, out, some, adds or n > 0) for n, some in enumerate(few)))

    def launches(setting: tuple[int, int]) -> list[Launch]:
        block, warps = setting
        sizes = [one.size for one in found]
        span = -(-sum(sizes) // (FULL_GRID * block)) * block
        ends = list(accumulate(-(-size // span) for size in sizes))
        parts, num = Workspace(ends[-1]), ends[-1]
        args = [part for row in zip(found, sizes, ends, strict=True) for part in row]
        kernel, flops = _sum_kernel(code, len(found)), sum(sizes) * (num_operations(code) + 1)
        first = Launch(kernel, (num,), (parts, span, *args), {"BLOCK": block}, warps, flops=flops)
        last = reduction_plan(_PLUS, [view(out)], [View(parts, (num,), (1,))], (0,), {}, adds=adds)
        return [first, *last.launches(last.settings[0])]

    return LaunchPlan(_SUM_SETTINGS, launches)


@cache
def _sum_kernel(code: Snippet, num: int) -> Any:
    """The kernel that adds up the text's value over the arrays of `num`, each by programs of its own."""
    lines, pointers = [], []
    for n in range(num):
        begin = f"end{n - 1}" if n else "0"
        lines += [
            f"if (program >= {begin}) & (program < end{n}):",
            f"    first = (program - {begin}).to(tl.int64) * span",
            f"    for start in range(first, tl.minimum(first + span, num{n}), BLOCK):",
            f"        here = at < num{n} - start",
            f"        {code.names[0]} = tl.load(p{n} + start + at, mask=here).to(tl.float32)",
            *(f"        {statement}" for statement in code.statements),
            f"        total += tl.where(here, {code.values[0]}, 0.0)",
        ]
        pointers += [f"p{n}", f"num{n}", f"end{n}"]
    return generated_kernel(_SUMS, {"each": lines}, {"pointers": "".join(f"{name}, " for name in pointers)})
