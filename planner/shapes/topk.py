"""What kernels of the largest elements give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, integers, kernel, need, same


@kernel()
def top_k(x: Spec, *, count: int) -> Results:
    """[...,count], and as many int32."""
    fits = len(x.shape) > 0 and 1 <= count <= x.shape[-1]
    need(fits, f"top_k: {count} is no number of elements of rows of x {x.shape}")
    shape = (*x.shape[:-1], count)
    return Spec(shape, x.dtype), Spec(shape, "int32")


@kernel()
def pick(x: Spec, places: Spec) -> Results:
    """Like places, in x's dtype."""
    integers("pick", places=places)
    same("pick: leading dims", x=x.shape[:-1], places=places.shape[:-1])
    return (Spec(places.shape, x.dtype),)


@kernel(adds=True)
def pick_grad(dy: Spec, places: Spec, *, size: int) -> Results:
    """[...,size]."""
    integers("pick_grad", places=places)
    same("pick_grad: shapes", dy=dy.shape, places=places.shape)
    return (Spec((*dy.shape[:-1], size), dy.dtype),)
