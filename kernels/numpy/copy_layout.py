"""The layout of padded copies of images for direct convolution: where a window's elements lie in them.

It computes nothing and knows no weights.
"""

from itertools import product
from typing import NamedTuple

import numpy as np

from castile.kernels.windows import Pads, Pair, extents

# Elements of two cache lines of float32.
_LINES = 32


class Windows(NamedTuple):
    """How windows lie on an image: size, strides and dilation of rows and columns, and the padding around the image."""

    kernel: Pair
    stride: Pair
    pads: Pads
    dilation: Pair

    @property
    def extents(self) -> Pair:
        """Rows and columns from the first to the last that a window sees."""
        return extents(self.kernel, self.dilation)

    @property
    def pointwise(self) -> bool:
        """Whether windows are single elements, one at each place."""
        return self.kernel == self.stride == (1, 1) and not any(self.pads)

    def rows_seen(self, first: int, last: int, height: int) -> tuple[slice, "Windows"]:
        """The rows of an image of `height` that rows of windows from first to last see, and how these windows lie on
        those rows.
        """
        top = first * self.stride[0] - self.pads[0]
        bottom = (last - 1) * self.stride[0] - self.pads[0] + self.extents[0]
        low, high = min(height, max(0, top)), max(0, min(height, bottom))
        pads = (low - top, bottom - high, *self.pads[2:])
        return slice(low, max(low, high)), self._replace(pads=pads)

    def windows_seeing(self, first: int, last: int, num: int) -> tuple[slice, "Windows"]:
        """The rows of windows, of `num`, that see an image's rows from first to last, and how they lie on those rows.
        """
        step, top = self.stride[0], self.pads[0]
        low = max(0, -((self.extents[0] - 1 - top - first) // step))
        high = min(num, (last - 1 + top) // step + 1)
        pads = (first + top - low * step, (high - 1) * step - top + self.extents[0] - last, *self.pads[2:])
        return slice(low, max(low, high)), self._replace(pads=pads)


class Tap(NamedTuple):
    """An element (r, s) of a window: the phase of the copies that it sees, and its row and column there."""

    element: Pair
    phase: int
    row: int
    column: int


class Places(NamedTuple):
    """Places that see the same taps: rows and columns of them, the first one in the result, and their stride there.

    Neighbouring places see neighbouring elements.
    """

    taps: list[Tap]
    size: Pair
    first: Pair
    stride: Pair

    def reach(self, width: int) -> int:
        """Elements that they see from an image's first on, where its rows have `width`."""
        rows, columns = (max(found) for found in zip(*((t.row, t.column) for t in self.taps), strict=True))
        return (rows + self.size[0] - 1) * width + columns + self.size[1]


class CopyLayout(NamedTuple):
    """How images are copied: zeros before rows and columns, phases, rows and columns of a phase; and the places that
    see them.

    A phase (row, column) has every stride-th row and column from these on; phases that nothing sees are left out.
    """

    before: Pair
    stride: Pair
    phases: list[Pair]
    grid: Pair
    places: list[Places]

    @property
    def image(self) -> int:
        """Elements of an image's phase."""
        return self.grid[0] * self.grid[1]

    def step(self, samples: int, vector: int) -> int:
        """Elements from one phase to the next: an odd number of cache lines, so that phases spread over all cache sets.
        """
        reach = max([self.image, *(places.reach(self.grid[1]) for places in self.places)])
        return (((samples - 1) * self.image + reach + vector) // _LINES * 2 + 3) * _LINES // 2

    def samples_that_fit(self, nbytes: int, batch: int, planes: int, itemsize: int, vector: int) -> int:
        """How many samples, at most `batch`, have copies that fit into nbytes.

        planes  channels times phases
        """
        samples = min(batch, nbytes // (planes * itemsize * self.image))
        while samples and planes * itemsize * self.step(samples, vector) > nbytes:
            samples -= 1
        return samples


def forward_layout(size: Pair, windows: Windows, num: Pair) -> CopyLayout:
    """Copies of images of this size, as their `num` windows see them."""
    before, after = windows.pads[::2], windows.pads[1::2]
    # the zeros after a row are those before the next
    grid = [
        length + max(low, high) if step == 1 else -(-(length + low + high) // step)
        for length, step, low, high in zip(size, windows.stride, before, after, strict=True)
    ]
    taps: list[Tap] = []
    phases: dict[Pair, int] = {}
    for r, s in np.ndindex(*windows.kernel):
        row, row_phase = divmod(r * windows.dilation[0], windows.stride[0])
        column, column_phase = divmod(s * windows.dilation[1], windows.stride[1])
        number = phases.setdefault((row_phase, column_phase), len(phases))
        taps.append(Tap((r, s), number, row, column))
    places = [Places(taps, num, (0, 0), (1, 1))]
    return CopyLayout((before[0], before[1]), windows.stride, list(phases), (grid[0], grid[1]), places)


class _Phase(NamedTuple):
    """Every stride-th element of an image's dim: the first, how many, and which elements of which windows see them."""

    first: int
    num: int
    taps: list[Pair]


def backward_layout(size: Pair, windows: Windows, num: Pair) -> CopyLayout:
    """Copies of one number for each of `num` windows, as the elements of images of this size see them."""
    before, grid, shares = [], [], []
    for dim in range(2):
        step, low = windows.stride[dim], windows.pads[2 * dim]
        # no element sees windows further back than this one, of which the first number may not be there
        least = -((step - 1 - low) // step) - (windows.extents[dim] - 1) // step
        last = (size[dim] - 1 + low) // step
        before.append(max(0, -least))
        grid.append(num[dim] + max(before[dim], last - num[dim] + 1))
        shares.append([_phase(windows, dim, phase, size[dim], before[dim]) for phase in range(step)])
    places = []
    for rows, columns in product(*shares):
        taps = [Tap((r, s), 0, row, column) for (r, row), (s, column) in product(rows.taps, columns.taps)]
        if taps and rows.num > 0 and columns.num > 0:
            places.append(Places(taps, (rows.num, columns.num), (rows.first, columns.first), windows.stride))
    return CopyLayout((before[0], before[1]), (1, 1), [(0, 0)], (grid[0], grid[1]), places)


def _phase(windows: Windows, dim: int, phase: int, length: int, before: int) -> _Phase:
    step, low = windows.stride[dim], windows.pads[2 * dim]
    # of the windows' positions, padding included, those of this phase are numbers v * step + phase
    first, last = max(0, -((phase - low) // step)), (length - 1 + low - phase) // step
    places = [(r, r * windows.dilation[dim]) for r in range(windows.kernel[dim])]
    taps = [(r, first + before - place // step) for r, place in places if place % step == phase]
    return _Phase(first * step + phase - low, last - first + 1, taps)
