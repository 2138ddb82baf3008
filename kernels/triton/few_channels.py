"""Convolutions of images with few channels, such as pictures: a row of a window becomes a vector.

Images are copied with channels innermost, padded to a power of two, so that a window's row is contiguous. The row then
takes the channels' place, and windows are one column wide. Padding beside an image is zeros of the copy. It knows no
convolution but weight gradients.
"""

# mypy: disable-error-code="no-untyped-def"

from math import prod

import triton
from triton import language as tl

from castile.kernels.triton.channels import workspace
from castile.kernels.triton.contract import Tile
from castile.kernels.triton.implicit_gemm import Windows, clipped
from castile.kernels.triton.launch import Launch, LaunchPlan
from castile.kernels.triton.views import View, needs_64_bits, power_of_two
from castile.kernels.triton.weight_gradient import partial_sums, split_k, sum_parts, weight_gradient

# Channels up to which a row of a window is taken together, the fewest numbers of it, as a product has no fewer, and
# such rows that a program weighs at once.
_FEW, _LEAST, _MOST_ROWS = 15, 16, 7
# Numbers of a copy that a program writes.
_ELEMENTS = 2048
# An A100 leaves out registers where 64 places are a step.
_HALF = (Tile(64, 32, 32, 8, 3), Tile(64, 32, 64, 8, 3), Tile(64, 32, 64, 16, 3), Tile(64, 32, 32, 4, 3))
_FULL = (Tile(64, 32, 32, 8, 2), Tile(64, 32, 16, 8, 2), Tile(64, 32, 32, 8, 2, "tf32x3"))


def has_few_channels(x: View, windows: Windows) -> bool:
    """Whether images [b,g,c,h,w] have so few channels that several columns of a window make a vector.

    With one channel a window's row begins anywhere, so its numbers are loaded one by one.
    """
    _, groups, num, *_ = x.shape
    return groups == 1 < num <= _FEW and windows.dilation[1] == 1 and _row(num, windows.kernel[1]) >= _LEAST


def _row(num: int, across: int) -> int:
    """Numbers of a copied row of `across` columns with `num` channels."""
    return across * power_of_two(num)


def row_windows(windows: Windows) -> Windows:
    """The windows with a row in the channels' place."""
    rows, stride, pads, dilation = windows
    return Windows((rows[0], 1), stride, (pads[0], 0), (dilation[0], 1))


def copy_size(x: View, windows: Windows, places: int) -> int:
    """Elements of a copy of one sample of x [b,1,c,h,w] whose rows have `places` windows."""
    return power_of_two(x.shape[2]) * x.shape[3] * _columns(windows, places)


def _columns(windows: Windows, places: int) -> int:
    return (places - 1) * windows.stride[1] + windows.kernel[1]


def row_inputs(x: View, windows: Windows, places: int) -> tuple[View, Launch]:
    """x [b,1,c,h,w] as [b,1,row,h,w] for rows of windows at `places` places of a row, and the launch that copies it."""
    batch, _, num, high, _ = x.shape
    row = _row(num, windows.kernel[1])
    cols = _columns(windows, places)
    copy, launch = _padded_channels_last(
        View(x.array, (batch, *x.shape[2:]), (x.steps[0], *x.steps[2:])), windows.pads[1], cols
    )
    steps = (copy.steps[0], 0, 1, *copy.steps[2:])
    return View(copy.array, (batch, 1, row, high, cols - windows.kernel[1] + 1), steps), launch


def row_weights(w: View) -> tuple[View, Launch]:
    """Weights [1,o,c,r,s] as [1,o,row,r,1], and the launch that copies them."""
    _, outputs, num, high, across = w.shape
    copy, launch = _padded_channels_last(View(w.array, w.shape[1:], w.steps[1:]), 0, across)
    return View(copy.array, (1, outputs, _row(num, across), high, 1), (0, copy.steps[0], 1, copy.steps[2], 0)), launch


def row_weight_gradient(dw: View, pieces: list[tuple[View, View]], windows: Windows, adds: bool) -> LaunchPlan:
    """The plan of the weight gradient dw [1,m,c,r,s] of windows over x [b,1,c,h,w], or of adding it.

    pieces  x and dy [b,1,m,h,w] of some samples each, no more than the first piece has
    """
    _, num_m, num_c, *size = dw.shape
    x, dy = pieces[0]
    row = _row(num_c, size[1])
    like = View(dw.array, (1, num_m, row, size[0], 1), (0,) * 5)
    beside = max(rows for rows in range(1, _MOST_ROWS + 1) if size[0] % rows == 0)
    places = dy.shape[0] * prod(dy.shape[3:])

    def launches(tile: Tile) -> list[Launch]:
        parts = split_k(like, places, x.array.dtype.itemsize, tile, beside)
        to = partial_sums(like, parts.num, True)
        found = []
        for number, (one, grad) in enumerate(pieces):
            met, first = row_inputs(one, windows, dy.shape[4])
            adding = number > 0
            found += [first, weight_gradient(to, grad, met, row_windows(windows), tile, beside, parts, True, adding)]
        return [*found, *sum_parts(dw, _by_channel(to, num_c, size[1]), adds)]

    tiles = _FULL if x.array.dtype.itemsize == 4 else _HALF
    return LaunchPlan(tuple(dict.fromkeys(clipped(tile, num_m, row, places) for tile in tiles)), launches)


def _by_channel(rows: View, num: int, across: int) -> View:
    """A view [...,c,r,s] of numbers [...,row,r,1] of rows of windows."""
    *lead, _, high, _ = rows.shape
    *steps, own, down, _ = rows.steps
    return View(rows.array, (*lead, num, high, across), (*steps, own, down, own * power_of_two(num)))


def _padded_channels_last(one: View, left: int, cols: int) -> tuple[View, Launch]:
    """A channels-last copy of [b,c,h,w], with `left` columns before the first, and the launch that makes it.

    It has `cols` columns and a power of two of channels, zeros where there is nothing.
    """
    batch, num, high, _ = one.shape
    each = power_of_two(num)
    copy = workspace((batch, each, high, cols), (0, 2, 3, 1), one.array.dtype.name)
    size = _ELEMENTS // each
    # Constants all: little is left to compute for an element.
    constants = {
        "STEPS": one.steps,
        "SIZE": one.shape,
        "LEFT": left,
        "COLS": cols,
        "WIDE": needs_64_bits([one, copy]),
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
