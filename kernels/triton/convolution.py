"""Convolution and its gradients: the launches of each way that is worth trying.

Where channels lie apart they are put next to each other, some samples at a time. Where windows are single elements a
convolution is a product, and goes the way of those. It knows no pooling.
"""

import inspect
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from castile.kernels.triton import ways
from castile.kernels.triton.channels import channels_last, copied, grouped, in_line, still
from castile.kernels.triton.contract import Tile, contract, contract_pointwise
from castile.kernels.triton.correlation import Windows, correlation, in_vectors, scattered
from castile.kernels.triton.depthwise import is_depthwise, spread, weighed, windowed
from castile.kernels.triton.launch import Launch, Plan, always, planned, takes
from castile.kernels.triton.layout import copy
from castile.kernels.triton.pictures import copy_size, in_rows, is_picture, rows_met, rows_weighed, slopes_by_rows
from castile.kernels.triton.slopes import divided, slopes, summed, waiting
from castile.kernels.triton.views import View, nest, permuted, view
from castile.kernels.triton.ways import Images, Way, apart
from castile.kernels.windows import Pads, Pair

# Elements of a copy of images, so that working memory is bounded, and much of what is written is read from the cache.
_COPIED = 2**25


@planned
def conv2d(
    out: Any, x: Any, w: Any, *, stride: Pair, pads: Pads, dilation: Pair = (1, 1), groups: int = 1, accumulate: bool
) -> Plan | None:
    """See the definition. Sums are in float32."""
    if not takes(out, x, w) or 0 in (x.size, w.size):
        return None
    if out.size == 0:
        return always()
    out, x, w = _images(out, x, w)
    windows = Windows(w.shape[2:], stride, (pads[0], pads[2]), dilation)
    images = _grouped(out, x, w, groups, windows)
    if is_depthwise(images.w):
        return windowed(*images, windows, accumulate)
    made = [
        *_products(images, windows, out, x, w, "o", "i", accumulate),
        _correlated(images, windows, False, accumulate),
    ]
    if is_picture(images.x, windows):
        # Products of float32 take longer than looking up, and rows are filled up with some that count for nothing.
        made.insert(0 if x.dtype.itemsize == 2 else len(made), _by_rows(images, windows, accumulate))
    return _either(made)


@planned
def conv2d_grad_input(
    out: Any,
    dy: Any,
    w: Any,
    onto: Any = None,
    *,
    shape: tuple[int, ...],
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
    accumulate: bool,
) -> Plan | None:
    """See the definition. Sums are in float32."""
    if not takes(out, dy, w) or 0 in (dy.size, w.size):
        return None
    if out.size == 0:
        return always()
    there = None if onto is None else inspect.unwrap(copy)(out, onto, accumulate=accumulate)
    out, dy, w = _images(out, dy, w)
    to = None if onto is None else _images(onto)[0]
    windows = Windows(w.shape[2:], stride, (pads[0], pads[2]), dilation)
    images = _grouped(dy, out, w, groups, windows)
    if is_depthwise(images.w):
        return _after(there, spread(images.x, images.y, images.w, windows, accumulate or there is not None))
    made = [
        *_products(images, windows, out, dy, w, "i", "o", accumulate, to),
        _after(there, _correlated(images, windows, True, accumulate or there is not None)),
    ]
    return _either(made)


