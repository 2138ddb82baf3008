"""Convolution and its gradients: windows are unfolded into columns, some samples at a time, and multiplied by BLAS.

It knows no pooling. How many columns fit is told by the size of the scratch memory.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.contract import contract
from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.lanes import add_rows, after, copy_rows, copy_run, fill, pointer
from castile.kernels.numpy.moving import clears, copy
from castile.kernels.numpy.views import Scratch, chain, dense, nothing, plane

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]
Call = Callable[[], Any]


class Piece(NamedTuple):
    """Samples and output rows that are worked on at once, the columns [b,i,r,s,h,w] that they need, and room [b,o,h,w].

    BLAS sees an image [o,h*w] of the result (or of its gradient) only where its rows follow each other without gaps.
    An image with gaps passes through the room, where it has none.
    """

    samples: slice
    rows: slice
    columns: np.ndarray
    room: np.ndarray

    def of(self, y: np.ndarray) -> np.ndarray:
        """The part of y [b,o,h,w] that belongs to the piece."""
        return y[self.samples, :, self.rows]


@prepares
def conv2d(
    out: np.ndarray, x: np.ndarray, w: np.ndarray, *, stride: Pair, pads: Pads, scratch: np.ndarray, accumulate: bool
) -> Call | None:
    """See the definition."""
    if out.size == 0:
        return nothing
    if _pointwise(w.shape[2:], stride, pads) and _gapless(x) and _gapless(out):
        return _contract(out, "oi,bihw->bohw", w[:, :, 0, 0], x, accumulate)
    calls: list[Call | None] = []
    for piece in _pieces(x, w.shape[2:], out, scratch):
        y, room = piece.of(out), piece.room
        unfold = _columns(_unfold, piece, x, stride, pads)
        if _gapless(y):
            calls += [unfold, _contract(y, "oirs,birshw->bohw", w, piece.columns, accumulate)]
        else:
            multiply = _contract(room, "oirs,birshw->bohw", w, piece.columns, False)
            calls += [unfold, multiply, copy(y, room, accumulate=accumulate)]
    return _all(calls)


@prepares
def conv2d_grad_input(
    out: np.ndarray,
    dy: np.ndarray,
    w: np.ndarray,
    *,
    shape: tuple[int, ...],
    stride: Pair,
    pads: Pads,
    scratch: np.ndarray,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    if out.size == 0:
        return nothing
    if _pointwise(w.shape[2:], stride, pads) and _gapless(out) and _gapless(dy):
        return _contract(out, "oi,bohw->bihw", w[:, :, 0, 0], dy, accumulate)
    calls: list[Call | None] = [] if accumulate else [clears(out)]
    for piece in _pieces(out, w.shape[2:], dy, scratch):
        part, moves = _without_gaps(piece, dy)
        calls += [
            *moves,
            _contract(piece.columns, "oirs,bohw->birshw", w, part, False),
            _columns(_fold, piece, out, stride, pads),
        ]
    return _all(calls)


@prepares
def conv2d_grad_weight(
    out: np.ndarray,
    dy: np.ndarray,
    x: np.ndarray,
    *,
    kernel: Pair,
    stride: Pair,
    pads: Pads,
    scratch: np.ndarray,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    if out.size == 0:
        return nothing
    if _pointwise(kernel, stride, pads) and _gapless(dy) and _gapless(x):
        return _contract(out[:, :, 0, 0], "bohw,bihw->oi", dy, x, accumulate)
    calls: list[Call | None] = []
    for piece in _pieces(x, kernel, dy, scratch):
        part, moves = _without_gaps(piece, dy)
        adds = accumulate or len(calls) > 0
        calls += [
            *moves,
            _columns(_unfold, piece, x, stride, pads),
            _contract(out, "bohw,birshw->oirs", part, piece.columns, adds),
        ]
    return _all(calls)


def _pointwise(kernel: tuple[int, ...], stride: Pair, pads: Pads) -> bool:
    return tuple(kernel) == (1, 1) and tuple(stride) == (1, 1) and not any(pads)


def _gapless(x: np.ndarray) -> bool:
    """Whether the rows of each image of x [b,c,h,w] follow each other."""
    return dense(x[:1, :1])


def _without_gaps(piece: Piece, y: np.ndarray) -> tuple[np.ndarray, list[Call | None]]:
    """The piece's part of y without gaps in its images, and the work that brings it there."""
    part = piece.of(y)
    return (part, []) if _gapless(part) else (piece.room, [copy(piece.room, part, accumulate=False)])


def _contract(out: np.ndarray, spec: str, a: np.ndarray, b: np.ndarray, accumulate: bool) -> Call:
    return contract(out, spec, a, b, scratch=None, accumulate=accumulate)


def _all(calls: list[Call | None]) -> Call | None:
    """All of `calls` as one; None if one of them is missing."""
    there = [call for call in calls if call is not None]
    return chain(there) if len(there) == len(calls) else None


