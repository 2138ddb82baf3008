"""Convolution and its gradients: by im2col, as one product, or directly on padded copies of some samples or rows.

It knows no pooling. The size of the scratch memory says how many samples are worked on at once.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import Call, chain_all, nothing
from castile.kernels.form import prepares
from castile.kernels.numpy import im2col
from castile.kernels.numpy.contract import contract
from castile.kernels.numpy.copy_layout import CopyLayout, Tap, Windows, backward_layout, forward_layout
from castile.kernels.numpy.copying import add, clear_call, copy_call
from castile.kernels.numpy.direct_convolution import (
    PLACES_STEP,
    TAPS,
    correlate,
    pack,
    packed_channels,
    weight_gradient,
)
from castile.kernels.numpy.tiles import ROWS, lanes
from castile.kernels.numpy.views import Scratch, Shape, element_strides, is_contiguous, is_forward, row_major_span, span
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
    out, x, w = _with_rows(out, x, w)
    x, pads = _cropped(x, pads)
    windows = Windows(w.shape[2:], stride, pads, dilation)
    in_whole = windows.pointwise and groups == 1 and _has_contiguous_images(x) and _has_contiguous_images(out)
    samples = _im2col_samples(out.shape, w.shape, x, windows, in_whole, groups, scratch)
    if samples:
        return im2col.forward(out, x, w, windows, samples, scratch, accumulate)
    if in_whole:
        return _contract(out, "oi,bihw->bohw", w[:, :, 0, 0], x, accumulate)
    weights = _PackedWeights(w, 0, groups, scratch)
    calls = _forward(out, x, weights, windows, accumulate)
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
        there = add(out, out, onto) if accumulate else copy_call(out, onto)
        how: dict[str, Any] = {"shape": shape, "stride": stride, "pads": pads, "dilation": dilation, "groups": groups}
        return chain_all([there, conv2d_grad_input(out, dy, w, **how, scratch=scratch, accumulate=True)])
    out, dy, w = _with_rows(out, dy, w)
    windows = Windows(w.shape[2:], stride, pads, dilation)
    in_whole = windows.pointwise and groups == 1 and _has_contiguous_images(out) and _has_contiguous_images(dy)
    samples = _im2col_samples(dy.shape, w.shape, out, windows, in_whole, groups, scratch)
    if samples:
        return im2col.input_gradient(out, dy, w, windows, samples, scratch, accumulate)
    if in_whole:
        return _contract(out, "oi,bohw->bihw", w[:, :, 0, 0], dy, accumulate)
    weights = _PackedWeights(w, 1, groups, scratch)
    calls = _backward(out, dy, weights, windows, accumulate)
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
    out, dy, x = _with_rows(out, dy, x)
    x, pads = _cropped(x, pads)
    windows = Windows(out.shape[2:], stride, pads, dilation)
    in_whole = windows.pointwise and groups == 1 and _has_contiguous_images(dy) and _has_contiguous_images(x)
    samples = _im2col_samples(dy.shape, out.shape, x, windows, in_whole, groups, scratch)
    if samples:
        return im2col.weight_gradient(out, dy, x, windows, samples, scratch, accumulate)
    if in_whole:
        return _contract(out[:, :, 0, 0], "bohw,bihw->oi", dy, x, accumulate)
    return chain_all(_weight_gradient(out, dy, x, windows, groups, scratch, accumulate))


def _im2col_samples(
    y: Shape, w: Shape, x: np.ndarray, windows: Windows, in_whole: bool, groups: int, scratch: np.ndarray
) -> int:
    """On how many samples of x at once im2col is expected to be fastest; 0 if it is not, and for several groups.

    in_whole   whether each sample is a matrix product as it lies
    """
    if groups > 1 or 0 in (*y, *w, *x.shape):
        return 0
    copied = forward_layout((x.shape[2], x.shape[3]), windows, (y[2], y[3]))
    return im2col.samples_at_once(y, w, None if in_whole else copied.image, scratch.size, x.itemsize)


class _PackedWeights:
    """Weights in blocks of the channels of dim `of`, packed before each use, and the buffers of a direct convolution.

    channels, others   of a group: those of dim `of`, and those of the other dim
    """

    def __init__(self, w: np.ndarray, of: int, groups: int, scratch: np.ndarray) -> None:
        self.w, self.of, self.groups, self.flat = w, of, groups, row_major_span(w)
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
        """The offset of the packed blocks of these window elements."""
        elements = tuple(tap.element for tap in taps)
        if elements not in self._places:
            self._places[elements] = self._used
            target = self.packed[self._used :]
            room, steps = self.wide * self.others * len(taps), element_strides(self.w)
            self._used += self.groups * room
            table = [i * steps[1 - self.of] + r * steps[2] + s * steps[3]
                     for i in range(self.others) for r, s in elements]  # fmt: skip
            run = len(table) if self.of == 0 else len(taps)
            apart = self.w.shape[0] // self.groups * steps[0]
            work = (target, self.flat, steps[self.of], _array(table), len(table), self.channels, run)
            self.calls.append(None if self.flat is None else partial(pack, *work, self.groups, room, apart))
        return self._places[elements]


def _forward(
    out: np.ndarray, x: np.ndarray, weights: _PackedWeights, windows: Windows, accumulate: bool
) -> list[Call | None]:
    """Direct convolution; rows of windows are halved until the copies fit."""
    if x.size == 0:
        return [] if accumulate else [clear_call(out)]
    copies = forward_layout(x.shape[2:], windows, out.shape[2:])
    samples = _samples_at_once(copies, weights, x)
    if samples:
        return [_direct(out, x, weights, copies, samples, accumulate)]
    calls = []
    for first, last in _halves(out.shape[2]):
        rows, part = windows.rows_seen(first, last, x.shape[2])
        calls += _forward(out[:, :, first:last], x[:, :, rows], weights, part, accumulate)
    return calls


def _backward(
    out: np.ndarray, dy: np.ndarray, weights: _PackedWeights, windows: Windows, accumulate: bool
) -> list[Call | None]:
    """The input gradient by direct convolution; rows are halved until the copies of the windows' gradients fit."""
    seen, pads = _cropped(out, windows.pads)
    if dy.size == 0 or seen.size == 0:
        return [] if accumulate else [clear_call(out)]
    windows = windows._replace(pads=pads)
    copies = backward_layout(seen.shape[2:], windows, dy.shape[2:])
    samples = _samples_at_once(copies, weights, dy)
    calls: list[Call | None] = []
    if not samples:
        for first, last in _halves(out.shape[2]):
            rows, part = windows.windows_seeing(first, last, dy.shape[2])
            calls += _backward(out[:, :, first:last], dy[:, :, rows], weights, part, accumulate)
        return calls
    # between the strides of small windows there may be elements that no window sees
    covered = sum(places.size[0] * places.size[1] for places in copies.places)
    if not accumulate and covered < out.shape[2] * out.shape[3]:
        calls.append(clear_call(out))
    if copies.places:
        calls.append(_direct(seen, dy, weights, copies, samples, accumulate))
    return calls