@planned
def conv2d_grad_weight(
    out: Any,
    dy: Any,
    x: Any,
    *,
    kernel: tuple[int, ...],
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
    accumulate: bool,
) -> Plan | None:
    """See the definition. Sums are in float32."""
    if not takes(out, dy, x) or 0 in (dy.size, x.size):
        return None
    out, dy, x = _images(out, dy, x)
    windows = Windows(out.shape[2:], stride, (pads[0], pads[2]), dilation)
    images = _grouped(dy, x, out, groups, windows)
    if is_depthwise(images.w):
        return weighed(images.w, images.y, images.x, windows, accumulate)
    settings = ways.of_slopes(images, windows, prod(dy.shape[2:]) * dy.shape[0])
    made: list[Plan | None] = [Plan(settings, lambda way: _slope_launches(images, windows, way, accumulate))]
    if is_picture(images.x, windows):
        pieces = list(_samples(images.x, images.y, copy_size(images.x, windows, images.y.shape[4])))
        made.insert(0, slopes_by_rows(images.w, pieces, windows, accumulate))
    if _alike(images, windows) and _in_one(images):
        # Last, since its sums have few parts: too few for the chip where a weight is small.
        made.append(_contracted(out[:, :, 0, 0], "zohw,zihw->oi", dy, x, accumulate))
    return _either(made)


def _alike(images: Images, windows: Windows) -> bool:
    """Whether each place is a product of its own, without groups, of places of the same number."""
    return windows.alone and images.w.shape[0] == 1 and images.y.shape[3:] == images.x.shape[3:]


def _in_one(images: Images) -> bool:
    """Whether the places of all samples are rows of one matrix, whose columns are channels."""
    places = nest([permuted(one, (0, 3, 4)) for one in images[:2]])
    return images.y.steps[2] == images.x.steps[2] == 1 and len(places.sizes) == 1


def _products(
    images: Images, windows: Windows, out: Any, x: Any, w: Any, made: str, summed: str, adds: bool, onto: Any = None
) -> Iterator[Plan | None]:
    """The plan of a product of all places, or of one for each sample of whole vectors, where each place is one."""
    if not _alike(images, windows):
        return
    weights = w[:, :, 0, 0]
    if _in_one(images):
        yield _contracted(out, f"z{summed}hw,oi->z{made}hw", x, weights, adds, onto)
    elif prod(images.x.shape[3:]) % 16 == 0:
        every = np.broadcast_to(weights, (x.shape[0], *weights.shape))
        yield _contracted(out, f"zoi,z{summed}hw->z{made}hw", every, x, adds, onto)


def _contracted(out: Any, spec: str, first: Any, second: Any, adds: bool, onto: Any = None) -> Plan | None:
    plan: Plan | None
    if onto is None:
        plan = inspect.unwrap(contract)(out, spec, first, second, scratch=None, accumulate=adds)
    else:
        plan = inspect.unwrap(contract_pointwise)(out, spec, "x, y -> x + y", first, second, onto, accumulate=adds)
    return plan


def _after(first: Plan | None, plan: Plan) -> Plan:
    """A plan whose launches come after those of another one, if there is one."""
    if first is None:
        return plan
    ahead = first.launches(first.settings[0])
    return Plan(plan.settings, lambda one: [*ahead, *plan.launches(one)])


def _either(plans: Sequence[Plan | None]) -> Plan:
    """The settings of those plans that there are, which differ in kind, those of the first first."""
    owners = {one: plan for plan in plans if plan for one in plan.settings}
    assert len(owners) == sum(len(plan.settings) for plan in plans if plan), "a setting is of one plan"
    return Plan(tuple(owners), lambda one: owners[one].launches(one))


def _images(*arrays: Any) -> tuple[Any, ...]:
    """With rows, of which there is one where an array has none."""
    return tuple(x[:, :, None] if x.ndim == 3 else x for x in arrays)


def _grouped(y: Any, x: Any, w: Any, groups: int, windows: Windows) -> Images:
    """The arrays in groups. Where each place is a product of its own, rows that lie one after the other are one."""
    images = Images(grouped(view(y), 1, groups), grouped(view(x), 1, groups), grouped(still(w), 0, groups))
    dense = all(one.steps[3] == one.shape[4] * one.steps[4] for one in images[:2])
    if dense and windows.alone and images.y.shape[3:] == images.x.shape[3:]:
        return images._replace(y=in_line(images.y), x=in_line(images.x))
    return images


