"""What kernels of the products of pairs of vectors give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, kernel, like, need


@kernel()
def pair_dots(x: Spec) -> Results:
    """[b, f (f - 1) / 2]."""
    need(len(x.shape) == 3, f"pair_dots: x must be [b,f,d], not {x.shape}")
    b, f, _ = x.shape
    return (Spec((b, f * (f - 1) // 2), x.dtype),)


@kernel()
def pair_dots_grad(dy: Spec, x: Spec) -> Results:
    """x's spec."""
    like("pair_dots_grad", dy=dy, expected=pair_dots(x)[0])
    return (x,)
