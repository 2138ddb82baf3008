"""Kernels on a device: those with a form run there, the others by NumPy on the host, through copies.

It does not know tasks. What runs on the host is right but slow, and its names are told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import cupy
import numpy as np

from castile.kernels import choice, tuning
from castile.kernels.choice import Choice
from castile.kernels.form import Refused
from castile.kernels.table import Table

Tell = Callable[[str, int, int], None]


# Who sees how far compiling has come: within what this gives, told what is compiled, how much is done, and of how much.
WATCH: ContextVar[Callable[[], AbstractContextManager[Tell]]] = ContextVar("WATCH")


class Listed(Table):
    """In place of a table it binds nothing, and notes the names of the calls that have a form there."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.form)
        self.forms, self.called = table.forms, set[str]()

    def bind(
        self,
        name: str,
        args: tuple[Any, ...],
        outs: tuple[Any, ...],
        params: dict[str, Any],
        scratch: Any = None,
        accumulate: bool = False,
        chosen: Choice | None = None,
    ) -> Callable[[], Any]:
        """See Table."""
        if name in self.forms:
            call = choice.kernel_call(name, outs, args, params, accumulate)
            self.called.add(tuning.call_key(self, name, call.outs, call.args, call.params, accumulate))
        return _nothing


class DeviceTable(Table):
    """The table of kernels for CuPy arrays; on_host: the kernels that were bound so far and run on the host."""

    def __init__(self, stream: Any) -> None:
        super().__init__("triton")
        self.on_host: set[str] = set()
        self._stream = stream

    def bind(
        self,
        name: str,
        args: tuple[Any, ...],
        outs: tuple[Any, ...],
        params: dict[str, Any],
        scratch: Any = None,
        accumulate: bool = False,
        chosen: Choice | None = None,
    ) -> Callable[[], Any]:
        """As every table's; what the device has too little of something for is done in another way, or on the host.

        Where nothing was measured a library is taken that leads.
        """
        if chosen is None and choice.find(name, outs, args, params, accumulate) is None:
            chosen = self.library_choice(name, args, outs, params, accumulate)
        with suppress(Refused):
            return super().bind(name, args, outs, params, scratch, accumulate, chosen)
        for way in self.choices(name, args, outs, params, accumulate and self.adds(name)):
            with suppress(Refused):
                return super().bind(name, args, outs, params, scratch, accumulate, way)
        return self.defined(name, args, outs, params, scratch, accumulate)

    def defined(
        self,
        name: str,
        args: tuple[Any, ...],
        outs: tuple[Any, ...],
        params: dict[str, Any],
        scratch: Any,
        accumulate: bool,
    ) -> Callable[[], Any]:
        """The kernel on the host: its arrays are copied there and back each time."""
        self.on_host.add(name)
        there = tuple(_host(arg) if isinstance(arg, cupy.ndarray) else arg for arg in args)
        results = tuple(map(_host, outs))
        room = np.empty(scratch.shape, scratch.dtype) if scratch is not None else None
        work = _host_table().bind(name, there, results, params, room, accumulate)
        taken = [(arg, copy) for arg, copy in zip(args, there, strict=True) if isinstance(arg, cupy.ndarray)]
        if accumulate:
            taken += zip(outs, results, strict=True)

        def run() -> None:
            for array, copy in taken:
                copy[...] = array.get(stream=self._stream)
            work()
            for array, copy in zip(outs, results, strict=True):
                _put(array, copy, self._stream)

        return run


def compile_ahead(names: Collection[str]) -> None:
    """Compile, side by side, what calls of these names launch on the current device."""
    if names:
        table = Table("triton")
        calls = [(name, None if choice.known(name) else tuning.library_choice(table, name)) for name in names]
        with WATCH.get(_unseen)() as tell:
            tuning.precompile(calls, partial(tell, "kernels"))


@contextmanager
def _unseen() -> Iterator[Tell]:
    yield lambda what, done, total: None


def _nothing() -> None:
    """A call that was not bound."""


@cache
def _host_table() -> Table:
    return Table("numpy")


def _host(array: Any) -> np.ndarray:
    return np.empty(array.shape, array.dtype)


def _put(array: Any, values: np.ndarray, stream: Any) -> None:
    """Fills an array of the device, which may be strided."""
    if array.flags.c_contiguous:
        array.set(values, stream=stream)
    else:
        with stream:
            array[...] = cupy.asarray(values)
    # The values may be overwritten from here on.
    stream.synchronize()
