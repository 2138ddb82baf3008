"""What kernels of convolutions give, work in and refuse."""

from math import prod

from castile.planner.vocabulary import Pads, Pair, Results, Shape, Spec, kernel, like, need, same

COLUMNS_CAP = 1 << 21


def _columns_bytes(y: Spec, window: Shape) -> int:
    """Columns and results of as many whole samples as the cap holds, else of as many rows of one, but at least one.

    y [b,o,h,w] is the convolution's result and `window` the channels, height and width that each element looks at.
    """
    batch, outputs, height, width = y.shape
    row = (prod(window) + outputs) * width * y.itemsize
    if row * height <= COLUMNS_CAP:
        return row * height * min(batch, COLUMNS_CAP // (row * height))
    return row * max(1, COLUMNS_CAP // row)


@kernel(adds=True, working=lambda outs, _, x, w, **how: _columns_bytes(outs[0], w.shape[1:]))
def conv2d(x: Spec, w: Spec, *, stride: Pair, pads: Pads) -> Results:
    """[b,o,h,w] of x [b,i,H,W] and w [o,i,r,s]."""
    four("conv2d", x=x, w=w)
    same("conv2d: dtypes", x=x.dtype, w=w.dtype)
    same("conv2d: input channels", x=x.shape[1], w=w.shape[1])
    size = windows("conv2d", x.shape[2:], w.shape[2:], stride, pads)
    return (Spec((x.shape[0], w.shape[0], *size), x.dtype),)


@kernel(adds=True, working=lambda outs, _, dy, w, shape, **how: _columns_bytes(dy, w.shape[1:]))
def conv2d_grad_input(dy: Spec, w: Spec, *, shape: Shape, stride: Pair, pads: Pads) -> Results:
    """x's shape."""
    x = Spec(tuple(shape), dy.dtype)
    like("conv2d_grad_input", dy=dy, conv2d=conv2d(x, w, stride=stride, pads=pads)[0])
    return (x,)


@kernel(adds=True, working=lambda outs, _, dy, x, kernel, **how: _columns_bytes(dy, (x.shape[1], *kernel)))
def conv2d_grad_weight(dy: Spec, x: Spec, *, kernel: Pair, stride: Pair, pads: Pads) -> Results:
    """[o,i,r,s], (r, s) = kernel."""
    four("conv2d_grad_weight", dy=dy, x=x)
    w = Spec((dy.shape[1], x.shape[1], *kernel), x.dtype)
    like("conv2d_grad_weight", dy=dy, conv2d=conv2d(x, w, stride=stride, pads=pads)[0])
    return (w,)


def four(what: str, **specs: Spec) -> None:
    for name, one in specs.items():
        need(len(one.shape) == 4, f"{what}: {name} must have 4 dims, not {one.shape}")


def windows(what: str, size: Shape, kernel: Shape, stride: Pair, pads: Pads) -> Pair:
    need(min(stride) > 0 and min(pads) >= 0, f"{what}: stride {stride} must be positive and pads {pads} not negative")
    padded = (size[0] + pads[0] + pads[1], size[1] + pads[2] + pads[3])
    fits = all(0 < k <= n for k, n in zip(kernel, padded, strict=True))
    need(fits, f"{what}: the kernel {tuple(kernel)} does not fit into the padded image {padded}")
    return (padded[0] - kernel[0]) // stride[0] + 1, (padded[1] - kernel[1]) // stride[1] + 1
