"""What kernels that take sums and maxima over dims give, and what the way back gives; what they refuse."""

from castile.planner.bodies.vocabulary import Results, Shape, Spec, kernel, need, total
from castile.planner.shapes.elementwise import pointwise


@kernel(adds=True, casts=True)
def sum_over(x: Spec, *, dims: Shape) -> Results:
    """x without `dims`; wide where nothing else is left."""
    return (total(_without("sum_over", x.shape, dims), x.dtype),)


@kernel(adds=True, casts=True)
def sum_pointwise(line: str, *xs: Spec, dims: Shape, **constants: float) -> Results:
    """The shape that xs broadcast to, without `dims`."""
    (terms,) = pointwise(line, *xs, **constants)
    return (total(_without("sum_pointwise", terms.shape, dims), terms.dtype),)


@kernel()
def max_over(x: Spec, *, dims: Shape) -> Results:
    """x without `dims`."""
    return (Spec(_without("max_over", x.shape, dims), x.dtype),)


@kernel()
def expand(x: Spec, *, shape: Shape, dims: Shape | None = None) -> Results:
    """`shape`."""
    kept = _without("expand", tuple(shape), range(len(shape)) if dims is None else dims)
    need(x.shape == kept, f"expand: x must have the shape {kept} (a scalar's if all dims are new), not {x.shape}")
    return (Spec(tuple(shape), x.dtype),)


def _without(what: str, shape: Shape, dims: Shape | range) -> Shape:
    gone = {dim % len(shape) for dim in dims if -len(shape) <= dim < len(shape)}
    need(len(gone) == len(dims), f"{what}: dims {tuple(dims)} are not distinct dims of the shape {shape}")
    return tuple(length for dim, length in enumerate(shape) if dim not in gone)
