"""Convolution and its gradients: which way is worth trying, and the launches of each over some samples at a time.

It knows no pooling. Where windows are single elements a convolution is a product, and goes the way of those.
"""

import inspect
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.triton.channels import channels_last, grouped
from castile.kernels.triton.contract import Tile, contract
from castile.kernels.triton.correlation import Windows, correlation, fitting, together
from castile.kernels.triton.launch import Launch, Plan, Room, planned, takes
from castile.kernels.triton.lines import packed
from castile.kernels.triton.slopes import divided, slopes, summed
from castile.kernels.triton.views import View, permuted, view
from castile.kernels.windows import Pads, Pair

# Programs that fill the largest chip once.
_FILL = 148
# Elements of a copy of images, so that working memory is bounded, and much of what is written is read from the cache.
_COPIED = 2**25


class Way(NamedTuple):
    """A setting: the tile of products, and whether channels are put next to each other first."""

    tile: Tile
    copies: bool


# Where places are looked up one by one they take registers, so that these tiles are smaller.
_HALF = (
    Way(Tile(128, 256, 64, 8, 3), True),
    Way(Tile(128, 128, 64, 8, 3), True),
    Way(Tile(64, 256, 64, 8, 3), True),
    Way(Tile(64, 128, 64, 4, 4), True),
    Way(Tile(64, 128, 64, 8, 3), True),
    Way(Tile(64, 64, 64, 4, 4), True),
    Way(Tile(64, 128, 32, 8, 3), False),
    Way(Tile(64, 64, 32, 4, 3), False),
)
_FULL = (
    Way(Tile(128, 128, 16, 8, 3), True),
    Way(Tile(64, 64, 32, 4, 3), True),
    Way(Tile(64, 128, 32, 8, 3, "tf32x3"), True),
    Way(Tile(64, 64, 16, 4, 2), False),
    Way(Tile(64, 64, 32, 8, 2, "tf32x3"), False),
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
    out, x, w = _images(out, x, w)
    windows = Windows(w.shape[2:], stride, (pads[0], pads[2]), dilation)
    if _pointwise(windows, pads, x.shape, groups):
        return _product("zoi,zihw->zohw", out, w, x, accumulate)
    return _correlated(_grouped(out, x, w, groups), windows, False, accumulate)


@planned
def conv2d_grad_input(
    out: Any,
    dy: Any,
    w: Any,
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
    out, dy, w = _images(out, dy, w)
    windows = Windows(w.shape[2:], stride, (pads[0], pads[2]), dilation)
    if _pointwise(windows, pads, out.shape, groups):
        return _product("zoi,zohw->zihw", out, w, dy, accumulate)
    return _correlated(_grouped(dy, out, w, groups), windows, True, accumulate)


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
    images = _grouped(dy, x, out, groups)
    _, num_m, num_c, *taps = images.w.shape

    def fit(way: Way) -> Way:
        num_n = num_c if way.copies else num_c * prod(taps)
        return way._replace(tile=fitting(way.tile, num_m, num_n, prod(dy.shape[2:]) * dy.shape[0]))

    # Tiles do not have to fill the chip, as places are divided, but adding to what is there takes registers.
    ways = _ordered(x.dtype.itemsize, num_c, fit, lambda tile: tile.m * tile.n <= 1024 * tile.warps)
    return Plan(ways, lambda way: _slope_launches(images, windows, way, accumulate))


def _images(*arrays: Any) -> tuple[Any, ...]:
    """With rows, of which there is one where an array has none."""
    return tuple(x[:, :, None] if x.ndim == 3 else x for x in arrays)


def _grouped(y: Any, x: Any, w: Any, groups: int) -> Images:
    return Images(grouped(view(y), 1, groups), grouped(view(x), 1, groups), grouped(view(w), 0, groups))


def _pointwise(windows: Windows, pads: Pads, shape: tuple[int, ...], groups: int) -> bool:
    """Whether each place is a product of its own, in rows so long that they are fetched in whole vectors."""
    alone = (windows.kernel, windows.stride, tuple(pads), groups) == ((1, 1), (1, 1), (0, 0, 0, 0), 1)
    return alone and prod(shape[2:]) % 16 == 0


def _product(spec: str, out: Any, w: Any, x: Any, accumulate: bool) -> Plan | None:
    """A product for each sample, of the same weights, which its rows of places stay together by."""
    weights = np.broadcast_to(w[:, :, 0, 0], (x.shape[0], *w.shape[:2]))
    made: Plan | None = inspect.unwrap(contract)(out, spec, weights, x, scratch=None, accumulate=accumulate)
    return made


def _ordered(itemsize: int, channels: int, fit: Callable[[Way], Way], suits: Callable[[Tile], bool]) -> tuple[Way, ...]:
    """The ways, likeliest first: with copies where channels fill vectors, and the largest tile that suits."""
    ways = list(dict.fromkeys(map(fit, _HALF if itemsize == 2 else _FULL)))
    liked = [way for way in ways if way.copies == (channels >= 16)]
    first = [way for way in liked if suits(way.tile)]
    # Of those that do not, the smallest are likeliest.
    rest = [way for way in reversed(liked) if way not in first]
    return tuple([*first, *rest, *(way for way in ways if way not in liked)])


def _correlated(images: Images, windows: Windows, back: bool, adds: bool) -> Plan:
    """Places of x from those of y with `back`, or y's from x's."""
    to, of = (images.x, images.y) if back else (images.y, images.x)
    if prod(to.shape) == 0:
        return Plan((None,), lambda _: [])
    _, groups, num_m, *size = to.shape
    piece = next(_samples(to, of, True))[0]
    num_n, num_c = prod(size) * piece.shape[0], of.shape[2]

    def fit(way: Way) -> Way:
        num_k = num_c if way.copies else num_c * prod(windows.kernel)
        return way._replace(tile=fitting(way.tile, num_m, num_n, num_k))

    def suits(tile: Tile) -> bool:
        """Whether each processor gets one, and registers last."""
        num = -(-num_m // tile.m) * -(-num_n // tile.n) * groups
        return num >= _FILL and tile.m * tile.n <= 2048 * tile.warps

    def launches(way: Way) -> list[Launch]:
        weights = permuted(images.w, (0, 2, 1, 3, 4)) if back else images.w
        found = []
        if way.copies:
            # What is summed is to lie together: of [g,m,c,r,s] the dim c.
            weights, first = channels_last(weights)
            found.append(first)
        for here, met in _samples(to, of, way.copies):
            if way.copies:
                met, first = _copied(met)
                found.append(first)
            found.append(correlation(here, met, weights, windows, way.tile, back, adds))
        return found

    return Plan(_ordered(to.array.dtype.itemsize, num_c, fit, suits), launches)


def _slope_launches(images: Images, windows: Windows, way: Way, adds: bool) -> list[Launch]:
    """dw of each part of the places, through all pieces of the batch, and then the sum of the parts."""
    y, x, dw = images
    pieces = list(_samples(x, y, way.copies))
    places = prod(pieces[0][1].shape[:1] + pieces[0][1].shape[3:])
    parts = divided(dw, places, way.tile)
    whole = parts.num == len(pieces) == 1
    room = Room(parts.num * prod(dw.shape))
    to = View(dw.array, (1, *dw.shape), (0, *dw.steps))
    if not whole:
        to = View(room, (parts.num, *dw.shape), packed((parts.num, *dw.shape)))
    found = []
    for number, (met, slope) in enumerate(pieces):
        if way.copies:
            met, first = _copied(met)
            found.append(first)
        if way.copies and together(slope) == 1:
            slope, first = _copied(slope)
            found.append(first)
        found.append(slopes(to, slope, met, windows, way.tile, parts, adds if whole else number > 0))
    return found if whole else [*found, *summed(dw, room, parts.num, adds)]


def _samples(one: View, other: View, copies: bool) -> Iterator[tuple[View, View]]:
    """Two views of images some samples at a time, all of them where nothing is copied."""
    batch = one.shape[0]
    most = max(prod(one.shape[1:]), prod(other.shape[1:]))
    num = -(-batch // max(1, _COPIED // most)) if copies else 1
    size = -(-batch // num)
    for start in range(0, batch, size):
        yield _cut(one, start, min(start + size, batch)), _cut(other, start, min(start + size, batch))


def _cut(one: View, start: int, stop: int) -> View:
    return View(one.array[start:stop], (stop - start, *one.shape[1:]), one.steps)


def _copied(one: View) -> tuple[View, Launch]:
    """Images [b,g,c,h,w] copied so that all channels lie together."""
    batch, groups, num, *size = one.shape
    joined = View(one.array, (batch, groups * num, *size), (one.steps[0], one.steps[2], *one.steps[3:]))
    copy, launch = channels_last(joined)
    return grouped(copy, 1, groups), launch
