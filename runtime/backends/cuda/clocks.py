"""Clocks: when the calls of a step began and ended on a device, by events, told on the clock of the host.

They do not know what the calls do, nor in which order they are made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cupy
import numpy as np

from castile.kernels.calls import chain

NANOSECONDS_PER_MILLISECOND = 1e6


class Clocks:
    """An event before and after each of some calls; streams[i] is that of call i."""

    def __init__(self, streams: Sequence[Any]) -> None:
        self._streams = tuple(streams)
        self._events: list[tuple[Any, Any]] = []
        self._origin: Any = None
        self._origin_ns = 0

    def around(self, actions: Sequence[Callable[[], object]]) -> list[Callable[[], object]]:
        """The calls with their events."""
        self._origin = cupy.cuda.Event()
        self._events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in self._streams]
        return [
            chain([partial(begun.record, stream), action, partial(ended.record, stream)])
            for action, stream, (begun, ended) in zip(actions, self._streams, self._events, strict=True)
        ]

    def start(self) -> None:
        """Sets the device's clock by the host's, while the device has nothing else to do."""
        if self._streams:
            before = time.perf_counter_ns()
            self._origin.record(self._streams[0])
            self._origin.synchronize()
            self._origin_ns = (before + time.perf_counter_ns()) // 2

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """int64[n]: when each call began and ended, by perf_counter_ns; all of them have ended."""
        return self._moments(0), self._moments(1)

    def _moments(self, side: int) -> np.ndarray:
        elapsed = [cupy.cuda.get_elapsed_time(self._origin, pair[side]) for pair in self._events]
        return self._origin_ns + (np.array(elapsed) * NANOSECONDS_PER_MILLISECOND).astype(np.int64)
