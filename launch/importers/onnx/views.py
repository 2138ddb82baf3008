"""Where the elements of a tensor lie in one that was only moved to make it: reshapes and transpositions looked through.

Files join dims to turn them, and take them apart behind. One line from the first to the last says the same, and keeps
apart the axes that may be cut. It does not know files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from castile.planner.axes import fresh, parse
from castile.planner.graph import Graph, Node
from castile.planner.op import Tensor, find

# An axis within a flat array: its length, and how far apart its elements are.
Axis = tuple[int, int]
Dims = tuple[tuple[Axis, ...], ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """Of which axes of a source each dim of a tensor is made, from the slowest; dims of one have none.

    factor   what the source is to be multiplied by
    """

    source: Tensor
    dims: Dims
    factor: float = 1.0

    def permuted(self, dims: Shape) -> View:
        """The same with its dims in another order."""
        return View(self.source, tuple(self.dims[dim] for dim in dims), self.factor)

    def reshaped(self, shape: Shape) -> View | None:
        """The same elements under other dims; None where these are not made of whole axes."""
        dims = _regrouped(_joined([axis for dim in self.dims for axis in dim]), shape)
        return None if dims is None else View(self.source, dims, self.factor)

    def over(self, y: Tensor) -> View:
        """The same of a tensor that has the source's dims but for the last, which is the last here too."""
        to, of = y.shape[-1], self.source.shape[-1]
        rows = tuple(tuple((length, stride // of * to) for length, stride in dim) for dim in self.dims[:-1])
        return View(y, (*rows, *whole(y).dims[-1:]), self.factor)

    @property
    def shape(self) -> Shape:
        return tuple(prod(length for length, _ in dim) for dim in self.dims)


def view(g: Graph, x: Tensor, scales: bool = False) -> View:
    """x as it lies in what it was made of by moving alone, and with `scales` by factors too."""
    node = g.nodes.get(x.name)
    if node is not None and scales and node.op.name == "scale":
        of = view(g, g.tensors[node.inputs[0]], scales)
        return View(of.source, of.dims, of.factor * node.op.factor)  # type: ignore[attr-defined]
    if node is not None and node.op.name in ("reshape", "transpose") and not _has_ones(g.tensors[node.inputs[0]]):
        of = view(g, g.tensors[node.inputs[0]], scales)
        moved = _moved(node, of) or _moved(node, whole(g.tensors[node.inputs[0]]))
        if moved is not None:
            return moved
    return whole(x)


def _has_ones(x: Tensor) -> bool:
    return 1 in x.shape


def rows(g: Graph, name: str, x: Tensor) -> View | None:
    """x as it joins dims of another, but for the last; None where it joins none.

    The other is its source, where that has the same last dim and no dim of it is divided, else a node of that name.
    """
    of = view(g, x)
    if () in of.dims:
        return None
    dims, last = [_joined(dim) for dim in of.dims[:-1]], whole(of.source).dims[-1:]
    if len(of.dims) < len(of.source.shape) and of.dims[-1:] == last:
        cuts = _cuts(of)
        if cuts is not None and all(len(dim) == 1 for dim in cuts):
            return of
    if all(len(dim) < 2 for dim in dims):
        return None
    apart = made(g, name, View(of.source, (*((axis,) for dim in dims for axis in dim), *of.dims[-1:])))
    if apart is None:
        return None
    axes = iter(axis for dim in whole(apart).dims[:-1] for axis in dim)
    return View(apart, (*(tuple(next(axes) for _ in dim) for dim in dims), *whole(apart).dims[-1:]))


def whole(x: Tensor) -> View:
    """A tensor as its own source."""
    strides = [prod(x.shape[n + 1 :]) for n in range(len(x.shape))]
    axes = zip(x.shape, strides, strict=True)
    return View(x, tuple(((length, stride),) if length > 1 else () for length, stride in axes))


def _moved(node: Node, of: View) -> View | None:
    """What a node that only moves makes of its operand's view."""
    line = parse(node.op.text)  # type: ignore[attr-defined]
    (x,), (y,), extents = line.operands, line.results, node.alignment.extents
    pieces: dict[str, tuple[Axis, ...]] = {}
    for axes, dim in zip(x.dims, of.dims, strict=True):
        cut = _regrouped(list(dim), tuple(extents[axis] for axis in axes))
        if cut is None:
            return None
        pieces.update(zip(axes, cut, strict=True))
    return View(of.source, tuple(tuple(a for axis in dim for a in pieces.get(axis, ())) for dim in y.dims), of.factor)


def _joined(axes: Iterable[Axis]) -> list[Axis]:
    """Neighbours that follow each other without a gap as one."""
    found: list[Axis] = []
    for length, stride in axes:
        if found and found[-1][1] == length * stride:
            found[-1] = (found[-1][0] * length, stride)
        else:
            found.append((length, stride))
    return found


def _regrouped(axes: list[Axis], shape: Shape) -> Dims | None:
    """Axes in their order, cut so that each length is the product of some; None where that cannot be."""
    left, found = list(reversed(axes)), list[tuple[Axis, ...]]()
    for length in shape:
        dim = list[Axis]()
        while length > 1:
            if not left:
                return None
            own, stride = left.pop()
            if length % own == 0:
                dim.append((own, stride))
                length //= own
            elif own % length == 0:
                dim.append((length, stride * (own // length)))
                left.append((own // length, stride))
                length = 1
            else:
                return None
        found.append(tuple(dim))
    return None if left else tuple(found)


def _cuts(of: View) -> Dims | None:
    """Of which axes the source's dims are made, as an axis ends where one of these does; None where that cannot be."""
    axes = (axis for dim in of.dims for axis in _joined(dim))
    return _regrouped(sorted(axes, key=lambda a: -a[1]), of.source.shape)


def made(g: Graph, name: str, of: View) -> Tensor | None:
    """A view as one node behind its source, or the source itself; None where dims of one are in the way."""
    x, dims = of.source, [_joined(dim) for dim in of.dims]
    if _has_ones(x) or [] in dims or not x.shape:
        return None
    cuts = _cuts(of)
    if cuts is None:
        return None
    taken, names, left = set[str](), dict[Axis, str](), list[str]()
    for axis, dim in zip(x.axes, cuts, strict=True):
        own = [names.setdefault(one, fresh(axis, taken)) for one in dim]
        left.append(written(own))
    cut = [_cut(dim, names) for dim in dims]
    right = [written([names[one] for one in dim]) for dim in cut]
    if left == right:
        return x
    order = [one for dim in cut for one in dim]
    op = "reshape" if order == [one for dim in cuts for one in dim] else "transpose"
    sizes = tuple(sorted((name, length) for (length, _), name in names.items()))
    return g.apply(find(op)(f"{' '.join(left)} -> {' '.join(right)}", sizes), name, x)


def _cut(dim: list[Axis], names: dict[Axis, str]) -> list[Axis]:
    """A dim's axes as pieces that have names."""
    found = []
    for length, stride in dim:
        inside = [one for one in names if stride <= one[1] < length * stride]
        found += sorted(inside, key=lambda a: -a[1])
    return found


def written(axes: list[str]) -> str:
    """A dim of these axes, as a line of axes has it."""
    return axes[0] if len(axes) == 1 else f"({' '.join(axes)})"
