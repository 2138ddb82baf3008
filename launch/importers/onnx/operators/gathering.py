"""Elements by their places, which are known or depend on samples.

Where they depend on samples what is taken is a product with what is one at each place: so samples stay an axis, and
only they are looked at. Of places that are not taken nothing may be infinite.
"""

from __future__ import annotations

from math import prod
from string import ascii_letters

import numpy as np

from castile.launch.importers.onnx import pieces, sampled, shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.comparison import placed
from castile.launch.importers.onnx.operators.layout import MOST_PIECES, picked, ranges, stretched
from castile.launch.importers.onnx.values import Known, Unsupported, Value, from_start, known
from castile.planner.op import Init, Tensor, find

Shape = tuple[int, ...]


@handles("Gather")
def gather(c: Call) -> Value:
    table, ids = c.value(0), c.value(1)
    dim = c.get("axis", 0)
    if isinstance(ids, Tensor):
        return _rows(c, table, ids, dim % len(table.shape))
    places, dim = c.known(1), dim % len(table.shape)
    if isinstance(table, Known) and isinstance(ids, Known):
        # what is the same for each sample is looked up once
        places = sampled.once(ids, c.net.batch).array
    rows = [int(n) for n in from_start(places, table.shape[dim]).reshape(-1)]
    shape = (*table.shape[:dim], *places.shape, *table.shape[dim + 1 :])
    if isinstance(table, Known) and rows == list(range(table.shape[dim])):
        return table.reshaped(shape)
    found = shaping.reshaped(c.g, c.inner("each"), _looked_up(c, c.tensor(0), dim, rows), shape)
    return stretched(c, c.name, found, (*table.shape[:dim], *ids.shape, *table.shape[dim + 1 :]))


def _rows(c: Call, table: Value, ids: Tensor, dim: int) -> Value:
    """Rows of a table, of any dims, by whole numbers that depend on samples."""
    if not isinstance(table, Known) or dim != 0:
        raise Unsupported("with indices that depend on samples, of what is no table of rows")
    rest = table.shape[1:]
    if (same := _same(c, table, (*ids.shape, *rest))) is not None:
        return same
    ids = c.g.whole(c.inner("places"), ids) if ids.floating else ids
    if len(rest) == 1 and table.is_floating:
        return c.g.apply(find("embedding")(), c.name, ids, c.weight(0, "v d", Init("normal", 0.02)))
    rows = shaping.reshaped(c.g, c.inner("table"), c.floating(0), (table.shape[0], prod(rest)))
    found = c.g.apply(find("embedding")(), c.inner("rows"), ids, rows)
    return shaping.reshaped(c.g, c.name, found, (*ids.shape, *rest))


def _same(c: Call, x: Value, shape: Shape) -> Known | None:
    """What is taken of known numbers that are all alike, wherever it is taken."""
    if not isinstance(x, Known) or c.net.is_trained(x) or (x.array != x.array.flat[0]).any():
        return None
    return known(c.name, np.broadcast_to(x.array.flat[0], shape))


def _looked_up(c: Call, x: Tensor, dim: int, places: list[int]) -> Tensor:
    """The elements of a dim at these places; where they are many ranges, and of weights any, as rows of a table."""
    if len(ranges(places)) <= (1 if isinstance(c.value(0), Known) else MOST_PIECES):
        return picked(c, c.inner("rows"), x, dim, places)
    rest = tuple(n for n in range(len(x.shape)) if n != dim)
    turned = shaping.permuted(c.g, c.inner("first"), x, (dim, *rest))
    table = shaping.reshaped(c.g, c.inner("table"), turned, (x.shape[dim], prod(turned.shape[1:])))
    rows = c.g.apply(find("embedding")(), c.inner("rows"), c.net.indices(f"{c.name}.places", np.array(places)), table)
    whole = shaping.reshaped(c.g, c.inner("whole"), rows, (len(places), *turned.shape[1:]))
    return shaping.permuted(c.g, c.inner("back"), whole, tuple((dim, *rest).index(n) for n in range(len(x.shape))))


@handles("GatherElements")
def gather_elements(c: Call) -> Value:
    x, ids = c.value(0), c.value(1)
    dim = c.get("axis", 0) % len(x.shape)
    if (same := _same(c, x, ids.shape)) is not None:
        return same
    of = c.floating(0)
    for n, length in enumerate(ids.shape):
        if n != dim:
            of = shaping.sliced(c.g, c.inner(f"dim{n}"), of, n, 0, length)
    if isinstance(ids, Known):
        return _at_known(c, of, c.known(1), dim)
    mask, shared = spots(c, dim, of.shape[dim], of.dtype)
    axes = list(ascii_letters[: len(of.shape)])
    after = [*axes[:dim], "y", *axes[dim + 1 :]]
    line = f"{_axes(axes, dim)}, {' '.join(axes[n] for n in shared)} y z -> {' '.join(after)}"
    return c.g.contract(c.name, line.replace("  ", " "), of, mask)


def _axes(axes: list[str], dim: int) -> str:
    return " ".join([*axes[:dim], "z", *axes[dim + 1 :]])


