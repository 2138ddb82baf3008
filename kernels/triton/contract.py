"""Contractions: matrix products where two operands allow it, otherwise reductions of products.

An epilogue is applied to sums before they are written. Nothing is packed: dims merge where steps allow, the others are
looped over. It knows nothing of what is contracted.
"""

# mypy: disable-error-code="no-untyped-def"

from itertools import chain
from string import ascii_letters
from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.codegen import contiguous_steps, elementwise_plan, reduction_plan
from castile.kernels.triton.functions import offsets
from castile.kernels.triton.launch import Launch, LaunchPlan, Workspace, are_floats, capability_of, planned
from castile.kernels.triton.snippet import Epilogue, Snippet, snippet
from castile.kernels.triton.tma_gemm import (
    TMA_CAPABILITY,
    TMA_TILES,
    Gemm,
    TmaTile,
    tma_gemm,
    tma_operands,
    with_epilogue,
)
from castile.kernels.triton.views import (
    LoopNest,
    Shape,
    View,
    broadcast,
    in_memory_order,
    loop_nest,
    needs_64_bits,
    permuted,
    power_of_two,
    view,
)
from castile.kernels.triton.waves import TileShape, best_split, microseconds


class Tile(NamedTuple):
    """Rows, columns and summed elements of a step, and the precision of float32 products.

    "ieee" rounds as NumPy does; "tf32x3" is made of three products on tensor cores and about as accurate.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    precision: str = "ieee"

    def min_capability(self, itemsize: int, beside: int = 1) -> int:
        """The least compute capability, times ten, of chips with the shared memory that prefetching takes.

        beside  products of as many columns that a program computes
        """
        return 90 if self.ahead(itemsize, beside) > _FORMER_SHARED else 0

    def ahead(self, itemsize: int, beside: int = 1) -> int:
        """Bytes of shared memory that prefetching takes."""
        return self.stages * (self.m + self.n * beside) * self.k * itemsize


# Processors of an A100, which has the fewest, and shared memory of each.
_FEWEST_PROCESSORS, _FORMER_SHARED = 108, 166912
_HALF = (
    Tile(128, 256, 64, 8, 3),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 64, 4, 3),
    Tile(256, 128, 64, 8, 3),
    Tile(64, 256, 64, 8, 3),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
)
# Where each processor has one program at most, that program has all of its shared memory: more steps are on their way,
# or longer ones, of which only newer chips can hold three.
DEEP_TILES = (Tile(128, 128, 64, 8, 5), Tile(128, 128, 128, 8, 3))
_FULL = (
    Tile(128, 128, 16, 8, 3),
    Tile(128, 128, 16, 8, 2),
    Tile(128, 128, 32, 8, 3),
    Tile(64, 64, 32, 4, 3),
    Tile(128, 64, 32, 4, 3, "tf32x3"),
    Tile(128, 128, 32, 8, 3, "tf32x3"),
)
# A step of fewer elements, whose places take fewer registers, and one of fewer still.
_SHORT, _SMALL = Tile(128, 128, 32, 8, 4), Tile(64, 128, 32, 8, 4)
# From so many summed elements on the copy engine was the fastest where a chip has one.
_LONG = 768
# Elements of a step that a thread may fetch one by one; of columns of several dims.
_MOST_ALONE, _MOST_SCATTERED = 48, 24


@planned
def contract(out: Any, spec: str, *xs: Any, scratch: Any, accumulate: bool) -> LaunchPlan | None:
    """See the definition. Sums are in float32."""
    return _contracted(out, spec, xs, None, accumulate) if are_floats(out, *xs) else None


@planned
def contract_pointwise(
    out: Any, spec: str, expression: str, *xs: Any, accumulate: bool, **constants: float
) -> LaunchPlan | None:
    """See the definition. Sums, and what becomes of them, are in float32."""
    if not are_floats(out, *xs):
        return None
    others = tuple(broadcast(view(x), out.shape) for x in xs[2:])
    epilogue = Epilogue(snippet(expression, *constants), others, tuple(map(float, constants.values())))
    return _contracted(out, spec, xs[:2], epilogue, accumulate)


def _contracted(out: Any, spec: str, xs: tuple[Any, ...], epilogue: Epilogue | None, accumulate: bool) -> LaunchPlan:
    terms, result = _parse(spec, [x.ndim for x in xs])
    sizes = {label: size for term, x in zip(terms, xs, strict=True) for label, size in zip(term, x.shape, strict=True)}
    if 0 not in sizes.values() and len(xs) == 2 and all(len(set(term)) == len(term) for term in terms):
        if _by_columns(view(out), result, terms[1]):
            xs, terms = xs[::-1], terms[::-1]
        product = _as_gemm(sizes, [view(out), *map(view, xs)], [result, *terms])
        if product is not None and min(product.m.extent, product.n.extent, product.k.extent) > 1:
            return _gemm_plan(GemmCall(product, _dims(view(out), [result, *terms]), out, *xs, accumulate, epilogue))
    return _reduction(sizes, out, xs, result, terms, accumulate, epilogue)


def _by_columns(out: View, result: str, second: str) -> bool:
    """Whether the result is contiguous along dims that the second operand lacks: tiles are written by rows."""
    steps = {label: step for label, size, step in zip(result, out.shape, out.steps, strict=True) if size > 1}
    return bool(steps) and min(steps, key=lambda label: steps[label]) not in second


def _parse(spec: str, num_dims: list[int]) -> tuple[list[str], str]:
    """The dims of each operand and of the result, a letter each; `...` becomes letters that are not used otherwise."""
    left, result = spec.replace(" ", "").split("->")
    terms = left.split(",")
    widths = [dims - len(term.replace("...", "")) for term, dims in zip(terms, num_dims, strict=True)]
    leading = "".join([c for c in ascii_letters if c not in spec][: max(widths)])
    return [term.replace("...", leading) for term in terms], result.replace("...", leading)


def _reduction(
    sizes: dict[str, int],
    out: Any,
    xs: tuple[Any, ...],
    result: str,
    terms: list[str],
    accumulate: bool,
    epilogue: Epilogue | None,
) -> LaunchPlan:
    """The plan as a reduction: every operand is seen along all dims, and those that the result lacks are summed."""
    labels = [*result, *(label for label in sizes if label not in result)]
    shape = tuple(sizes[label] for label in labels)
    views = []
    for x, term in zip(xs, terms, strict=True):
        steps = view(x).steps
        along = (sum(step for one, step in zip(term, steps, strict=True) if one == label) for label in labels)
        views.append(View(x, shape, tuple(along)))
    names = tuple(f"x{n}" for n in range(len(xs)))
    what = snippet(f"{', '.join(names)} -> {' * '.join(names)}")
    gone = tuple(range(len(result), len(labels)))
    if not gone and epilogue is None:
        return elementwise_plan(what, [view(out)], views, {}, accumulate)
    return reduction_plan(what, [view(out)], views, gone, {}, adds=accumulate, epilogue=epilogue)


def _as_gemm(sizes: dict[str, int], views: list[View], terms: list[str]) -> Gemm | None:
    """The contraction as a matrix product; None where one operand alone has a dim."""
    sorts: dict[str, list[View]] = {}
    for sort, bearers in {"m": (0, 1), "n": (0, 2), "k": (1, 2), "l": (0, 1, 2)}.items():
        labels = [x for x in sizes if tuple(n for n, term in enumerate(terms) if x in term) == bearers]
        shape = tuple(sizes[label] for label in labels)
        steps = ([views[n].steps[terms[n].index(label)] for label in labels] for n in bearers)
        sorts[sort] = [View(views[n].array, shape, tuple(one)) for n, one in zip(bearers, steps, strict=True)]
    if sum(len(one[0].shape) for one in sorts.values()) < len(sizes):
        return None
    return Gemm(**{sort: loop_nest(in_memory_order(one)) for sort, one in sorts.items()})


class GemmCall(NamedTuple):
    """A product of x and y and its epilogue. dims: those of the result that are batches, rows and columns."""

    product: Gemm
    dims: tuple[Shape, Shape, Shape]
    out: Any
    x: Any
    y: Any
    adds: bool
    epilogue: Epilogue | None


def _dims(out: View, terms: list[str]) -> tuple[Shape, Shape, Shape]:
    """Which dims of the result are batches, rows and columns, in the product's order."""
    result, first, second = terms
    order = sorted(range(len(result)), key=lambda dim: -out.steps[dim])
    found = ((True, True), (True, False), (False, True))
    each = (tuple(d for d in order if (result[d] in first, result[d] in second) == bears) for bears in found)
    batches, rows, columns = each
    return batches, rows, columns


