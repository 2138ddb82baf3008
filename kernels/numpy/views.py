"""Strided views: merging dims, cutting arrays into rows that lie dense, and carving arrays out of scratch memory.

It knows no kernel.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.calls import chain, nothing

Shape = tuple[int, ...]


def merge(shape: Shape, strides: list[Shape]) -> tuple[Shape, list[Shape]]:
    """The fewest dims that walk the same elements: dims of length 1 vanish, neighbours merge where every array allows.

    `strides` holds one tuple an array, all over the dims of `shape`.
    """
    sizes: list[int] = []
    steps: list[list[int]] = []
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        here = [one[dim] for one in strides]
        if sizes and all(before == step * size for before, step in zip(steps[-1], here, strict=True)):
            sizes[-1] *= size
            steps[-1] = here
        else:
            sizes.append(size)
            steps.append(here)
    return tuple(sizes), [tuple(step[a] for step in steps) for a in range(len(strides))]


def by_rows(
    kernel: Callable[..., Any], arrays: list[np.ndarray], *constants: Any, bare: list[np.ndarray] | None = None
) -> Callable[[], Any] | None:
    """The work of `kernel(rows, cols, flat, stride, ..., *constants)` over the last dim of `arrays`, of one shape.

    Every array becomes a 1-D `flat` and the distance `stride` between its rows, in elements: rows r holds
    flat[r * stride : r * stride + cols]. `bare` arrays have the leading dims only, one element a row; their (flat,
    stride) follow those of `arrays`. None if rows are not dense or a step is < 0.
    """
    lead = arrays[0].shape[:-1]
    everything = [*((x, x.shape[-1], x.strides[:-1]) for x in arrays), *((x, 1, x.strides) for x in bare or [])]
    if prod(lead) == 0 or arrays[0].shape[-1] == 0:
        return nothing
    shape, strides = merge(lead, [step for _, _, step in everything])
    if not (in_rows(*arrays) and forward([x for x, _, _ in everything], strides)):
        return None
    calls: list[Callable[[], Any]] = []
    for offsets in outer(shape[:-1], [one[:-1] for one in strides]):
        rows = shape[-1] if shape else 1
        operands: list[Any] = []
        for (x, cols, _), one, offset in zip(everything, strides, offsets, strict=True):
            stride = one[-1] // x.itemsize if one else 0
            operands += [flat(x, offset // x.itemsize, (rows - 1) * stride + cols), stride]
        calls.append(partial(kernel, rows, arrays[0].shape[-1], *operands, *constants))
    return chain(calls)


def outer(shape: Shape, strides: list[Shape]) -> Iterator[list[int]]:
    """Offsets of every array, in the unit of its strides, for each index of `shape`."""
    for index in np.ndindex(*shape):
        yield [sum(i * step for i, step in zip(index, one, strict=True)) for one in strides]


def flat(x: np.ndarray, offset: int, length: int) -> np.ndarray:
    """`length` neighbours in memory, from `offset` elements after the first element of x on."""
    start = as_strided(x, (offset + 1,), (x.itemsize,))[-1:]
    return as_strided(start, (length,), (x.itemsize,))


def steps_of(x: np.ndarray) -> Shape:
    """Strides in elements."""
    return tuple(step // x.itemsize for step in x.strides)


def forward(arrays: list[np.ndarray], strides: list[Shape]) -> bool:
    """Whether strides in bytes, a tuple an array, lead forwards by whole elements: compiled loops go no other way."""
    return all(step >= 0 and step % x.itemsize == 0 for x, one in zip(arrays, strides, strict=True) for step in one)


def even(*arrays: np.ndarray) -> bool:
    """Whether all strides of all arrays lead forwards by whole elements."""
    return forward([*arrays], [x.strides for x in arrays])


def in_rows(*arrays: np.ndarray) -> bool:
    """Whether elements of the last dim lie side by side."""
    return all(x.shape[-1] == 1 or x.strides[-1] == x.itemsize for x in arrays)


def span(x: np.ndarray) -> np.ndarray:
    """An `even` array as the 1-D array of everything between its first and last element."""
    last = sum((size - 1) * step for size, step in zip(x.shape, steps_of(x), strict=True))
    return flat(x, 0, last + 1 if x.size else 0)


def lain(x: np.ndarray) -> tuple[np.ndarray, Shape]:
    """An `even` array as compiled loops take it, one kind for all layouts: its `span`, and its steps in elements."""
    return span(x), steps_of(x)


def plane(x: np.ndarray) -> np.ndarray | None:
    """The `span` of an array whose rows lie dense, None of others."""
    return span(x) if even(x) and in_rows(x) else None


def dense(x: np.ndarray) -> bool:
    """Whether x lies in C order without gaps."""
    return x.flags.c_contiguous


class Scratch:
    """Hands out arrays from scratch memory, each from a multiple of 64 bytes on."""

    def __init__(self, memory: np.ndarray | None) -> None:
        self.memory = memory
        self.used = 0

    @property
    def left(self) -> int:
        """Bytes not handed out yet."""
        return 0 if self.memory is None else self.memory.size - self.used

    def take(self, shape: Shape, dtype: np.dtype) -> np.ndarray:
        """A dense array of `shape`, with whatever is there."""
        nbytes = prod(shape) * dtype.itemsize
        assert self.memory is not None and nbytes <= self.left, "scratch is smaller than the kernel needs"
        start = self.used
        self.used = min(start + -(-nbytes // 64) * 64, self.memory.size)
        return self.memory[start : start + nbytes].view(dtype).reshape(shape)


def row_span(x: np.ndarray) -> tuple[np.ndarray, int] | None:
    """x [rows, cols] as one 1-D array and the distance of its rows in elements; None if a row is not dense."""
    there = plane(x)
    return None if there is None else (there, steps_of(x)[0])
