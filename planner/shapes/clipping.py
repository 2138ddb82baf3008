"""What kernels of clipping by the global norm give, work in and refuse."""

from castile.planner.vocabulary import Results, Spec, kernel, like, need, total


@kernel()
def square_sum(x: Spec) -> Results:
    """A scalar."""
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
