"""The backend that computes nothing: a thousand processors' steps run dry, with every wait and every message.

It does not know arrays: each message is one byte, so it is matched and waited for like the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from castile.runtime.backends import base
from castile.runtime.comm.base import End
from castile.runtime.comm.messages import Request, Staged
from castile.runtime.memory import Packing
from castile.runtime.task import Comm, Task, TaskGraph


class Backend(base.Backend):
    """A processor without memory."""

    def __init__(
        self, graph: TaskGraph, packing: Packing, proc: int, state: base.State, poison: bool,
        lent: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.proc = proc
        self.persistent = {}
        self.arena = np.empty(0, np.uint8)
        self.nbytes = 0

    def compute(self, task: Task) -> Callable[[], object]:
        return _nothing

    def transfer(self, task: Task, end: End, tag: int) -> Callable[[], Request]:
        begin = [_of_a_byte(comm, end, tag) for comm in task.comms]
        # Of several, all bytes are alike: it is all one which of them comes first.
        return begin[0] if len(begin) == 1 else lambda: Staged(iter([[call() for call in begin]]))


def _of_a_byte(comm: Comm, end: End, tag: int) -> Callable[[], Request]:
    """The same transfer of one byte."""
    form, group = comm.form, comm.group
    one, other, scratch = np.zeros(1, np.uint8), np.zeros(1, np.uint8), np.zeros(len(group) - 1, np.uint8)
    counts = ((1, *(0,) * (len(group) - 1)),) * len(group)
    # Where all wait for all, all still do: one byte is summed by the first and handed to the others.
    form = form if form in ("move", "broadcast") else "all_reduce"
    return partial(end.collective, form, group, one, other, scratch, counts, tag)


def _nothing() -> None:
    """What every task computes."""
