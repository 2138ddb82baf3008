"""Tiles of the places of images, as programs walk them that look up what lies around each place.

A thread has a column of some rows: what lies beside it in memory is then its neighbours', so that loads of any place
near by take whole lines, and rows that several of its places need are read once. Where channels lie side by side a
program takes some of them, and a thread a vector. Shapes, steps and windows are constants to the compiler, and little
is left to compute for a place. It knows no kernel.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from math import gcd
from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.views import View, power_of_two

# Settings of all that walk so: threads of a program, and rows of a thread at most.
SETTINGS = ((256, 4), (256, 8), (128, 8), (512, 4))
# Columns of a tile, looked up places and numbers of a thread, channels of a program, and bytes of a vector, at most.
_COLS, _LOOKED_UP, _NUMBERS, _CHANNELS, _VECTOR = 128, 80, 16, 64, 16


class Walk(NamedTuple):
    """How many images of so many rows and columns are walked: each thread has `tall` rows of one column.

    outer     how many channels of an image are images of their own here
    channels  what is left of them, of which a program takes `beside`, and a thread `each`
    """

    images: int
    outer: int
    channels: int
    beside: int
    each: int
    rows: int
    cols: int
    tall: int
    threads: int

    @property
    def warps(self) -> int:
        """Of a program."""
        return self.threads // 32

    @property
    def block(self) -> int:
        """Columns of all rows of a tile."""
        return self.threads * self.each // self.beside

    @property
    def across(self) -> int:
        """Columns of a tile."""
        return min(self.block, _COLS, power_of_two(self.cols))

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        rows = self.images * -(-self.rows // self.tall)
        return -(-rows // (self.block // self.across)) * -(-self.cols // self.across)

    @property
    def blocks(self) -> int:
        """How many programs share the channels of a tile."""
        return -(-self.channels // self.beside)

    @property
    def constants(self) -> dict[str, Any]:
        """What `tile` is told."""
        groups = -(-self.rows // self.tall)
        words = {"IMAGES": self.images, "GROUPS": groups, "HEIGHT": self.rows, "WIDTH": self.cols, "TALL": self.tall}
        words |= {"CHANNELS": self.channels, "BESIDE": self.beside}
        return words | {"BLOCK": self.block, "COLS": self.across}


def walk(
    over: View, size: tuple[int, ...], taps: int, setting: tuple[int, int], apart: bool = False, near: int = 1
) -> Walk:
    """The walk over so many rows and columns of images that lie as `over` [b,c,...], where each place looks up `taps`.

    Channels that do not lie side by side are images of their own, or `apart`, a program for each. A thread has `near`
    columns, which are one to the walk.
    """
    batch, channels = over.shape[:2]
    last = over.steps[1] == 1 and channels > 1
    # As many as divide the channels, but whole sectors of memory.
    beside = min(_CHANNELS, power_of_two(channels) if channels < _CHANNELS or channels % 16 else channels & -channels)
    beside = beside if last else 1
    each = min(beside, _VECTOR // over.array.dtype.itemsize)
    outer = 1 if last or apart else channels
    most = max(1, min(setting[1], _LOOKED_UP // taps, _NUMBERS // (each * near)))
    rows, cols = size
    tall = -(-rows // -(-rows // most))
    return Walk(batch * outer, outer, channels // outer, beside, each, rows, -(-cols // near), tall, setting[0])


def together(wide: View, narrow: View, stride: int) -> int:
    """How many columns of images [b,c,h,w] a thread takes, so that it reads or writes them as vectors.

    One of `narrow` meets `stride` of `wide`.
    """
    if any(one.steps[3] != 1 or one.steps[1] == 1 for one in (wide, narrow)) or stride & (stride - 1):
        return 1
    # All rows are to begin where vectors do.
    run = gcd(wide.shape[3], *wide.steps[:3]) // stride
    most = max(1, _VECTOR // (wide.array.dtype.itemsize * stride))
    return gcd(run, narrow.shape[3], *narrow.steps[:3], most)


@triton.constexpr_function
def met(phase, tap, stride, pad, dilation=1):
    """Whether places whose number is `phase` modulo the stride meet that row or column of a window."""
    return (phase + pad - tap * dilation) % stride == 0


@triton.constexpr_function
def reach(taps, stride, pad, last):
    """The first or the last column of windows that those of one stride meet, counted from their own on."""
    found = [(n + pad - tap) // stride for n in range(stride) for tap in range(taps) if met(n, tap, stride, pad)]
    return (max if last else min)(found, default=0)


@triton.jit
def program(CHANNELS: tl.constexpr, BESIDE: tl.constexpr, WIDE: tl.constexpr):
    """The channels of a program, as [1,BESIDE], and the number of its tile: neighbours share what lies side by side."""
    blocks: tl.constexpr = (CHANNELS + BESIDE - 1) // BESIDE
    number = tl.program_id(0)
    if WIDE:
        number = number.to(tl.int64)
    return (number % blocks * BESIDE + tl.arange(0, BESIDE))[None, :], number // blocks


@triton.jit
def tile(number, IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
         COLS: tl.constexpr, EACH: tl.constexpr):  # fmt: skip
    """Of each thread of the tile of that number, as [BLOCK,1]: the image, the number of its group of rows, its column,
    and whether there is such an image. With more than one of EACH, columns that are so many times as many.
    """
    across: tl.constexpr = (WIDTH + COLS - 1) // COLS
    place = tl.arange(0, BLOCK * EACH)[:, None]
    row = number // across * (BLOCK // COLS) + place // (COLS * EACH)
    return row // GROUPS, row % GROUPS, number % across * (COLS * EACH) + place % (COLS * EACH), row < IMAGES * GROUPS


@triton.jit
def corners(number, STRIDE: tl.constexpr, PADS: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr,
            WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr):  # fmt: skip
    """Of each thread of the tile of that number: the image, its first row, its column, the row and column where the
    window of that place begins, and whether there is such an image.
    """
    image, group, col, there = tile(number, IMAGES, GROUPS, WIDTH, BLOCK, COLS, 1)
    row = group * TALL
    return image, row, col, row * STRIDE[0] - PADS[0], col * STRIDE[1] - PADS[1], there


@triton.jit
def divided(value, NUM: tl.constexpr):
    """Of each NUM rows of [rows,1] the first, the second and so on, as a tuple."""
    found = (value,)
    for _ in tl.static_range(tl.constexpr(NUM.bit_length() - 1)):
        firsts, seconds = (), ()
        for n in tl.static_range(tl.constexpr(len(found))):
            first, second = tl.split(tl.reshape(found[n], (found[n].shape[0] // 2, 2)))
            firsts, seconds = firsts + (first[:, None],), seconds + (second[:, None],)  # noqa: RUF005
        found = firsts + seconds
    return found


@triton.jit
def put_together(values):
    """A tuple of [rows,1] as `divided` had it, in one."""
    found = values
    for _ in tl.static_range(tl.constexpr(len(values).bit_length() - 1)):
        pairs = ()
        for n in tl.static_range(tl.constexpr(len(found) // 2)):
            pair = tl.join(found[n], found[len(found) // 2 + n])
            pairs = pairs + (tl.reshape(pair, (2 * found[n].shape[0], 1)),)  # noqa: RUF005 (Triton knows no star)
        found = pairs
    return found[0]


@triton.jit
def known(there, c, CHANNELS: tl.constexpr, BESIDE: tl.constexpr):
    """Of which images and channels there are numbers."""
    return there & (c < CHANNELS) if CHANNELS % BESIDE else there


@triton.jit
def within(there, row, col, SIZE: tl.constexpr):
    """Whether places of images that there are lie inside."""
    return there & (row >= 0) & (row < SIZE[0]) & (col >= 0) & (col < SIZE[1])


@triton.jit
def put(at, value, here, ADDS: tl.constexpr):
    """Write values, or add them to what is there."""
    if ADDS:
        value += tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(at, value.to(at.dtype.element_ty), mask=here)


@triton.jit
def line(x, places, r, SIZE: tl.constexpr, STEPS: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr,
         NUM: tl.constexpr, other: tl.constexpr):  # fmt: skip
    """What threads meet of their row r, as a tuple: the columns from FROM on before TO of the first that each has.

    places: where row and column begin in x, their numbers, and whether there is such an image: of the first column of
    each thread, and of all NUM of them, which are read as vectors if they are several.
    """
    one, every = places
    if NUM > 1:
        at, row, col, there = every
        many = divided(tl.load(x + (at + r * STEPS[2]), mask=within(there, row + r, col, SIZE), other=other), NUM)
    at, row, col, there = one
    found = ()
    for n in tl.static_range(FROM, TO):
        if NUM > 1 and n >= 0 and n < NUM:
            value = many[n]
        else:
            mask = within(there, row + r, col + n, SIZE)
            value = tl.load(x + (at + (r * STEPS[2] + n * STEPS[3])), mask=mask, other=other)
        found = found + (value,)  # noqa: RUF005 (Triton knows no star)
    return found


@triton.jit
def put_phases(out, values, at, there, row, col, SIZE: tl.constexpr, STEPS: tl.constexpr, STRIDE: tl.constexpr,
               EACH: tl.constexpr, ADDS: tl.constexpr):  # fmt: skip
    """Write or add the values of places of each phase, rows of them first: those that begin `at` from `out` on, at
    `row` and `col`. EACH values of a row are one vector, as `at` and `col` have them of single channels.
    """
    own: tl.constexpr = EACH if EACH > 1 else STRIDE[1]
    for n in tl.static_range(tl.constexpr(len(values) // own)):
        to, inside = out + (at + n * STEPS[2]), there & (row + n < SIZE[0])
        if EACH > 1:
            row_of = ()
            for beside in tl.static_range(EACH):
                row_of = row_of + (values[n * EACH + beside],)  # noqa: RUF005 (Triton knows no star)
            put(to, put_together(row_of), inside & (col < SIZE[1]), ADDS)
        else:
            for beside in tl.static_range(tl.constexpr(STRIDE[1])):
                here = inside & (col + beside < SIZE[1])
                put(to + beside * STEPS[3], values[n * STRIDE[1] + beside], here, ADDS)