def _direct(
    out: np.ndarray, x: np.ndarray, weights: _PackedWeights, copies: CopyLayout, samples: int, accumulate: bool
) -> Call | None:
    to, source = span(out) if is_forward(out) else None, row_major_span(x)
    if to is None or source is None:
        return None
    step, steps = copies.step(samples, weights.lanes), element_strides(out)
    offsets: list[int] = []
    goals = []
    for places in copies.places:
        goal = places.first[0] * steps[2] + places.first[1] * steps[3]
        num = weights.others * len(places.taps)
        goals.append((num, len(offsets), weights.place(places.taps), goal, *places.size))
        offsets += _offsets(copies, places.taps, weights.others, step)
    stride = copies.places[0].stride
    out_steps = (steps[0], steps[1], steps[2] * stride[0], steps[3] * stride[1])
    groups = (weights.groups, weights.wide, weights.channels * steps[1], weights.others * element_strides(x)[1])
    return partial(
        correlate, to, out_steps, _image_operand(source, x, weights.groups), _layout_operand(copies),
        weights.held.view(x.dtype), step, samples, len(out), weights.packed, weights.plane, _array(offsets),
        _array(goals), weights.channels, groups, accumulate, weights.lanes,
    )  # fmt: skip


def _image_operand(
    source: np.ndarray, x: np.ndarray, groups: int
) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...]]:
    """Images as compiled loops take them: the array, its steps along samples, channels and rows, and the size of an
    image with the channels of one group.
    """
    return source, element_strides(x)[:3], (x.shape[1] // groups, *x.shape[2:])


def _offsets(copies: CopyLayout, taps: list[Tap], channels: int, step: int) -> list[int]:
    """The offsets of each channel's taps in the copies, for the first place; phases are `step` elements apart."""
    firsts = [i * len(copies.phases) * step for i in range(channels)]
    return [first + tap.phase * step + tap.row * copies.grid[1] + tap.column for first in firsts for tap in taps]


def _layout_operand(copies: CopyLayout) -> tuple[Any, ...]:
    """The layout of copies, as compiled loops take it."""
    return copies.before, copies.stride, _array(copies.phases), copies.grid


def _samples_at_once(copies: CopyLayout, weights: _PackedWeights, x: np.ndarray) -> int:
    planes = weights.others * len(copies.phases)
    return copies.samples_that_fit(weights.held.size, x.shape[0], planes, x.itemsize, weights.lanes)


def _weight_gradient(
    out: np.ndarray,
    dy: np.ndarray,
    x: np.ndarray,
    windows: Windows,
    groups: int,
    scratch: np.ndarray,
    accumulate: bool,
) -> list[Call | None]:
    """The weight gradient by direct convolution; rows of windows are halved until the copies fit."""
    if dy.size == 0 or x.size == 0:
        return [] if accumulate else [clear_call(out)]
    memory, vector = Scratch(scratch), lanes(x.itemsize)
    sums, held = memory.take((ROWS * TAPS,), x.dtype), scratch[memory.used :].view(x.dtype)
    copies, channels, others = forward_layout(x.shape[2:], windows, dy.shape[2:]), len(out) // groups, out.shape[1]
    planes = others * len(copies.phases)
    samples = copies.samples_that_fit(held.nbytes, x.shape[0], planes + channels, x.itemsize, vector)
    if not samples:
        calls = []
        for first, last in _halves(dy.shape[2]):
            rows, part = windows.rows_seen(first, last, x.shape[2])
            adds = accumulate or first > 0
            calls += _weight_gradient(out, dy[:, :, first:last], x[:, :, rows], part, groups, scratch, adds)
        return calls
    to, source, grad = span(out) if is_forward(out) else None, row_major_span(x), row_major_span(dy)
    if to is None or source is None or grad is None:
        return [None]
    step, steps, taps = copies.step(samples, vector), element_strides(out), copies.places[0].taps
    elements = [(i, *tap.element) for i in range(others) for tap in taps]
    table = [i * steps[1] + r * steps[2] + s * steps[3] for i, r, s in elements]
    last = (dy.shape[2] - 1) * copies.grid[1] + dy.shape[3]
    apart = (groups, channels * steps[0], others * element_strides(x)[1], channels * element_strides(dy)[1])
    return [partial(
        weight_gradient, to, steps[0], _array(table), _image_operand(source, x, groups), held,
        _image_operand(grad, dy, groups), held[planes * step :], _layout_operand(copies), step, samples, len(x),
        _array(_offsets(copies, taps, others, step)), sums, apart, accumulate, vector, last,
        _SPAN_BYTES // (vector * x.itemsize),
    )]  # fmt: skip


def _halves(rows: int) -> list[Pair]:
    assert rows > 1, "scratch is smaller than the kernel needs"
    return [(0, rows // 2), (rows // 2, rows)]


def _array(numbers: Sequence[Any]) -> np.ndarray:
    return np.array(numbers, np.int64)


def _with_rows(*arrays: np.ndarray) -> list[np.ndarray]:
    """Images without rows as images of one row."""
    return [x[:, :, None] if x.ndim == 3 else x for x in arrays]


def _cropped(x: np.ndarray, pads: Pads) -> tuple[np.ndarray, Pads]:
    """x without what negative pads cut off, and the other pads."""
    top, bottom, left, right = pads
    pads = (max(0, top), max(0, bottom), max(0, left), max(0, right))
    return inside(x, (max(0, -top), max(0, -bottom), max(0, -left), max(0, -right))), pads


def _has_contiguous_images(x: np.ndarray) -> bool:
    """Whether the rows of each image of x [b,c,h,w] follow each other."""
    return is_contiguous(x[:1, :1])


def _contract(out: np.ndarray, spec: str, a: np.ndarray, b: np.ndarray, accumulate: bool) -> Call:
    return contract(out, spec, a, b, scratch=None, accumulate=accumulate)
