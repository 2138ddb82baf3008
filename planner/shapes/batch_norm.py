"""What kernels of batch normalisation give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, kernel, like, need, wide
from castile.planner.shapes.elementwise import pointwise

WIDE = "float64"


@kernel(adds=True)
def moments(x: Spec, *, scale: float) -> Results:
    """[2,c] of x [b,c,...]."""
    need(len(x.shape) >= 2, f"moments: x must have samples and channels, not {x.shape}")
    return (Spec((2, x.shape[1]), WIDE),)


@kernel(adds=True)
def moments_grad(dm: Spec, x: Spec, *, scale: float) -> Results:
    """x's spec."""
    like("moments_grad", dm=dm, moments=moments(x, scale=scale)[0])
    return (x,)


@kernel()
def norm_factors(gain: Spec, shift: Spec, *statistics: Spec, eps: float) -> Results:
    """[3,c], wide."""
    like("norm_factors", gain=gain, shift=shift)
    shapes = [one.shape for one in statistics]
    fits = shapes in ([(2, *gain.shape)], [gain.shape, gain.shape])
    need(fits, f"norm_factors: statistics {shapes} must hold two numbers for each of gain {gain.shape}")
    return (Spec((3, *gain.shape), wide(gain.dtype)),)


@kernel(casts=True)
def norm_factors_grad(df: Spec, gain: Spec, *statistics: Spec, eps: float) -> Results:
    """Twice gain's spec, and those of the statistics."""
    like("norm_factors_grad", df=df, norm_factors=norm_factors(gain, gain, *statistics, eps=eps)[0])
    return gain, gain, *statistics


@kernel()
def norm(x: Spec, factors: Spec) -> Results:
    """x's spec."""
    like("norm", factors=factors, **{"three of x's channels": Spec((3, *x.shape[1:2]), wide(x.dtype))})
    return (x,)


@kernel()
def norm_grad(dy: Spec, x: Spec, factors: Spec) -> Results:
    """x's spec and factors'."""
    like("norm_grad", dy=dy, norm=norm(x, factors)[0])
    return x, factors


@kernel()
def norm_grad_pointwise(
    line: str, x: Spec, factors: Spec, *ys: Spec, keeps: bool = False, **constants: float
) -> Results:
    """x's spec and factors', and x's again for what the line makes where that is kept; ys have its shape."""
    (dy,) = pointwise(line, *ys, **constants)
    like("norm_grad_pointwise", x=x, **{f"array {n}": Spec(y.shape, dy.dtype) for n, y in enumerate(ys)})
    return *norm_grad(dy, x, factors), *[dy] * keeps


@kernel(many=True)
def running_moment(old: Spec, m: Spec, *more: Spec, momentum: float, count: int, variance: bool) -> Results:
    """old's spec, and those of further ones."""
    need(m.shape == (2, *old.shape), f"running_moment: m {m.shape} must hold two numbers for each of old {old.shape}")
    need(count > 1, f"running_moment: a variance needs more than {count} number")
    return old, *(running_moment(*more, momentum=momentum, count=count, variance=variance) if more else ())
