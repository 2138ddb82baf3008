"""PyTorch's samples read as operators: pooling."""

from castile.planner.ops.max_pool2d import MaxPool2d
from castile.planner.windows import pair
from tests.opinfo_cases import Read, refuse, same, torch_name


@torch_name("nn.functional.max_pool2d")
def from_max_pool2d(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    refuse(
        {"dilation": pair(dilation), "ceil_mode": ceil_mode, "return_indices": return_indices},
        dilation=(1, 1), ceil_mode=False, return_indices=False,
    )  # fmt: skip
    batched = x.ndim == 4
    op = MaxPool2d(pair(kernel_size), pair(kernel_size if stride is None else stride), pair(padding))
    return Read(op, [(x, same if batched else lambda t: t[None], "b c h w")], same if batched else lambda y: y[0])
