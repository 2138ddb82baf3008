"""Convolution and its gradients as sliding sums over padded copies of some samples, or of some rows of one.

It knows no pooling. How many samples are worked on at once is told by the size of the scratch memory.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import Call, chain_all, nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.contract import contract
from castile.kernels.numpy.copies import Copies, Tap, Windows, looking, spreading
from castile.kernels.numpy.correlation import PLACES_STEP, TAPS, correlate, pack, slopes
from castile.kernels.numpy.moving import clears
from castile.kernels.numpy.tiles import ROWS, lanes
from castile.kernels.numpy.views import Scratch, dense, even, plane, span, steps_of
from castile.kernels.windows import Pads, Pair, inside

# Bytes of a channel's places that are multiplied at once: those of ROWS channels stay in the first-level cache.
_SPAN_BYTES = 4096


@prepares
def conv2d(
    out: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    *,
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
    scratch: np.ndarray,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    if out.size == 0:
        return nothing
    out, x, w = _images(out, x, w)
    x, pads = _trimmed(x, pads)
    windows = Windows(w.shape[2:], stride, pads, dilation)
    if windows.pointwise and groups == 1 and _gapless(x) and _gapless(out):
        return _contract(out, "oi,bihw->bohw", w[:, :, 0, 0], x, accumulate)
    calls: list[Call | None] = []
    for y, image, one in zip(_parts(out, 1, groups), _parts(x, 1, groups), _parts(w, 0, groups), strict=True):
        calls += _forward(y, image, one, windows, scratch, accumulate)
    return chain_all(calls)


@prepares
def conv2d_grad_input(
    out: np.ndarray,
    dy: np.ndarray,
    w: np.ndarray,
    onto: np.ndarray | None = None,
    *,
    shape: tuple[int, ...],
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
    scratch: np.ndarray,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    if out.size == 0:
        return nothing
    if onto is not None:
        there = partial(np.add, out, onto, out) if accumulate else partial(np.copyto, out, onto)
        how: dict[str, Any] = {"shape": shape, "stride": stride, "pads": pads, "dilation": dilation, "groups": groups}
        return chain_all([there, conv2d_grad_input(out, dy, w, **how, scratch=scratch, accumulate=True)])
    out, dy, w = _images(out, dy, w)
    windows = Windows(w.shape[2:], stride, pads, dilation)
    if windows.pointwise and groups == 1 and _gapless(out) and _gapless(dy):
        return _contract(out, "oi,bohw->bihw", w[:, :, 0, 0], dy, accumulate)
    calls: list[Call | None] = []
    for dx, slope, one in zip(_parts(out, 1, groups), _parts(dy, 1, groups), _parts(w, 0, groups), strict=True):
        calls += _backward(dx, slope, one, windows, scratch, accumulate)
    return chain_all(calls)


@prepares
def conv2d_grad_weight(
    out: np.ndarray,
    dy: np.ndarray,
    x: np.ndarray,
    *,
    kernel: tuple[int, ...],
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
    scratch: np.ndarray,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    if out.size == 0:
        return nothing
    out, dy, x = _images(out, dy, x)
    x, pads = _trimmed(x, pads)
    windows = Windows(out.shape[2:], stride, pads, dilation)
    if windows.pointwise and groups == 1 and _gapless(dy) and _gapless(x):
        return _contract(out[:, :, 0, 0], "bohw,bihw->oi", dy, x, accumulate)
    calls: list[Call | None] = []
    for dw, slope, image in zip(_parts(out, 0, groups), _parts(dy, 1, groups), _parts(x, 1, groups), strict=True):
        calls += _slopes(dw, slope, image, windows, scratch, accumulate)
    return chain_all(calls)


class _Weights:
    """Weights in blocks of the channels of dim `of`, packed anew before each use, and what else a product works in."""

    def __init__(self, w: np.ndarray, of: int, scratch: np.ndarray) -> None:
        self.w, self.of, self.flat = w, of, plane(w)
        self.channels, self.others = w.shape[of], w.shape[1 - of]
        self.lanes = lanes(w.itemsize)
        memory = Scratch(scratch)
        blocks = -(-self.channels // ROWS) * ROWS
        self.packed = memory.take((blocks * self.others * w.shape[2] * w.shape[3],), w.dtype)
        self.plane = memory.take((ROWS * PLACES_STEP,), w.dtype)
        self.held = scratch[memory.used :]
        self.calls: list[Call | None] = []
        self._places: dict[tuple[Pair, ...], int] = {}
        self._used = 0

    def place(self, taps: list[Tap]) -> int:
        """Where the blocks of these elements of the windows lie, each for all others."""
        elements = tuple(tap.element for tap in taps)
        if elements not in self._places:
            self._places[elements] = self._used
            target = self.packed[self._used :]
            self._used += -(-self.channels // ROWS) * ROWS * self.others * len(taps)
            steps = steps_of(self.w)
            table = [i * steps[1 - self.of] + r * steps[2] + s * steps[3]
                     for i in range(self.others) for r, s in elements]  # fmt: skip
            run = len(table) if self.of == 0 else len(taps)
            work = (target, self.flat, steps[self.of], _array(table), len(table), self.channels, run)
            self.calls.append(None if self.flat is None else partial(pack, *work))
        return self._places[elements]


def _forward(
    out: np.ndarray, x: np.ndarray, w: np.ndarray, windows: Windows, scratch: np.ndarray, accumulate: bool
) -> list[Call | None]:
    weights = _Weights(w, 0, scratch)
    calls = _looked(out, x, weights, windows, accumulate)
    return [*weights.calls, *calls]


def _looked(out: np.ndarray, x: np.ndarray, weights: _Weights, windows: Windows, accumulate: bool) -> list[Call | None]:
    """Sums over what windows see of x; rows of windows are halved until what they see fits."""
    if x.size == 0:
        return [] if accumulate else [clears(out)]
    copies = looking(x.shape[2:], windows, out.shape[2:])
    samples = _fitting(copies, weights, x)
    if samples:
        return [_correlated(out, x, weights, copies, samples, accumulate)]
    calls = []
    for first, last in _halves(out.shape[2]):
        rows, part = windows.seen(first, last, x.shape[2])
        calls += _looked(out[:, :, first:last], x[:, :, rows], weights, part, accumulate)
    return calls


def _backward(
    out: np.ndarray, dy: np.ndarray, w: np.ndarray, windows: Windows, scratch: np.ndarray, accumulate: bool
) -> list[Call | None]:
    weights = _Weights(w, 1, scratch)
    calls = _spread(out, dy, weights, windows, accumulate)
    return [*weights.calls, *calls]


def _spread(
    out: np.ndarray, dy: np.ndarray, weights: _Weights, windows: Windows, accumulate: bool
) -> list[Call | None]:
    """Sums over the windows that see each element of out; its rows are halved until those windows fit."""
    seen, pads = _trimmed(out, windows.pads)
    if dy.size == 0 or seen.size == 0:
        return [] if accumulate else [clears(out)]
    windows = windows._replace(pads=pads)
    copies = spreading(seen.shape[2:], windows, dy.shape[2:])
    samples = _fitting(copies, weights, dy)
    calls: list[Call | None] = []
    if not samples:
        for first, last in _halves(out.shape[2]):
            rows, part = windows.seeing(first, last, dy.shape[2])
            calls += _spread(out[:, :, first:last], dy[:, :, rows], weights, part, accumulate)
        return calls
    # between the strides of small windows there may be elements that no window sees
    covered = sum(places.size[0] * places.size[1] for places in copies.places)
    if not accumulate and covered < out.shape[2] * out.shape[3]:
        calls.append(clears(out))
    if copies.places:
        calls.append(_correlated(seen, dy, weights, copies, samples, accumulate))
    return calls


def _correlated(
    out: np.ndarray, x: np.ndarray, weights: _Weights, copies: Copies, samples: int, accumulate: bool
) -> Call | None:
    to, source = span(out) if even(out) else None, plane(x)
    if to is None or source is None:
        return None
    step, steps = copies.step(samples, weights.lanes), steps_of(out)
    offsets: list[int] = []
    goals = []
    for places in copies.places:
        goal = places.first[0] * steps[2] + places.first[1] * steps[3]
        num = weights.others * len(places.taps)
        goals.append((num, len(offsets), weights.place(places.taps), goal, *places.size))
        offsets += _offsets(copies, places.taps, weights.others, step)
    stride = copies.places[0].stride
    out_steps = (steps[0], steps[1], steps[2] * stride[0], steps[3] * stride[1])
    batch, channels = out.shape[:2]
    return partial(
        correlate, to, out_steps, (source, steps_of(x)[:3], x.shape[1:]), _how(copies), weights.held.view(x.dtype),
        step, samples, batch, weights.packed, weights.plane, _array(offsets), _array(goals), channels, accumulate,
        weights.lanes,
    )  # fmt: skip


def _offsets(copies: Copies, taps: list[Tap], channels: int, step: int) -> list[int]:
    """How far into the copies, whose phases are `step` elements apart, each channel's taps lie for the first place."""
    firsts = [i * len(copies.phases) * step for i in range(channels)]
    return [first + tap.phase * step + tap.row * copies.grid[1] + tap.column for first in firsts for tap in taps]


