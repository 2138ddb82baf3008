"""Settings of convolutions and their gradients: which are worth trying, and in which order.

It knows no launch.
"""

from collections.abc import Callable, Collection, Iterable
from math import prod
from typing import NamedTuple

from castile.kernels.triton.contract import DEEP_TILES, Tile, has_few_tiles
from castile.kernels.triton.implicit_gemm import Windows, clipped, contiguous_run
from castile.kernels.triton.views import View

# Programs that fill the largest chip once.
_FILL = 148
# Programs that nearly fill the smallest once: half as large, twice as many take longer.
_NEARLY = range(98, 109)
# Bytes that threads may fetch ahead at once.
_LEAST_BYTES = 8


class ConvSetting(NamedTuple):
    """The tile of the matrix product, and whether windows see vectors of channels, for which some images are copied
    first.

    A program of a weight gradient takes `beside` elements of a window's row.
    """

    tile: Tile
    vectors: bool
    beside: int = 1


# Where places are looked up one by one they take registers, so that these tiles are smaller.
_HALF = (
    ConvSetting(Tile(128, 128, 64, 8, 3), True),
    ConvSetting(Tile(64, 128, 64, 8, 3), True),
    ConvSetting(Tile(64, 128, 64, 4, 4), True),
    ConvSetting(Tile(128, 256, 64, 8, 3), True),
    ConvSetting(Tile(256, 128, 64, 8, 3), True),
    ConvSetting(Tile(64, 256, 64, 8, 3), True),
    ConvSetting(Tile(64, 64, 64, 4, 4), True),
    ConvSetting(Tile(128, 128, 64, 8, 3), False),
    ConvSetting(Tile(64, 128, 64, 4, 3), False),
    ConvSetting(Tile(64, 64, 64, 4, 4), False),
    ConvSetting(Tile(64, 64, 32, 4, 3), False),
    ConvSetting(Tile(64, 128, 32, 8, 3), False),
)
_FULL = (
    ConvSetting(Tile(128, 128, 16, 8, 3), True),
    ConvSetting(Tile(64, 64, 32, 8, 3), True),
    ConvSetting(Tile(64, 64, 32, 4, 3), True),
    ConvSetting(Tile(64, 128, 32, 8, 3, "tf32x3"), True),
    ConvSetting(Tile(64, 64, 16, 4, 2), False),
    ConvSetting(Tile(64, 64, 32, 8, 2, "tf32x3"), False),
)
# Forward three steps of so many sums would leave out registers on a B200.
_TWO_STEPS = ConvSetting(Tile(128, 128, 16, 8, 2), True)
_FULL_WEIGHT_GRADIENT = (*_FULL, ConvSetting(Tile(64, 64, 16, 8, 2), True, 3))
# Of windows whose row has no three, of more rows and columns: a third less is read from the cache.
_ONE = ConvSetting(Tile(128, 128, 64, 16, 3), True)
# Where channels of dy lie together, 64 places a step would leave out registers on an A100.
_FEW_PLACES = ConvSetting(Tile(128, 64, 32, 8, 3), True, 3)
_HALF_WEIGHT_GRADIENT = (
    ConvSetting(Tile(128, 64, 64, 8, 3), True, 3),
    ConvSetting(Tile(256, 64, 64, 16, 3), True, 3),
    ConvSetting(Tile(128, 128, 64, 16, 3), True, 3),
    ConvSetting(Tile(128, 256, 64, 8, 3), True),
    ConvSetting(Tile(64, 64, 64, 4, 3), True, 3),
    ConvSetting(Tile(128, 128, 64, 8, 3), True),
    ConvSetting(Tile(64, 128, 64, 8, 3), True),
    ConvSetting(Tile(64, 64, 64, 4, 4), True),
    ConvSetting(Tile(128, 128, 64, 8, 3), False),
    ConvSetting(Tile(64, 128, 64, 4, 3), False),
    ConvSetting(Tile(64, 64, 64, 4, 4), False),
    ConvSetting(Tile(64, 64, 32, 4, 3), False),
    ConvSetting(Tile(64, 64, 32, 8, 3), False),
)


class Images(NamedTuple):
    """The arrays of a convolution in groups: y [b,g,o,h,w], x [b,g,i,H,W], w [g,o,i,r,s]."""

    y: View
    x: View
    w: View


def gemm_settings(images: Images, windows: Windows, num_n: int, back: bool, adds: bool) -> tuple[ConvSetting, ...]:
    """Settings of the output gradient of x, with `back`, or of the output y; num_n places are computed at a time."""
    to, of = (images.x, images.y) if back else (images.y, images.x)
    (_, groups, num_m, *_), num_c = to.shape, of.shape[2]
    full = (_TWO_STEPS, *_FULL) if not back and num_m >= _TWO_STEPS.tile.m else _FULL
    # Those of few tiles that all chips have room for are first of their size, the others last.
    deep = [ConvSetting(tile, True) for tile in DEEP_TILES if has_few_tiles(tile, num_m, num_n, groups)]
    every, nearly = (full, ()) if to.array.dtype.itemsize == 4 else ((*deep[:1], *_HALF), _NEARLY)
    # What is added to in rows that begin anywhere is fetched element by element, which takes registers; in float32 all
    # that is added to does, and planes that do not lie as they come.
    crowded = (adds and to.steps[4] == 1 == contiguous_run(to)) if nearly else (adds or _has_gaps(to) or _has_gaps(of))
    sums = 1024 if crowded else 2048
    taps = prod(windows.kernel)
    ways, last = ([_fit(way, num_m, num_n, num_c, taps) for way in some] for some in (every, deep[1:]))
    liked = _ordered(ways, images, windows, num_c, lambda t: _fills_chip(t, num_m, num_n, groups, sums, nearly))
    return (*liked, *(way for way in last if nearly and liked[0].vectors and way not in liked))


