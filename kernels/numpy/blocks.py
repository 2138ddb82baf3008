"""Gathers blocks of strided arrays to the stack, and scatters them back.

Numba inlines what a loop calls, and optimises it there again and again. This is much code that few calls need, so it is
compiled once for each dtype, and loops call it by a symbol that `known` registers with the linker. It does not know
what loops do with a block.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import as_dtype, from_dtype

from castile.kernels.numpy.jit import addressed, compiled
from castile.kernels.numpy.pointers import after, copy_rows, fill


@cache
def known(dtype: np.dtype) -> tuple[Any, ...]:
    """Have loops find what moves blocks of a dtype, from before they are called; it is there as long as the result."""
    signature = _signature(from_dtype(dtype))
    kept = tuple(addressed(body, signature) for body in (_gathered, _scattered))
    for one in kept:
        binding.add_symbol(_symbol(one.__name__, dtype), one.address)
    return kept


@intrinsic
def gather(typing: Any, held: Any, x: Any, plan: Any, steps: Any, first: Any, rows: Any) -> Any:
    """Bring the rows of a walk from `first` on from x, where its steps lead, to `held`, where they lie dense."""
    return _call(_gathered, held.dtype)


@intrinsic
def scatter(typing: Any, x: Any, held: Any, plan: Any, steps: Any, first: Any, rows: Any) -> Any:
    """Bring them from `held` to x."""
    return _call(_scattered, x.dtype)


def _call(body: Callable[..., None], kind: Any) -> tuple[Any, Callable[..., Any]]:
    symbol = _symbol(body.__name__, as_dtype(kind))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
        builder.call(cgutils.get_or_insert_function(builder.module, function, symbol), args)
        return context.get_dummy_value()

    return _signature(kind), generate


def _signature(kind: Any) -> Any:
    place, plan = types.CPointer(kind), types.CPointer(types.int64)
    return types.none(place, place, plan, plan, types.int64, types.int64)


def _symbol(name: str, dtype: np.dtype) -> str:
    return f"castile.block{name}.{dtype.name}"


@compiled
def _gathered(held, x, plan, steps, first, rows):  # type: ignore[no-untyped-def]
    cols, row_step, step = plan[3], steps[2], steps[3]
    middle, row = first // plan[2], first % plan[2]
    outer, middle = middle // plan[1], middle % plan[1]
    while rows > 0:
        run = min(plan[2] - row, rows)
        start = after(x, outer * steps[0] + middle * steps[1] + row * row_step)
        if step == 1:
            copy_rows(held, cols, start, row_step, run, cols)
        elif step == 0 and row_step == 0:
            fill(held, start[0], run * cols)
        else:
            _gather_stepped(held, start, row_step, step, run, cols)
        held, rows, row, middle = after(held, run * cols), rows - run, 0, middle + 1
        if middle == plan[1]:
            outer, middle = outer + 1, 0


@compiled
def _gather_stepped(held, x, row_step, step, rows, cols):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, v = after(held, r * cols), after(x, r * row_step)
        if step == 0:
            fill(o, v[0], cols)
        else:
            for j in range(cols):
                o[j] = v[j * step]


@compiled
def _scattered(x, held, plan, steps, first, rows):  # type: ignore[no-untyped-def]
    cols, row_step, step = plan[3], steps[2], steps[3]
    middle, row = first // plan[2], first % plan[2]
    outer, middle = middle // plan[1], middle % plan[1]
    while rows > 0:
        run = min(plan[2] - row, rows)
        start = after(x, outer * steps[0] + middle * steps[1] + row * row_step)
        if step == 1:
            copy_rows(start, row_step, held, cols, run, cols)
        else:
            for r in range(run):
                for j in range(cols):
                    start[r * row_step + j * step] = held[r * cols + j]
        held, rows, row, middle = after(held, run * cols), rows - run, 0, middle + 1
        if middle == plan[1]:
            outer, middle = outer + 1, 0
