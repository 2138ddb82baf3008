"""What the kernel of dropout gives, works in and refuses."""

from castile.planner.bodies.vocabulary import Results, Shape, Spec, integers, kernel, need, same


@kernel(adds=True)
def dropout(x: Spec, noise: Spec, *, rate: float, salt: int, offset: Shape, whole: Shape) -> Results:
    """x's spec."""
    integers("dropout", noise=noise)
    same("dropout: shapes", noise=noise.shape, scalar=())
    need(0 <= rate < 1 and 0 <= salt < 2**64, f"dropout: rate {rate} must be in [0, 1) and salt {salt} of 64 bits")
    same("dropout: numbers of dims", x=len(x.shape), offset=len(offset), whole=len(whole))
    inside = all(0 <= o <= o + n <= w for o, n, w in zip(offset, x.shape, whole, strict=True))
    need(inside, f"dropout: the box of shape {x.shape} at {offset} does not lie in {whole}")
    return (x,)
