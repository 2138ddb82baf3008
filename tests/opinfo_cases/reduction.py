"""PyTorch's samples read as operators: reductions over dims, and the softmax over one."""

from math import prod

from castile.planner.op import find
from tests.opinfo_cases import Read, Skip, names, refuse, same, torch_name


def over(name, x, dim, keepdim):
    dims = (dim,) if isinstance(dim, int) else tuple(dim) if dim is not None else None
    # an empty list of dims means all of them in PyTorch
    dims = dims or None
    if keepdim or prod(x.shape) == 0:
        raise Skip("dims are kept, or there is nothing")
    if not x.ndim and dims:
        raise Skip("a scalar has no dims")
    return Read(find(name)(dims), [(x, same, names(x.ndim))])


@torch_name("sum")
def from_sum(x, dim=None, keepdim=False, dtype=None):
    refuse({"dtype": dtype}, dtype=None)
    return over("sum", x, dim, keepdim)


@torch_name("mean")
def from_mean(x, dim=None, keepdim=False, dtype=None):
    refuse({"dtype": dtype}, dtype=None)
    return over("mean", x, dim, keepdim)


@torch_name("amax")
def from_max(x, dim=None, keepdim=False):
    return over("max", x, dim, keepdim)


def over_last(name, x, dim):
    if not x.ndim or prod(x.shape) == 0:
        raise Skip("a scalar has no dims, or there is nothing")

    def last(t):
        return t.movedim(dim, -1)

    axes = names(x.ndim - 1) + " v"
    return Read(find(name)(), [(x, last, axes)], lambda y: _back(y, dim))


def _back(y, dim):
    order = list(range(y.ndim - 1))
    order.insert(dim % y.ndim, y.ndim - 1)
    return y.transpose(order)


@torch_name("softmax")
def from_softmax(x, dim, dtype=None):
    refuse({"dtype": dtype}, dtype=None)
    return over_last("softmax", x, dim)


@torch_name("log_softmax")
def from_log_softmax(x, dim, dtype=None):
    refuse({"dtype": dtype}, dtype=None)
    return over_last("log_softmax", x, dim)
