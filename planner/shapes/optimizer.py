"""What kernels of optimizers give, work in and refuse."""

from castile.planner.vocabulary import Results, Spec, kernel, like


@kernel()
def sgd(w: Spec, g: Spec, m: Spec, lr: Spec, *, momentum: float, decay: float, nesterov: bool) -> Results:
    """w, m."""
    like("sgd", w=w, g=g, m=m)
    like("sgd", lr=lr, scalar=Spec((), w.dtype))
    return w, m
