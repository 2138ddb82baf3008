"""What kernels of optimizers give, work in and refuse."""

from collections.abc import Callable
from functools import partial
from math import prod

from castile.planner.bodies.vocabulary import ALIGNMENT, Results, Spec, kernel, like, need


@kernel(many=True)
def sgd(
    w: Spec,
    g: Spec,
    m: Spec,
    lr: Spec,
    *more: Spec,
    momentum: float,
    decay: float,
    nesterov: bool,
    guarded: bool = False,
) -> Results:
    """w, m, and those of further parameters."""
    like("sgd", w=w, g=g, m=m)
    like("sgd", lr=lr, scalar=Spec((), w.dtype))
    again = partial(sgd, momentum=momentum, decay=decay, nesterov=nesterov)
    return w, m, *_others("sgd", again, more, guarded)


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
    guarded: bool = False,
) -> Results:
    """w, m, v, and those of further parameters."""
    like("adam", w=w, g=g, m=m, v=v)
    like("adam", lr=lr, step=step, scalar=Spec((), w.dtype))
    again = partial(adam, beta1=beta1, beta2=beta2, eps=eps, decay=decay, decoupled=decoupled)
    return w, m, v, *_others("adam", again, more, guarded)


@kernel(many=True)
def lion(
    w: Spec,
    g: Spec,
    m: Spec,
    lr: Spec,
    *more: Spec,
    beta1: float,
    beta2: float,
    decay: float,
    guarded: bool = False,
) -> Results:
    """w, m, and those of further parameters."""
    like("lion", w=w, g=g, m=m)
    like("lion", lr=lr, scalar=Spec((), w.dtype))
    again = partial(lion, beta1=beta1, beta2=beta2, decay=decay)
    return w, m, *_others("lion", again, more, guarded)


def _others(who: str, again: Callable[..., Results], more: Results, guarded: bool) -> Results:
    """What further parameters give, once a guard is told that follows the first one's arrays."""
    if guarded:
        _check_guard(who, *more[:1])
    more = more[guarded:]
    return again(*more, guarded=guarded) if more else ()


def _check_guard(who: str, *guard: Spec) -> None:
    need(len(guard) == 1 and guard[0].shape == (), f"{who}: the guard should be one number, not {guard}")


def _adafactor_working(outs: Results, accumulate: bool, *args: Spec, **settings: float) -> int:
    """Two totals, and a sum for each column in float64: of one parameter after the other."""
    return ALIGNMENT + 8 * max(prod(columns.shape[-1:]) for columns in outs[2::3])


@kernel(many=True, working=_adafactor_working)
def adafactor(
    w: Spec,
    g: Spec,
    rows: Spec,
    columns: Spec,
    lr: Spec,
    step: Spec,
    *more: Spec,
    beta2_decay: float,
    eps1: float,
    eps2: float,
    clip: float,
    decay: float,
    guarded: bool = False,
) -> Results:
    """w, rows, columns, and those of further parameters."""
    like("adafactor", w=w, g=g)
    like("adafactor", rows=rows, expected=Spec(w.shape[:-1] if len(w.shape) > 1 else w.shape, w.dtype))
    like("adafactor", columns=columns, expected=Spec(w.shape[:-2] + w.shape[-1:], w.dtype))
    like("adafactor", lr=lr, step=step, scalar=Spec((), w.dtype))
    again = partial(adafactor, beta2_decay=beta2_decay, eps1=eps1, eps2=eps2, clip=clip, decay=decay)
    return w, rows, columns, *_others("adafactor", again, more, guarded)
