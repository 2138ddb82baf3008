"""What kernels that lay arrays out give, work in and refuse."""

from math import prod

from castile.planner.bodies.vocabulary import Results, Shape, Spec, kernel, need, same


@kernel(adds=True)
def rearrange(x: Spec, *, apart: Shape, dims: Shape, shape: Shape) -> Results:
    """As told; `apart` must divide the dims of x, and in the order `dims` those of `shape`."""
    need(sorted(dims) == list(range(len(apart))), f"rearrange: {dims} is no order of the dims {apart}")
    for whole, pieces in ((x.shape, apart), (shape, tuple(apart[dim] for dim in dims))):
        need(prod(whole) == prod(pieces), f"rearrange: {whole} and {pieces} hold different numbers of elements")
        need(_starts(whole) <= _starts(pieces), f"rearrange: {pieces} does not divide the dims of {whole}")
    return (Spec(tuple(shape), x.dtype),)


def _starts(shape: Shape) -> set[int]:
    """Where dims begin, counted in elements from the last one."""
    return {prod(shape[dim:]) for dim in range(len(shape))}


@kernel(adds=True)
def concat(*xs: Spec, dim: int) -> Results:
    """The first's shape, in `dim` as long as all together."""
    need(len(xs) > 0 and 0 <= dim < len(xs[0].shape), f"concat: {len(xs)} arrays have no dim {dim}")
    same("concat: dtypes", **{f"array {n}": x.dtype for n, x in enumerate(xs)})
    same("concat: other dims", **{f"array {n}": (*x.shape[:dim], *x.shape[dim + 1 :]) for n, x in enumerate(xs)})
    shape = xs[0].shape
    return (Spec((*shape[:dim], sum(x.shape[dim] for x in xs), *shape[dim + 1 :]), xs[0].dtype),)


@kernel(adds=True)
def cut(x: Spec, *, dim: int, start: int, stop: int) -> Results:
    """x, in `dim` as long as told."""
    need(0 <= dim < len(x.shape), f"cut: x {x.shape} has no dim {dim}")
    need(0 <= start < stop <= x.shape[dim], f"cut: {start} to {stop} is no range of dim {dim} of x {x.shape}")
    return (Spec((*x.shape[:dim], stop - start, *x.shape[dim + 1 :]), x.dtype),)