def _correlated(images: Images, windows: Windows, back: bool, adds: bool) -> Plan:
    """Places of x from those of y with `back`, or y's from x's."""
    to, of = (images.x, images.y) if back else (images.y, images.x)
    piece = next(_samples(to, of, apart(of) * _most(to, of)))[0]
    num_n = prod(to.shape[3:]) * piece.shape[0]

    def launches(way: Way) -> list[Launch]:
        weights = permuted(images.w, (0, 2, 1, 3, 4)) if back else images.w
        found = []
        if way.vectors and not in_vectors(weights, to, windows):
            # What is summed is to lie together: of [g,m,c,r,s] the dim c.
            weights, first = channels_last(weights)
            found.append(first)
        copies = way.vectors and apart(of)
        for here, met in _samples(to, of, copies * _most(to, of)):
            if copies:
                met, first = copied(met)
                found.append(first)
            turned = back and not windows.alone
            found.append(correlation(here, met, weights, windows, way.tile, turned, way.vectors, adds))
        return found

    return Plan(ways.of_places(images, windows, num_n, back, adds), launches)


def _by_rows(images: Images, windows: Windows, adds: bool) -> Plan:
    """Places of y where a window's row is what channels are elsewhere. A setting is a tile."""
    weights, weighed = rows_weighed(images.w)
    places = images.y.shape[3:]
    pieces = list(_samples(images.y, images.x, copy_size(images.x, windows, places[1])))
    num_n = prod(places) * pieces[0][0].shape[0]

    def launches(tile: Tile) -> list[Launch]:
        found = [weighed]
        for to, of in pieces:
            met, first = rows_met(of, windows, places[1])
            found += [first, correlation(to, met, weights, in_rows(windows), tile, False, True, adds)]
        return found

    return Plan(ways.of_rows(weights, num_n, images.y.array.dtype.itemsize), launches)


def _slope_launches(images: Images, windows: Windows, way: Way, adds: bool) -> list[Launch]:
    """dw of each part of the places, through all pieces of the batch, and then the sum of the parts."""
    y, x, dw = images
    copies = (way.vectors and apart(x), way.vectors and apart(y) and scattered(y, windows))
    pieces = list(_samples(x, y, any(copies) * _most(x, y)))
    places = prod(pieces[0][1].shape[:1] + pieces[0][1].shape[3:])
    parts = divided(dw, places, x.array.dtype.itemsize, way.tile, way.beside)
    whole = parts.num == len(pieces) == 1 and not (way.vectors and apart(dw))
    to = View(dw.array, (1, *dw.shape), (0, *dw.steps)) if whole else waiting(dw, parts.num, way.vectors)
    found = []
    for number, (met, slope) in enumerate(pieces):
        if copies[0]:
            met, first = copied(met)
            found.append(first)
        if copies[1]:
            slope, first = copied(slope)
            found.append(first)
        adding = adds if whole else number > 0
        found.append(slopes(to, slope, met, windows, way.tile, way.beside, parts, way.vectors, adding))
    return found if whole else [*found, *summed(dw, to, adds)]


def _most(one: View, other: View) -> int:
    """Elements of a sample of either."""
    return max(prod(one.shape[1:]), prod(other.shape[1:]))


def _samples(one: View, other: View, each: int) -> Iterator[tuple[View, View]]:
    """Two views of images some samples at a time, where so many elements of each are copied; else all of them."""
    batch = one.shape[0]
    num = -(-batch // max(1, _COPIED // each)) if each else 1
    size = -(-batch // num)
    for start in range(0, batch, size):
        yield _cut(one, start, min(start + size, batch)), _cut(other, start, min(start + size, batch))


def _cut(one: View, start: int, stop: int) -> View:
    if stop - start == one.shape[0]:
        return one
    return View(one.array[start:stop], (stop - start, *one.shape[1:]), one.steps)
