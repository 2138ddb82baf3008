"""Images of few channels, as pictures are, so that windows over them meet vectors: of a copy with channels innermost, a
power of two of them, in which a window's row lies together.

Such a row is then what channels are elsewhere, and windows are one column wide. What lies beside an image are zeros of
the copy. It knows no convolution but gradients of weights.
"""

# mypy: disable-error-code="no-untyped-def"

from math import prod

import triton
from triton import language as tl

from castile.kernels.triton.channels import held
from castile.kernels.triton.contract import Tile
from castile.kernels.triton.correlation import Windows, fitting
from castile.kernels.triton.launch import Launch, Plan
from castile.kernels.triton.slopes import divided, slopes, summed, waiting
from castile.kernels.triton.views import View, power_of_two, wide

# Channels up to which a row of a window is taken together, the fewest numbers of it, as a product has no fewer, and
# such rows that a program weighs at once.
_FEW, _LEAST, _MOST_ROWS = 15, 16, 7
# Numbers of a copy that a program writes.
_ELEMENTS = 2048
# An A100 leaves out registers where 64 places are a step.
_HALF = (Tile(64, 32, 32, 8, 3), Tile(64, 32, 64, 8, 3), Tile(64, 32, 64, 16, 3), Tile(64, 32, 32, 4, 3))
_FULL = (Tile(64, 32, 32, 8, 2), Tile(64, 32, 16, 8, 2), Tile(64, 32, 32, 8, 2, "tf32x3"))


def is_picture(x: View, windows: Windows) -> bool:
    """Whether images [b,g,c,h,w] have so few channels that several columns of a window make a vector.

    Of one channel a window's row begins anywhere, so that its numbers are looked up one by one.
    """
    _, groups, num, *_ = x.shape
    return groups == 1 < num <= _FEW and windows.dilation[1] == 1 and _row(num, windows.kernel[1]) >= _LEAST


def _row(num: int, across: int) -> int:
    """Numbers of a row of so many columns of so many channels, as it is copied."""
    return across * power_of_two(num)


def in_rows(windows: Windows) -> Windows:
    """The same windows where a row of one is what channels are elsewhere."""
    rows, stride, pads, dilation = windows
    return Windows((rows[0], 1), stride, (pads[0], 0), (dilation[0], 1))


def copy_size(x: View, windows: Windows, places: int) -> int:
    """Elements of a copy of a sample of x [b,1,c,h,w] in which so many places of a row meet windows."""
    return power_of_two(x.shape[2]) * x.shape[3] * _columns(windows, places)


def _columns(windows: Windows, places: int) -> int:
    return (places - 1) * windows.stride[1] + windows.kernel[1]


def rows_met(x: View, windows: Windows, places: int) -> tuple[View, Launch]:
    """What rows of windows at so many places of a row meet of x [b,1,c,h,w]: [b,1,row,h,w], of a copy."""
    batch, _, num, high, _ = x.shape
    row = _row(num, windows.kernel[1])
    cols = _columns(windows, places)
    copy, launch = _side_by_side(
        View(x.array, (batch, *x.shape[2:]), (x.steps[0], *x.steps[2:])), windows.pads[1], cols
    )
    steps = (copy.steps[0], 0, 1, *copy.steps[2:])
    return View(copy.array, (batch, 1, row, high, cols - windows.kernel[1] + 1), steps), launch


def rows_weighed(w: View) -> tuple[View, Launch]:
    """Weights [1,o,c,r,s] for these: [1,o,row,r,1], of a copy."""
    _, outputs, num, high, across = w.shape
    copy, launch = _side_by_side(View(w.array, w.shape[1:], w.steps[1:]), 0, across)
    return View(copy.array, (1, outputs, _row(num, across), high, 1), (0, copy.steps[0], 1, copy.steps[2], 0)), launch


def slopes_by_rows(dw: View, pieces: list[tuple[View, View]], windows: Windows, adds: bool) -> Plan:
    """The gradients dw [1,m,c,r,s] of what windows over x [b,1,c,h,w] are weighed with, or what is added to them.

    pieces: x and dy [b,1,m,h,w] of some samples each, of no more than the first.
    """
    _, num_m, num_c, *size = dw.shape
    x, dy = pieces[0]
    row = _row(num_c, size[1])
    like = View(dw.array, (1, num_m, row, size[0], 1), (0,) * 5)
    beside = max(rows for rows in range(1, _MOST_ROWS + 1) if size[0] % rows == 0)
    places = dy.shape[0] * prod(dy.shape[3:])

    def launches(tile: Tile) -> list[Launch]:
        parts = divided(like, places, x.array.dtype.itemsize, tile, beside)
        to = waiting(like, parts.num, True)
        found = []
        for number, (one, slope) in enumerate(pieces):
            met, first = rows_met(one, windows, dy.shape[4])
            adding = number > 0
            found += [first, slopes(to, slope, met, in_rows(windows), tile, beside, parts, True, adding)]
        return [*found, *summed(dw, _taken_apart(to, num_c, size[1]), adds)]

    tiles = _FULL if x.array.dtype.itemsize == 4 else _HALF
    return Plan(tuple(dict.fromkeys(fitting(tile, num_m, row, places) for tile in tiles)), launches)


def _taken_apart(rows: View, num: int, across: int) -> View:
    """Of numbers [...,row,r,1] of rows of windows, whose step is 1, those [...,c,r,s] that are of channels."""
    *lead, _, high, _ = rows.shape
    *steps, own, down, _ = rows.steps
    return View(rows.array, (*lead, num, high, across), (*steps, own, down, own * power_of_two(num)))


def _side_by_side(one: View, left: int, cols: int) -> tuple[View, Launch]:
    """A copy of [b,c,h,w] with channels innermost and `left` columns before the first, and the launch that makes it.

    It has so many columns, and of channels a power of two, zeros where there is nothing.
    """
    batch, num, high, _ = one.shape
    each = power_of_two(num)
    copy = held((batch, each, high, cols), (0, 2, 3, 1), one.array.dtype.name)
    size = _ELEMENTS // each
    # Constants all: little is left to compute for an element.
    constants = {
        "STEPS": one.steps,
        "SIZE": one.shape,
        "LEFT": left,
        "COLS": cols,
        "WIDE": wide([one, copy]),
        "EACH": each,
        "N": size,
    }
    return copy, Launch(_copy_beside, (-(-batch * high * cols // size),), (copy, one), constants)


@triton.jit
def _copy_beside(out, x, STEPS: tl.constexpr, SIZE: tl.constexpr, LEFT: tl.constexpr, COLS: tl.constexpr,
                 WIDE: tl.constexpr, EACH: tl.constexpr, N: tl.constexpr):  # fmt: skip
    number = tl.program_id(0)
    if WIDE:
        number = number.to(tl.int64)
    n = number * N + tl.arange(0, N)
    c = tl.arange(0, EACH)[None, :]
    col, row, image = n % COLS - LEFT, n // COLS % SIZE[2], n // (COLS * SIZE[2])
    inside = ((image < SIZE[0]) & (col >= 0) & (col < SIZE[3]))[:, None] & (c < SIZE[1])
    at = x + (image * STEPS[0] + row * STEPS[2] + col * STEPS[3])[:, None] + c * STEPS[1]
    value = tl.load(at, mask=inside, other=0.0)
    tl.store(out + n[:, None] * EACH + c, value, mask=(image < SIZE[0])[:, None])
