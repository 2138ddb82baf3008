"""Tiles of image places, for kernels that look at the neighbourhood of each place.

A thread has some rows of one column, so its neighbours have the neighbouring columns: loads of any place nearby are
coalesced, and a row that several of its places need is read once. Where channels are contiguous a program takes some
of them and a thread a vector. Shapes, steps and windows are compile-time constants, which leaves little to compute for
a place. It knows no kernel.
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


class Tiling(NamedTuple):
    """How images of `rows` x `cols` places are tiled: each thread has `tall` rows of one column.

    images    to be walked, `outer` for each image of the array
    outer     how many channels of an image are images of their own here
    channels  the channels that are left, of which a program takes `beside`, and a thread `each`
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
        """The number of tiles."""
        rows = self.images * -(-self.rows // self.tall)
        return -(-rows // (self.block // self.across)) * -(-self.cols // self.across)

    @property
    def blocks(self) -> int:
        """The number of programs that share the channels of a tile."""
        return -(-self.channels // self.beside)

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time constants of `tile_columns`."""
        groups = -(-self.rows // self.tall)
        words = {"IMAGES": self.images, "GROUPS": groups, "HEIGHT": self.rows, "WIDTH": self.cols, "TALL": self.tall}
        words |= {"CHANNELS": self.channels, "BESIDE": self.beside}
        return words | {"BLOCK": self.block, "COLS": self.across}


def tiling(
    over: View, size: tuple[int, ...], taps: int, setting: tuple[int, int], apart: bool = False, near: int = 1
) -> Tiling:
    """The tiling of `size` places of images that lie as `over` [b,c,...], each of which looks at `taps` neighbours.

    apart  whether channels that are not contiguous have a program each; otherwise they are images of their own
    near   columns of a thread, which are one to the tiling
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
    return Tiling(batch * outer, outer, channels // outer, beside, each, rows, -(-cols // near), tall, setting[0])


def columns_per_thread(wide: View, narrow: View, stride: int) -> int:
    """How many columns of images [b,c,h,w] a thread takes to load or store vectors.

    stride  the columns of `wide` that one column of `narrow` stands for
    """
    if any(one.steps[3] != 1 or one.steps[1] == 1 for one in (wide, narrow)) or stride & (stride - 1):
        return 1
    # All rows are to begin where vectors do.
    run = gcd(wide.shape[3], *wide.steps[:3]) // stride
    most = max(1, _VECTOR // (wide.array.dtype.itemsize * stride))
    return gcd(run, narrow.shape[3], *narrow.steps[:3], most)


@triton.constexpr_function
def meets(phase, tap, stride, pad, dilation=1):
    """Whether a window's row or column `tap` sees places whose position is `phase` modulo the stride."""
    return (phase + pad - tap * dilation) % stride == 0


@triton.constexpr_function
def reach(taps, stride, pad, last):
    """The first, or the last, column of the windows that see the places of one stride, relative to their own."""
    found = [(n + pad - tap) // stride for n in range(stride) for tap in range(taps) if meets(n, tap, stride, pad)]
    return (max if last else min)(found, default=0)


@triton.jit
def program_channels(CHANNELS: tl.constexpr, BESIDE: tl.constexpr, WIDE: tl.constexpr):
    """The channels of a program, as [1,BESIDE], and the number of its tile; neighbouring programs share memory lines.
    """
    blocks: tl.constexpr = (CHANNELS + BESIDE - 1) // BESIDE
    number = tl.program_id(0)
    if WIDE:
        number = number.to(tl.int64)
    return (number % blocks * BESIDE + tl.arange(0, BESIDE))[None, :], number // blocks


@triton.jit
def tile_columns(number, IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
                 COLS: tl.constexpr, EACH: tl.constexpr):  # fmt: skip
    """The image, the group of rows and the column of each thread of a tile, as [BLOCK,1], and whether the image exists.

    EACH  the columns of a thread
    """
    across: tl.constexpr = (WIDTH + COLS - 1) // COLS
    place = tl.arange(0, BLOCK * EACH)[:, None]
    row = number // across * (BLOCK // COLS) + place // (COLS * EACH)
    return row // GROUPS, row % GROUPS, number % across * (COLS * EACH) + place % (COLS * EACH), row < IMAGES * GROUPS


@triton.jit
def corners(number, STRIDE: tl.constexpr, PADS: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr,
            WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr):  # fmt: skip
    """The image, first row and column of each thread of a tile, the row and column where that place's window begins,
    and whether the image exists.
    """
    image, group, col, there = tile_columns(number, IMAGES, GROUPS, WIDTH, BLOCK, COLS, 1)
    row = group * TALL
    return image, row, col, row * STRIDE[0] - PADS[0], col * STRIDE[1] - PADS[1], there


@triton.jit
def split_rows(value, NUM: tl.constexpr):
    """[rows,1] as a tuple: the first of every NUM rows, the second ones, and so on."""
    found = (value,)
    for _ in tl.static_range(tl.constexpr(NUM.bit_length() - 1)):
        firsts, seconds = (), ()
        for n in tl.static_range(tl.constexpr(len(found))):
            first, second = tl.split(tl.reshape(found[n], (found[n].shape[0] // 2, 2)))
            firsts, seconds = firsts + (first[:, None],), seconds + (second[:, None],)  # noqa: RUF005
        found = firsts + seconds
    return found


@triton.jit
def join_rows(values):
    """The inverse of `split_rows`."""
    found = values
    for _ in tl.static_range(tl.constexpr(len(values).bit_length() - 1)):
        pairs = ()
        for n in tl.static_range(tl.constexpr(len(found) // 2)):
            pair = tl.join(found[n], found[len(found) // 2 + n])
            pairs = pairs + (tl.reshape(pair, (2 * found[n].shape[0], 1)),)  # noqa: RUF005 (Triton knows no star)
        found = pairs
    return found[0]


@triton.jit
def exists(there, c, CHANNELS: tl.constexpr, BESIDE: tl.constexpr):
    """Whether images and channels exist."""
    return there & (c < CHANNELS) if CHANNELS % BESIDE else there


@triton.jit
def in_bounds(there, row, col, SIZE: tl.constexpr):
    """Whether places lie inside images that exist."""
    return there & (row >= 0) & (row < SIZE[0]) & (col >= 0) & (col < SIZE[1])


@triton.jit
def store(at, value, here, ADDS: tl.constexpr):
    """Write values, or add them to what is there."""
    if ADDS:
        value += tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(at, value.to(at.dtype.element_ty), mask=here)


@triton.jit
def load_line(x, places, r, SIZE: tl.constexpr, STEPS: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr,
              NUM: tl.constexpr, other: tl.constexpr):  # fmt: skip
    """Row r of each thread's neighbourhood, as a tuple of columns FROM to TO, counted from the thread's first.

    places  address, row and column in x and whether the image exists: of the first column of each thread, and of all
            NUM of them, which are loaded as vectors if they are several
    """
    one, every = places
    if NUM > 1:
        at, row, col, there = every
        many = split_rows(tl.load(x + (at + r * STEPS[2]), mask=in_bounds(there, row + r, col, SIZE), other=other), NUM)
    at, row, col, there = one
    found = ()
    for n in tl.static_range(FROM, TO):
        if NUM > 1 and n >= 0 and n < NUM:
            value = many[n]
        else:
            mask = in_bounds(there, row + r, col + n, SIZE)
            value = tl.load(x + (at + (r * STEPS[2] + n * STEPS[3])), mask=mask, other=other)
        found = found + (value,)  # noqa: RUF005 (Triton knows no star)
    return found


@triton.jit
def store_phases(out, values, at, there, row, col, SIZE: tl.constexpr, STEPS: tl.constexpr, STRIDE: tl.constexpr,
                 EACH: tl.constexpr, ADDS: tl.constexpr):  # fmt: skip
    """Write or add the values of each phase, rows first; places begin `at` in out, at `row` and `col`.

    EACH  values of a row that are one vector, for which `at` and `col` are those of single columns
    """
    own: tl.constexpr = EACH if EACH > 1 else STRIDE[1]
    for n in tl.static_range(tl.constexpr(len(values) // own)):
        to, inside = out + (at + n * STEPS[2]), there & (row + n < SIZE[0])
        if EACH > 1:
            row_of = ()
            for beside in tl.static_range(EACH):
                row_of = row_of + (values[n * EACH + beside],)  # noqa: RUF005 (Triton knows no star)
            store(to, join_rows(row_of), inside & (col < SIZE[1]), ADDS)
        else:
            for beside in tl.static_range(tl.constexpr(STRIDE[1])):
                here = inside & (col + beside < SIZE[1])
                store(to + beside * STEPS[3], values[n * STRIDE[1] + beside], here, ADDS)
