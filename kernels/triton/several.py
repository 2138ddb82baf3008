"""Arithmetic on each element of the arrays of several, as of many parameters, in one launch where they lie dense.

What is made of them may be added up. It knows no form.
"""

from functools import cache
from itertools import accumulate
from typing import Any

from castile.kernels.triton.launch import Launch, Plan, Room, all_alike, always, in_turn
from castile.kernels.triton.lines import FILL, Text, each, folded, kernel_of, operations, text
from castile.kernels.triton.views import View, view

# The arrays of so many are walked by one launch: each has lines of its own in the kernel, and few arrays.
_AT_ONCE = 16
# Elements and warps of a program.
_SETTINGS = ((1024, 4), (2048, 4), (4096, 8), (512, 2))

# Programs are shared out: those below end0 do the first one's work, and so on.
_MANY = """
def {name}({pointers}{constants}BLOCK: tl.constexpr):
    program, at = tl.program_id(0), tl.arange(0, BLOCK)
    {each}
"""

# Elements that a program adds up at once, and its warps.
_SUM_SETTINGS = ((2048, 4), (1024, 4), (4096, 8), (8192, 8))
_PLUS = text("x -> x")

# The same; each program adds up a span of one array.
_SUMS = """
def {name}(parts, span, {pointers}BLOCK: tl.constexpr):
    program, at = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    {each}
    tl.store(parts + program, tl.sum(total))
"""

Row = tuple[tuple[Any, ...], tuple[Any, ...]]


def guarding(what: Text, before: tuple[str, ...], guarded: bool) -> Text:
    """The text, where it is `guarded` of one more array, a number: unless that is above 0, the first results are what
    the arrays `before` were.
    """
    if not guarded:
        return what
    held = tuple(f"{x}_before = {x}" for x in before)
    chosen = tuple(f"tl.where(guard > 0, {new}, {x}_before)" for new, x in zip(what.values, before, strict=False))
    values = (*chosen, *what.values[len(before) :])
    return what._replace(names=(*what.names, "guard"), statements=(*held, *what.statements), values=values)


