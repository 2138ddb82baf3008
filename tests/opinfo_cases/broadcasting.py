"""PyTorch's samples read as operators: two arrays that broadcast."""

from math import prod

import torch

from castile.planner.op import find
from tests.opinfo_cases import LETTERS, Read, Skip, refuse, same, torch_name


def two(name, a, b):
    if not torch.is_tensor(b) or a.dtype != b.dtype:
        raise Skip("the second is a number, or of another dtype")
    if prod(a.shape) == 0 or prod(b.shape) == 0:
        raise Skip("there is nothing")
    ndim = max(a.ndim, b.ndim)
    return Read(find(name)(), [(t, same, " ".join(LETTERS[ndim - t.ndim : ndim])) for t in (a, b)])


@torch_name("add")
def from_add(x, other, alpha=1):
    refuse({"alpha": alpha}, alpha=1)
    return two("add", x, other)


@torch_name("sub")
def from_sub(x, other, alpha=1):
    refuse({"alpha": alpha}, alpha=1)
    return two("sub", x, other)


@torch_name("mul")
def from_mul(x, other):
    return two("mul", x, other)


@torch_name("div")
def from_div(x, other, rounding_mode=None):
    refuse({"rounding_mode": rounding_mode}, rounding_mode=None)
    return two("div", x, other)


@torch_name("where")
def from_where(x, mask, other):
    if not torch.is_tensor(other) or x.dtype != other.dtype or not all(t.numel() for t in (x, mask, other)):
        raise Skip("the second is a number, or of another dtype, or there is nothing")
    ndim = max(t.ndim for t in (x, mask, other))
    tensors = ((mask.to(x.dtype), x, other))
    return Read(find("where")(), [(t, same, " ".join(LETTERS[ndim - t.ndim : ndim])) for t in tensors])


@torch_name("maximum")
def from_maximum(x, other):
    return two("maximum", x, other)


@torch_name("minimum")
def from_minimum(x, other):
    return two("minimum", x, other)
