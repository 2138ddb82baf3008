"""A lead: short kernels that a device is at while the host puts a timed step onto it.

A kernel that comes after the device has come to the event before it seems to last as long as the host took. It knows no
step.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple

import cupy

from castile.kernels.calls import Call

NUM_LAUNCHES = 500
# What the host takes for a call and its events, at most; no lead is longer, be there ever so many calls.
CALL_SECONDS, MOST_SECONDS = 2e-5, 0.05


class Lead(NamedTuple):
    """A graph of short kernels, and the seconds that it takes; `call` keeps the memory that they read and write."""

    graph: Any
    seconds: float
    call: Call

    def begin(self, stream: Any, num_calls: int) -> None:
        """Keeps the stream busy until the host is ahead by so many calls."""
        for _ in range(ceil(min(MOST_SECONDS, num_calls * CALL_SECONDS) / self.seconds)):
            self.graph.launch(stream)

    @classmethod
    def of(cls, short: Callable[[Any], Call]) -> Lead:
        """That of the current device, of the kernel that `short` binds to a stream: one that takes next to no time."""
        stream, begun, ended = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(), cupy.cuda.Event()
        with stream:
            call = short(stream)
            # A first call may load and allocate.
            call()
            stream.synchronize()
            stream.begin_capture()
            for _ in range(NUM_LAUNCHES):
                call()
            graph = stream.end_capture()
            graph.launch(stream)
            begun.record(stream)
            graph.launch(stream)
            ended.record(stream)
            stream.synchronize()
        return cls(graph, cupy.cuda.get_elapsed_time(begun, ended) / 1e3, call)