def spots(c: Call, dim: int, length: int, dtype: str) -> tuple[Tensor, list[int]]:
    """Of the second input, places of a dim, one at each and zero elsewhere [..., places, length], and by which other
    dims they differ.
    """
    x = c.floating(1)
    node = pieces.maker(c.g, x, "expand")
    before = pieces.operand(c.g, node, 0) if node else x
    x = before if before.shape[dim] == x.shape[dim] else x
    shared = [n for n, many in enumerate(x.shape) if n != dim and many > 1]
    turned = shaping.permuted(c.g, c.inner("turned"), x, (*(n for n in range(len(x.shape)) if n != dim), dim))
    less = shaping.reshaped(c.g, c.inner("less"), turned, (*(x.shape[n] for n in shared), x.shape[dim]))
    mask = placed(c, c.inner("spots"), less, length)
    return mask if mask.dtype == dtype else c.g.apply(find("real")(dtype), c.inner("cast"), mask), shared


def _at_known(c: Call, x: Tensor, places: np.ndarray, dim: int) -> Tensor:
    """Elements at known places, looked up along the dims by which these differ, for all others alike."""
    differ = [n for n in range(places.ndim) if n == dim or (places != places.take([0], n)).any()]
    rest = [n for n in range(places.ndim) if n not in differ]
    at = np.indices(places.shape)
    at[dim] = from_start(places, x.shape[dim])
    one = tuple(0 if n in rest else slice(None) for n in range(places.ndim))
    found = np.ravel_multi_index(tuple(at[n][one] for n in differ), tuple(x.shape[n] for n in differ))
    rows = [int(n) for n in found.reshape(-1)]
    if differ == [dim]:
        return _looked_up(c, x, dim, rows)
    order = (*differ, *rest)
    turned = shaping.permuted(c.g, c.inner("turned"), x, order)
    joined = prod(x.shape[n] for n in differ), *(x.shape[n] for n in rest)
    taken = _looked_up(c, shaping.reshaped(c.g, c.inner("flat"), turned, joined), 0, rows)
    whole = shaping.reshaped(c.g, c.inner("dims"), taken, tuple(places.shape[n] for n in order))
    return shaping.permuted(c.g, c.name, whole, tuple(order.index(n) for n in range(places.ndim)))


@handles("GatherND")
def gather_nd(c: Call) -> Value:
    if c.get("batch_dims", 0):
        raise Unsupported("of each sample by itself")
    if not isinstance(c.value(1), Known):
        return _by_columns(c)
    x, places = c.tensor(0), c.known(1)
    depth = places.shape[-1]
    first, rest = x.shape[:depth], x.shape[depth:]
    rows = np.ravel_multi_index(tuple(np.moveaxis(from_start(places, *first), -1, 0)), first)
    flat = shaping.reshaped(c.g, c.inner("flat"), x, (prod(first), *rest))
    found = _looked_up(c, flat, 0, [int(n) for n in rows.reshape(-1)])
    return shaping.reshaped(c.g, c.name, found, (*places.shape[:-1], *rest))


def _by_columns(c: Call) -> Tensor:
    """Elements by several whole numbers each, of which one depends on samples, and others count along a dim."""
    x, ids = c.floating(0), c.floating(1)
    axes, own = list(ascii_letters[: len(ids.shape) - 1]), list(ascii_letters[10 : 10 + len(x.shape)])
    places: Tensor | None = None
    for n, column in enumerate(_columns(c, ids)):
        dim = _counting(column, x.shape[n]) if isinstance(column, np.ndarray) else None
        if dim is not None and axes[dim] not in own:
            own[n] = axes[dim]
        elif isinstance(column, Tensor) and places is None:
            places, own[n] = column, "z"
        else:
            raise Unsupported("with indices that depend on samples, of more than one dim")
    if places is None:
        raise Unsupported("with indices that depend on samples, none by itself")
    mask = placed(c, c.inner("spots"), places, x.shape[own.index("z")])
    mask = mask if mask.dtype == x.dtype else c.g.apply(find("real")(x.dtype), c.inner("cast"), mask)
    line = f"{' '.join(own)}, {' '.join(axes)} z -> {' '.join((*axes, *own[ids.shape[-1] :]))}"
    return c.g.contract(c.name, line, x, mask)


def _columns(c: Call, ids: Tensor) -> list[Tensor | np.ndarray]:
    """What stands side by side in the last dim, each without that dim, as known numbers where they are."""
    less, last = ids.shape[:-1], len(ids.shape) - 1
    node = pieces.maker(c.g, ids, "concat")
    if node is None or node.op.dim != last or len(node.inputs) != ids.shape[-1]:  # type: ignore[attr-defined]
        cut = [shaping.sliced(c.g, c.inner(f"column{n}"), ids, last, n, n + 1) for n in range(ids.shape[-1])]
    else:
        cut = [pieces.operand(c.g, node, n) for n in range(ids.shape[-1])]
    return [
        c.net.sources[one.name].array.reshape(less)
        if one.name in c.g.states
        else shaping.reshaped(c.g, c.inner(f"places{n}"), one, less)
        for n, one in enumerate(cut)
    ]


def _counting(column: np.ndarray, length: int) -> int | None:
    """Along which dim known numbers count from zero up to a length; None for others."""
    counts = np.indices(column.shape)
    found = [n for n in range(column.ndim) if column.shape[n] == length and (column == counts[n]).all()]
    return found[0] if found else None
