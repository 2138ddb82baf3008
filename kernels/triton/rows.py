"""Work on the rows of arrays, some rows a program: what its launch needs of their shapes and steps.

It knows no kernel. A kernel written for it is

    @triton.jit
    def _name(y, s_y, x, s_x, mean, s_mean, gain, ..., rows, lead, eps, ...,
              t_y: tl.constexpr, t_x: tl.constexpr, t_gain: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
              BLOCK: tl.constexpr):

with a pointer and the steps between its rows for each array whose rows have NUM elements, then for each that has one
element a row, then the pointers of vectors of NUM elements and of scalars, and numbers. NUM is known when it is
compiled: a loop over a row that fits into one block vanishes, and so do loads repeated in several such loops.
"""

from typing import Any

from castile.kernels.triton.launch import Launch, Plan
from castile.kernels.triton.views import View, nest, permuted, power_of_two, wide

# The longest row that a program holds at once; longer ones are read in blocks, in each loop anew.
_HELD = 16384


def by_rows(
    kernel: Any,
    arrays: list[View],
    bare: list[View],
    vectors: list[View] | None = None,
    scalars: tuple[Any, ...] = (),
    numbers: tuple[float, ...] = (),
    flops: int = 0,
    nbytes: int | None = None,
) -> Plan | None:
    """The work of `kernel` on the last dim of `arrays`, of one shape, and the elements of `bare`, of its leading dims.

    flops: operations on one element of an array; nbytes: as Launch has it. None where a row is longer than 32 bits can
    count.
    """
    shape = arrays[0].shape
    cols, dims = shape[-1], tuple(range(len(shape) - 1))
    walk = nest([*(permuted(one, dims) for one in arrays), *bare])
    if walk.extent * cols == 0:
        return Plan((None,), lambda _: [])
    if wide([View(None, (cols,), one.steps[-1:]) for one in arrays]):
        return None
    pairs = [part for one, steps in zip([*arrays, *bare], walk.steps, strict=True) for part in (one, steps)]
    args = (*pairs, *(vectors or []), *scalars, walk.extent, walk.sizes, *numbers)
    steps = [one.steps[-1] for one in (*arrays, *(vectors or []))]
    names = [name for name in kernel.arg_names if name.startswith("t_")]
    constants: dict[str, Any] = dict(zip(names, steps, strict=True)) | {"NUM": cols}

    def launches(setting: tuple[int, int, int]) -> list[Launch]:
        rows, block, warps = setting
        grid = (-(-walk.extent // rows),)
        sizes = {"ROWS": rows, "BLOCK": block}
        return [Launch(kernel, grid, args, constants | sizes, warps, flops=flops * walk.extent * cols, nbytes=nbytes)]

    return Plan(_settings(walk.extent, cols), launches)


def _settings(extent: int, cols: int) -> tuple[tuple[int, int, int], ...]:
    """Rows, elements of a row and warps of a program, first with as many elements a thread as spill no registers.

    Of one row that is held at once these are 16; masks of several rows, or of blocks of one, take registers too.
    """
    held = cols <= _HELD
    longest = power_of_two(cols) if held else 4096
    least = 16 if held and longest >= 1024 else 8
    found = []
    for block, each in ((longest, least), (longest, 8), (longest, 16), (longest, 32), (min(longest, 2048), 8)):
        rows = min(max(1, 1024 // block), power_of_two(extent))
        found.append((rows, block, min(16, max(1, rows * block // (32 * each)))))
    return tuple(dict.fromkeys(found))
