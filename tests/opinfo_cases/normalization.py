"""PyTorch's samples read as operators: normalization."""

from math import prod

import torch

from castile.planner.ops.layer_norm import LayerNorm
from tests.opinfo_cases import Read, names, torch_name


@torch_name("nn.functional.layer_norm")
def from_layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    width, leading = prod(normalized_shape), x.ndim - len(normalized_shape)

    def flat(t):
        return t.reshape(*t.shape[: t.ndim - len(normalized_shape)], width)

    weight = torch.ones(normalized_shape, dtype=x.dtype) if weight is None else weight
    bias = torch.zeros(normalized_shape, dtype=x.dtype) if bias is None else bias
    operands = [(x, flat, names(leading) + " d"), (weight, flat, "*d"), (bias, flat, "*d")]
    return Read(LayerNorm(eps), operands, lambda y: y.reshape(x.shape))
