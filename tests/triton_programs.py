"""What the programs of launches read and write, seen in Triton's interpreter, which runs one after the other.

On a GPU they run at once, and so do the threads of each: who reads what another writes may come before or after it. It
does not know what is computed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from triton import language as tl
from triton.runtime import interpreter

from castile.kernels.triton import interpreter as mended

# Addresses and how many bytes begin at each.
Places = tuple[np.ndarray, int]


class Launch:
    """A launch under way: which places its programs have read and written so far, and what is wrong with that."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        bounds = sorted(np.lib.array_utils.byte_bounds(_whole(x)) for x in arrays)
        self.begins_at = np.array([low for low, _ in bounds], np.int64)
        # How far any of those reaches that begin there or before: a launch may be given hundreds of arrays.
        self.ends_at = np.maximum.accumulate(np.array([0, *(high for _, high in bounds)], np.int64))
        self.program = -1
        self.read: list[tuple[int, Places]] = []
        self.written: list[tuple[int, Places]] = []
        # Of the program that runs, since its threads last waited for each other.
        self.unsettled: list[Places] = []
        self.faults: set[str] = set()

    def begins(self) -> None:
        """The next program."""
        self.program += 1
        self.unsettled = []

    def reads(self, places: Places) -> np.ndarray:
        """Which of the places there are."""
        self.read.append((self.program, places))
        return self._looks(places)

    def writes(self, places: Places, numbers: np.ndarray) -> np.ndarray:
        """Which of the places there are."""
        inside = self._looks(places)
        at, first, which = np.unique(places[0], return_index=True, return_inverse=True)
        alone = numbers.view(f"u{numbers.itemsize}")
        if (alone[first][which] != alone).any():
            self.faults.add("two numbers are written to one place at once")
        self.written.append((self.program, (at, places[1])))
        self.unsettled.append((at, places[1]))
        return inside

    def ended(self) -> set[str]:
        """All that is wrong."""
        if self.program > 0 and self.written:
            unit = min(size for _, (_, size) in (*self.read, *self.written))
            written, read = _by_program(self.written, unit), _by_program(self.read, unit)
            at, owner = written[0], written[1]
            if (at[1:] == at[:-1]).any():
                self.faults.add("two programs write one place")
            found = np.minimum(np.searchsorted(at, read[0]), len(at) - 1)
            if ((at[found] == read[0]) & (owner[found] != read[1])).any():
                self.faults.add("a program reads what another writes")
        return self.faults

    def _looks(self, places: Places) -> np.ndarray:
        at, size = places
        inside = at + size <= self.ends_at[np.searchsorted(self.begins_at, at, side="right")]
        if not inside.all():
            self.faults.add("a place is in none of its arrays")
        for before in self.unsettled:
            unit = min(before[1], size)
            if np.isin(_units(places, unit), _units(before, unit)).any():
                self.faults.add("a program comes back to what it wrote, with no barrier")
        return inside


def _whole(x: np.ndarray) -> np.ndarray:
    """What it is a piece of."""
    return _whole(x.base) if isinstance(x.base, np.ndarray) else x


def _units(places: Places, unit: int) -> np.ndarray:
    at, size = places
    return (at[:, None] // unit + np.arange(size // unit)).reshape(-1)


def _by_program(touched: list[tuple[int, Places]], unit: int) -> tuple[np.ndarray, np.ndarray]:
    """Each place that each program touched, once, in order of places, and by which."""
    if not touched:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    each = [(program, _units(places, unit)) for program, places in touched]
    whom = np.concatenate([np.full(at.shape, program) for program, at in each])
    units = np.concatenate([at for _, at in each])
    # One number for both, and sorted: to look for different pairs takes eighty times as long.
    first, programs = units.min(initial=np.iinfo(np.int64).max), touched[-1][0] + 1
    pairs = np.sort((units - first) * programs + whom)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return pairs // programs + first, pairs % programs


@contextmanager
def watched() -> Iterator[set[str]]:
    """What is wrong with the launches within, each with the name of its kernel."""
    mended._mend()
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    faults: set[str] = set()
    now: list[Launch] = []
    load, store, begin = builder.create_masked_load, builder.create_masked_store, builder.set_grid_idx
    call, barrier, promise = executor.__call__, builder.create_barrier, tl.max_contiguous

    def loads(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
        places, here = _places(ptrs, mask)
        here[here] = now[-1].reads(places)
        held = interpreter.TensorHandle(here, tl.int1)
        return load(self, ptrs, held, _anything(ptrs) if other is None else other, *rest)

    def stores(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        places, here = _places(ptrs, mask)
        here[here] = now[-1].writes(places, np.broadcast_to(value.data, here.shape)[here])
        return store(self, ptrs, value, interpreter.TensorHandle(here, tl.int1), *rest)

    def begins(self: Any, *which: int) -> None:
        now[-1].begins()
        begin(self, *which)

    def settles(self: Any) -> Any:
        now[-1].unsettled = []
        return barrier(self)

    def calls(self: Any, *args: Any, **constants: Any) -> None:
        now.append(Launch([one.array for arg in args for one in (getattr(arg, "base", arg),) if hasattr(one, "array")]))
        call(self, *args, **constants)
        faults.update(f"{self.fn.__name__}: {fault}" for fault in now.pop().ended())

    def promised(x: Any, runs: Any) -> Any:
        for dim, run in enumerate(int(getattr(n, "value", n)) for n in runs):
            at = np.moveaxis(np.asarray(x.handle.data), dim, -1)
            at = at.reshape(*at.shape[:-1], -1, run)
            if (at[..., :1] % run != 0).any() or (np.diff(at) != 1).any():
                now[-1].faults.add(f"{run} places do not lie together as was promised")
        return promise(x, runs)

    with (
        mock.patch.multiple(builder, create_masked_load=loads, create_masked_store=stores, create_barrier=settles,
                            set_grid_idx=begins),
        mock.patch.object(executor, "__call__", calls),
        mock.patch.object(tl, "max_contiguous", promised),
    ):  # fmt: skip
        yield faults


def _anything(ptrs: Any) -> Any:
    """What comes of places that are masked out, where a kernel does not say what: numbers that are none, or large."""
    kind = ptrs.get_element_ty()
    bits = np.full(np.shape(ptrs.data), -1 if kind.is_floating() else 0x7F, f"i{max(1, kind.primitive_bitwidth // 8)}")
    return interpreter.TensorHandle(bits.view(interpreter._get_np_dtype(kind)), kind)


def _places(ptrs: Any, mask: Any) -> tuple[Places, np.ndarray]:
    """The places that are not masked out, and where these stand."""
    at = np.asarray(ptrs.data)
    here = np.broadcast_to(np.asarray(mask.data), at.shape).astype(bool)
    return (at[here].astype(np.int64), max(1, ptrs.get_element_ty().primitive_bitwidth // 8)), here
