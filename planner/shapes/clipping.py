"""What kernels of clipping by the global norm give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, kernel, like, need, same, total


@kernel(adds=True, sums=True)
def square_sum(x: Spec, *more: Spec) -> Results:
    """A scalar."""
    if more:
        same("square_sum: dtypes", **{f"array {n}": one.dtype for n, one in enumerate((x, *more))})
    return (total((), x.dtype),)


@kernel()
def clip_factor(squares: Spec, *, most: float) -> Results:
    """factor [], norm []."""
    like("clip_factor", squares=squares, scalar=Spec((), squares.dtype))
    need(most > 0, f"clip_factor: most {most} must be more than 0")
    return squares, squares


@kernel(many=True)
def times(x: Spec, factor: Spec, *more: Spec) -> Results:
    """x's spec, and those of further arrays."""
    like("times", factor=factor, scalar=total((), x.dtype))
    return x, *(times(*more) if more else ())
