"""PyTorch's samples read as operators: convolution."""

from castile.planner.families.windows import pair
from castile.planner.ops.conv1d import Conv1d
from castile.planner.ops.conv2d import Conv2d
from castile.planner.ops.conv_transpose2d import ConvTranspose2d
from tests.opinfo_cases import Read, Skip, same, torch_name


@torch_name("nn.functional.conv2d")
def from_conv2d(x, w, b=None, stride=1, padding=0, dilation=1, groups=1):
    padding = _padding(padding, w.shape[2:], pair(dilation))
    op = Conv2d(pair(stride), pair(padding), pair(dilation), groups)
    return _read(op, x, w, b, "b c h w", "*o i r s")


@torch_name("nn.functional.conv1d")
def from_conv1d(x, w, b=None, stride=1, padding=0, dilation=1, groups=1):
    stride, dilation = (n if isinstance(n, int) else n[0] for n in (stride, dilation))
    (ends,) = _padding(padding, w.shape[2:], (dilation,))
    op = Conv1d((stride,), (ends, ends), (dilation,), groups)
    return _read(op, x, w, b, "b c l", "*o i r")


@torch_name("nn.functional.conv_transpose2d")
def from_conv_transpose2d(x, w, b=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    padding = _padding(padding, w.shape[2:], pair(dilation))
    op = ConvTranspose2d(pair(stride), pair(padding), pair(output_padding), pair(dilation), groups)
    return _read(op, x, w, b, "b c h w", "*i o r s")


def _padding(padding, kernel, dilation):
    """A number for each dim; a padding that reaches beyond a window is refused by the operators."""
    reach = [(n - 1) * gap + 1 for n, gap in zip(kernel, dilation, strict=True)]
    if padding == "same":
        if any(n % 2 == 0 for n in reach):
            raise Skip("padding is uneven")
        return tuple(n // 2 for n in reach)
    padding = 0 if padding == "valid" else padding
    padding = (padding,) * len(reach) if isinstance(padding, int) else tuple(padding) * (len(reach) // len(padding))
    if any(p >= n for p, n in zip(padding, reach, strict=True)):
        raise Skip("padding is not smaller than the kernel")
    return padding


def _read(op, x, w, b, axes, of_weight):
    batched = x.ndim == w.ndim
    operands = [(x, same if batched else lambda t: t[None], axes), (w, same, of_weight)]
    operands += [(b, same, "*o")] if b is not None else []
    return Read(op, operands, same if batched else lambda y: y[0])