def _pieces(image: np.ndarray, kernel: tuple[int, ...], y: np.ndarray, scratch: np.ndarray) -> Iterator[Piece]:
    """Whole samples while one fits into scratch, else rows of one sample."""
    batch, channels = image.shape[:2]
    outputs, height, width = y.shape[1:]
    row = (channels * kernel[0] * kernel[1] + outputs) * width * image.itemsize
    rows = min(height, scratch.size // row)
    samples = min(batch, max(1, scratch.size // (row * height)))
    for b in range(0, batch, samples):
        for h in range(0, height, rows):
            num_b, num_h = min(samples, batch - b), min(rows, height - h)
            shapes = (num_b, channels, *kernel, num_h, width), (num_b, outputs, num_h, width)
            # Taken as one array, because the start of each array taken is rounded up.
            both = Scratch(scratch).take((sum(map(prod, shapes)),), image.dtype)
            columns, room = both[: prod(shapes[0])].reshape(shapes[0]), both[prod(shapes[0]) :].reshape(shapes[1])
            yield Piece(slice(b, b + num_b), slice(h, h + num_h), columns, room)


def _columns(kernel: Callable[..., Any], piece: Piece, image: np.ndarray, stride: Pair, pads: Pads) -> Call | None:
    """The work of `_unfold` or `_fold` on one piece; None if the image's rows do not lie dense."""
    flat = plane(image[piece.samples])
    steps = tuple(step // image.itemsize for step in image.strides[:3])
    offsets = (pads[0] - piece.rows.start * stride[0], pads[2])
    return None if flat is None else partial(kernel, piece.columns, flat, steps, image.shape[2:], stride, offsets)


@inlined
def _valid(offset, stride, length, num):  # type: ignore[no-untyped-def]
    """Which of num windows see an element inside the image when they look at position window * stride + offset."""
    if stride == 1:
        # Without the divisions, which would take longer than a small plane.
        low, high = -offset, length - offset
    else:
        low, high = -(offset // stride), (length - 1 - offset) // stride + 1
    low = min(num, max(0, low))
    return low, max(low, min(num, high))


@compiled
def _unfold(columns, image, steps, size, stride, pads):  # type: ignore[no-untyped-def]
    """columns[b,i,r,s,h,w] = image[b,i,h*stride+r-pad,w*stride+s-pad], zero outside."""
    num_b, num_i, num_r, num_s, num_h, num_w = columns.shape
    whole = stride[0] == 1 and stride[1] == 1 and num_w == size[1] and steps[2] == size[1]
    plane, x = pointer(columns), pointer(image)
    for b, i, r, s in np.ndindex(num_b, num_i, num_r, num_s):
        top, bottom = _valid(r - pads[0], stride[0], size[0], num_h)
        low, high = _valid(s - pads[1], stride[1], size[1], num_w)
        rows, cols, row_step = bottom - top, high - low, stride[0] * steps[2]
        place = b * steps[0] + i * steps[1] + top * row_step + (r - pads[0]) * steps[2] + low * stride[1] + s - pads[1]
        seen, source = after(plane, top * num_w + low), after(x, place)
        fill(plane, 0, top * num_w)
        fill(after(plane, bottom * num_w), 0, (num_h - bottom) * num_w)
        if whole and rows > 0 and cols > 0:
            # Windows and image have rows of one length, so many rows are one copy, whose ends wrap around.
            copy_run(seen, source, (rows - 1) * num_w + cols)
        elif stride[1] == 1:
            copy_rows(seen, num_w, source, row_step, rows, cols)
        else:
            for h in range(rows):
                for w in range(cols):
                    seen[h * num_w + w] = source[h * row_step + w * stride[1]]
        _clear_sides(after(plane, top * num_w), rows, num_w, low, high)
        plane = after(plane, num_h * num_w)


@compiled
def _fold(columns, image, steps, size, stride, pads):  # type: ignore[no-untyped-def]
    """The transposed of `_unfold`: adds each column element to where it would have been read; spoils columns."""
    num_b, num_i, num_r, num_s, num_h, num_w = columns.shape
    whole = stride[0] == 1 and stride[1] == 1 and num_w == size[1] and steps[2] == size[1]
    plane, x = pointer(columns), pointer(image)
    for b, i, r, s in np.ndindex(num_b, num_i, num_r, num_s):
        top, bottom = _valid(r - pads[0], stride[0], size[0], num_h)
        low, high = _valid(s - pads[1], stride[1], size[1], num_w)
        rows, cols, row_step = bottom - top, high - low, stride[0] * steps[2]
        place = b * steps[0] + i * steps[1] + top * row_step + (r - pads[0]) * steps[2] + low * stride[1] + s - pads[1]
        seen, target = after(plane, top * num_w + low), after(x, place)
        if whole and rows > 0 and cols > 0:
            _clear_sides(after(plane, top * num_w), rows, num_w, low, high)
            add_rows(target, 0, seen, 0, 1, (rows - 1) * num_w + cols)
        elif stride[1] == 1:
            add_rows(target, row_step, seen, num_w, rows, cols)
        else:
            for h in range(rows):
                for w in range(cols):
                    target[h * row_step + w * stride[1]] += seen[h * num_w + w]
        plane = after(plane, num_h * num_w)


@inlined
def _clear_sides(rows, num, cols, low, high):  # type: ignore[no-untyped-def]
    for h in range(num):
        for w in range(low):
            rows[h * cols + w] = 0
        for w in range(high, cols):
            rows[h * cols + w] = 0
