"""PyTorch's samples read as operators: contraction, dims in another order, side by side, a range of one."""

import torch

from castile.planner.op import find
from tests.opinfo_cases import LETTERS, Read, Skip, names, same, torch_name


@torch_name("einsum")
def from_contract(arrays, text):
    left, _, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(arrays) != 2 or any(len(set(term)) < len(term) for term in terms):
        raise Skip("not two operands, or one that names an axis twice")
    if "." in text and any(t.ndim - len(term.replace("...", "")) > 1 for t, term in zip(arrays, terms)):
        raise Skip("leading dims that are broadcast")
    if any((axis in terms[0]) + (axis in terms[1]) + (axis in right) < 2 for axis in set(left) - set(",.")):
        raise Skip("an axis of one operand is summed")
    lengths = [dict(zip(term, t.shape)) for term, t in zip(terms, arrays)]
    if any(lengths[0][a] != lengths[1][a] for a in set(lengths[0]) & set(lengths[1])):
        raise Skip("a dim of one element is broadcast")
    line = f"{', '.join(' '.join(term) for term in terms)} -> {' '.join(right)}".replace(". . .", "...")
    operands = [(t, same, " ".join(f"x{n}" for n in range(t.ndim))) for t in arrays]
    return Read(find("contract")(line), operands)


@torch_name("permute")
def from_transpose(x, dims):
    order = [dim % x.ndim for dim in dims] if x.ndim else []
    text = f"{names(x.ndim)} -> {' '.join(LETTERS[dim] for dim in order)}"
    return Read(find("transpose")(text), [(x, same, names(x.ndim))])


@torch_name("cat")
def from_concat(arrays, dim=0):
    if len({t.ndim for t in arrays}) > 1:
        raise Skip("an empty array of one dim")
    dim %= arrays[0].ndim
    if any(t.shape[dim] == 0 for t in arrays):
        raise Skip("one of them is empty")
    return Read(find("concat")(dim), [(t, same, names(t.ndim)) for t in arrays])


@torch_name("narrow")
def from_slice(x, dim, start, length):
    start = int(start) if torch.is_tensor(start) else start
    dim, start = dim % x.ndim, start % x.shape[dim]
    if length == 0:
        raise Skip("nothing")
    return Read(find("slice")(dim, start, start + length), [(x, same, names(x.ndim))])


@torch_name("expand")
def from_expand(x, sizes):
    if len(sizes) != x.ndim or 0 in x.shape:
        raise Skip("more dims, or nothing")
    shape = tuple(own if n == -1 else n for own, n in zip(x.shape, sizes))
    return Read(find("expand")(shape), [(x, same, names(x.ndim))])


@torch_name("nn.functional.pad")
def from_pad(x, widths, mode="constant", value=None):
    dims = {x.ndim - 1 - n // 2: widths[n : n + 2] for n in range(0, len(widths), 2) if any(widths[n : n + 2])}
    if len(dims) != 1 or min(widths) < 0 or 0 in x.shape:
        raise Skip("not one dim, less than there is, or nothing")
    ((dim, (before, after)),) = dims.items()
    return Read(find("pad")(dim, before, after, value or 0.0), [(x, same, names(x.ndim))])
