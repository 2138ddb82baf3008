"""Dims of tensors moved, joined, divided, made and left out: the lines that castile's operators want for it.

It does not know files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        if (node := g.nodes.get(x.name)) is not None and node.op.name == "reshape":
            return reshaped(g, name, g.tensors[node.inputs[0]], shape)
        # joined with what stands behind them dims of one would keep that from being cut
        ones = next((n for n, length in enumerate(x.shape) if length > 1), len(x.shape) - 1)
        less = g.sum(name if x.shape[ones:] == shape else f"{name}.less", x, dims=tuple(range(ones)))
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


def moved(g: Graph, name: str, x: Tensor, steps: Iterable[tuple[str, Shape, Shape]]) -> Tensor:
    """x with its dims in other orders and under others, one after another."""
    for number, (kind, how, _) in enumerate(steps):
        x = (permuted if kind == "turned" else reshaped)(g, f"{name}.{number}", x, how)
    return x


def sliced(g: Graph, name: str, x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    """A range of a dim, of what x is itself a range of, or of the one of several side by side that it lies in."""
    dim %= len(x.shape)
    if (start, stop) == (0, x.shape[dim]):
        return x
    source, first, _ = _range(g, x, dim)
    if source is not x:
        return sliced(g, name, source, dim, first + start, first + stop)
    node = g.nodes.get(x.name)
    if node is not None and node.op.name == "concat" and node.op.dim == dim:  # type: ignore[attr-defined]
        before = 0
        for piece in (g.tensors[one] for one in node.inputs):
            if before <= start and stop <= before + piece.shape[dim]:
                return sliced(g, name, piece, dim, start - before, stop - before)
            before += piece.shape[dim]
    return g.slice(name, x, dim, start, stop)


def joined(g: Graph, name: str, xs: Sequence[Tensor], dim: int) -> Tensor:
    """Several side by side along a dim; ranges that follow each other are one."""
    dim %= len(xs[0].shape)
    ranges = list[tuple[Tensor, int, int]]()
    for source, start, stop in (_range(g, x, dim) for x in xs):
        if ranges and ranges[-1][0] is source and ranges[-1][2] == start:
            ranges[-1] = source, ranges[-1][1], stop
        else:
            ranges.append((source, start, stop))
    if len(ranges) == 1:
        return sliced(g, name, ranges[0][0], dim, *ranges[0][1:])
    if len(ranges) < len(xs):
        xs = [sliced(g, f"{name}.piece{n}", x, dim, *ends) for n, (x, *ends) in enumerate(ranges)]
    return g.concat(name, dim, *xs)


def _range(g: Graph, x: Tensor, dim: int) -> tuple[Tensor, int, int]:
    """Of what x is a range of a dim, from where to where."""
    node = g.nodes.get(x.name)
    if node is None or node.op.name != "slice" or node.op.dim != dim:  # type: ignore[attr-defined]
        return x, 0, x.shape[dim]
    return g.tensors[node.inputs[0]], node.op.start, node.op.stop  # type: ignore[attr-defined]


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
