"""Strided views: merging dims, arrays as rows, and buffers in scratch memory.

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


def merge_dims(shape: Shape, strides: list[Shape]) -> tuple[Shape, list[Shape]]:
    """The fewest dims over the same elements: dims of length 1 vanish, neighbours merge where every array allows.

    strides  one tuple for each array, over the dims of `shape`
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
    """The call of `kernel(rows, cols, flat, stride, ..., *constants)` over the last dim of `arrays`, of one shape.

    Every array becomes a 1-D `flat` and the distance `stride` between its rows, in elements: row r is flat[r * stride :
    r * stride + cols]. `bare` arrays have the leading dims only, one element a row; their (flat, stride) follow those
    of `arrays`. None if rows are not contiguous or a step is negative.
    """
    lead = arrays[0].shape[:-1]
    everything = [*((x, x.shape[-1], x.strides[:-1]) for x in arrays), *((x, 1, x.strides) for x in bare or [])]
    if prod(lead) == 0 or arrays[0].shape[-1] == 0:
        return nothing
    shape, strides = merge_dims(lead, [step for _, _, step in everything])
    if not (has_contiguous_rows(*arrays) and has_forward_strides([x for x, _, _ in everything], strides)):
        return None
    calls: list[Callable[[], Any]] = []
    for offsets in outer_offsets(shape[:-1], [one[:-1] for one in strides]):
        rows = shape[-1] if shape else 1
        operands: list[Any] = []
        for (x, cols, _), one, offset in zip(everything, strides, offsets, strict=True):
            stride = one[-1] // x.itemsize if one else 0
            operands += [flat(x, offset // x.itemsize, (rows - 1) * stride + cols), stride]
        calls.append(partial(kernel, rows, arrays[0].shape[-1], *operands, *constants))
    return chain(calls)


def outer_offsets(shape: Shape, strides: list[Shape]) -> Iterator[list[int]]:
    """Offsets of every array, in the unit of its strides, for each index of `shape`."""
    for index in np.ndindex(*shape):
        yield [sum(i * step for i, step in zip(index, one, strict=True)) for one in strides]


def flat(x: np.ndarray, offset: int, length: int) -> np.ndarray:
    """`length` contiguous elements, from `offset` elements after the first element of x on."""
    start = as_strided(x, (offset + 1,), (x.itemsize,))[-1:]
    return as_strided(start, (length,), (x.itemsize,))


def element_strides(x: np.ndarray) -> Shape:
    """Strides in elements."""
    return tuple(step // x.itemsize for step in x.strides)


def has_forward_strides(arrays: list[np.ndarray], strides: list[Shape]) -> bool:
    """Whether strides in bytes, a tuple an array, are non-negative multiples of the itemsize, as compiled loops need.
    """
    return all(step >= 0 and step % x.itemsize == 0 for x, one in zip(arrays, strides, strict=True) for step in one)


def is_forward(*arrays: np.ndarray) -> bool:
    """Whether all strides of all arrays are non-negative multiples of their itemsize."""
    return has_forward_strides([*arrays], [x.strides for x in arrays])


def has_contiguous_rows(*arrays: np.ndarray) -> bool:
    """Whether elements of the last dim are contiguous."""
    return all(x.shape[-1] == 1 or x.strides[-1] == x.itemsize for x in arrays)


def span(x: np.ndarray) -> np.ndarray:
    """An `is_forward` array as the 1-D array from its first to its last element."""
    last = sum((size - 1) * step for size, step in zip(x.shape, element_strides(x), strict=True))
    return flat(x, 0, last + 1 if x.size else 0)


def strided_operand(x: np.ndarray) -> tuple[np.ndarray, Shape]:
    """An `is_forward` array as compiled loops take it, whatever its layout: its `span`, and its steps in elements."""
    return span(x), element_strides(x)


def row_major_span(x: np.ndarray) -> np.ndarray | None:
    """The `span` of an array with contiguous rows; None of others."""
    return span(x) if is_forward(x) and has_contiguous_rows(x) else None


def is_contiguous(x: np.ndarray) -> bool:
    """Whether x is contiguous in C order."""
    return x.flags.c_contiguous


class Scratch:
    """Hands out buffers of scratch memory, each aligned to 64 bytes."""

    def __init__(self, memory: np.ndarray | None) -> None:
        self.memory = memory
        self.used = 0

    @property
    def left(self) -> int:
        """Bytes not handed out yet."""
        return 0 if self.memory is None else self.memory.size - self.used

    def take(self, shape: Shape, dtype: np.dtype) -> np.ndarray:
        """A contiguous, uninitialised array."""
        nbytes = prod(shape) * dtype.itemsize
        assert self.memory is not None and nbytes <= self.left, "scratch is smaller than the kernel needs"
        start = self.used
        self.used = min(start + -(-nbytes // 64) * 64, self.memory.size)
        return self.memory[start : start + nbytes].view(dtype).reshape(shape)


def row_span(x: np.ndarray) -> tuple[np.ndarray, int] | None:
    """x [rows, cols] as a 1-D array and the distance of its rows in elements; None if rows are not contiguous."""
    there = row_major_span(x)
    return None if there is None else (there, element_strides(x)[0])
