"""Work on the rows of arrays, some rows a program: what its launch needs of their shapes and steps.

It knows no kernel. A kernel written for it is

    @triton.jit
    def _name(y, s_y, x, s_x, mean, s_mean, gain, ..., rows, lead, eps, ...,
              t_y: tl.constexpr, t_x: tl.constexpr, t_gain: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
              BLOCK: tl.constexpr):

with a pointer and the steps between its rows for each array whose rows have NUM elements, then for each that has one
element a row, then the pointers of vectors of NUM elements and of scalars, and numbers. NUM is known when it is
compiled: a loop over a row that fits into one block vanishes, and so do loads repeated in several such loops.

SKEW: tl.constexpr tells a kernel that rows begin between multiples of 16 bytes, those of all arrays by equally many
elements: it reads them by `row_starts`, `row_block` and `row_edges`. With STAGES: tl.constexpr it has that many blocks
in flight; where these are all of a row, and it can, it keeps them in registers.
"""

from typing import Any

import numpy as np

from castile.kernels.triton.launch import Launch, LaunchPlan
from castile.kernels.triton.views import Shape, View, loop_nest, needs_64_bits, permuted, power_of_two

# The longest row that a program holds at once; longer ones are read in blocks, in each loop anew.
_HELD = 16384
# The longest one that it holds where it needs each element once.
_ONCE = 4096
# Bytes of blocks that a program has on their way at once, or of a row that it holds packed: what any chip has room for.
_ROOM = 2**17
# Elements of a row held so that each of 1024 threads may have where it comes first, as such threads have 64 registers:
# of one array that is read, shifted or in vectors; of several, in halves, without masks or with them.
_SHIFTED, _IN_VECTORS, _WHOLE, _MASKED = 64, 48, 32, 24
# Elements in float32 that each of 512 threads may hold, which have 128 registers.
_IN_FLOAT = 104
# Of these lengths a row that begins between such bytes is best held by one warp.
_ALONE = (1024, 2048)
# Programs of which all processors have some.
_ENOUGH = 256
# Elements that certainly fill the 16 bytes that are read at once.
_EIGHT = 8


