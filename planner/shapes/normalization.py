"""What kernels of normalisations give, work in and refuse."""

from castile.planner.bodies.vocabulary import Results, Spec, kernel, like, need, there, wide


@kernel()
def layer_norm(x: Spec, g: Spec, b: Spec, *, eps: float) -> Results:
    """y, mean, rstd."""
    like("layer_norm", g=g, b=b, **{"x's last dim": Spec(x.shape[-1:], x.dtype)})
    rows = Spec(x.shape[:-1], wide(x.dtype))
    return x, rows, rows


@kernel(onto=True)
def layer_norm_grad_input(dy: Spec, x: Spec, g: Spec, mean: Spec, rstd: Spec, onto: Spec | None = None) -> Results:
    """x's spec."""
    like("layer_norm_grad_input", dy=dy, x=x, **there(onto=onto))
    like("layer_norm_grad_input", g=g, **{"x's last dim": Spec(x.shape[-1:], x.dtype)})
    like("layer_norm_grad_input", mean=mean, rstd=rstd, **{"x's rows": Spec(x.shape[:-1], wide(x.dtype))})
    return (x,)


@kernel(adds=True, casts=True)
def layer_norm_grad_params(dy: Spec, x: Spec, mean: Spec, rstd: Spec) -> Results:
    """dg, db."""
    like("layer_norm_grad_params", dy=dy, x=x)
    like("layer_norm_grad_params", mean=mean, rstd=rstd, **{"x's rows": Spec(x.shape[:-1], wide(x.dtype))})
    params = Spec(x.shape[-1:], x.dtype)
    return params, params


@kernel()
def rms_norm(x: Spec, g: Spec, *, eps: float) -> Results:
    """y, rstd."""
    like("rms_norm", g=g, **{"x's last dim": Spec(x.shape[-1:], x.dtype)})
    return x, Spec(x.shape[:-1], wide(x.dtype))


@kernel(onto=True)
def rms_norm_grad_input(dy: Spec, x: Spec, g: Spec, rstd: Spec, onto: Spec | None = None) -> Results:
    """x's spec."""
    like("rms_norm_grad_input", dy=dy, x=x, **there(onto=onto))
    like("rms_norm_grad_input", g=g, **{"x's last dim": Spec(x.shape[-1:], x.dtype)})
    like("rms_norm_grad_input", rstd=rstd, **{"x's rows": Spec(x.shape[:-1], wide(x.dtype))})
    return (x,)


@kernel(adds=True, casts=True)
def rms_norm_grad_params(dy: Spec, x: Spec, rstd: Spec) -> Results:
    """dg."""
    like("rms_norm_grad_params", dy=dy, x=x)
    like("rms_norm_grad_params", rstd=rstd, **{"x's rows": Spec(x.shape[:-1], wide(x.dtype))})
    return (Spec(x.shape[-1:], x.dtype),)


@kernel()
def group_norm(x: Spec, g: Spec, b: Spec, *, groups: int, eps: float) -> Results:
    """y, mean, rstd."""
    _grouped("group_norm", x, groups)
    like("group_norm", g=g, b=b, **{"x's channels": Spec(x.shape[1:2], x.dtype)})
    stats = Spec((x.shape[0], groups), wide(x.dtype))
    return x, stats, stats


@kernel()
def group_norm_grad_input(dy: Spec, x: Spec, g: Spec, mean: Spec, rstd: Spec) -> Results:
    """x's spec."""
    like("group_norm_grad_input", dy=dy, x=x)
    like("group_norm_grad_input", g=g, **{"x's channels": Spec(x.shape[1:2], x.dtype)})
    _statistics("group_norm_grad_input", x, mean, rstd)
    return (x,)


@kernel(adds=True, casts=True)
def group_norm_grad_params(dy: Spec, x: Spec, mean: Spec, rstd: Spec) -> Results:
    """dg, db."""
    like("group_norm_grad_params", dy=dy, x=x)
    _statistics("group_norm_grad_params", x, mean, rstd)
    params = Spec(x.shape[1:2], x.dtype)
    return params, params


def _grouped(what: str, x: Spec, groups: int) -> None:
    need(len(x.shape) >= 2, f"{what}: x must have samples and channels, not the shape {x.shape}")
    need(groups > 0 and x.shape[1] % groups == 0, f"{what}: {x.shape[1]} channels do not divide into {groups} groups")


def _statistics(what: str, x: Spec, mean: Spec, rstd: Spec) -> None:
    groups = mean.shape[-1]
    _grouped(what, x, groups)
    like(what, mean=mean, rstd=rstd, groups=Spec((x.shape[0], groups), wide(x.dtype)))
