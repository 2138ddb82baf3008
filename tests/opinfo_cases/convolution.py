"""PyTorch's samples read as operators: convolution."""

from castile.planner.ops.conv2d import Conv2d
from castile.planner.windows import pair
from tests.opinfo_cases import Read, Skip, refuse, same, torch_name


@torch_name("nn.functional.conv2d")
def from_conv2d(x, w, b=None, stride=1, padding=0, dilation=1, groups=1):
    refuse({"dilation": pair(dilation), "groups": groups}, dilation=(1, 1), groups=1)
    if padding == "same":
        if any(n % 2 == 0 for n in w.shape[2:]):
            raise Skip("padding is uneven")
        padding = tuple(n // 2 for n in w.shape[2:])
    padding = (0, 0) if padding == "valid" else pair(padding)
    if any(p >= n for p, n in zip(padding, w.shape[2:], strict=True)):
        raise Skip("padding is not smaller than the kernel")
    batched = x.ndim == 4
    operands = [(x, same if batched else lambda t: t[None], "b c h w"), (w, same, "*o i r s")]
    operands += [(b, same, "*o")] if b is not None else []
    return Read(Conv2d(pair(stride), padding), operands, same if batched else lambda y: y[0])
