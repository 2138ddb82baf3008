"""Tiles of the places of images, as programs walk them that look up what lies around each place.

A thread has a column of some rows: what lies beside it in memory is then its neighbours', so that loads of any place
near by take whole lines, and rows that several of its places need are read once. Shapes, steps and windows are
constants to the compiler, and little is left to compute for a place. It knows no kernel.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.views import power_of_two

# Settings of all that walk so: threads of a program, and rows of a thread at most.
SETTINGS = ((256, 4), (256, 8), (128, 8), (512, 4))
# Columns of a tile, and looked up places of a thread, at most.
_COLS, _LOOKED_UP = 128, 80


class Walk(NamedTuple):
    """How many images of so many rows and columns are walked: each thread has `tall` rows of one column."""

    images: int
    rows: int
    cols: int
    tall: int
    threads: int

    @property
    def warps(self) -> int:
        """Of a program."""
        return self.threads // 32

    @property
    def across(self) -> int:
        """Columns of a tile."""
        return min(self.threads, _COLS, power_of_two(self.cols))

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        rows = self.images * -(-self.rows // self.tall)
        return -(-rows // (self.threads // self.across)) * -(-self.cols // self.across)

    @property
    def constants(self) -> dict[str, Any]:
        """What `tile` is told."""
        groups = -(-self.rows // self.tall)
        words = {"IMAGES": self.images, "GROUPS": groups, "HEIGHT": self.rows, "WIDTH": self.cols, "TALL": self.tall}
        return words | {"BLOCK": self.threads, "COLS": self.across}


def walk(images: int, size: tuple[int, ...], taps: int, setting: tuple[int, int]) -> Walk:
    """The walk over images of so many rows and columns of which each place looks up `taps` places."""
    most = max(1, min(setting[1], _LOOKED_UP // taps))
    rows, cols = size
    return Walk(images, rows, cols, -(-rows // -(-rows // most)), setting[0])


@triton.constexpr_function
def met(phase, tap, stride, pad, dilation=1):
    """Whether places whose number is `phase` modulo the stride meet that row or column of a window."""
    return (phase + pad - tap * dilation) % stride == 0


@triton.jit
def tile(number, IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
         COLS: tl.constexpr, EACH: tl.constexpr):  # fmt: skip
    """Of each thread of the tile of that number: the image, the number of its group of rows, its column, and whether
    there is such an image. With more than one of EACH, columns that are so many times as many.
    """
    across: tl.constexpr = (WIDTH + COLS - 1) // COLS
    place = tl.arange(0, BLOCK * EACH)
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
def put_phases(out, values, at, there, row, col, SIZE: tl.constexpr, STEPS: tl.constexpr, STRIDE: tl.constexpr,
               EACH: tl.constexpr, ADDS: tl.constexpr):  # fmt: skip
    """Write or add the values of places of each phase, rows of them first: those that begin `at` from `out` on, at
    `row` and `col`. With EACH values of neighbours are one vector, as `at` and `col` have them.
    """
    for n in tl.static_range(tl.constexpr(len(values) // STRIDE[1])):
        to, inside = out + (at + n * STEPS[2]), there & (row + n < SIZE[0])
        if EACH == 2:
            value = tl.reshape(tl.join(values[2 * n], values[2 * n + 1]), col.shape)
            put(to, value, inside & (col < SIZE[1]), ADDS)
        else:
            for beside in tl.static_range(tl.constexpr(STRIDE[1])):
                here = inside & (col + beside < SIZE[1])
                put(to + beside * STEPS[3], values[n * STRIDE[1] + beside], here, ADDS)