def by_rows(
    kernel: Any,
    arrays: list[View],
    bare: list[View],
    vectors: list[View] | None = None,
    scalars: tuple[Any, ...] = (),
    numbers: tuple[float, ...] = (),
    flops: int = 0,
    nbytes: int | None = None,
    again: bool = True,
    own: dict[str, Any] | None = None,
    in_blocks: bool = False,
) -> LaunchPlan | None:
    """The work of `kernel` on the last dim of `arrays`, of one shape, and the elements of `bare`, of its leading dims.

    flops: operations on one element of an array; nbytes: as Launch has it; again: whether the kernel goes over a row
    more than once, so that it is to be held; own: constants of its own; in_blocks: whether it can hold a long row's
    blocks, in float32. None where a row is longer than 32 bits can count.
    """
    shape = arrays[0].shape
    cols, dims = shape[-1], tuple(range(len(shape) - 1))
    walk = loop_nest([*(permuted(one, dims) for one in arrays), *bare])
    if walk.extent * cols == 0:
        return LaunchPlan((None,), lambda _: [])
    if needs_64_bits([View(None, (cols,), one.steps[-1:]) for one in arrays]):
        return None
    pairs = [part for one, steps in zip([*arrays, *bare], walk.steps, strict=True) for part in (one, steps)]
    args = (*pairs, *(vectors or []), *scalars, walk.extent, walk.sizes, *numbers)
    steps = [one.steps[-1] for one in (*arrays, *(vectors or []))]
    names = [name for name in kernel.arg_names if name.startswith("t_")]
    constants: dict[str, Any] = dict(zip(names, steps, strict=True)) | {"NUM": cols} | (own or {})
    known = kernel.arg_names
    skewed = "SKEW" in known and _is_skewed(arrays, walk.steps[: len(arrays)])
    constants |= {"SKEW": skewed} if "SKEW" in known else {}

    def launches(setting: tuple[int, ...]) -> list[Launch]:
        rows, block, warps, *stages = setting
        grid = (-(-walk.extent // rows),)
        sizes = {"ROWS": rows, "BLOCK": block} | ({"STAGES": stages[0]} if stages else {})
        return [Launch(kernel, grid, args, constants | sizes, warps, flops=flops * walk.extent * cols, nbytes=nbytes)]

    # The first of several is written.
    nbytes_each = sum(np.dtype(one.array.dtype).itemsize for one in arrays[1:] or arrays)
    reads = len(arrays) - 1 + len(vectors or ()) if len(arrays) > 1 else 0
    apart = any(one.steps[-1] != 1 for one in arrays)
    loose = apart or any(step % _EIGHT for steps in walk.steps[: len(arrays)] for step in steps)
    first = 1024 * _each_first(cols, reads, nbytes_each, loose, skewed)
    most = _HELD if again else _ONCE
    # Rows that begin anywhere, but not all alike, are read and written one by one.
    masked = loose and (reads > 1 or (not skewed and arrays[0].steps[-1] == 1))
    settings: tuple[tuple[int, ...], ...]
    if all(has_columns_contiguous(one) for one in arrays):
        settings = _column_settings(walk.extent, cols, again)
    else:
        settings = _settings(
            walk.extent, cols + (_EIGHT - 1) * skewed, most, nbytes_each, first, masked, apart and cols < _EIGHT, skewed
        )
    if "STAGES" in known:
        settings = _with_stages(settings, cols, nbytes_each)
    if in_blocks and most < cols and (skewed or not loose):
        settings = _in_registers(cols + (_EIGHT - 1) * skewed, skewed, settings)
    return LaunchPlan(settings, launches)


def _column_settings(extent: int, cols: int, again: bool) -> tuple[tuple[int, int, int], ...]:
    """Rows, elements of a row and warps of a program whose rows are contiguous across, so a thread has vectors of rows.

    again  whether the kernel reads a row more than once: it then holds four blocks at once, otherwise two vectors
    Settings with enough programs come first.
    """
    every = ((128, 8, 4), (256, 4, 4), (64, 8, 2), (32, 32, 4)) if again else ((256, 16, 8), (128, 8, 2), (64, 32, 4))
    found = []
    for rows, block, warps in sorted(every, key=lambda one: -min(extent // one[0], _ENOUGH)):
        down, across = min(rows, power_of_two(extent)), min(block, power_of_two(cols))
        found.append((down, across, max(1, warps * down * across // (rows * block))))
    return tuple(dict.fromkeys(found))


def has_columns_contiguous(one: View) -> bool:
    """Whether a row's elements are not contiguous and those of neighbouring rows are nearer."""
    *lead, last = one.steps
    return any(size > 1 and 0 < step < last for size, step in zip(one.shape, lead, strict=False))


def _is_skewed(arrays: list[View], steps: tuple[Shape, ...]) -> bool:
    """Whether rows begin between multiples of 16 bytes, those of all arrays by equally many elements."""
    dense = all(one.steps[-1] == 1 for one in arrays) and arrays[0].shape[-1] >= 2 * _EIGHT
    return dense and len(set(steps)) == 1 and any(step % _EIGHT for step in steps[0])


def _each_first(cols: int, reads: int, nbytes: int, loose: bool, skewed: bool) -> int:
    """Elements of a row that a thread may hold without spilling registers, where `reads` arrays are read to write one.
    """
    if reads == 0 or nbytes * min(reads, 2) > 4:
        return 0
    if reads == 1:
        return _SHIFTED if skewed else 0 if loose else _IN_VECTORS
    return _WHOLE if not loose and cols == power_of_two(cols) else _MASKED


def _with_stages(settings: tuple[tuple[int, ...], ...], cols: int, nbytes: int) -> tuple[tuple[int, ...], ...]:
    """Settings with the number of blocks that are prefetched, where there are several of `nbytes` bytes an element."""
    return tuple(
        (*one, stages)
        for one in settings
        for stages in ((1, 3) if one[1] < cols and 2 * one[1] * nbytes <= _ROOM else (1,))
    )


def _in_registers(cols: int, spare: bool, others: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Settings of rows whose blocks are all on their way at once, and held, before others where they leave out no
    registers, with the fewest warps, so that others are at work beside; behind them where they may.

    spare: whether registers are left for one more block, as they are where rows begin between boundaries.
    """
    first, last = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for each, warps in ((4, 8), (4, 16), (8, 16), (4, 32)):
        block = 32 * warps * each
        num = -(-cols // block)
        # Of 1024 threads each has half as many registers.
        taken = num * each * max(1, warps // 16)
        if taken <= _IN_FLOAT:
            (first if taken <= _IN_FLOAT - 8 + 4 * spare else last).append((1, block, warps, num))
    return (*first, *others, *last)


def _settings(
    extent: int, cols: int, most: int, nbytes: int, first: int, loose: bool, alone: bool, skewed: bool
) -> tuple[tuple[int, int, int], ...]:
    """Rows, elements of a row and warps of a program, first with as many elements a thread as spill no registers.

    Of one row that is held at once, as those of at most `most` elements are, these are 16; masks of several rows, or of
    blocks of one, take registers too, most where rows are `loose`, as they are read one by one, or elements of short
    ones `alone`, each far from the next. What `skewed` rows do at their ends each warp does anew: first is one that has
    a row to itself. nbytes: of an element of each array that is read; first: the longest row that is held first though
    it is longer than that.
    """
    if cols <= most:
        longest = power_of_two(cols)
        own = longest // 32 if skewed and longest in _ALONE else 16 if longest >= 1024 else 4 if alone else 8
        blocks = [longest] * 4 + [min(longest, 2048)] * 2
        each = (own, 8, 16, 32, 8, 16)
    else:
        blocks = [4096, 4096, 4096, 2048, 2048, 8192]
        each = (8, 16, 32, 16, 8, 32) if loose else (16, 8, 32, 16, 8, 32)
    found = []
    for block, own in zip(blocks, each, strict=True):
        rows = min(max(1, 1024 // block), power_of_two(extent))
        found.append((rows, block, min(16, max(1, rows * block // (32 * own)))))
    if cols > most:
        # Of programs this large few run at once, so that what they read again is still in the cache.
        found += [(1, 8192, 32), (1, 16384, 32)]
        held = power_of_two(cols) * nbytes
        if most == _HELD and held <= _ROOM:
            # One a processor holds a row as it lies in memory, and reads it once.
            found.insert(0 if cols <= first else len(found), (1, power_of_two(cols), 32))
    return tuple(dict.fromkeys(found))
