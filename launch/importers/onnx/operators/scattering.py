"""Other elements at some places, which are known or depend on samples."""

from __future__ import annotations

from math import prod
from string import ascii_letters

import numpy as np

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.gathering import spots
from castile.launch.importers.onnx.operators.layout import MOST_PIECES, ranges
from castile.launch.importers.onnx.values import Known, Unsupported, from_start
from castile.planner.op import Tensor


@handles("ScatterElements")
def scatter_elements(c: Call) -> Tensor:
    x, updates, ids = c.floating(0), c.floating(2), c.value(1)
    dim, how = c.get("axis", 0) % len(x.shape), c.get("reduction", b"none")
    if how not in (b"none", b"add"):
        raise Unsupported(f"that takes the {how.decode()}")
    if any(n != dim and length != x.shape[n] for n, length in enumerate(ids.shape)):
        raise Unsupported("into a part of another dim")
    if isinstance(ids, Known) and how == b"none":
        line = c.known(1)[tuple(slice(None) if n == dim else 0 for n in range(len(ids.shape)))]
        if (np.moveaxis(c.known(1), dim, -1) == line).all():
            return _replaced(c, x, dim, [int(n) for n in from_start(line, x.shape[dim])], updates)
    mask, shared = spots(c, dim, x.shape[dim], x.dtype)
    axes = list(ascii_letters[: len(x.shape)])
    before, after = [*axes[:dim], "y", *axes[dim + 1 :]], [*axes[:dim], "z", *axes[dim + 1 :]]
    line = " ".join((*(axes[n] for n in shared), "y", "z"))
    more = c.g.contract(c.inner("more"), f"{' '.join(before)}, {line} -> {' '.join(after)}", updates, mask)
    if how == b"add":
        return c.g.add(c.name, x, more)
    count = c.g.sum(c.inner("count"), mask, dims=len(mask.shape) - 2)
    kept = c.g.compare(c.inner("kept"), count, "<", 0.5)
    # the places are the last dim there
    order = [*(n for n in range(len(x.shape)) if n != dim), dim]
    ones = shaping.reshaped(c.g, c.inner("ones"), kept, tuple(x.shape[n] if n in (*shared, dim) else 1 for n in order))
    there = shaping.permuted(c.g, c.inner("there"), ones, tuple(order.index(n) for n in range(len(x.shape))))
    return c.g.add(c.name, c.g.masked(c.inner("left"), x, there), more)


@handles("ScatterND")
def scatter_nd(c: Call) -> Tensor:
    x, places, updates = c.floating(0), c.known(1), c.floating(2)
    if c.get("reduction", b"none") != b"none":
        raise Unsupported("that adds to what is there")
    depth = places.shape[-1]
    first, rest = x.shape[:depth], x.shape[depth:]
    rows = np.ravel_multi_index(tuple(np.moveaxis(from_start(places, *first), -1, 0)), first).reshape(-1)
    flat = shaping.reshaped(c.g, c.inner("flat"), x, (prod(first), *rest))
    others = shaping.reshaped(c.g, c.inner("others"), updates, (len(rows), *rest))
    return shaping.reshaped(c.g, c.name, _replaced(c, flat, 0, [int(n) for n in rows], others), x.shape)


def _replaced(c: Call, x: Tensor, dim: int, places: list[int], updates: Tensor) -> Tensor:
    """x with others at known places of a dim, of which the last to come stays."""
    length, of = x.shape[dim], {place: n for n, place in enumerate(places)}
    # elements of the one behind those of the other
    runs = ranges([length + of[n] if n in of else n for n in range(length)])
    if len(runs) > MOST_PIECES:
        raise Unsupported(f"in {len(runs)} pieces of a dim")
    parts = [
        shaping.sliced(c.g, c.inner(f"kept{n}"), x, dim, start, stop)
        if start < length
        else shaping.sliced(c.g, c.inner(f"new{n}"), updates, dim, start - length, stop - length)
        for n, (start, stop) in enumerate(runs)
    ]
    return shaping.joined(c.g, c.name, parts, dim)
