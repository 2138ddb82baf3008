"""Calls of NCCL's members, and what its collectives make of the arrays of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.stand_in.cupy import cuda

DTYPES = [np.dtype(name) for name in ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ml_dtypes.bfloat16)]


@dataclass
class Op:
    """One call's part: addresses, elements, and root or peer by NCCL rank; whether a graph has captured it."""

    name: str
    send: int
    receive: int
    count: int
    dtype: int
    other: int = -1
    captured: bool = False

    @property
    def nbytes(self) -> int:
        return self.count * DTYPES[self.dtype].itemsize

    @property
    def signature(self) -> tuple[str, int, int, int, bool]:
        """What all members must agree on."""
        return self.name, self.count, self.dtype, self.other, self.captured


def _array(address: int, count: int, dtype: int) -> np.ndarray:
    return (
        cuda.memory(address, count * DTYPES[dtype].itemsize).view(DTYPES[dtype])
        if count
        else np.zeros(0, DTYPES[dtype])
    )


def _sum(ops: Sequence[Op], count: int) -> np.ndarray:
    """The last member first, so that nobody may count on the order of the group."""
    parts = [_array(op.send, count, op.dtype) for op in reversed(ops)]
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _all_reduce(ops: Sequence[Op]) -> None:
    total = _sum(ops, ops[0].count)
    for op in ops:
        _array(op.receive, op.count, op.dtype)[:] = total


def _reduce(ops: Sequence[Op]) -> None:
    root = ops[ops[0].other]
    total = _sum(ops, root.count)
    _array(root.receive, root.count, root.dtype)[:] = total


def _reduce_scatter(ops: Sequence[Op]) -> None:
    n = ops[0].count
    total = _sum(ops, n * len(ops))
    for rank, op in enumerate(ops):
        _array(op.receive, n, op.dtype)[:] = total[rank * n : (rank + 1) * n]


def _all_gather(ops: Sequence[Op]) -> None:
    whole = np.concatenate([_array(op.send, op.count, op.dtype) for op in ops])
    for op in ops:
        _array(op.receive, len(whole), op.dtype)[:] = whole


def _broadcast(ops: Sequence[Op]) -> None:
    root = ops[ops[0].other]
    data = _array(root.send, root.count, root.dtype).copy()
    for op in ops:
        _array(op.receive, op.count, op.dtype)[:] = data


COLLECTIVES: dict[str, Callable[[Sequence[Op]], None]] = {
    "allReduce": _all_reduce,
    "reduce": _reduce,
    "reduceScatter": _reduce_scatter,
    "allGather": _all_gather,
    "broadcast": _broadcast,
}
