"""What kernels of normalisations give, work in and refuse."""

from castile.planner.vocabulary import Results, Spec, kernel, like


@kernel()
def layer_norm(x: Spec, g: Spec, b: Spec, *, eps: float) -> Results:
    """y, mean, rstd."""
    like("layer_norm", g=g, b=b, **{"x's last dim": Spec(x.shape[-1:], x.dtype)})
    rows = Spec(x.shape[:-1], x.dtype)
    return x, rows, rows


@kernel()
def layer_norm_grad_input(dy: Spec, x: Spec, g: Spec, mean: Spec, rstd: Spec) -> Results:
    """x's spec."""
    like("layer_norm_grad_input", dy=dy, x=x)
    like("layer_norm_grad_input", g=g, **{"x's last dim": Spec(x.shape[-1:], x.dtype)})
    like("layer_norm_grad_input", mean=mean, rstd=rstd, **{"x's rows": Spec(x.shape[:-1], x.dtype)})
    return (x,)


@kernel(adds=True)
def layer_norm_grad_params(dy: Spec, x: Spec, mean: Spec, rstd: Spec) -> Results:
    """dg, db."""
    like("layer_norm_grad_params", dy=dy, x=x)
    like("layer_norm_grad_params", mean=mean, rstd=rstd, **{"x's rows": Spec(x.shape[:-1], x.dtype)})
    params = Spec(x.shape[-1:], x.dtype)
    return params, params
