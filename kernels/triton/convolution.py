"""Convolution and its gradients: which way is worth trying, and the launches of each.

Where channels lie apart they are put next to each other, some samples at a time. Where windows are single elements a
convolution is a product, and goes the way of those. It knows no pooling.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.triton.channels import channels_last, copied, grouped, in_line, still
from castile.kernels.triton.contract import ALONE, Tile, contract, contract_pointwise, is_alone
from castile.kernels.triton.correlation import Windows, correlation, fitting, in_vectors, scattered, together
from castile.kernels.triton.depthwise import is_depthwise, spread, weighed, windowed
from castile.kernels.triton.launch import Launch, Plan, always, planned, takes
from castile.kernels.triton.layout import copy
from castile.kernels.triton.pictures import copy_size, in_rows, is_picture, rows_met, rows_weighed, slopes_by_rows
from castile.kernels.triton.slopes import divided, slopes, summed, waiting
from castile.kernels.triton.views import View, nest, permuted, view
from castile.kernels.windows import Pads, Pair

# Programs that fill the largest chip once.
_FILL = 148
# Programs that nearly fill the smallest once: half as large, twice as many take longer.
_NEARLY = range(98, 109)
# Bytes that threads may fetch ahead at once.
_LEAST_BYTES = 8
# Elements of a copy of images, so that working memory is bounded, and much of what is written is read from the cache.
_COPIED = 2**25


class Way(NamedTuple):
    """A setting: the tile of products, and whether windows meet vectors of channels, put next to each other if need be.

    A program of a gradient of weights takes `beside` elements of a window's row.
    """

    tile: Tile
    vectors: bool
    beside: int = 1


# Where places are looked up one by one they take registers, so that these tiles are smaller.
_HALF = (
    Way(Tile(128, 128, 64, 8, 3), True),
    Way(Tile(64, 128, 64, 8, 3), True),
    Way(Tile(64, 128, 64, 4, 4), True),
    Way(Tile(128, 256, 64, 8, 3), True),
    Way(Tile(256, 128, 64, 8, 3), True),
    Way(Tile(64, 256, 64, 8, 3), True),
    Way(Tile(64, 64, 64, 4, 4), True),
    Way(Tile(128, 128, 64, 8, 3), False),
    Way(Tile(64, 128, 64, 4, 3), False),
    Way(Tile(64, 64, 64, 4, 4), False),
    Way(Tile(64, 64, 32, 4, 3), False),
    Way(Tile(64, 128, 32, 8, 3), False),
)
_FULL = (
    Way(Tile(128, 128, 16, 8, 3), True),
    Way(Tile(64, 64, 32, 8, 3), True),
    Way(Tile(64, 64, 32, 4, 3), True),
    Way(Tile(64, 128, 32, 8, 3, "tf32x3"), True),
    Way(Tile(64, 64, 16, 4, 2), False),
    Way(Tile(64, 64, 32, 8, 2, "tf32x3"), False),
)
# Forward three steps of so many sums would leave out registers on a B200.
_TWO_STEPS = Way(Tile(128, 128, 16, 8, 2), True)
_FULL_SLOPES = (*_FULL, Way(Tile(64, 64, 16, 8, 2), True, 3))
# Of windows whose row has no three, of more rows and columns: a third less is read from the cache.
_ONE = Way(Tile(128, 128, 64, 16, 3), True)
# Where channels of dy lie together, 64 places a step would leave out registers on an A100.
_FEW_PLACES = Way(Tile(128, 64, 32, 8, 3), True, 3)
_HALF_SLOPES = (
    Way(Tile(128, 64, 64, 8, 3), True, 3),
    Way(Tile(256, 64, 64, 16, 3), True, 3),
    Way(Tile(128, 128, 64, 16, 3), True, 3),
    Way(Tile(128, 256, 64, 8, 3), True),
    Way(Tile(64, 64, 64, 4, 3), True, 3),
    Way(Tile(128, 128, 64, 8, 3), True),
    Way(Tile(64, 128, 64, 8, 3), True),
    Way(Tile(64, 64, 64, 4, 4), True),
    Way(Tile(128, 128, 64, 8, 3), False),
    Way(Tile(64, 128, 64, 4, 3), False),
    Way(Tile(64, 64, 64, 4, 4), False),
    Way(Tile(64, 64, 32, 4, 3), False),
    Way(Tile(64, 64, 32, 8, 3), False),
)


class Images(NamedTuple):
    """The arrays of a convolution in groups: y [b,g,o,h,w], x [b,g,i,H,W], w [g,o,i,r,s]."""

    y: View
    x: View
    w: View


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
    _, num_m, num_c, *taps = images.w.shape

    def fit(way: Way) -> Way:
        tile = fitting(way.tile, num_m, num_c * (1 if way.vectors else prod(taps)), prod(dy.shape[2:]) * dy.shape[0])
        return way._replace(tile=tile, beside=way.beside if taps[1] % way.beside == 0 else 1)

    rows = taps[1] % _FEW_PLACES.beside == 0
    first = () if rows and _apart(images.y) else (_FEW_PLACES,) if rows else (_ONE,)
    ways = map(fit, _FULL_SLOPES if x.dtype.itemsize == 4 else (*first, *_HALF_SLOPES))
    # Tiles do not have to fill the chip, as places are divided, but adding to what is there takes registers.
    settings = _ordered(ways, images, windows, num_c, lambda tile: tile.m * tile.n == 1024 * tile.warps)
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


def _ordered(
    ways: Iterable[Way], images: Images, windows: Windows, channels: int, suits: Callable[[Tile], bool]
) -> tuple[Way, ...]:
    """The ways worth trying where so many channels would be copied, likeliest first: the largest tile that suits."""
    every = list(dict.fromkeys(ways))
    copies, both = channels >= 16, False
    if windows.alone:
        # Rows of places are fetched ahead as they lie, unless each begins anywhere.
        run = min(together(images.x), together(images.y)) * images.y.array.dtype.itemsize
        copies, both = copies and run < _LEAST_BYTES, copies and run == _LEAST_BYTES
    elif not copies:
        # Looking up each element takes registers.
        every = [way for way in every if way.tile.k <= 32]
    liked = [way for way in every if way.vectors == copies]
    return (*_likeliest(liked, suits), *(way for way in every if both and way not in liked))


def _likeliest(ways: list[Way], suits: Callable[[Tile], bool]) -> list[Way]:
    first = [way for way in ways if suits(way.tile)]
    # Of those that do not, the smallest are likeliest.
    return [*first, *(way for way in reversed(ways) if way not in first)]


def _fitted(way: Way, num_m: int, num_n: int, num_c: int, taps: int) -> Way:
    tile = fitting(way.tile, num_m, num_n, num_c if way.vectors else num_c * taps)
    # What is never fetched ahead takes no memory.
    return way._replace(tile=tile._replace(stages=min(tile.stages, -(-num_c * taps // tile.k))))


def _fills(tile: Tile, num_m: int, num_n: int, groups: int, sums: int = 2048, nearly: Collection[int] = ()) -> bool:
    """Whether each processor gets one, or there are so many, and a warp has at most so many sums."""
    num = -(-num_m // tile.m) * -(-num_n // tile.n) * groups
    return (num >= _FILL or num in nearly) and tile.m * tile.n <= sums * tile.warps


def _correlated(images: Images, windows: Windows, back: bool, adds: bool) -> Plan:
    """Places of x from those of y with `back`, or y's from x's."""
    to, of = (images.x, images.y) if back else (images.y, images.x)
    _, groups, num_m, *size = to.shape
    piece = next(_samples(to, of, _apart(of) * _most(to, of)))[0]
    num_n, num_c = prod(size) * piece.shape[0], of.shape[2]

    def launches(way: Way) -> list[Launch]:
        weights = permuted(images.w, (0, 2, 1, 3, 4)) if back else images.w
        found = []
        if way.vectors and not in_vectors(weights, to, windows):
            # What is summed is to lie together: of [g,m,c,r,s] the dim c.
            weights, first = channels_last(weights)
            found.append(first)
        copies = way.vectors and _apart(of)
        for here, met in _samples(to, of, copies * _most(to, of)):
            if copies:
                met, first = copied(met)
                found.append(first)
            turned = back and not windows.alone
            found.append(correlation(here, met, weights, windows, way.tile, turned, way.vectors, adds))
        return found

    full = (_TWO_STEPS, *_FULL) if not back and num_m >= _TWO_STEPS.tile.m else _FULL
    # Those of few tiles that all chips have room for are first of their size, the others last.
    deep = [Way(tile, True) for tile in ALONE if is_alone(tile, num_m, num_n, groups)]
    every, nearly = (full, ()) if to.array.dtype.itemsize == 4 else ((*deep[:1], *_HALF), _NEARLY)
    # What is added to in rows that begin anywhere is fetched element by element, which takes registers; in float32 all
    # that is added to does, and planes that do not lie as they come.
    crowded = (adds and to.steps[4] == 1 == together(to)) if nearly else (adds or _parted(to) or _parted(of))
    sums = 1024 if crowded else 2048
    taps = prod(windows.kernel)
    ways, last = ([_fitted(way, num_m, num_n, num_c, taps) for way in some] for some in (every, deep[1:]))
    liked = _ordered(ways, images, windows, num_c, lambda t: _fills(t, num_m, num_n, groups, sums, nearly))
    return Plan((*liked, *(way for way in last if nearly and liked[0].vectors and way not in liked)), launches)


def _by_rows(images: Images, windows: Windows, adds: bool) -> Plan:
    """Places of y where a window's row is what channels are elsewhere. A setting is a tile."""
    weights, weighed = rows_weighed(images.w)
    _, num_m, num_c, *taps = weights.shape
    places = images.y.shape[3:]
    pieces = list(_samples(images.y, images.x, copy_size(images.x, windows, places[1])))
    num_n = prod(places) * pieces[0][0].shape[0]

    def launches(tile: Tile) -> list[Launch]:
        found = [weighed]
        for to, of in pieces:
            met, first = rows_met(of, windows, places[1])
            found += [first, correlation(to, met, weights, in_rows(windows), tile, False, True, adds)]
        return found

    every = _FULL if images.y.array.dtype.itemsize == 4 else _HALF
    ways = dict.fromkeys(_fitted(way, num_m, num_n, num_c, prod(taps)) for way in every if way.vectors)
    # Masks of rows that fill no tile are shared by the elements of a thread.
    shared = sorted(ways, key=lambda way: -way.tile.m * way.tile.n // way.tile.warps)
    liked = _likeliest(shared, lambda tile: _fills(tile, num_m, num_n, 1))
    return Plan(tuple(way.tile for way in liked), launches)


def _slope_launches(images: Images, windows: Windows, way: Way, adds: bool) -> list[Launch]:
    """dw of each part of the places, through all pieces of the batch, and then the sum of the parts."""
    y, x, dw = images
    copies = (way.vectors and _apart(x), way.vectors and _apart(y) and scattered(y, windows))
    pieces = list(_samples(x, y, any(copies) * _most(x, y)))
    places = prod(pieces[0][1].shape[:1] + pieces[0][1].shape[3:])
    parts = divided(dw, places, x.array.dtype.itemsize, way.tile, way.beside)
    whole = parts.num == len(pieces) == 1 and not (way.vectors and _apart(dw))
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


def _parted(one: View) -> bool:
    """Whether the rows of a plane lie apart, or neither its elements nor those of its channels lie together."""
    *_, channel, row, element = one.steps
    return one.shape[3] > 1 and (row != one.shape[4] * element or 1 not in (channel, element))


def _apart(one: View) -> bool:
    """Whether the channels of images [b,g,c,h,w] do not lie next to each other."""
    return one.steps[2] != 1


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