def _gemm_plan(sums: GemmCall) -> LaunchPlan:
    half = sums.x.dtype.itemsize == 2
    product = sums.product
    m, n, k, l = (one.extent for one in product)
    high, long, deep = map(power_of_two, (m, n, k))
    # Of rows that begin anywhere each element is fetched alone, from a place that takes registers.
    steps = (*product.m.steps[1], *product.n.steps[1], *chain(*product.k.steps))
    loose = any(step != 1 and step % 16 for step in steps)
    # In float32 so do several fetched ahead of such rows, or where what is summed lies together; several batches; and
    # columns that end within a tile.
    inner = not half and (loose or all(one[-1] == 1 for one in product.k.steps))
    by_columns = product.n.steps[0][-1] != 1
    batches = len(product.l.sizes) > 1 and sums.out.dtype.itemsize > sums.x.dtype.itemsize
    # Two programs of eight warps have 128 registers a thread: places of a long step in rows of several dims, and an
    # epilogue of 16-bit arrays, take more.
    crowded = half and sums.epilogue is not None and len(product.m.sizes) > 1 and product.n.steps[0] == (1,)
    # So do those of columns of several dims, twice: each is looked up for the product and for the epilogue.
    scattered = half and sums.epilogue is not None and len(product.n.sizes) > 1
    # What an epilogue reads for each result is loaded as a result that is added to is.
    beside = sums.epilogue.xs if sums.epilogue else ()
    adds = sums.adds or any(x.nbytes == m * n * l * x.array.dtype.itemsize for x in beside)

    def fitting(tile: Tile) -> Tile:
        fit = tile._replace(m=min(tile.m, max(16, high)), n=min(tile.n, max(16, long)), k=min(tile.k, max(16, deep)))
        # What is never fetched ahead takes memory in which another program would be held.
        return fit._replace(stages=min(fit.stages, -(-k // fit.k)))

    def parts(tile: Tile | TmaTile) -> int:
        return best_split(_tile_shape(tile, half), m, n, k, l)

    def likely(tile: Tile) -> tuple[bool, bool, bool, float]:
        """Registers and exact products first, then time; several dims, masks and what is added to take registers."""
        sides = ((product.m, tile.m), (product.n, tile.n), (product.k, tile.k))
        plain = not batches and all(len(one.sizes) == 1 and one.extent % size == 0 for one, size in sides)
        alone = loose * (tile.m + tile.n) * tile.k // (32 * tile.warps)
        spent = microseconds(_tile_shape(tile, half), m, n, k, l, parts(tile))
        ragged = (sums.adds or (by_columns and not half)) and n % tile.n > 0
        # An epilogue has offsets of its own, and a single step holds all that it sums in registers.
        busy = sums.epilogue is not None and (len(product.n.sizes) > 1 or tile.stages == 1)
        few = ragged or (inner and tile.stages > 2) or (busy and not plain)
        # What is written by columns has a place for each sum, too.
        some = adds or busy or not plain or (by_columns and tile.stages == 1)
        most = 32 if few else 64 if some else 128
        tight = tile.m * tile.n > most * 32 * tile.warps or (crowded and tile.warps * tile.k > 256)
        tight |= scattered and (tile.m + tile.n) * tile.k > _MOST_SCATTERED * 32 * tile.warps
        # Of few sums a thread has 64 registers, which places of so many rows fill.
        tight |= tile.m * tile.k >= 64 * 32 * tile.warps and tile.m * tile.n <= 32 * 32 * tile.warps
        return tight, alone > _MOST_ALONE, not half and tile.precision != "ieee", spent

    first, *last = DEEP_TILES
    alone = half and has_few_tiles(first, m, n, l) and k >= first.k * first.stages and parts(first) == 1
    every = (*[first] * alone, *_HALF, *[_SHORT] * crowded, *[_SMALL] * scattered) if half else _FULL
    tiles: list[Tile | TmaTile] = [*sorted(dict.fromkeys(map(fitting, every)), key=likely), *(last if alone else ())]
    both = tma_operands(product, sums.x, sums.y)
    walks = [one for one in TMA_TILES if both and one.m <= high and one.n <= long and one.k <= deep]
    if walks and not alone and k >= _LONG and capability_of(sums.x) >= TMA_CAPABILITY:
        # Wide ones that fetch for each result have no registers left.
        able = [one for one in walks if one.n == one.m or not adds]
        tiles.insert(0, min(able, key=lambda one: microseconds(_tile_shape(one, half), m, n, k, l, parts(one))))
    return LaunchPlan(tuple(dict.fromkeys((*tiles, *walks))), lambda cut: _launches(sums, cut, both))


def has_few_tiles(tile: Tile, m: int, n: int, l: int) -> bool:
    """Whether l products [m,n] have so few tiles that each gets a multiprocessor to itself on any chip."""
    return -(-m // tile.m) * -(-n // tile.n) * l <= _FEWEST_PROCESSORS


def _tile_shape(one: Tile | TmaTile, half: bool) -> TileShape:
    return TileShape(one.m, one.n, one.k, one.warps, one.precision if isinstance(one, Tile) and not half else "half")


def _launches(sums: GemmCall, cut: Tile | TmaTile, both: Any) -> list[Launch]:
    product, dims, out, x, y, adds, epilogue = sums
    m, n, k, l = (one.extent for one in product)
    tiles = -(-m // cut.m) * -(-n // cut.n)
    parts = best_split(_tile_shape(cut, x.dtype.itemsize == 2), m, n, k, l)
    span = -(-k // (cut.k * parts)) * cut.k
    parts = -(-k // span)

    def launch(product: Gemm, out: Any, adds: bool) -> Launch:
        if isinstance(cut, TmaTile):
            return tma_gemm(product, cut, both, span, (out, x, y), adds)
        return _launch(product, cut, (tiles, l, parts), span, out, x, y, adds)

    if parts == 1:
        made = launch(product, out, adds)
        return [with_epilogue(made, epilogue, out.shape, dims) if epilogue else made]
    # Each part is summed on its own, and then the parts in their order.
    room = Workspace(parts * l * m * n)
    first = launch(_contiguous(product), room, False)
    order = tuple(dim for one in dims for dim in one)
    total = permuted(view(out), order)
    pieces = View(room, (parts, *total.shape), contiguous_steps((parts, *total.shape)))
    last = epilogue and epilogue._replace(xs=tuple(permuted(x, order) for x in epilogue.xs))
    whole = reduction_plan(Snippet(("x",), (), (), ("x",)), [total], [pieces], (0,), {}, adds=adds, epilogue=last)
    # An epilogue by columns has offsets of its own for each of a thread's results: it has half as many.
    setting = whole.settings[-1 if epilogue and total.steps[-1] != 1 else 0]
    return [first, *whole.launches(setting)]


def _contiguous(product: Gemm) -> Gemm:
    """The product with a contiguous result: l, m, n."""
    shape = (*product.l.sizes, *product.m.sizes, *product.n.sizes)
    steps, start, found = contiguous_steps(shape), 0, {}
    for sort in ("l", "m", "n"):
        one: LoopNest = getattr(product, sort)
        found[sort] = LoopNest(one.sizes, (steps[start : start + len(one.sizes)], *one.steps[1:]))
        start += len(one.sizes)
    return product._replace(**found)


def _launch(
    product: Gemm, tile: Tile, grid: tuple[int, ...], span: int, out: Any, x: Any, y: Any, adds: bool
) -> Launch:
    m, n, k, l = product
    part = m.extent * n.extent * l.extent
    operands = [View(None, one.sizes, steps) for one in product for steps in one.steps]
    args = (out, x, y, m.sizes, *m.steps, n.sizes, *n.steps, k.sizes, *k.steps, l.sizes, *l.steps)
    counts = (m.extent, n.extent, k.extent, span, part)
    constants = {
        "PRECISION": tile.precision,
        "WIDE": needs_64_bits([_reach(m, n, 0, 0), _reach(m, k, 1, 0), _reach(n, k, 1, 1), *operands]),
        "EVEN_M": m.extent % tile.m == 0,
        "EVEN_N": n.extent % tile.n == 0,
        "EVEN_K": k.extent % tile.k == 0,
        "ADDS": adds,
        "M": tile.m,
        "N": tile.n,
        "K": tile.k,
    }
    flops = 2 * m.extent * n.extent * k.extent * l.extent
    in_products = x.dtype.itemsize == 2 or tile.precision != "ieee"
    return Launch(
        _gemm, grid, (*args, *counts), constants, tile.warps, tile.stages, flops, in_products,
        min_capability=tile.min_capability(x.dtype.itemsize),
    )  # fmt: skip


def _reach(one: LoopNest, other: LoopNest, a: int, b: int) -> View:
    """What a program may reach of an array from where its batch begins."""
    return View(None, (*one.sizes, *other.sizes), (*one.steps[a], *other.steps[b]))


@triton.jit
def _gemm(c, a, b, m_sizes, c_m, a_m, n_sizes, c_n, b_n, k_sizes, a_k, b_k, l_sizes, c_l, a_l, b_l, num_m, num_n, num_k,
          span, part_step, PRECISION: tl.constexpr, WIDE: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
          EVEN_K: tl.constexpr, ADDS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # fmt: skip
    # Programs that run together take tiles of 8 rows of tiles, column by column, which share operands in the cache.
    down, across = tl.cdiv(num_m, M), tl.cdiv(num_n, N)
    group = tl.program_id(0) // (8 * across)
    height = tl.minimum(down - group * 8, 8)
    row = group * 8 + tl.program_id(0) % (8 * across) % height
    col = tl.program_id(0) % (8 * across) // height
    batch, part = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    first = tl.program_id(2) * span
    m = row * M + tl.arange(0, M)
    n = col * N + tl.arange(0, N)
    k = tl.arange(0, K)
    in_m, in_n = (m < num_m)[:, None], (n < num_n)[None, :]
    if WIDE:
        m, n, k = m.to(tl.int64), n.to(tl.int64), k.to(tl.int64)
    a += offsets(batch, l_sizes, a_l) + offsets(m, m_sizes, a_m)[:, None]
    b += offsets(batch, l_sizes, b_l) + offsets(n, n_sizes, b_n)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for start in range(first, tl.minimum(first + span, num_k), K):
        here = start + k
        # A mask that is true everywhere still costs registers and keeps loads apart.
        mask_a, mask_b = in_m & (here < num_k)[None, :], (here < num_k)[:, None] & in_n
        at_a, at_b = a + offsets(here, k_sizes, a_k)[None, :], b + offsets(here, k_sizes, b_k)[:, None]
        if EVEN_M and EVEN_K:
            x = tl.load(at_a)
        else:
            x = tl.load(at_a, mask=mask_a, other=0.0)
        if EVEN_N and EVEN_K:
            y = tl.load(at_b)
        else:
            y = tl.load(at_b, mask=mask_b, other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
    # Sums are made.
    c += offsets(batch, l_sizes, c_l) + part * part_step
    at = c + offsets(m, m_sizes, c_m)[:, None] + offsets(n, n_sizes, c_n)[None, :]
    # None, where it would be true everywhere.
    inside = None if EVEN_M and EVEN_N else in_m & in_n
    if ADDS:
        total += tl.load(at, mask=inside).to(tl.float32)
    tl.store(at, total.to(c.dtype.element_ty), mask=inside)
