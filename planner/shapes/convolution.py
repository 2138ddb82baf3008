"""What kernels of convolutions give, work in and refuse."""

from math import prod
from typing import Any

from castile.planner.bodies.vocabulary import (
    Pads,
    Pair,
    Results,
    Shape,
    Spec,
    kernel,
    like,
    need,
    round_up,
    same,
    there,
)

# Bytes of padded copies of images that are worked on at once: half of a second-level cache.
COLUMNS_CAP = 1 << 19

# A block of channels, and how many places their sums may lie at before they go where they belong.
_BLOCK, _PLACES = 8, 512
# Bytes of a few sums.
_SUMS = 256
# A copied channel goes on for less than so many elements beyond its images: vectors, and steps that share no cache set.
_MARGIN = 96


def _forward(outs: Results, accumulate: bool, x: Spec, w: Spec, **how: Any) -> int:
    (x, w), how = _images(x, w), _how(**how)
    size, window = _padded(x.shape[2:], how["pads"]), _extents(w.shape[2:], how["dilation"])
    channels = x.shape[1] // how["groups"]
    copied = _copied(x.shape[0], channels, size, window[0], how["stride"], x.itemsize, COLUMNS_CAP)
    return _weights(w, how["groups"]) + copied


def _backward(
    outs: Results, accumulate: bool, dy: Spec, w: Spec, onto: Spec | None = None, *, shape: Shape, **how: Any
) -> int:
    (dy, w), how = _images(dy, w), _how(**how)
    image = _images(Spec(tuple(shape), dy.dtype))[0]
    reach = [(n - 1) // s for n, s in zip(_extents(w.shape[2:], how["dilation"]), how["stride"], strict=True)]
    padded = _padded(image.shape[2:], how["pads"])
    size = [d + max(n, -(-p // s)) for d, n, p, s in zip(reach, dy.shape[2:], padded, how["stride"], strict=True)]
    channels = dy.shape[1] // how["groups"]
    least, itemsize = 2 * reach[0] + 1, dy.itemsize
    copied = _copied(dy.shape[0], channels, (size[0], size[1]), least, (1, 1), itemsize, COLUMNS_CAP)
    return _weights(w, how["groups"]) + copied


def _slopes(outs: Results, accumulate: bool, dy: Spec, x: Spec, *, kernel: Shape, **how: Any) -> int:
    (dy, x, w), how = _images(dy, x, outs[0]), _how(**how)
    size, window = _padded(x.shape[2:], how["pads"]), _extents(w.shape[2:], how["dilation"])
    channels = (x.shape[1] + dy.shape[1]) // how["groups"]
    # sums of what vectors' lanes hold are worth their while where each channel has many places at once
    cap = max(COLUMNS_CAP, channels * COLUMNS_CAP // 64)
    return _SUMS + _copied(x.shape[0], channels, size, window[0], how["stride"], x.itemsize, cap)


def _copied(batch: int, channels: int, size: Pair, least: int, stride: Pair, itemsize: int, cap: int) -> int:
    """Bytes of copies of as many padded samples as the cap holds, else of rows of one, but of `least` at least."""

    def channel(samples: int, rows: int) -> int:
        # one row and column more than there are, because every stride-th begins a copy of its own
        rows, columns = (-(-n // s) + 1 for n, s in zip((rows, size[1]), stride, strict=True))
        return prod(stride) * ((samples * rows + 1) * columns + _MARGIN)

    smallest, largest = (channels * itemsize * channel(*one) for one in ((1, least), (batch, size[0])))
    return max(smallest, min(largest, cap))


def _weights(w: Spec, groups: int) -> int:
    """Bytes of the weights in blocks of each group's outputs or inputs, and of the sums of a block."""
    o, i, *taps = w.shape
    packed = round_up(w.itemsize * prod(taps) * (o * i + _BLOCK * max(o, groups * i)))
    return packed + round_up(w.itemsize * _BLOCK * _PLACES)


def _how(stride: Pair, pads: Pads, dilation: Pair = (1, 1), groups: int = 1) -> dict[str, Any]:
    return {"stride": stride, "pads": pads, "dilation": dilation, "groups": groups}


def _images(*specs: Spec) -> list[Spec]:
    """Images without rows as images of one row."""
    return [Spec((*s.shape[:2], 1, s.shape[2]), s.dtype) if len(s.shape) == 3 else s for s in specs]


def _padded(size: Shape, pads: Pads) -> Pair:
    return size[0] + pads[0] + pads[1], size[1] + pads[2] + pads[3]


def _extents(kernel: Shape, dilation: Pair) -> Pair:
    """Rows and columns from the first to the last that a window sees."""
    return (kernel[0] - 1) * dilation[0] + 1, (kernel[1] - 1) * dilation[1] + 1


@kernel(adds=True, working=_forward)
def conv2d(x: Spec, w: Spec, *, stride: Pair, pads: Pads, dilation: Pair = (1, 1), groups: int = 1) -> Results:
    """[b,o,h,w] of x [b,i,H,W] and w [o,i/groups,r,s], or [b,o,w] of [b,i,W] and [o,i/groups,s]."""
    lone = len(x.shape) == len(w.shape) == 3
    if lone:
        x, w = _images(x, w)
    four("conv2d", x=x, w=w)
    same("conv2d: dtypes", x=x.dtype, w=w.dtype)
    fits = groups > 0 and w.shape[0] % groups == 0
    need(fits, f"conv2d: {w.shape[0]} output channels are not divided by {groups} groups")
    same("conv2d: input channels", x=x.shape[1], w=groups * w.shape[1])
    need(min(dilation) > 0, f"conv2d: dilation {dilation} must be positive")
    size = windows("conv2d", x.shape[2:], _extents(w.shape[2:], dilation), stride, pads)
    return (Spec((x.shape[0], w.shape[0], *size[lone:]), x.dtype),)


@kernel(adds=True, working=_backward, onto=True)
def conv2d_grad_input(
    dy: Spec,
    w: Spec,
    onto: Spec | None = None,
    *,
    shape: Shape,
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Results:
    """x's shape."""
    x = Spec(tuple(shape), dy.dtype)
    y = conv2d(x, w, stride=stride, pads=pads, dilation=dilation, groups=groups)[0]
    like("conv2d_grad_input", dy=dy, conv2d=y)
    like("conv2d_grad_input", x=x, **there(onto=onto))
    return (x,)


@kernel(adds=True, casts=True, working=_slopes)
def conv2d_grad_weight(
    dy: Spec, x: Spec, *, kernel: Shape, stride: Pair, pads: Pads, dilation: Pair = (1, 1), groups: int = 1
) -> Results:
    """[o,i/groups,r,s], (r, s) = kernel."""
    need(groups > 0 and x.shape[1] % groups == 0, f"conv2d_grad_weight: {groups} groups do not divide {x.shape[1]}")
    w = Spec((dy.shape[1], x.shape[1] // groups, *kernel), x.dtype)
    y = conv2d(x, w, stride=stride, pads=pads, dilation=dilation, groups=groups)[0]
    like("conv2d_grad_weight", dy=dy, conv2d=y)
    return (w,)


def four(what: str, **specs: Spec) -> None:
    for name, one in specs.items():
        need(len(one.shape) == 4, f"{what}: {name} must have 4 dims, not {one.shape}")


def windows(what: str, size: Shape, kernel: Shape, stride: Pair, pads: Pads) -> Pair:
    need(min(stride) > 0, f"{what}: stride {stride} must be positive")
    padded = _padded(size, pads)
    fits = all(0 < k <= n for k, n in zip(kernel, padded, strict=True))
    need(fits, f"{what}: the kernel {tuple(kernel)} does not fit into the padded image {padded}")
    return (padded[0] - kernel[0]) // stride[0] + 1, (padded[1] - kernel[1]) // stride[1] + 1
