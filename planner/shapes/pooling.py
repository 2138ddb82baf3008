"""What kernels of pooling give, work in and refuse."""

from castile.planner.shapes.convolution import four, windows
from castile.planner.vocabulary import Pads, Pair, Results, Spec, kernel, like


@kernel()
def max_pool2d(x: Spec, *, kernel: Pair, stride: Pair, pads: Pads) -> Results:
    """[b,c,h,w] of x [b,c,H,W]."""
    four("max_pool2d", x=x)
    return (Spec((*x.shape[:2], *windows("max_pool2d", x.shape[2:], kernel, stride, pads)), x.dtype),)


@kernel(adds=True)
def max_pool2d_grad(dy: Spec, x: Spec, *, kernel: Pair, stride: Pair, pads: Pads) -> Results:
    """x's spec."""
    like("max_pool2d_grad", dy=dy, max_pool2d=max_pool2d(x, kernel=kernel, stride=stride, pads=pads)[0])
    return (x,)