def several(
    what: Text, outs: tuple[Any, ...], arrays: tuple[Any, ...], numbers: int, constants: dict[str, float]
) -> Plan:
    """What is done to each, whose arrays are as many as the text has names, and results as many as it has values.

    numbers: so many arrays of each, the last ones, are numbers []; the others have the shape of its results.
    """
    results, length = len(what.values), len(what.names)
    rows = [(outs[n * results :][:results], arrays[n * length :][:length]) for n in range(len(outs) // results)]
    rows = [row for row in rows if row[0][0].size]
    if not rows:
        return always()
    if len(rows) == 1 or not all(_lies_dense(*made, *given) for made, given in rows):
        return all_alike([_alone(what, *row, numbers, constants) for row in rows])
    few = [rows[n : n + _AT_ONCE] for n in range(0, len(rows), _AT_ONCE)]
    return Plan(_SETTINGS, lambda setting: [_launch(what, some, numbers, constants, *setting) for some in few])


def _alone(
    what: Text, outs: tuple[Any, ...], arrays: tuple[Any, ...], numbers: int, constants: dict[str, float]
) -> Plan:
    shape, moving = tuple(outs[0].shape), len(arrays) - numbers
    views = [view(one) if n < moving else View(one, shape, (0,) * len(shape)) for n, one in enumerate(arrays)]
    return each(what, [*map(view, outs)], views, constants)


def _lies_dense(*arrays: Any) -> bool:
    return all(one.flags.c_contiguous for one in arrays)


def _launch(what: Text, rows: list[Row], numbers: int, constants: dict[str, float], block: int, warps: int) -> Launch:
    """One launch for some of them, told by results and arrays."""
    sizes = [made[0].size for made, _ in rows]
    ends = accumulate(-(-size // block) for size in sizes)
    args: list[Any] = []
    for (made, given), size, end in zip(rows, sizes, ends, strict=True):
        args += [*made, *given, size, end]
    known = [float(constants[name]) for name in what.constants]
    flops = sum(sizes) * operations(what)
    kernel = _many(what, len(rows), numbers)
    return Launch(kernel, (args[-1],), (*args, *known), {"BLOCK": block}, warps, flops=flops)


@cache
def _many(what: Text, num: int, numbers: int) -> Any:
    """The kernel that does what the text says to the arrays of `num`, each by programs of its own."""
    lines, pointers, moving = [], [], len(what.names) - numbers
    real = "" if what.moves else ".to(tl.float32)"
    for n in range(num):
        begin = f"end{n - 1}" if n else "0"
        inside = [f"base = (program - {begin}).to(tl.int64) * BLOCK", f"here = at < num{n} - base"]
        for k, x in enumerate(what.names):
            place = f"p_{x}{n} + base + at, mask=here" if k < moving else f"p_{x}{n}"
            inside.append(f"{x} = tl.load({place}){real}")
        inside += what.statements
        for k, value in enumerate(what.values):
            inside.append(f"tl.store(p_o{k}_{n} + base + at, ({value}).to(p_o{k}_{n}.dtype.element_ty), mask=here)")
        lines += [f"if (program >= {begin}) & (program < end{n}):", *("    " + line for line in inside)]
        pointers += [f"p_o{k}_{n}" for k in range(len(what.values))]
        pointers += [*(f"p_{x}{n}" for x in what.names), f"num{n}", f"end{n}"]
    words = {
        "pointers": "".join(f"{name}, " for name in pointers),
        "constants": "".join(f"{name}, " for name in what.constants),
    }
    return kernel_of(_MANY, {"each": lines}, words)


def summed(what: Text, out: Any, arrays: tuple[Any, ...], adds: bool) -> Plan:
    """The sum over all elements of all arrays of the value that the text has for one, into `out` [] or added to it.

    what: of one array, without constants. In an order that depends on their sizes alone.
    """
    assert len(what.names) == len(what.values) == 1 and not (what.constants or what.moves), what
    found = [one for one in arrays if one.size] or [arrays[0]]
    if len(found) == 1 or not _lies_dense(*found):
        dims = [tuple(range(one.ndim)) for one in found]
        return in_turn(*(
            folded(what, [view(out)], [view(one)], over, {}, adds=adds or n > 0)
            for n, (one, over) in enumerate(zip(found, dims, strict=True))
        ))  # fmt: skip
    if len(found) > _AT_ONCE:
        few = [tuple(found[n : n + _AT_ONCE]) for n in range(0, len(found), _AT_ONCE)]
        return in_turn(*(summed(what, out, some, adds or n > 0) for n, some in enumerate(few)))

    def launches(setting: tuple[int, int]) -> list[Launch]:
        block, warps = setting
        sizes = [one.size for one in found]
        span = -(-sum(sizes) // (FILL * block)) * block
        ends = list(accumulate(-(-size // span) for size in sizes))
        parts, num = Room(ends[-1]), ends[-1]
        args = [part for row in zip(found, sizes, ends, strict=True) for part in row]
        kernel, flops = _sums(what, len(found)), sum(sizes) * (operations(what) + 1)
        first = Launch(kernel, (num,), (parts, span, *args), {"BLOCK": block}, warps, flops=flops)
        last = folded(_PLUS, [view(out)], [View(parts, (num,), (1,))], (0,), {}, adds=adds)
        return [first, *last.launches(last.settings[0])]

    return Plan(_SUM_SETTINGS, launches)


@cache
def _sums(what: Text, num: int) -> Any:
    """The kernel that adds up the text's value over the arrays of `num`, each by programs of its own."""
    lines, pointers = [], []
    for n in range(num):
        begin = f"end{n - 1}" if n else "0"
        lines += [
            f"if (program >= {begin}) & (program < end{n}):",
            f"    first = (program - {begin}).to(tl.int64) * span",
            f"    for start in range(first, tl.minimum(first + span, num{n}), BLOCK):",
            f"        here = at < num{n} - start",
            f"        {what.names[0]} = tl.load(p{n} + start + at, mask=here).to(tl.float32)",
            *(f"        {statement}" for statement in what.statements),
            f"        total += tl.where(here, {what.values[0]}, 0.0)",
        ]
        pointers += [f"p{n}", f"num{n}", f"end{n}"]
    return kernel_of(_SUMS, {"each": lines}, {"pointers": "".join(f"{name}, " for name in pointers)})
