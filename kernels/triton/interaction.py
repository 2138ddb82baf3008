"""Products of all pairs of each sample's vectors as a product of matrices a sample, and the gradient.

It knows no tables or networks that make the vectors.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.launch import Launch, LaunchPlan, are_floats, planned
from castile.kernels.triton.views import power_of_two, view

# The most vectors whose products one program holds.
_MOST = 128


@planned
def pair_dots(out: Any, x: Any) -> LaunchPlan | None:
    """See the definition. Both halves are computed, as tensor cores do, and one is written."""
    return _by_samples(_pair_dots, x, [out, x], 64 >> (x.dtype.name == "float32")) if are_floats(out, x) else None


@planned
def pair_dots_grad(out: Any, dy: Any, x: Any) -> LaunchPlan | None:
    """See the definition."""
    # Of 64 a thread leaves out registers where it writes by columns, and in float32: of 60 vectors 7 KB; in both, with
    # Triton 3.9, of 32 too.
    block = 64 >> (x.dtype.name == "float32") >> (view(out).steps[-1] != 1)
    return _by_samples(_pair_dots_grad, x, [out, dy, x], block) if are_floats(out, dy, x) else None


def _by_samples(kernel: Any, x: Any, arrays: list[Any], likely: int) -> LaunchPlan | None:
    """The work of `kernel` on one sample a program, `likely` of the width of its vectors a step at first; None for more
    vectors than it can hold.
    """
    batch, num, width = x.shape
    if num > _MOST:
        return None
    if not x.size:
        return LaunchPlan((None,), lambda _: [])
    across = max(16, power_of_two(num))
    args = (*(part for one in arrays for part in (one, view(one).steps)), num, width)

    def launches(setting: tuple[int, int]) -> list[Launch]:
        block, warps = setting
        sizes = {"F": across, "BLOCK": min(block, max(16, power_of_two(width)))}
        flops = 2 * batch * num * num * width
        half = x.dtype.name != "float32"
        return [Launch(kernel, (batch,), args, sizes, warps, flops=flops, tensor_cores=half)]

    settings = ((likely, max(1, across * across // 1024)), (128, 4), (32, 4))
    return LaunchPlan(tuple(dict.fromkeys(settings)), launches)


@triton.jit
def _pair_dots(out, s_out, x, s_x, num, width, F: tl.constexpr, BLOCK: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    first, second = tl.arange(0, F)[:, None], tl.arange(0, F)[None, :]
    total = tl.zeros((F, F), tl.float32)
    for start in range(0, width, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        place = x + sample * s_x[0] + first * s_x[1] + col * s_x[2]
        v = tl.load(place, mask=(first < num) & (col < width), other=0.0)
        total = tl.dot(v, tl.trans(v), total, input_precision="ieee")
    place = out + sample * s_out[0] + (first * (first - 1) // 2 + second) * s_out[1]
    tl.store(place, total.to(out.dtype.element_ty), mask=(second < first) & (first < num))


@triton.jit
def _pair_dots_grad(out, s_out, dy, s_dy, x, s_x, num, width, F: tl.constexpr, BLOCK: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    first, second = tl.arange(0, F)[:, None], tl.arange(0, F)[None, :]
    high, low = tl.maximum(first, second), tl.minimum(first, second)
    place = dy + sample * s_dy[0] + (high * (high - 1) // 2 + low) * s_dy[1]
    weights = tl.load(place, mask=(low < high) & (high < num), other=0.0)
    for start in range(0, width, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        mask = (first < num) & (col < width)
        v = tl.load(x + sample * s_x[0] + first * s_x[1] + col * s_x[2], mask=mask, other=0.0)
        value = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        tl.store(out + sample * s_out[0] + first * s_out[1] + col * s_out[2], value.to(out.dtype.element_ty), mask=mask)
