"""Convolution and its gradients as sliding sums over padded copies of some samples, or of some rows of one.

It knows no pooling. How many samples are worked on at once is told by the size of the scratch memory.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import Call, chain_all, nothing
from castile.kernels.form import prepares
from castile.kernels.numpy import unfolding
from castile.kernels.numpy.contract import contract
from castile.kernels.numpy.copies import Copies, Tap, Windows, looking, spreading
from castile.kernels.numpy.correlation import PLACES_STEP, TAPS, correlate, pack, packed_channels, slopes
from castile.kernels.numpy.moving import add, clears, moves
from castile.kernels.numpy.tiles import ROWS, lanes
from castile.kernels.numpy.views import Scratch, Shape, dense, even, plane, span, steps_of
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
    in_whole = windows.pointwise and groups == 1 and _gapless(x) and _gapless(out)
    samples = _unfolded(out.shape, w.shape, x, windows, in_whole, groups, scratch)
    if samples:
        return unfolding.forward(out, x, w, windows, samples, scratch, accumulate)
    if in_whole:
        return _contract(out, "oi,bihw->bohw", w[:, :, 0, 0], x, accumulate)
    weights = _Weights(w, 0, groups, scratch)
    calls = _looked(out, x, weights, windows, accumulate)
    return chain_all([*weights.calls, *calls])


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
        there = add(out, out, onto) if accumulate else moves(out, onto)
        how: dict[str, Any] = {"shape": shape, "stride": stride, "pads": pads, "dilation": dilation, "groups": groups}
        return chain_all([there, conv2d_grad_input(out, dy, w, **how, scratch=scratch, accumulate=True)])
    out, dy, w = _images(out, dy, w)
    windows = Windows(w.shape[2:], stride, pads, dilation)
    in_whole = windows.pointwise and groups == 1 and _gapless(out) and _gapless(dy)
    samples = _unfolded(dy.shape, w.shape, out, windows, in_whole, groups, scratch)
    if samples:
        return unfolding.backward(out, dy, w, windows, samples, scratch, accumulate)
    if in_whole:
        return _contract(out, "oi,bohw->bihw", w[:, :, 0, 0], dy, accumulate)
    weights = _Weights(w, 1, groups, scratch)
    calls = _spread(out, dy, weights, windows, accumulate)
    return chain_all([*weights.calls, *calls])


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
    in_whole = windows.pointwise and groups == 1 and _gapless(dy) and _gapless(x)
    samples = _unfolded(dy.shape, out.shape, x, windows, in_whole, groups, scratch)
    if samples:
        return unfolding.slopes(out, dy, x, windows, samples, scratch, accumulate)
    if in_whole:
        return _contract(out[:, :, 0, 0], "bohw,bihw->oi", dy, x, accumulate)
    return chain_all(_slopes(out, dy, x, windows, groups, scratch, accumulate))


def _unfolded(
    y: Shape, w: Shape, x: np.ndarray, windows: Windows, in_whole: bool, groups: int, scratch: np.ndarray
) -> int:
    """On how many samples of images x at once a product of what windows see is expected to take least, else 0, as of
    several groups.

    in_whole   whether each sample is a product as it lies
    """
    if groups > 1 or 0 in (*y, *w, *x.shape):
        return 0
    copied = looking((x.shape[2], x.shape[3]), windows, (y[2], y[3]))
    return unfolding.samples_at_once(y, w, None if in_whole else copied.image, scratch.size, x.itemsize)


class _Weights:
    """Weights in blocks of the channels of dim `of`, packed anew before each use, and what else a product works in.

    channels, others   of a group: those of dim `of`, and those of the other one
    """

    def __init__(self, w: np.ndarray, of: int, groups: int, scratch: np.ndarray) -> None:
        self.w, self.of, self.groups, self.flat = w, of, groups, plane(w)
        size = (w.shape[0] // groups, w.shape[1])
        self.channels, self.others = size[of], size[1 - of]
        self.lanes = lanes(w.itemsize)
        self.wide = packed_channels(self.channels)
        memory = Scratch(scratch)
        self.packed = memory.take((self.wide * self.others * groups * w.shape[2] * w.shape[3],), w.dtype)
        self.plane = memory.take((ROWS * PLACES_STEP,), w.dtype)
        self.held = scratch[memory.used :]
        self.calls: list[Call | None] = []
        self._places: dict[tuple[Pair, ...], int] = {}
        self._used = 0

    def place(self, taps: list[Tap]) -> int:
        """Where the blocks of these elements of the windows lie, each for all others, of one group after another."""
        elements = tuple(tap.element for tap in taps)
        if elements not in self._places:
            self._places[elements] = self._used
            target = self.packed[self._used :]
            room, steps = self.wide * self.others * len(taps), steps_of(self.w)
            self._used += self.groups * room
            table = [i * steps[1 - self.of] + r * steps[2] + s * steps[3]
                     for i in range(self.others) for r, s in elements]  # fmt: skip
            run = len(table) if self.of == 0 else len(taps)
            apart = self.w.shape[0] // self.groups * steps[0]
            work = (target, self.flat, steps[self.of], _array(table), len(table), self.channels, run)
            self.calls.append(None if self.flat is None else partial(pack, *work, self.groups, room, apart))
        return self._places[elements]


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
    groups = (weights.groups, weights.wide, weights.channels * steps[1], weights.others * steps_of(x)[1])
    return partial(
        correlate, to, out_steps, _pixels(source, x, weights.groups), _how(copies), weights.held.view(x.dtype), step,
        samples, len(out), weights.packed, weights.plane, _array(offsets), _array(goals), weights.channels, groups,
        accumulate, weights.lanes,
    )  # fmt: skip


def _pixels(source: np.ndarray, x: np.ndarray, groups: int) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...]]:
    """Images as compiled loops take them: pixels, steps from sample to sample, channel to channel and row to row, and
    an image's size, of the channels of a group."""
    return source, steps_of(x)[:3], (x.shape[1] // groups, *x.shape[2:])


def _offsets(copies: Copies, taps: list[Tap], channels: int, step: int) -> list[int]:
    """How far into the copies, whose phases are `step` elements apart, each channel's taps lie for the first place."""
    firsts = [i * len(copies.phases) * step for i in range(channels)]
    return [first + tap.phase * step + tap.row * copies.grid[1] + tap.column for first in firsts for tap in taps]


def _how(copies: Copies) -> tuple[Any, ...]:
    """How images are copied, as compiled loops take it."""
    return copies.before, copies.stride, _array(copies.phases), copies.grid


def _fitting(copies: Copies, weights: _Weights, x: np.ndarray) -> int:
    planes = weights.others * len(copies.phases)
    return copies.fitting(weights.held.size, x.shape[0], planes, x.itemsize, weights.lanes)


def _slopes(
    out: np.ndarray,
    dy: np.ndarray,
    x: np.ndarray,
    windows: Windows,
    groups: int,
    scratch: np.ndarray,
    accumulate: bool,
) -> list[Call | None]:
    """Sums over all windows of what they see of x times dy; rows of windows are halved until both fit."""
    if dy.size == 0 or x.size == 0:
        return [] if accumulate else [clears(out)]
    memory, vector = Scratch(scratch), lanes(x.itemsize)
    sums, held = memory.take((ROWS * TAPS,), x.dtype), scratch[memory.used :].view(x.dtype)
    copies, channels, others = looking(x.shape[2:], windows, dy.shape[2:]), len(out) // groups, out.shape[1]
    planes = others * len(copies.phases)
    samples = copies.fitting(held.nbytes, x.shape[0], planes + channels, x.itemsize, vector)
    if not samples:
        calls = []
        for first, last in _halves(dy.shape[2]):
            rows, part = windows.seen(first, last, x.shape[2])
            adds = accumulate or first > 0
            calls += _slopes(out, dy[:, :, first:last], x[:, :, rows], part, groups, scratch, adds)
        return calls
    to, source, slope = span(out) if even(out) else None, plane(x), plane(dy)
    if to is None or source is None or slope is None:
        return [None]
    step, steps, taps = copies.step(samples, vector), steps_of(out), copies.places[0].taps
    elements = [(i, *tap.element) for i in range(others) for tap in taps]
    table = [i * steps[1] + r * steps[2] + s * steps[3] for i, r, s in elements]
    last = (dy.shape[2] - 1) * copies.grid[1] + dy.shape[3]
    apart = (groups, channels * steps[0], others * steps_of(x)[1], channels * steps_of(dy)[1])
    return [partial(
        slopes, to, steps[0], _array(table), _pixels(source, x, groups), held, _pixels(slope, dy, groups),
        held[planes * step :], _how(copies), step, samples, len(x), _array(_offsets(copies, taps, others, step)), sums,
        apart, accumulate, vector, last, _SPAN_BYTES // (vector * x.itemsize),
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


def _gapless(x: np.ndarray) -> bool:
    """Whether the rows of each image of x [b,c,h,w] follow each other."""
    return dense(x[:1, :1])


def _contract(out: np.ndarray, spec: str, a: np.ndarray, b: np.ndarray, accumulate: bool) -> Call:
    return contract(out, spec, a, b, scratch=None, accumulate=accumulate)
