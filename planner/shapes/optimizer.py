"""What kernels of optimizers give, work in and refuse."""

from math import prod

from castile.planner.vocabulary import ALIGNMENT, Results, Spec, kernel, like


@kernel(many=True)
def sgd(w: Spec, g: Spec, m: Spec, lr: Spec, *more: Spec, momentum: float, decay: float, nesterov: bool) -> Results:
    """w, m, and those of further parameters."""
    like("sgd", w=w, g=g, m=m)
    like("sgd", lr=lr, scalar=Spec((), w.dtype))
    return w, m, *(sgd(*more, momentum=momentum, decay=decay, nesterov=nesterov) if more else ())


@kernel(many=True)
def adam(
    w: Spec,
    g: Spec,
    m: Spec,
    v: Spec,
    lr: Spec,
    step: Spec,
    *more: Spec,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    decoupled: bool,
) -> Results:
    """w, m, v, and those of further parameters."""
    like("adam", w=w, g=g, m=m, v=v)
    like("adam", lr=lr, step=step, scalar=Spec((), w.dtype))
    settings = {"beta1": beta1, "beta2": beta2, "eps": eps, "decay": decay, "decoupled": decoupled}
    return w, m, v, *(adam(*more, **settings) if more else ())


@kernel(many=True)
def lion(w: Spec, g: Spec, m: Spec, lr: Spec, *more: Spec, beta1: float, beta2: float, decay: float) -> Results:
    """w, m, and those of further parameters."""
    like("lion", w=w, g=g, m=m)
    like("lion", lr=lr, scalar=Spec((), w.dtype))
    return w, m, *(lion(*more, beta1=beta1, beta2=beta2, decay=decay) if more else ())


def _adafactor_working(outs: Results, accumulate: bool, *args: Spec, **settings: float) -> int:
    """Two totals, and a sum for each column in float64."""
    return ALIGNMENT + 8 * prod(outs[2].shape[-1:])


@kernel(working=_adafactor_working)
def adafactor(
    w: Spec,
    g: Spec,
    rows: Spec,
    columns: Spec,
    lr: Spec,
    step: Spec,
    *,
    beta2_decay: float,
    eps1: float,
    eps2: float,
    clip: float,
    decay: float,
) -> Results:
    """w, rows, columns."""
    like("adafactor", w=w, g=g)
    like("adafactor", rows=rows, expected=Spec(w.shape[:-1] if len(w.shape) > 1 else w.shape, w.dtype))
    like("adafactor", columns=columns, expected=Spec(w.shape[:-2] + w.shape[-1:], w.dtype))
    like("adafactor", lr=lr, step=step, scalar=Spec((), w.dtype))
    return w, rows, columns
