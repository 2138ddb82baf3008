"""Transfers between GPUs by way of the host: down into pinned memory, on as messages, and up again.

It does not know what carries the messages, nor what the arrays are for. It never waits: whoever polls it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cupy
import numpy as np

from castile.runtime.comm.base import End, Side
from castile.runtime.comm.looks import idle, reached
from castile.runtime.comm.messages import Request, Staged

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2


class StagedEnd(End):
    """An end whose transfers take arrays of a device, and `end` the same transfers of arrays of the host.

    A transfer follows all that was issued on `compute` before it began. When it is done, what it brought lies where it
    belongs and what it sent may change. Sums are made on the host: the same bits as without a device. Each transfer
    keeps pinned memory from the moment when it is prepared: what it carries, rounded up to a power of two by CuPy.
    """

    def __init__(self, end: End, compute: Any, traffic: Any) -> None:
        self.rank = end.rank
        self._end, self._compute, self._down = end, compute, traffic
        # Apart, so that what has come need not queue behind what is not ready to go.
        self._up = cupy.cuda.Stream(non_blocking=True)

    def send(self, array: np.ndarray, peer: int, tag: int) -> Request:
        """A message of the host."""
        return self._end.send(array, peer, tag)

    def recv(self, array: np.ndarray, peer: int, tag: int) -> Request:
        """A message of the host."""
        return self._end.recv(array, peer, tag)

    def prepared(self, sides: Sequence[Side], tag: int) -> Callable[[], Request]:
        inner = [_on_host(side) for side in sides]
        carry = self._end.prepared(inner, tag)
        down = [(host.send, side.send) for host, side in zip(inner, sides, strict=True) if side.send is not None]
        up = [(host.receive, side.receive) for host, side in zip(inner, sides, strict=True) if side.receive is not None]
        ready, gone, landed = (cupy.cuda.Event(disable_timing=True) for _ in range(3))

        def steps() -> Iterator[list[Request]]:
            for there, here in down:
                _copy(there.ctypes.data, here.data.ptr, there.nbytes, DEVICE_TO_HOST, self._down, ready)
            if down:
                gone.record(self._down)
                yield [_Reached(gone)]
            yield [carry()]
            for there, here in up:
                _copy(here.data.ptr, there.ctypes.data, there.nbytes, HOST_TO_DEVICE, self._up, ready)
            if up:
                landed.record(self._up)
                yield [_Reached(landed)]

        def begin() -> Request:
            ready.record(self._compute)
            return Staged(steps())

        return begin

    @property
    def copies(self) -> bool:
        """Whether copies are under way, which end without anybody's help."""
        return not (idle(self._down) and idle(self._up))

    def check(self) -> None:
        self._end.check()


class _Reached(Request):
    """An event to which a stream is to come."""

    __slots__ = ("_event",)

    def __init__(self, event: Any) -> None:
        self._event = event

    def poll(self) -> bool:
        return reached(self._event)


def _on_host(side: Side) -> Side:
    """The same with arrays of the host."""
    scratch = None if side.scratch is None else np.empty(side.scratch.size, side.scratch.dtype)
    return side._replace(send=_pinned(side.send), receive=_pinned(side.receive), scratch=scratch)


def _pinned(array: Any) -> Any:
    """Memory of the host that a device copies from and to by itself, as long as the array and of its kind."""
    if array is None or not array.nbytes:
        return None if array is None else np.empty(0, array.dtype)
    memory = cupy.cuda.alloc_pinned_memory(array.nbytes)
    return np.frombuffer(memory, np.uint8, array.nbytes).view(array.dtype)


def _copy(target: int, source: int, nbytes: int, kind: int, stream: Any, ready: Any) -> None:
    """Puts a copy onto the stream, to be made after `ready`."""
    stream.wait_event(ready)
    if nbytes:
        cupy.cuda.runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)
