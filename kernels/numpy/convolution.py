"""Convolution and its gradients: windows are unfolded into columns, some samples at a time, and multiplied by BLAS.

It knows no pooling. How many columns fit is told by the size of the scratch memory.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.contract import contract
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.views import Scratch, chain, nothing, plane

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]
Call = Callable[[], Any]


class Piece(NamedTuple):
    """Samples and output rows that are worked on at once, and the columns [b,i,r,s,h,w] that they need."""

    samples: slice
    rows: slice
    columns: np.ndarray


@prepares
def conv2d(
    out: np.ndarray, x: np.ndarray, w: np.ndarray, *, stride: Pair, pads: Pads, scratch: np.ndarray, accumulate: bool
) -> Call | None:
    """See the definition."""
    if out.size == 0:
        return nothing
    if _pointwise(w.shape[2:], stride, pads):
        return contract(out, "oi,bihw->bohw", w[:, :, 0, 0], x, scratch=None, accumulate=accumulate)
    calls: list[Call] = []
    for piece in _pieces(x, w.shape[2:], out.shape[2:], scratch):
        unfold = _columns(_unfold, piece, x, stride, pads)
        if unfold is None:
            return None
        y = out[piece.samples, :, piece.rows]
        calls += [unfold, contract(y, "oirs,birshw->bohw", w, piece.columns, scratch=None, accumulate=accumulate)]
    return chain(calls)


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
    if _pointwise(w.shape[2:], stride, pads):
        return contract(out, "oi,bohw->bihw", w[:, :, 0, 0], dy, scratch=None, accumulate=accumulate)
    calls: list[Call] = [] if accumulate else [partial(out.fill, 0)]
    for piece in _pieces(out, w.shape[2:], dy.shape[2:], scratch):
        fold = _columns(_fold, piece, out, stride, pads)
        if fold is None:
            return None
        part = dy[piece.samples, :, piece.rows]
        calls += [contract(piece.columns, "oirs,bohw->birshw", w, part, scratch=None, accumulate=False), fold]
    return chain(calls)


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
    if _pointwise(kernel, stride, pads):
        return contract(out[:, :, 0, 0], "bohw,bihw->oi", dy, x, scratch=None, accumulate=accumulate)
    calls: list[Call] = []
    for piece in _pieces(x, kernel, dy.shape[2:], scratch):
        unfold = _columns(_unfold, piece, x, stride, pads)
        if unfold is None:
            return None
        part = dy[piece.samples, :, piece.rows]
        adds = accumulate or len(calls) > 0
        calls += [unfold, contract(out, "bohw,birshw->oirs", part, piece.columns, scratch=None, accumulate=adds)]
    return chain(calls)


def _pointwise(kernel: tuple[int, ...], stride: Pair, pads: Pads) -> bool:
    return tuple(kernel) == (1, 1) and tuple(stride) == (1, 1) and not any(pads)


def _pieces(image: np.ndarray, kernel: tuple[int, ...], size: tuple[int, ...], scratch: np.ndarray) -> Iterator[Piece]:
    """Whole samples while one fits into scratch, else rows of one sample."""
    batch, channels = image.shape[:2]
    height, width = size
    row = channels * kernel[0] * kernel[1] * width * image.itemsize
    rows = min(height, scratch.size // row)
    samples = min(batch, max(1, scratch.size // (row * height)))
    for b in range(0, batch, samples):
        for h in range(0, height, rows):
            num_b, num_h = min(samples, batch - b), min(rows, height - h)
            columns = Scratch(scratch).take((num_b, channels, *kernel, num_h, width), image.dtype)
            yield Piece(slice(b, b + num_b), slice(h, h + num_h), columns)


def _columns(kernel: Callable[..., Any], piece: Piece, image: np.ndarray, stride: Pair, pads: Pads) -> Call | None:
    """The work of `_unfold` or `_fold` on one piece; None if the image's rows do not lie dense."""
    flat = plane(image[piece.samples])
    steps = tuple(step // image.itemsize for step in image.strides[:3])
    offsets = (pads[0] - piece.rows.start * stride[0], pads[2])
    return None if flat is None else partial(kernel, piece.columns, flat, steps, image.shape[2:], stride, offsets)


@compiled
def _valid(offset, stride, length, num):  # type: ignore[no-untyped-def]
    """Which of num windows see an element inside the image when they look at position window * stride + offset."""
    low = min(num, max(0, -(offset // stride)))
    return low, max(low, min(num, (length - 1 - offset) // stride + 1))


@compiled
def _unfold(columns, image, steps, size, stride, pads):  # type: ignore[no-untyped-def]
    """columns[b,i,r,s,h,w] = image[b,i,h*stride+r-pad,w*stride+s-pad], zero outside."""
    num_b, num_i, num_r, num_s, num_h, num_w = columns.shape
    whole = stride[0] == 1 and stride[1] == 1 and num_w == size[1] and steps[2] == size[1]
    flat = columns.reshape(-1)
    at = 0
    for b, i, r, s in np.ndindex(num_b, num_i, num_r, num_s):
        plane = flat[at : at + num_h * num_w]
        at += num_h * num_w
        top, bottom = _valid(r - pads[0], stride[0], size[0], num_h)
        low, high = _valid(s - pads[1], stride[1], size[1], num_w)
        start = b * steps[0] + i * steps[1] + (top * stride[0] + r - pads[0]) * steps[2] + low * stride[1] + s - pads[1]
        for j in range(top * num_w):
            plane[j] = 0
        for j in range(bottom * num_w, num_h * num_w):
            plane[j] = 0
        if whole and top < bottom and low < high:
            # Windows and image have rows of one length, so many rows are one copy, whose ends wrap around.
            _set(plane[top * num_w + low : (bottom - 1) * num_w + high], image[start:])
        for h in range(top, bottom):
            for w in range(low):
                plane[h * num_w + w] = 0
            for w in range(high, num_w):
                plane[h * num_w + w] = 0
            if not whole:
                _set_stepped(plane[h * num_w + low : h * num_w + high], image, start, stride[1])
                start += stride[0] * steps[2]


@compiled
def _fold(columns, image, steps, size, stride, pads):  # type: ignore[no-untyped-def]
    """The transposed of `_unfold`: adds each column element to where it would have been read; spoils columns."""
    num_b, num_i, num_r, num_s, num_h, num_w = columns.shape
    whole = stride[0] == 1 and stride[1] == 1 and num_w == size[1] and steps[2] == size[1]
    flat = columns.reshape(-1)
    at = 0
    for b, i, r, s in np.ndindex(num_b, num_i, num_r, num_s):
        plane = flat[at : at + num_h * num_w]
        at += num_h * num_w
        top, bottom = _valid(r - pads[0], stride[0], size[0], num_h)
        low, high = _valid(s - pads[1], stride[1], size[1], num_w)
        start = b * steps[0] + i * steps[1] + (top * stride[0] + r - pads[0]) * steps[2] + low * stride[1] + s - pads[1]
        for h in range(top, bottom):
            if whole:
                for w in range(low):
                    plane[h * num_w + w] = 0
                for w in range(high, num_w):
                    plane[h * num_w + w] = 0
            else:
                _add_stepped(plane[h * num_w + low : h * num_w + high], image, start, stride[1])
                start += stride[0] * steps[2]
        if whole and top < bottom and low < high:
            part = plane[top * num_w + low : (bottom - 1) * num_w + high]
            _add(image[start : start + part.size], part)


@compiled
def _set(target, source):  # type: ignore[no-untyped-def]
    for j in range(target.size):
        target[j] = source[j]


@compiled
def _add(target, source):  # type: ignore[no-untyped-def]
    for j in range(target.size):
        target[j] += source[j]


@compiled
def _set_stepped(line, image, start, stride):  # type: ignore[no-untyped-def]
    if stride == 1:
        _set(line, image[start:])
    else:
        for w in range(line.size):
            line[w] = image[start + w * stride]


@compiled
def _add_stepped(line, image, start, stride):  # type: ignore[no-untyped-def]
    if stride == 1:
        _add(image[start : start + line.size], line)
    else:
        for w in range(line.size):
            image[start + w * stride] += line[w]
