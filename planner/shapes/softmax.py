"""What kernels of the softmax give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, kernel, like, need


@kernel()
def softmax(x: Spec) -> Results:
    """x's spec."""
    need(len(x.shape) > 0, "softmax: x must have a last dim, not the shape ()")
    return (x,)


@kernel()
def softmax_grad(dy: Spec, y: Spec) -> Results:
    """y's spec."""
    like("softmax_grad", dy=dy, y=y)
    return softmax(y)


@kernel()
def log_softmax(x: Spec) -> Results:
    """x's spec."""
    return softmax(x)


@kernel()
def log_softmax_grad(dy: Spec, y: Spec) -> Results:
    """y's spec."""
    like("log_softmax_grad", dy=dy, y=y)
    return softmax(y)
