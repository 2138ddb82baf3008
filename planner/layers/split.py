"""Split: slices of an array, side by side along one dim; the gradient is put together where they lie."""

from __future__ import annotations

from castile.planner.graph import Graph
from castile.planner.op import Tensor


def layer(g: Graph, name: str, x: Tensor, dim: int, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Add slices `name`.0, `name`.1, ... of these lengths to graph `g`, side by side along a dim of x.

    Raises ValueError unless the lengths add up to the dim's.
    """
    if not -len(x.shape) <= dim < len(x.shape) or sum(sizes) != x.shape[dim]:
        raise ValueError(f"{name}: split into {sizes} does not add up to dim {dim} of {x.name!r}, shape {x.shape}")
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    ranges = enumerate(zip(starts, sizes, strict=True))
    return tuple(g.slice(f"{name}.{n}", x, dim, start, start + size) for n, (start, size) in ranges)
