"""PyTorch's samples read as operators: arrays."""

from itertools import pairwise
from math import prod

from castile.planner.op import find
from castile.planner.ops.reshape import Reshape
from tests.opinfo_cases import LETTERS, Read, Skip, names, same, torch_name

WITHOUT = {"fetch": "belongs to plans", "accumulate": "belongs to plans"}


@torch_name("nn.functional.linear")
def from_linear(x, w, b=None):
    if w.ndim != 2 or x.ndim < 1:
        raise Skip("a weight without two dims")
    operands = [(x, same, names(x.ndim - 1) + " i"), (w, same, "*o i")]
    return Read(find("linear")(), operands + ([(b, same, "*o")] if b is not None else []))


@torch_name("reshape")
def from_reshape(x, *shape):
    new = tuple(x.reshape(*shape).shape)
    marks = sorted({prod(dims[n:]) for dims in (x.shape, new) for n in range(len(dims) + 1)})
    if x.numel() == 0 or any(b % a for a, b in pairwise(marks)):
        raise Skip("the dims have no common factors, or there is nothing")
    sizes = {LETTERS[n]: b // a for n, (a, b) in enumerate(pairwise(marks))}

    def side(dims):
        ends = [marks.index(prod(dims[n:])) for n in range(len(dims) + 1)]
        groups = [" ".join(LETTERS[low:high][::-1]) for high, low in pairwise(ends)]
        if not all(groups):
            raise Skip("a dim of one element")
        return " ".join(f"({group})" for group in groups)

    op = Reshape(f"{side(x.shape)} -> {side(new)}", tuple(sizes.items()))
    return Read(op, [(x, same, " ".join(f"x{n}" for n in range(x.ndim)))])
