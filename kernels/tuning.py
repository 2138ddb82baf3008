"""Tuning: all ways to run a kernel call are bound to arrays and timed, so that the fastest can be taken from then on.

It knows no kernel; a meter makes arrays on a device and reads its clock, by default that of the GPU.
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
        """A context in which operands are made, and calls are bound and timed: the device is current there."""

    def operands(self, call: KernelCall) -> list[Operands]:
        """Arrays for a call, as many as it takes to outgrow the caches."""

    def seconds(self, calls: Sequence[Call]) -> float:
        """What one of the calls takes; they compute alike, each on arrays of its own."""


def gpu() -> Meter:
    """The current GPU, by CuPy."""
    return cast(Meter, import_module("castile.kernels.cupy.measuring"))


def named(
    table: Table, name: str, outs: Sequence[Array], args: Sequence[Any], params: dict[str, Any], accumulate: bool
) -> str:
    """The key under which a table looks up the choice for a call; arrays are given as `Array`s.

    Where a call adds to its results and the kernel's form cannot, the key is that of a call which writes dense arrays
    with dims in the same order, since that is what is run before they are added.
    """
    if accumulate and not table.adds(name):
        accumulate, outs = False, list(map(_held, outs))
    return choice.key(choice.kernel_call(name, tuple(outs), tuple(args), params, accumulate))


def dense(shape: tuple[int, ...], dtype: str) -> Array:
    """An array that is one run of memory."""
    itemsize, steps = np.dtype(dtype).itemsize, []
    step = itemsize
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return Array(shape, tuple(reversed(steps)), dtype)


def kernel_of(which: str) -> str:
    """The kernel that the call of that name runs."""
    return choice.call_of(which).kernel


def _held(out: Array) -> Array:
    order = choice.inwards(out)
    return dense(tuple(out.shape[dim] for dim in order), out.dtype).transpose([*map(order.index, range(len(order)))])


def ways(table: Table, which: str) -> list[Choice]:
    """All ways to run the call of that name, the likeliest first; none where there is nothing to choose from."""
    call = choice.call_of(which)
    outs, args = operands(call, hollow)
    return table.ways(call.kernel, args, outs, call.params, call.accumulate)


def leading(table: Table, which: str) -> Choice | None:
    """The library, if the call of that name is made by it where nothing was measured."""
    call = choice.call_of(which)
    outs, args = operands(call, hollow)
    return table.leading(call.kernel, args, outs, call.params, call.accumulate)


def tune(table: Table, which: str, meter: Meter, among: Sequence[Choice] | None = None) -> dict[Choice, float]:
    """Seconds of each way to run the call of that name that the device takes, the likeliest first.

    among: those of its `ways` that are timed, by default all. Nothing is timed where there is only one. Raises
    ValueError for a name that `named` did not give, and MemoryError where the device has no room for the arrays.
    """
    possible = ways(table, which) if among is None else among
    if not possible:
        return {}
    with meter.place():
        return _timed(table, choice.call_of(which), possible, meter)


def ahead(calls: Iterable[tuple[str, Choice | None]], tell: Callable[[int, int], object]) -> None:
    """Compile for the current GPU, side by side, what calls of these names launch when they are bound so.

    None for what is remembered, or else the form's first setting. tell: hears how many of how many have been looked at.
    """
    ways = ((name, way or choice.known(name) or Choice("triton")) for name, way in calls)
    wanted = sorted({(name, way.setting) for name, way in ways if way.form == "triton"})
    capability = import_module("castile.kernels.triton.driver").capability()
    import_module("castile.kernels.triton.ahead").compile_all(wanted, capability, tell)


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


def take(found: dict[str, Choice]) -> None:
    """From now on every table binds the calls of these names so."""
    for which, way in found.items():
        choice.remember(which, way)


def operands(call: KernelCall, make: Callable[[Array], Any]) -> Operands:
    """What a call is made upon, each array as `make` makes it."""
    outs, args = (tuple(make(x) if isinstance(x, Array) else x for x in xs) for xs in (call.outs, call.args))
    return Operands(outs, args)


def hollow(one: Array) -> np.ndarray:
    """An array of one element, repeated: it has the shape and strides of a whole one and takes no memory."""
    return as_strided(np.zeros(1, one.dtype), one.shape, one.laid)
