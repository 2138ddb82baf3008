"""Ways of convolution and its gradients: which settings are worth trying, likeliest first.

It knows no launch.
"""

from collections.abc import Callable, Collection, Iterable
from math import prod
from typing import NamedTuple

from castile.kernels.triton.contract import ALONE, Tile, is_alone
from castile.kernels.triton.correlation import Windows, fitting, together
from castile.kernels.triton.views import View

# Programs that fill the largest chip once.
_FILL = 148
# Programs that nearly fill the smallest once: half as large, twice as many take longer.
_NEARLY = range(98, 109)
# Bytes that threads may fetch ahead at once.
_LEAST_BYTES = 8


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


def of_places(images: Images, windows: Windows, num_n: int, back: bool, adds: bool) -> tuple[Way, ...]:
    """Of places of x from those of y with `back`, or y's from x's, so many of them at a time."""
    to, of = (images.x, images.y) if back else (images.y, images.x)
    (_, groups, num_m, *_), num_c = to.shape, of.shape[2]
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
    return (*liked, *(way for way in last if nearly and liked[0].vectors and way not in liked))


def of_rows(weights: View, num_n: int, itemsize: int) -> tuple[Tile, ...]:
    """Of so many places where a window's row is what channels are elsewhere; weights [g,o,c,r,s]."""
    _, num_m, num_c, *taps = weights.shape
    every = _FULL if itemsize == 4 else _HALF
    ways = dict.fromkeys(_fitted(way, num_m, num_n, num_c, prod(taps)) for way in every if way.vectors)
    # Masks of rows that fill no tile are shared by the elements of a thread.
    shared = sorted(ways, key=lambda way: -way.tile.m * way.tile.n // way.tile.warps)
    return tuple(way.tile for way in _likeliest(shared, lambda tile: _fills(tile, num_m, num_n, 1)))


def of_slopes(images: Images, windows: Windows, num_places: int) -> tuple[Way, ...]:
    """Of weights' gradients, which are sums over so many places."""
    _, num_m, num_c, *taps = images.w.shape

    def fit(way: Way) -> Way:
        tile = fitting(way.tile, num_m, num_c * (1 if way.vectors else prod(taps)), num_places)
        return way._replace(tile=tile, beside=way.beside if taps[1] % way.beside == 0 else 1)

    rows = taps[1] % _FEW_PLACES.beside == 0
    first = () if rows and apart(images.y) else (_FEW_PLACES,) if rows else (_ONE,)
    ways = map(fit, _FULL_SLOPES if images.x.array.dtype.itemsize == 4 else (*first, *_HALF_SLOPES))
    # Tiles do not have to fill the chip, as places are divided, but adding to what is there takes registers.
    return _ordered(ways, images, windows, num_c, lambda tile: tile.m * tile.n == 1024 * tile.warps)


def apart(one: View) -> bool:
    """Whether the channels of images [b,g,c,h,w] do not lie next to each other."""
    return one.steps[2] != 1


def _parted(one: View) -> bool:
    """Whether the rows of a plane lie apart, or neither its elements nor those of its channels lie together."""
    *_, channel, row, element = one.steps
    return one.shape[3] > 1 and (row != one.shape[4] * element or 1 not in (channel, element))


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
