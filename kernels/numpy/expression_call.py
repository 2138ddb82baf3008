"""One strided loop for all expressions: it gathers blocks of the arrays, and calls the expression's loop by its
address.

It knows no expression. An expression compiled with a strided loop of its own would take three times as long to compile.
"""

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

from castile.kernels.calls import Call
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.pointers import BLOCK, after, pointer, spares
from castile.kernels.numpy.strided import FIRST, block_size, fetch, num_rows, offset, room, settle

# What is done to the blocks of the first array: written where it lies, read and written, or left to the line.
OVERWRITTEN, UPDATED, BY_LOOP = range(3)
# Numbers of a task before its addresses: the loop's address, how many arrays are walked, how many there are, the first.
_HEAD = 4


def signature(dtype: np.dtype) -> Any:
    """The signature of an expression's loop: rows and cols, each array's first row, its steps from row to row,
    constants, and the plan and first row of the walk.
    """
    place, numbers = types.CPointer(from_dtype(dtype)), types.CPointer(types.int64)
    return types.void(types.int64, types.int64, types.CPointer(place), numbers, place, numbers, types.int64)


def expression_call(
    address: int, first: int, num_walked: int, constants: np.ndarray, walk: np.ndarray, *flats: Any
) -> Call:
    """The call of an expression's loop over arrays as `walk` says; arrays that are one number come last.

    address     of the compiled loop
    first       what is done to the first array: OVERWRITTEN, UPDATED or BY_LOOP
    num_walked  how many arrays are walked
    All arrays have the dtype of the constants.
    """
    task = np.array([address, num_walked, len(flats), first, *(x.ctypes.data for x in flats)], np.int64)
    work = partial(_run, task, walk, constants)
    # Of the arrays the task has addresses alone.
    setattr(work, "arrays", flats)
    return work


@intrinsic
def _places(typing: Any, x: Any, num: Any) -> Any:
    """So many pointers to elements of an array's dtype, on the stack of the function that calls it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.alloca(context.get_value_type(types.CPointer(x.dtype)), size=args[1])

    return types.CPointer(types.CPointer(x.dtype))(x, types.intp), generate


@intrinsic
def _at(typing: Any, x: Any, address: Any) -> Any:
    """An address as a pointer to elements of an array's dtype."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], context.get_value_type(types.CPointer(x.dtype)))

    return types.CPointer(x.dtype)(x, types.intp), generate


@intrinsic
def _numbers(typing: Any, num: Any) -> Any:
    """So many integers, on the stack of the function that calls it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.alloca(context.get_data_type(types.int64), size=args[0])

    return types.CPointer(types.int64)(types.intp), generate


@intrinsic
def _call(
    typing: Any, address: Any, rows: Any, cols: Any, places: Any, steps: Any, constants: Any, plan: Any, first: Any
) -> Any:
    """Call a line."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, *given = args
        function = ir.FunctionType(ir.VoidType(), [arg.type for arg in given])
        builder.call(builder.inttoptr(address, function.as_pointer()), given)
        return context.get_dummy_value()

    number = types.int64
    return types.none(number, number, number, places, steps, constants, plan, number), generate


@compiled
def _run(task, walk, constants):  # type: ignore[no-untyped-def]
    plan, starts, numbers = pointer(walk), after(pointer(task), _HEAD), pointer(constants)
    num_walked, num, first_is = task[1], task[2], task[3]
    places, steps = _places(constants, num), _numbers(num_walked)
    # Where its rows lie is up to the loop, which is called row by row.
    begin, in_rows = (1, True) if first_is == BY_LOOP else (0, plan[4] == 1)
    for n in range(num):
        places[n] = _at(constants, starts[n])
    for n in range(begin, num_walked):
        in_rows = in_rows and plan[FIRST * (n + 1) + 3] == 1
    if in_rows:
        for n in range(num_walked):
            steps[n] = plan[FIRST * (n + 1) + 2]
        for first in range(0, num_rows(plan), plan[2]):
            for n in range(begin, num_walked):
                places[n] = after(_at(constants, starts[n]), offset(plan, after(plan, FIRST * (n + 1)), first))
            _call(task[0], plan[2], plan[3], places, steps, numbers, plan, first)
        return
    held, out, s_out = spares(constants, num_walked), places[0], after(plan, FIRST)
    for first in range(0, num_rows(plan), plan[4]):
        size = block_size(plan, first)
        if first_is == OVERWRITTEN:
            places[0] = room(plan, s_out, out, first, held)
        elif first_is == UPDATED:
            places[0] = fetch(plan, s_out, out, first, held)
        for n in range(1, num_walked):
            place = _at(constants, starts[n])
            places[n] = fetch(plan, after(plan, FIRST * (n + 1)), place, first, after(held, n * BLOCK))
            steps[n] = plan[3]
        if first_is == BY_LOOP:
            _call(task[0], size // plan[3], plan[3], places, steps, numbers, plan, first)
        else:
            _call(task[0], 1, size, places, steps, numbers, plan, first)
            settle(plan, s_out, out, first, held)
