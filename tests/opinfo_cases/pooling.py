"""PyTorch's samples read as operators: pooling."""

from castile.planner.families.windows import pair
from castile.planner.ops.avg_pool2d import AvgPool2d
from castile.planner.ops.max_pool2d import MaxPool2d
from tests.opinfo_cases import Read, refuse, same, torch_name

WITHOUT = {"global_pool": "no sample of PyTorch's adaptive pooling asks for a single place"}


@torch_name("nn.functional.max_pool2d")
def from_max_pool2d(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    refuse(
        {"dilation": pair(dilation), "ceil_mode": ceil_mode, "return_indices": return_indices},
        dilation=(1, 1), ceil_mode=False, return_indices=False,
    )  # fmt: skip
    batched = x.ndim == 4
    op = MaxPool2d(pair(kernel_size), pair(kernel_size if stride is None else stride), pair(padding))
    return Read(op, [(x, same if batched else lambda t: t[None], "b c h w")], same if batched else lambda y: y[0])


@torch_name("nn.functional.avg_pool2d")
def from_avg_pool2d(
    x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):
    refuse({"ceil_mode": ceil_mode, "divisor_override": divisor_override}, ceil_mode=False, divisor_override=None)
    batched = x.ndim == 4
    sizes = [(n[0], n[0]) if isinstance(n, tuple | list) and len(n) == 1 else pair(n)
             for n in (kernel_size, kernel_size if stride is None else stride, padding)]  # fmt: skip
    op = AvgPool2d(*sizes, count_include_pad)
    return Read(op, [(x, same if batched else lambda t: t[None], "b c h w")], same if batched else lambda y: y[0])
