"""Messages between numbered peers, and requests: things under way that are polled to completion.

They do not know what carries the bytes, nor who waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np


class Request(ABC):
    """Something under way."""

    __slots__ = ()

    @abstractmethod
    def poll(self) -> bool:
        """Makes what progress is possible now, never blocks; True once all is done, and at every later call."""


class _Done(Request):
    __slots__ = ()

    def poll(self) -> bool:
        return True


DONE = _Done()


class Staged(Request):
    """A small state machine: an iterator that yields the requests which must be done before it may go on."""

    __slots__ = ("_pending", "_steps")

    def __init__(self, steps: Iterator[list[Request]]) -> None:
        self._steps = steps
        self._pending = next(steps)

    def poll(self) -> bool:
        while True:
            pending = self._pending
            while pending:
                if not pending[-1].poll():
                    return False
                pending.pop()
            try:
                self._pending = next(self._steps)
            except StopIteration:
                return True


class Messenger(ABC):
    """One end of messages; `rank` is its own number among its peers. Arrays are flat and contiguous, of any dtype.

    Messages between two ends with the same tag arrive in the order in which they were sent.
    """

    rank: int

    @abstractmethod
    def send(self, array: np.ndarray, peer: int, tag: int) -> Request:
        """Sends the array's bytes; it must not change before the request is done."""

    @abstractmethod
    def recv(self, array: np.ndarray, peer: int, tag: int) -> Request:
        """Fills the array with the bytes of the peer's next message of that tag, which must be as long."""

    def sender(self, array: np.ndarray, peer: int, tag: int) -> Callable[[], Request]:
        """`send` as a call, to be made again only when the request it gave before is done."""
        return partial(self.send, array, peer, tag)

    def receiver(self, array: np.ndarray, peer: int, tag: int) -> Callable[[], Request]:
        """`recv` as a call, to be made again only when the request it gave before is done."""
        return partial(self.recv, array, peer, tag)
