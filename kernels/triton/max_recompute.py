"""The gradient of max pooling with windows that overlap little, in one launch.

Each place finds the maxima of its windows again, so that memory traffic is the input and the output only. It knows no
other pooling.
"""

# mypy: disable-error-code="no-untyped-def, assignment, var-annotated"

from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import maximum
from castile.kernels.triton.image_tiles import columns_per_thread, meets, reach, split_rows, store_phases
from castile.kernels.triton.launch import Launch
from castile.kernels.triton.views import View, needs_64_bits, view
from castile.kernels.windows import Pads, Pair

# Threads of a program, and rows of windows of a thread at most: more take Triton longer than they save.
SETTINGS = ((128, 2), (128, 4), (64, 4), (64, 2), (256, 2))


def overlaps_little(kernel: Pair, stride: Pair, x: Any) -> bool:
    """Whether maxima are worth finding again: each place is in at most four windows, all of few elements, and columns
    are contiguous, so that a thread has all that its windows see.
    """
    met_by = prod(-(-n // step) for n, step in zip(kernel, stride, strict=True))
    return met_by <= 4 and prod(kernel) <= 16 and prod(stride) > 1 and view(x).steps[1] != 1


def max_recompute(
    out: Any, dy: Any, x: Any, kernel: Pair, stride: Pair, pads: Pads, accumulate: bool, setting: tuple[int, int]
) -> Launch:
    """The launch of the gradient whose places find the maxima of their windows again."""
    to, of, seen = view(out), view(dy), view(x)
    near = min(columns_per_thread(one, of, stride[1]) for one in (to, seen))
    threads, most = setting
    lattice = tuple(-(-n // step) for n, step in zip(to.shape[2:], stride, strict=True))
    groups, width = -(-lattice[0] // most), -(-lattice[1] // near)
    tall = -(-lattice[0] // groups)

    def sure(one: View, steps: Pair) -> tuple[int, int]:
        """Rows and columns from the first of a thread on that lie inside, whichever thread it is."""
        return one.shape[2] - (groups - 1) * tall * steps[0], one.shape[3] - (width - 1) * near * steps[1]

    constants = {
        "SIZE": to.shape[2:],
        "O_STEPS": to.steps,
        "X_STEPS": seen.steps,
        "X_SURE": sure(seen, stride),
        "Y_STEPS": of.steps,
        "Y_SIZE": of.shape[2:],
        "Y_SURE": sure(of, (1, 1)),
        "KERNEL": tuple(kernel),
        "STRIDE": tuple(stride),
        "PADS": (pads[0], pads[2]),
        "ADDS": accumulate,
        "NEAR": near,
        "IMAGES": prod(to.shape[:2]),
        "GROUPS": groups,
        "WIDTH": width,
        "TALL": tall,
        "BLOCK": threads,
        "OUTER": to.shape[1],
        "WIDE": needs_64_bits([to, of, seen]),
    }
    programs = -(-prod(to.shape[:2]) * groups * width // threads)
    flops = prod(of.shape) * prod(kernel)
    return Launch(_max_recompute, (programs,), (to, of, seen), constants, threads // 32, flops=flops)


@triton.constexpr_function
def _taps(phase, taps, stride, pad):
    """The rows or columns of windows that see places of that phase."""
    return tuple(tap for tap in range(taps) if meets(phase, tap, stride, pad))


@triton.constexpr_function
def _last(n, taps, stride, pad, top):
    """The last row of windows that sees row n; `top` if none does."""
    return max(((n + pad - tap) // stride for tap in _taps(n, taps, stride, pad)), default=top)


@triton.constexpr_function
def _rows_above(down, most):
    """How many rows of windows are loaded above one that is `down` rows from the first."""
    return min(down, most)


@triton.jit
def _max_recompute(out, dy, x, SIZE: tl.constexpr, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr, Y_STEPS: tl.constexpr,
                   Y_SIZE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr,
                   ADDS: tl.constexpr, NEAR: tl.constexpr, X_SURE: tl.constexpr, Y_SURE: tl.constexpr,
                   IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr,
                   BLOCK: tl.constexpr, OUTER: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    number = tl.program_id(0)
    if WIDE:
        number = number.to(tl.int64)
    EACH: tl.constexpr = NEAR * STRIDE[1] if NEAR > 1 else 1
    of_x = _columns(x, number, X_STEPS, STRIDE, EACH, NEAR * STRIDE[1], IMAGES, GROUPS, WIDTH, TALL, BLOCK, OUTER)
    of_y = _columns(dy, number, Y_STEPS, (1, 1), NEAR, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, OUTER)
    top: tl.constexpr = reach(KERNEL[0], STRIDE[0], PADS[0], False)
    below: tl.constexpr = reach(KERNEL[0], STRIDE[0], PADS[0], True)
    left: tl.constexpr = reach(KERNEL[1], STRIDE[1], PADS[1], False)
    num: tl.constexpr = reach(KERNEL[1], STRIDE[1], PADS[1], True) + NEAR - left
    # Rows of a window that the one above does not have.
    new: tl.constexpr = min(STRIDE[0], KERNEL[0])
    over: tl.constexpr = (KERNEL[0] - 1) // STRIDE[0]
    lines, grads = (), ()
    for down in tl.static_range(top, below + TALL):
        for i in tl.static_range(tl.constexpr(KERNEL[0])):
            if len(lines) <= _rows_above(down - top, over) * new + i:
                values = _load_line(of_x, down * STRIDE[0] - PADS[0] + i, SIZE, X_STEPS, X_SURE,
                                    left * STRIDE[1] - PADS[1], (left + num - 1) * STRIDE[1] - PADS[1] + KERNEL[1],
                                    EACH, float("-inf"))  # fmt: skip
                lines = lines + (values,)  # noqa: RUF005 (Triton knows no star)
        given = _load_line(of_y, down, Y_SIZE, Y_STEPS, Y_SURE, left, left + num, NEAR, 0.0)
        for along in tl.static_range(num):
            rows = ()
            for i in tl.static_range(tl.constexpr(KERNEL[0])):
                own = lines[_rows_above(down - top, over) * new + i][along * STRIDE[1]:along * STRIDE[1] + KERNEL[1]]
                rows = rows + (_largest(own),)  # noqa: RUF005
            grads = grads + (_grad_of_first(given[along], rows),)  # noqa: RUF005
        for n in tl.static_range(tl.constexpr(TALL * STRIDE[0])):
            if _last(n, KERNEL[0], STRIDE[0], PADS[0], top) == down:
                found = _row_gradient(grads, lines, n, down - _rows_above(down - top, over), left, num, KERNEL, STRIDE,
                                      PADS, NEAR, BLOCK)  # fmt: skip
                _store(out, found, number, n, SIZE, O_STEPS, STRIDE, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, OUTER,
                       ADDS)  # fmt: skip
        # Triton takes long over tuples of all rows.
        if _rows_above(down - top, over) == over:
            lines, grads = lines[new:], grads[num:]


@triton.jit
def _places(number, STEPS: tl.constexpr, STRIDE: tl.constexpr, EACH: tl.constexpr, STEP: tl.constexpr,
            IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
            OUTER: tl.constexpr):  # fmt: skip
    """Offset, row and column of the EACH columns, STEP apart, of each thread's first row, and whether the image exists.

    Threads walk all columns of all rows without a gap.
    """
    place = number * (BLOCK * EACH) + tl.arange(0, BLOCK * EACH)[:, None]
    above, col = place // (WIDTH * EACH), place % (WIDTH * EACH) * STEP
    image, row = above // GROUPS, above % GROUPS * (TALL * STRIDE[0])
    at = image // OUTER * STEPS[0] + image % OUTER * STEPS[1] + row * STEPS[2] + col * STEPS[3]
    whole: tl.constexpr = IMAGES * GROUPS * WIDTH % BLOCK == 0
    return at, row, col, tl.full((BLOCK * EACH, 1), True, tl.int1) if whole else above < IMAGES * GROUPS


@triton.jit
def _columns(x, number, STEPS: tl.constexpr, STRIDE: tl.constexpr, EACH: tl.constexpr, STEP: tl.constexpr,
             IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
             OUTER: tl.constexpr):  # fmt: skip
    """The first of each thread's STEP columns of x, as `_places` has it, and all EACH that make a vector."""
    at, row, col, there = _places(number, STEPS, STRIDE, 1, STEP, IMAGES, GROUPS, WIDTH, TALL, BLOCK, OUTER)
    first = (x + at, row, col, there)
    at, row, col, there = _places(number, STEPS, STRIDE, EACH, STEP // EACH, IMAGES, GROUPS, WIDTH, TALL, BLOCK, OUTER)
    return first, (x + at, row, col, there)


@triton.jit
def _load_line(beside, r: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr, SURE: tl.constexpr, FROM: tl.constexpr,
               TO: tl.constexpr, EACH: tl.constexpr, other: tl.constexpr):  # fmt: skip
    """Row r of each thread's neighbourhood, as a tuple of columns FROM to TO: EACH of them from 0 on are loaded as a
    vector, and those behind as another where these are several.
    """
    first, every = beside
    many = ()
    if EACH > 1:
        at, row, col, there = every
        mask = _in_bounds(there, row, r, col, 0, SIZE, SURE, EACH)
        many = many + split_rows(_to_float32(tl.load(at + r * STEPS[2], mask=mask, other=other)), EACH)
        if TO > EACH + 1 and TO <= 2 * EACH:
            mask = _in_bounds(there, row, r, col, EACH, SIZE, SURE, EACH)
            found = tl.load(at + (r * STEPS[2] + EACH * STEPS[3]), mask=mask, other=other)
            many = many + split_rows(_to_float32(found), EACH)
    at, row, col, there = first
    found = ()
    for n in tl.static_range(FROM, TO):
        if n >= 0 and n < len(many):
            value = many[n]
        else:
            mask = _in_bounds(there, row, r, col, n, SIZE, SURE, 1)
            value = _to_float32(tl.load(at + (r * STEPS[2] + n * STEPS[3]), mask=mask, other=other))
        found = found + (value,)  # noqa: RUF005
    return found


@triton.jit
def _in_bounds(there, row, r: tl.constexpr, col, n: tl.constexpr, SIZE: tl.constexpr, SURE: tl.constexpr,
               EACH: tl.constexpr):  # fmt: skip
    """Whether row r and column n of threads lie inside; the first SURE rows and columns always do."""
    if r < 0:
        there = there & (row >= -r)
    if r >= SURE[0]:
        there = there & (row < SIZE[0] - r)
    if n < 0:
        there = there & (col >= -n)
    if n + EACH > SURE[1]:
        there = there & (col < SIZE[1] - n)
    return there


@triton.jit
def _store(out, values, number, n: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr, STRIDE: tl.constexpr,
           NEAR: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr,
           BLOCK: tl.constexpr, OUTER: tl.constexpr, ADDS: tl.constexpr):  # fmt: skip
    """Write or add row n of threads, as vectors where there are several columns or two phases."""
    EACH: tl.constexpr = NEAR * STRIDE[1] if NEAR > 1 or STRIDE[1] == 2 else 1
    at, row, col, there = _places(number, STEPS, STRIDE, EACH, NEAR * STRIDE[1] // EACH, IMAGES, GROUPS, WIDTH, TALL,
                                  BLOCK, OUTER)  # fmt: skip
    store_phases(out + at, values, n * STEPS[2], there, row + n, col, SIZE, STEPS, STRIDE, EACH, ADDS)


@triton.jit
def _to_float32(value):
    """Numbers in float32, with -0.0 as 0.0 and one NaN. Bfloat16 is shifted: ptxas does the upper of two in one
    instruction.
    """
    if value.dtype == tl.bfloat16:
        value = (value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return value.to(tl.float32) + 0.0


@triton.jit
def _largest(values):
    """The largest value; NaN if one is NaN."""
    best = values[0]
    for n in tl.static_range(1, tl.constexpr(len(values))):
        best = maximum(best, values[n])
    return best


@triton.jit
def _grad_of_first(grad, values):
    """The gradient for the first of the largest values (or the first NaN), and 0 for the others. Equal values have
    equal bits.
    """
    best, betters = values[0], ()
    for n in tl.static_range(1, tl.constexpr(len(values))):
        before, best = best, maximum(best, values[n])
        betters = betters + (best.to(tl.int32, bitcast=True) != before.to(tl.int32, bitcast=True),)  # noqa: RUF005
    found, left = (), grad.to(tl.int32, bitcast=True)
    for n in tl.static_range(1, tl.constexpr(len(values))):
        # In bits: LLVM would else choose among numbers of 16 bits, and these cost ptxas more instructions.
        others = tl.where(betters[len(values) - 1 - n], 0, left)
        found = ((left ^ others).to(tl.float32, bitcast=True),) + found  # noqa: RUF005
        left = others
    return (left.to(tl.float32, bitcast=True),) + found  # noqa: RUF005


@triton.jit
def _row_gradient(grads, lines, n: tl.constexpr, top: tl.constexpr, left: tl.constexpr, num: tl.constexpr,
                  KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, NEAR: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """The gradient of row n of a thread: those of windows whose maximum lies in that row, each at its column."""
    taps: tl.constexpr = _taps(n, KERNEL[0], STRIDE[0], PADS[0])
    parts = ()
    if len(taps) > 0:
        for along in tl.static_range(num):
            grad = _summed(grads[along::num], n, top, KERNEL[0], STRIDE[0], PADS[0])
            own = lines[((n + PADS[0] - taps[0]) // STRIDE[0] - top) * min(STRIDE[0], KERNEL[0]) + taps[0]]
            parts = parts + (_grad_of_first(grad, own[along * STRIDE[1]:along * STRIDE[1] + KERNEL[1]]),)  # noqa: RUF005
    found = ()
    for place in tl.static_range(tl.constexpr(NEAR * STRIDE[1])):
        if len(parts) > 0 and len(_taps(place, KERNEL[1], STRIDE[1], PADS[1])) > 0:
            found = found + (_summed(parts, place, left, KERNEL[1], STRIDE[1], PADS[1]),)  # noqa: RUF005
        else:
            found = found + (tl.zeros((BLOCK, 1), tl.float32),)  # noqa: RUF005
    return found


@triton.jit
def _summed(parts, place: tl.constexpr, first: tl.constexpr, NUM: tl.constexpr, STRIDE: tl.constexpr,
            PAD: tl.constexpr):  # fmt: skip
    """The sum of the parts at one place, of windows from `first` on, with as many parts each as windows have rows or
    columns.
    """
    taps: tl.constexpr = _taps(place, NUM, STRIDE, PAD)
    total = parts[(place + PAD - taps[0]) // STRIDE - first][taps[0]]
    for k in tl.static_range(1, tl.constexpr(len(taps))):
        total += parts[(place + PAD - taps[k]) // STRIDE - first][taps[k]]
    return total