def _how(copies: Copies) -> tuple[Any, ...]:
    """How images are copied, as compiled loops take it."""
    return copies.before, copies.stride, _array(copies.phases), copies.grid


def _fitting(copies: Copies, weights: _Weights, x: np.ndarray) -> int:
    return copies.fitting(weights.held.size, x.shape[0], x.shape[1] * len(copies.phases), x.itemsize, weights.lanes)


def _slopes(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, windows: Windows, scratch: np.ndarray, accumulate: bool
) -> list[Call | None]:
    """Sums over all windows of what they see of x times dy; rows of windows are halved until both fit."""
    if dy.size == 0 or x.size == 0:
        return [] if accumulate else [clears(out)]
    memory, vector = Scratch(scratch), lanes(x.itemsize)
    sums, held = memory.take((ROWS * TAPS,), x.dtype), scratch[memory.used :].view(x.dtype)
    copies = looking(x.shape[2:], windows, dy.shape[2:])
    planes = x.shape[1] * len(copies.phases)
    samples = copies.fitting(held.nbytes, x.shape[0], planes + dy.shape[1], x.itemsize, vector)
    if not samples:
        calls = []
        for first, last in _halves(dy.shape[2]):
            rows, part = windows.seen(first, last, x.shape[2])
            calls += _slopes(out, dy[:, :, first:last], x[:, :, rows], part, scratch, accumulate or first > 0)
        return calls
    to, source, slope = span(out) if even(out) else None, plane(x), plane(dy)
    if to is None or source is None or slope is None:
        return [None]
    step, steps, taps = copies.step(samples, vector), steps_of(out), copies.places[0].taps
    elements = [(i, *tap.element) for i in range(x.shape[1]) for tap in taps]
    table = [i * steps[1] + r * steps[2] + s * steps[3] for i, r, s in elements]
    last = (dy.shape[2] - 1) * copies.grid[1] + dy.shape[3]
    images, gradients = ((flat, steps_of(a)[:3], a.shape[1:]) for flat, a in ((source, x), (slope, dy)))
    return [partial(
        slopes, to, steps[0], _array(table), images, held, gradients, held[planes * step :], _how(copies), step,
        samples, x.shape[0], _array(_offsets(copies, taps, x.shape[1], step)), sums, accumulate, vector, last,
        _SPAN_BYTES // (vector * x.itemsize),
    )]  # fmt: skip


