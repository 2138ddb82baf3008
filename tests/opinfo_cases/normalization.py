"""PyTorch's samples read as operators: normalization."""

from math import prod

import torch

from castile.planner.op import find
from castile.planner.ops.layer_norm import LayerNorm
from tests.opinfo_cases import Read, Skip, names, same, torch_name


@torch_name("nn.functional.layer_norm")
def from_layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    width, leading = prod(normalized_shape), x.ndim - len(normalized_shape)

    def flat(t):
        return t.reshape(*t.shape[: t.ndim - len(normalized_shape)], width)

    weight = torch.ones(normalized_shape, dtype=x.dtype) if weight is None else weight
    bias = torch.zeros(normalized_shape, dtype=x.dtype) if bias is None else bias
    operands = [(x, flat, names(leading) + " d"), (weight, flat, "*d"), (bias, flat, "*d")]
    return Read(LayerNorm(eps), operands, lambda y: y.reshape(x.shape))


@torch_name("nn.functional.rms_norm")
def from_rms_norm(x, normalized_shape, weight=None, eps=None):
    width, leading = prod(normalized_shape), x.ndim - len(normalized_shape)

    def flat(t):
        return t.reshape(*t.shape[: t.ndim - len(normalized_shape)], width)

    weight = torch.ones(normalized_shape, dtype=x.dtype) if weight is None else weight
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    if eps < 0:
        raise Skip("eps is negative")
    return Read(
        find("rms_norm")(eps), [(x, flat, names(leading) + " d"), (weight, flat, "*d")], lambda y: y.reshape(x.shape)
    )


@torch_name("nn.functional.group_norm")
def from_group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    if x.numel() == 0:
        raise Skip("nothing")
    weight = torch.ones(x.shape[1], dtype=x.dtype) if weight is None else weight
    bias = torch.zeros(x.shape[1], dtype=x.dtype) if bias is None else bias
    operands = [(x, same, names(x.ndim)), (weight, same, "*o"), (bias, same, "*o")]
    return Read(find("group_norm")(groups, eps), operands)
