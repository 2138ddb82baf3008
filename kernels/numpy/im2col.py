"""Convolutions of small images as matrix products (im2col): what each window sees is written out, a row for each place.

Direct convolution also computes places between images, and packs weights. A product does neither, but stores elements
as often as windows see them. It knows no groups, and works on as many samples at once as scratch memory holds.
"""

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np

from castile.kernels.calls import Call, chain_all
from castile.kernels.numpy.contract import contract
from castile.kernels.numpy.copy_layout import Windows
from castile.kernels.numpy.copying import add, clear_call, copy_call
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.matmul import blas_cost
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.tiles import lanes
from castile.kernels.numpy.views import Scratch, Shape, element_strides, is_forward, span

# In operations of whole vectors: what a weight takes to be packed, or its gradient to be summed up from lanes; what it
# takes to be read for each piece of the samples; an element that a window sees to be written, and a result to be moved.
# Of a product's operations as many are expected for each that it needs. Measured on a Zen 4 in float32.
_PACKED, _READ, _SEEN, _MOVED, _PRODUCT = 3.0, 0.5, 3.0, 4.0, 1.15


def samples_at_once(y: Shape, w: Shape, image: int | None, scratch: int, itemsize: int) -> int:
    """How many samples to work on at once; 0 where direct convolution is expected to take less or none fits into
    scratch.

    y      samples, outputs, rows and columns of the windows
    w      outputs, inputs, rows and columns of a window
    image  places of a sample in direct convolution, including those between rows; None where each sample is a product
           as it lies
    """
    (batch, outputs, *size), weights = y, prod(w)
    places, seen, lane = prod(size), prod(w[1:]), lanes(itemsize)
    # each of the two matrices may begin with a gap
    held = (scratch - 128) // (places * (seen + outputs) * itemsize)
    if held < 1:
        return 0
    parts = -(-batch // held)
    if image is None:
        sliding = batch * blas_cost((outputs, places, seen), False, 1, itemsize)
    else:
        sliding = weights * (-(-batch * image // lane) + _PACKED)
    written = batch * places * (seen * _SEEN + outputs * _MOVED)
    unfolded = weights * (batch * places / lane * _PRODUCT + parts * _READ) + written
    return -(-batch // parts) if unfolded < sliding else 0


def forward(
    out: np.ndarray, x: np.ndarray, w: np.ndarray, windows: Windows, samples: int, scratch: np.ndarray, accumulate: bool
) -> Call | None:
    """The convolution."""
    calls: list[Call | None] = []
    for few in _pieces(len(x), samples):
        seen, sums = _buffers(out[few], w.shape, scratch)
        there = _by_samples(sums, out[few])
        calls.append(_unfolds(seen, x[few], out.shape[2:], windows))
        calls.append(contract(sums, "oirs,pirs->op", w, seen, scratch=None, accumulate=False))
        calls.append(add(out[few], out[few], there) if accumulate else copy_call(out[few], there))
    return chain_all(calls)


def input_gradient(
    out: np.ndarray,
    dy: np.ndarray,
    w: np.ndarray,
    windows: Windows,
    samples: int,
    scratch: np.ndarray,
    accumulate: bool,
) -> Call | None:
    """The gradient of the input."""
    calls: list[Call | None] = [] if accumulate else [clear_call(out)]
    for few in _pieces(len(dy), samples):
        seen, grads = _buffers(dy[few], w.shape, scratch)
        calls.append(copy_call(_by_samples(grads, dy[few]), dy[few]))
        calls.append(contract(seen, "op,oirs->pirs", grads, w, scratch=None, accumulate=False))
        calls.append(_folds(out[few], seen, dy.shape[2:], windows))
    return chain_all(calls)


def weight_gradient(
    out: np.ndarray,
    dy: np.ndarray,
    x: np.ndarray,
    windows: Windows,
    samples: int,
    scratch: np.ndarray,
    accumulate: bool,
) -> Call | None:
    """The gradient of the weights."""
    calls: list[Call | None] = []
    for few in _pieces(len(x), samples):
        seen, gradients = _buffers(dy[few], out.shape, scratch)
        adds = accumulate or few.start > 0
        calls.append(_unfolds(seen, x[few], dy.shape[2:], windows))
        calls.append(copy_call(_by_samples(gradients, dy[few]), dy[few]))
        calls.append(contract(out, "op,pirs->oirs", gradients, seen, scratch=None, accumulate=adds))
    return chain_all(calls)


def _pieces(batch: int, samples: int) -> Iterator[slice]:
    return (slice(first, min(batch, first + samples)) for first in range(0, batch, samples))


def _buffers(y: np.ndarray, w: Shape, scratch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Buffers for what the windows of y see [places,i,r,s], and for y by channels [o,places]."""
    memory, places = Scratch(scratch), y.size // y.shape[1]
    return memory.take((places, *w[1:]), y.dtype), memory.take((y.shape[1], places), y.dtype)


def _by_samples(matrix: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A matrix [o,places] as a view like y [b,o,h,w]."""
    return matrix.reshape(len(matrix), len(y), *y.shape[2:]).swapaxes(0, 1)


def _unfolds(seen: np.ndarray, x: np.ndarray, num: Shape, windows: Windows) -> Call | None:
    return partial(_unfold, seen, span(x), *_offsets(x, num, windows)) if is_forward(x) else None


def _folds(x: np.ndarray, seen: np.ndarray, num: Shape, windows: Windows) -> Call | None:
    return partial(_fold, span(x), seen, *_offsets(x, num, windows)) if is_forward(x) else None


def _offsets(x: np.ndarray, num: Shape, windows: Windows) -> tuple[tuple[int, int, int, int], np.ndarray]:
    """Samples, channels and their steps; and the offset within a channel of each element of each window, -1 in the
    padding.
    """
    rows, columns = (
        np.arange(num[dim])[:, None] * windows.stride[dim] - windows.pads[2 * dim]
        + np.arange(windows.kernel[dim]) * windows.dilation[dim]
        for dim in range(2)
    )  # fmt: skip
    steps, down, across = element_strides(x), rows[:, None, :, None], columns[None, :, None, :]
    inside = (down >= 0) & (down < x.shape[2]) & (across >= 0) & (across < x.shape[3])
    places = np.where(inside, down * steps[2] + across * steps[3], -1)
    return (x.shape[0], x.shape[1], steps[0], steps[1]), places.reshape(num[0] * num[1], -1)


@compiled
def _unfold(seen, x, images, places):  # type: ignore[no-untyped-def]
    """seen[sample, place, channel, element] = x[sample, channel, places[place, element]], zero where no image is."""
    samples, channels, step, channel_step = images
    to, (num, elements) = pointer(seen), places.shape
    for n, p in np.ndindex(samples, num):
        source, at = after(pointer(x), n * step), after(pointer(places), p * elements)
        for _ in range(channels):
            for k in range(elements):
                to[k] = source[at[k]] if at[k] >= 0 else 0
            to, source = after(to, elements), after(source, channel_step)


@compiled
def _fold(x, seen, images, places):  # type: ignore[no-untyped-def]
    """x[sample, channel, places[place, element]] += seen[sample, place, channel, element] where an image is."""
    samples, channels, step, channel_step = images
    source, (num, elements) = pointer(seen), places.shape
    for n, p in np.ndindex(samples, num):
        to, at = after(pointer(x), n * step), after(pointer(places), p * elements)
        for _ in range(channels):
            for k in range(elements):
                if at[k] >= 0:
                    to[at[k]] += source[k]
            to, source = after(to, channel_step), after(source, elements)
