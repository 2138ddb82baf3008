"""What kernels of pooling give, work in and refuse."""

from castile.planner.bodies.vocabulary import Pads, Pair, Results, Shape, Spec, kernel, like, need, same
from castile.planner.shapes.convolution import four, windows


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


@kernel()
def avg_pool2d(x: Spec, *, kernel: Pair, stride: Pair, pads: Pads, padded: bool) -> Results:
    """[b,c,h,w] of x [b,c,H,W]."""
    four("avg_pool2d", x=x)
    return (Spec((*x.shape[:2], *windows("avg_pool2d", x.shape[2:], kernel, stride, pads)), x.dtype),)


@kernel(adds=True)
def avg_pool2d_grad(dy: Spec, *, shape: Shape, kernel: Pair, stride: Pair, pads: Pads, padded: bool) -> Results:
    """As told."""
    x = Spec(tuple(shape), dy.dtype)
    pooled = avg_pool2d(x, kernel=kernel, stride=stride, pads=pads, padded=padded)[0]
    like("avg_pool2d_grad", dy=dy, avg_pool2d=pooled)
    return (x,)


@kernel(adds=True)
def global_pool(x: Spec, *, scale: float) -> Results:
    """[b,c] of x [b,c,...]."""
    need(len(x.shape) >= 2, f"global_pool: x must have samples and channels, not {x.shape}")
    return (Spec(x.shape[:2], x.dtype),)


@kernel(adds=True)
def global_pool_grad(dy: Spec, *, shape: Shape, scale: float) -> Results:
    """As told."""
    same("global_pool_grad: samples and channels", dy=dy.shape, shape=tuple(shape[:2]))
    return (Spec(tuple(shape), dy.dtype),)