def _halves(rows: int) -> list[Pair]:
    assert rows > 1, "scratch is smaller than the kernel needs"
    return [(0, rows // 2), (rows // 2, rows)]


def _array(numbers: Sequence[Any]) -> np.ndarray:
    return np.array(numbers, np.int64)


def _images(*arrays: np.ndarray) -> list[np.ndarray]:
    """Images without rows as images of one row."""
    return [x[:, :, None] if x.ndim == 3 else x for x in arrays]


def _trimmed(x: np.ndarray, pads: Pads) -> tuple[np.ndarray, Pads]:
    """x without what negative pads leave out, and the pads that are none of these."""
    top, bottom, left, right = pads
    pads = (max(0, top), max(0, bottom), max(0, left), max(0, right))
    return inside(x, (max(0, -top), max(0, -bottom), max(0, -left), max(0, -right))), pads


def _parts(x: np.ndarray, dim: int, groups: int) -> list[np.ndarray]:
    """The groups' equal parts of a dim, as views."""
    size = x.shape[dim] // groups
    before = (slice(None),) * dim
    return [x[(*before, slice(n * size, n * size + size))] for n in range(groups)]


def _gapless(x: np.ndarray) -> bool:
    """Whether the rows of each image of x [b,c,h,w] follow each other."""
    return dense(x[:1, :1])


def _contract(out: np.ndarray, spec: str, a: np.ndarray, b: np.ndarray, accumulate: bool) -> Call:
    return contract(out, spec, a, b, scratch=None, accumulate=accumulate)
