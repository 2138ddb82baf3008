"""Dims of tensors moved, joined, divided, made and left out: the lines that castile's operators want for it.

It does not know files.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from castile.launch.importers.onnx import views
from castile.planner.axes import fresh
from castile.planner.graph import Graph
from castile.planner.op import Tensor, find

Shape = tuple[int, ...]


def permuted(g: Graph, name: str, x: Tensor, dims: Shape) -> Tensor:
    """x with its dims in another order; x itself where it is the same."""
    if dims == tuple(range(len(dims))):
        return x
    of = views.view(g, x)
    if of.source is not x and (found := views.made(g, name, of.permuted(dims))) is not None:
        return found
    return g.transpose(name, x, f"{' '.join(x.axes)} -> {' '.join(x.axes[dim] for dim in dims)}")


def reshaped(g: Graph, name: str, x: Tensor, shape: Shape) -> Tensor:
    """x under other dims; x itself where they are the same."""
    if x.shape == shape:
        return x
    of = views.view(g, x)
    moved = of.reshaped(shape) if of.source is not x else None
    if moved is not None and (found := views.made(g, name, moved)) is not None:
        return found
    if len(x.shape) > 1 and x.shape[0] == 1 and shape[:1] != (1,):
        # joined with what stands behind it a dim of one would keep that from being cut
        less = g.sum(name if x.shape[1:] == shape else f"{name}.less", x, dims=0)
        return reshaped(g, name, less, shape)
    if not shape:
        return g.sum(name, x)
    if not x.shape:
        x = g.reshape(name if shape == (1,) else f"{name}.one", x, " -> o", o=1)
        return reshaped(g, name, x, shape)
    fine = _fine(x.shape, shape)
    if fine is None:
        return reshaped(g, name, reshaped(g, f"{name}.flat", x, (prod(x.shape),)), shape)
    line, sizes = _line(x, shape, fine)
    return g.apply(find("reshape")(line, tuple(sorted(sizes.items()))), name, x)


def _cuts(shape: Iterable[int]) -> list[int]:
    """How many elements there are from the first dim to each."""
    found, total = [], 1
    for length in shape:
        total *= length
        found.append(total)
    return found


def _fine(x: Shape, y: Shape) -> list[int] | None:
    """The lengths of axes of which the dims of both shapes are made, without ones; None where there are no such."""
    lengths, before = [], 1
    for cut in sorted({*_cuts(x), *_cuts(y)} - {1}):
        if cut % before:
            return None
        lengths.append(cut // before)
        before = cut
    return lengths


def _groups(shape: Shape, fine: list[int]) -> list[list[int]]:
    """Which of the fine axes each dim is made of; a dim of one has none."""
    found, at = [], 0
    for length in shape:
        group, have = list[int](), 1
        while have < length:
            have *= fine[at]
            group.append(at)
            at += 1
        found.append(group)
    return found


def _line(x: Tensor, shape: Shape, fine: list[int]) -> tuple[str, dict[str, int]]:
    """The line of a reshape, and the lengths of the axes that x does not tell.

    A dim of one in x is one in y where that has one at the same place, else it joins the dim before.
    """
    taken: set[str] = set()
    names, left = list[str](), list[str]()
    # dims of one by how many of the fine axes stand before them
    ones: list[list[str]] = [[] for _ in range(len(fine) + 1)]
    for axis, group in zip(x.axes, _groups(x.shape, fine), strict=True):
        own = [fresh(axis, taken) for _ in group or (0,)]
        (names if group else ones[len(names)]).extend(own)
        left.append(views.written(own))
    sizes = dict(zip(names, fine, strict=True))
    right, at = list[list[str]](), 0
    for group in _groups(shape, fine):
        if not group:
            right.append([ones[at].pop(0) if ones[at] else fresh("one", taken)])
            sizes[right[-1][0]] = 1
            continue
        right.append([])
        (right[-2] if len(right) > 1 else right[-1]).extend(ones[at])
        for n in group:
            right[-1] += [*(ones[n] if n > at else []), names[n]]
        at = group[-1] + 1
    right[-1] += ones[at]
    return f"{' '.join(left)} -> {' '.join(map(views.written, right))}", sizes
