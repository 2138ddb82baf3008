"""The backend that computes nothing: a thousand processors' steps run dry, with every wait and every message.

It does not know arrays: each message is one byte, so it is matched and waited for like the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from castile.runtime.backends import base
from castile.runtime.comm.base import End
from castile.runtime.comm.messages import Request
from castile.runtime.task import Task, TaskGraph

if TYPE_CHECKING:
    from castile.runtime.memory import Packing


class Backend(base.Backend):
    """A processor without memory."""

    def __init__(self, graph: TaskGraph, packing: Packing, proc: int, state: base.State, poison: bool) -> None:
        self.persistent = {}
        self.nbytes = 0

    def compute(self, task: Task) -> Callable[[], object]:
        return _nothing

    def transfer(self, task: Task, end: End, tag: int) -> Callable[[], Request]:
        assert task.comm is not None
        form, group = task.comm.form, task.comm.group
        # What waits for all members does so here too; a broadcast's members wait for the root alone.
        form = form if form in ("move", "broadcast") else "all_to_all"
        many = len(group) if form == "all_to_all" else 1
        send, receive = np.zeros(many, np.uint8), np.zeros(many, np.uint8)
        counts = ((1,) * len(group),) * len(group)
        return partial(end.collective, form, group, send, receive, None, counts, tag)


def _nothing() -> None:
    """What every task computes."""
