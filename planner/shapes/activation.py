"""What kernels of activations give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, kernel, like, need


@kernel()
def relu(x: Spec) -> Results:
    """x's spec."""
    return (x,)


@kernel()
def relu_grad(dy: Spec, x: Spec) -> Results:
    """x's spec."""
    like("relu_grad", dy=dy, x=x)
    return (x,)


@kernel()
def gelu(x: Spec, *, approximate: str) -> Results:
    """x's spec."""
    need(approximate in ("none", "tanh"), f'gelu: approximate is "none" or "tanh", not "{approximate}"')
    return (x,)


@kernel()
def gelu_grad(dy: Spec, x: Spec, *, approximate: str) -> Results:
    """x's spec."""
    like("gelu_grad", dy=dy, x=x)
    return gelu(x, approximate=approximate)