def few_channel_tiles(weights: View, num_n: int, itemsize: int) -> tuple[Tile, ...]:
    """Tiles for `num_n` places of images with few channels, where a window's row takes the channels' place.

    weights  [g,o,c,r,s]
    """
    _, num_m, num_c, *taps = weights.shape
    every = _FULL if itemsize == 4 else _HALF
    ways = dict.fromkeys(_fit(way, num_m, num_n, num_c, prod(taps)) for way in every if way.vectors)
    # Masks of rows that fill no tile are shared by the elements of a thread.
    shared = sorted(ways, key=lambda way: -way.tile.m * way.tile.n // way.tile.warps)
    return tuple(way.tile for way in _suitable_first(shared, lambda tile: _fills_chip(tile, num_m, num_n, 1)))


def weight_gradient_settings(images: Images, windows: Windows, num_places: int) -> tuple[ConvSetting, ...]:
    """Settings of a weight gradient that sums over `num_places` places."""
    _, num_m, num_c, *taps = images.w.shape

    def fit(way: ConvSetting) -> ConvSetting:
        tile = clipped(way.tile, num_m, num_c * (1 if way.vectors else prod(taps)), num_places)
        return way._replace(tile=tile, beside=way.beside if taps[1] % way.beside == 0 else 1)

    rows = taps[1] % _FEW_PLACES.beside == 0
    first = () if rows and has_channels_apart(images.y) else (_FEW_PLACES,) if rows else (_ONE,)
    ways = map(fit, _FULL_WEIGHT_GRADIENT if images.x.array.dtype.itemsize == 4 else (*first, *_HALF_WEIGHT_GRADIENT))
    # Tiles do not have to fill the chip, as places are divided, but adding to what is there takes registers.
    return _ordered(ways, images, windows, num_c, lambda tile: tile.m * tile.n == 1024 * tile.warps)


def has_channels_apart(one: View) -> bool:
    """Whether the channels of images are not contiguous."""
    return one.steps[2] != 1


def _has_gaps(one: View) -> bool:
    """Whether an image's rows do not follow each other, or neither columns nor channels are contiguous."""
    *_, channel, row, element = one.steps
    return one.shape[3] > 1 and (row != one.shape[4] * element or 1 not in (channel, element))


def _ordered(
    ways: Iterable[ConvSetting], images: Images, windows: Windows, channels: int, suits: Callable[[Tile], bool]
) -> tuple[ConvSetting, ...]:
    """The settings worth trying, the likeliest first: the largest tile that suits.

    channels  of the images that would be copied to make their channels contiguous
    """
    every = list(dict.fromkeys(ways))
    copies, both = channels >= 16, False
    if windows.alone:
        # Rows of places are fetched ahead as they lie, unless each begins anywhere.
        run = min(contiguous_run(images.x), contiguous_run(images.y)) * images.y.array.dtype.itemsize
        copies, both = copies and run < _LEAST_BYTES, copies and run == _LEAST_BYTES
    elif not copies:
        # Looking up each element takes registers.
        every = [way for way in every if way.tile.k <= 32]
    liked = [way for way in every if way.vectors == copies]
    return (*_suitable_first(liked, suits), *(way for way in every if both and way not in liked))


def _suitable_first(ways: list[ConvSetting], suits: Callable[[Tile], bool]) -> list[ConvSetting]:
    first = [way for way in ways if suits(way.tile)]
    # Of those that do not, the smallest are likeliest.
    return [*first, *(way for way in reversed(ways) if way not in first)]


def _fit(way: ConvSetting, num_m: int, num_n: int, num_c: int, taps: int) -> ConvSetting:
    tile = clipped(way.tile, num_m, num_n, num_c if way.vectors else num_c * taps)
    # What is never fetched ahead takes no memory.
    return way._replace(tile=tile._replace(stages=min(tile.stages, -(-num_c * taps // tile.k))))


def _fills_chip(
    tile: Tile, num_m: int, num_n: int, groups: int, sums: int = 2048, nearly: Collection[int] = ()
) -> bool:
    """Whether every multiprocessor gets a program, or there are `nearly` as many, and a warp has at most `sums` sums.
    """
    num = -(-num_m // tile.m) * -(-num_n // tile.n) * groups
    return (num >= _FILL or num in nearly) and tile.m * tile.n <= sums * tile.warps
