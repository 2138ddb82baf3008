"""The backend that computes nothing: a thousand processors' steps run dry, with every wait and every message.

It does not know arrays: each message is one byte, so it is matched and waited for like the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from castile.runtime.backends import base
from castile.runtime.comm.base import End
from castile.runtime.comm.messages import Request
from castile.runtime.memory import Packing
from castile.runtime.task import Task, TaskGraph


class Backend(base.Backend):
    """A processor without memory."""

    def __init__(self, graph: TaskGraph, packing: Packing, proc: int, state: base.State, poison: bool) -> None:
        self.proc = proc
        self.persistent = {}
        self.nbytes = 0

    def compute(self, task: Task) -> Callable[[], object]:
        return _nothing

    def transfer(self, task: Task, end: End, tag: int) -> Callable[[], Request]:
        form, group = task.comms[0].form, task.comms[0].group
        one, other, scratch = np.zeros(1, np.uint8), np.zeros(1, np.uint8), np.zeros(len(group) - 1, np.uint8)
        counts = ((1, *(0,) * (len(group) - 1)),) * len(group)
        # Where all wait for all, all still do: one byte is summed by the first and handed to the others.
        form = form if form in ("move", "broadcast") else "all_reduce"
        return partial(end.collective, form, group, one, other, scratch, counts, tag)


def _nothing() -> None:
    """What every task computes."""
