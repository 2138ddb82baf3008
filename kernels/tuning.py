"""Tuning: binds all choices for a kernel call to arrays and times them, so that the fastest can be used from then on.

It knows no kernel. A meter makes arrays on a device and times calls there, by default on the GPU.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels import choice
from castile.kernels.choice import Array, Choice, KernelCall, Operands
from castile.kernels.form import Refused
from castile.kernels.table import Call, Table


class Meter(Protocol):
    """Where calls are timed."""

    def place(self) -> AbstractContextManager[object]:
        """A context in which operands are made, and calls are bound and timed: the device is current in it."""

    def operands(self, call: KernelCall) -> list[Operands]:
        """Arrays for a call, as many sets as it takes to outgrow the caches."""

    def seconds(self, calls: Sequence[Call]) -> float:
        """Seconds of one of the calls; they compute the same, each on arrays of its own."""


def gpu() -> Meter:
    """The current GPU, through CuPy."""
    return cast(Meter, import_module("castile.kernels.cupy.measuring"))


def call_key(
    table: Table, name: str, outs: Sequence[Array], args: Sequence[Any], params: dict[str, Any], accumulate: bool
) -> str:
    """The key under which a table looks up the choice for a call; arrays are given as `Array`s.

    Where a call adds to its results and the kernel's form cannot, the key is that of a call which writes contiguous
    arrays with dims in the same order, since that is what runs before they are added.
    """
    if accumulate and not table.adds(name):
        accumulate, outs = False, list(map(_written_result, outs))
    return choice.key(choice.kernel_call(name, tuple(outs), tuple(args), params, accumulate))


def dense(shape: tuple[int, ...], dtype: str) -> Array:
    """A contiguous array."""
    itemsize, steps = np.dtype(dtype).itemsize, []
    step = itemsize
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return Array(shape, tuple(reversed(steps)), dtype)


def kernel_of(which: str) -> str:
    """The kernel of the call of that key."""
    return choice.call_of(which).kernel


def _written_result(out: Array) -> Array:
    order = choice.memory_order(out)
    return dense(tuple(out.shape[dim] for dim in order), out.dtype).transpose([*map(order.index, range(len(order)))])


def choices(table: Table, which: str) -> list[Choice]:
    """All choices for the call of that key, the likeliest first; empty where there is nothing to choose."""
    call = choice.call_of(which)
    outs, args = operands(call, dataless)
    return table.choices(call.kernel, args, outs, call.params, call.accumulate)


def library_choice(table: Table, which: str) -> Choice | None:
    """The library, if it is used for the call of that key where nothing was measured."""
    call = choice.call_of(which)
    outs, args = operands(call, dataless)
    return table.library_choice(call.kernel, args, outs, call.params, call.accumulate)


def tune(table: Table, which: str, meter: Meter, among: Sequence[Choice] | None = None) -> dict[Choice, float]:
    """Seconds of each choice for the call of that key that the device can run, the likeliest first.

    among  the `choices` that are timed, by default all
    Nothing is timed where there is only one. Raises ValueError for a key that `call_key` did not give, and MemoryError
    where the device has no memory for the arrays.
    """
    possible = choices(table, which) if among is None else among
    if not possible:
        return {}
    with meter.place():
        return _timed(table, choice.call_of(which), possible, meter)


def precompile(calls: Iterable[tuple[str, Choice | None]], tell: Callable[[int, int], object]) -> None:
    """Compile for the current GPU, in worker processes, what the calls of these keys launch with these choices.

    calls  keys, each with a choice; None for the remembered one, or else the form's first setting
    tell   called with the number of calls that were looked at, and their number in all
    """
    ways = ((name, way or choice.known(name) or Choice("triton")) for name, way in calls)
    wanted = sorted({(name, way.setting) for name, way in ways if way.form == "triton"})
    capability = import_module("castile.kernels.triton.driver").capability()
    import_module("castile.kernels.triton.precompile").compile_all(wanted, capability, tell)


def _timed(table: Table, call: KernelCall, possible: Sequence[Choice], meter: Meter) -> dict[Choice, float]:
    found: dict[Choice, float] = {}
    operands = meter.operands(call)
    for way in possible:
        try:
            calls = [table.bind(call.kernel, one.args, one.outs, call.params, None, call.accumulate, way)
                     for one in operands]  # fmt: skip
        except Refused:
            continue
        found[way] = meter.seconds(calls)
    return found


def remember_all(found: dict[str, Choice]) -> None:
    """Let every table bind the calls of these keys by these choices from now on."""
    for which, way in found.items():
        choice.remember(which, way)


def operands(call: KernelCall, make: Callable[[Array], Any]) -> Operands:
    """The arrays and literals of a call, each array as `make` makes it."""
    outs, args = (tuple(make(x) if isinstance(x, Array) else x for x in xs) for xs in (call.outs, call.args))
    return Operands(outs, args)


def dataless(one: Array) -> np.ndarray:
    """An array with the shape and strides of a whole one and memory for one element."""
    return as_strided(np.zeros(1, one.dtype), one.shape, one.full_strides)
