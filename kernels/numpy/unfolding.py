"""Convolutions of small images as products of matrices: what each window sees is written out, a row for each place.

Sums that slide (`correlation`) also meet the zeros between images, and weights are packed for them. A product does
neither, but what several windows see is written as often. It knows no groups, and works on as many samples at once as
scratch memory holds.
"""

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np

from castile.kernels.calls import Call, chain_all
from castile.kernels.numpy.contract import contract
from castile.kernels.numpy.copies import Windows
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.lanes import after, pointer
from castile.kernels.numpy.moving import add, clears, moves
from castile.kernels.numpy.products import by_blas
from castile.kernels.numpy.tiles import lanes
from castile.kernels.numpy.views import Scratch, Shape, even, span, steps_of

# In operations of whole vectors: what a weight takes to be packed, or its gradient to be summed up from lanes; what it
# takes to be read for each piece of the samples; an element that a window sees to be written, and a result to be moved.
# Of a product's operations as many are expected for each that it needs. Measured on a Zen 4 in float32.
_PACKED, _READ, _SEEN, _MOVED, _PRODUCT = 3.0, 0.5, 3.0, 4.0, 1.15


def samples_at_once(y: Shape, w: Shape, image: int | None, scratch: int, itemsize: int) -> int:
    """How many samples to work on at once, 0 where sliding sums are expected to take less or none fits into scratch.

    y      samples, outputs, rows and columns of the windows
    w      outputs, inputs, rows and columns of a window
    image  places of a sample that sliding sums go over, those that are none among them; None where each sample is a
           product as it lies
    """
    (batch, outputs, *size), weights = y, prod(w)
    places, seen, lane = prod(size), prod(w[1:]), lanes(itemsize)
    # each of the two matrices may begin with a gap
    held = (scratch - 128) // (places * (seen + outputs) * itemsize)
    if held < 1:
        return 0
    parts = -(-batch // held)
    if image is None:
        sliding = batch * by_blas((outputs, places, seen), False, 1, itemsize)
    else:
        sliding = weights * (-(-batch * image // lane) + _PACKED)
    written = batch * places * (seen * _SEEN + outputs * _MOVED)
    unfolded = weights * (batch * places / lane * _PRODUCT + parts * _READ) + written
    return -(-batch // parts) if unfolded < sliding else 0


def forward(
    out: np.ndarray, x: np.ndarray, w: np.ndarray, windows: Windows, samples: int, scratch: np.ndarray, accumulate: bool
) -> Call | None:
    """The sums of all windows."""
    calls: list[Call | None] = []
    for few in _pieces(len(x), samples):
        seen, sums = _working_room(out[few], w.shape, scratch)
        there = _by_samples(sums, out[few])
        calls.append(_unfolds(seen, x[few], out.shape[2:], windows))
        calls.append(contract(sums, "oirs,pirs->op", w, seen, scratch=None, accumulate=False))
        calls.append(add(out[few], out[few], there) if accumulate else moves(out[few], there))
    return chain_all(calls)


def backward(
    out: np.ndarray,
    dy: np.ndarray,
    w: np.ndarray,
    windows: Windows,
    samples: int,
    scratch: np.ndarray,
    accumulate: bool,
) -> Call | None:
    """What windows give back to what they see."""
    calls: list[Call | None] = [] if accumulate else [clears(out)]
    for few in _pieces(len(dy), samples):
        seen, slopes = _working_room(dy[few], w.shape, scratch)
        calls.append(moves(_by_samples(slopes, dy[few]), dy[few]))
        calls.append(contract(seen, "op,oirs->pirs", slopes, w, scratch=None, accumulate=False))
        calls.append(_folds(out[few], seen, dy.shape[2:], windows))
    return chain_all(calls)


def slopes(
    out: np.ndarray,
    dy: np.ndarray,
    x: np.ndarray,
    windows: Windows,
    samples: int,
    scratch: np.ndarray,
    accumulate: bool,
) -> Call | None:
    """Sums over all windows of what they see times dy."""
    calls: list[Call | None] = []
    for few in _pieces(len(x), samples):
        seen, gradients = _working_room(dy[few], out.shape, scratch)
        adds = accumulate or few.start > 0
        calls.append(_unfolds(seen, x[few], dy.shape[2:], windows))
        calls.append(moves(_by_samples(gradients, dy[few]), dy[few]))
        calls.append(contract(out, "op,pirs->oirs", gradients, seen, scratch=None, accumulate=adds))
    return chain_all(calls)


def _pieces(batch: int, samples: int) -> Iterator[slice]:
    return (slice(first, min(batch, first + samples)) for first in range(0, batch, samples))


def _working_room(y: np.ndarray, w: Shape, scratch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Room for what the windows of y see [places,i,r,s], and for y's numbers by channels [o,places]."""
    memory, places = Scratch(scratch), y.size // y.shape[1]
    return memory.take((places, *w[1:]), y.dtype), memory.take((y.shape[1], places), y.dtype)


def _by_samples(matrix: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A matrix [o,places] as a view like y [b,o,h,w]."""
    return matrix.reshape(len(matrix), len(y), *y.shape[2:]).swapaxes(0, 1)


def _unfolds(seen: np.ndarray, x: np.ndarray, num: Shape, windows: Windows) -> Call | None:
    return partial(_unfold, seen, span(x), *_reach(x, num, windows)) if even(x) else None


def _folds(x: np.ndarray, seen: np.ndarray, num: Shape, windows: Windows) -> Call | None:
    return partial(_fold, span(x), seen, *_reach(x, num, windows)) if even(x) else None


def _reach(x: np.ndarray, num: Shape, windows: Windows) -> tuple[tuple[int, int, int, int], np.ndarray]:
    """Samples, channels and their steps; how far into a channel each element of each of `num` windows lies, -1 where
    no image is."""
    rows, columns = (
        np.arange(num[dim])[:, None] * windows.stride[dim] - windows.pads[2 * dim]
        + np.arange(windows.kernel[dim]) * windows.dilation[dim]
        for dim in range(2)
    )  # fmt: skip
    steps, down, across = steps_of(x), rows[:, None, :, None], columns[None, :, None, :]
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
