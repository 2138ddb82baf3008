"""Clocks: when the calls of a step began and ended on a device, by events, told on the clock of the host.

They do not know what the calls do, nor in which order they are made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

import cupy
import numpy as np

from castile.kernels.calls import chain
from castile.runtime.backends.cuda.lead import Lead

NANOSECONDS_PER_MILLISECOND = 1e6
# What events tell apart: no call took less.
RESOLUTION_NS = 500


class Clocks:
    """An event before and after each of some calls; streams[i] is that of call i, and all begin after `first`'s."""

    def __init__(self, streams: Sequence[Any], first: Any) -> None:
        self._streams, self._first = tuple(streams), first
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

    def start(self, lead: Lead | None = None) -> None:
        """Sets the device's clock by the host's, while the device has nothing to do; from then on it has a lead."""
        before = time.perf_counter_ns()
        self._origin.record(self._first)
        self._origin.synchronize()
        self._origin_ns = (before + time.perf_counter_ns()) // 2
        if lead is not None:
            lead.begin(self._first, len(self._streams))

    def read(self, within_ns: float = inf) -> tuple[np.ndarray, np.ndarray]:
        """int64[n]: when each call began and ended, by perf_counter_ns; all of them have ended.

        within_ns: what they take where no events are between them, which is left out of each then
        """
        begun, ended = without_events(within_ns, self._moments(0), self._moments(1), list(map(id, self._streams)))
        return self._origin_ns + begun, self._origin_ns + ended

    def _moments(self, side: int) -> np.ndarray:
        elapsed = [cupy.cuda.get_elapsed_time(self._origin, pair[side]) for pair in self._events]
        return (np.array(elapsed) * NANOSECONDS_PER_MILLISECOND).astype(np.int64)


def without_events(
    within_ns: float, begun: np.ndarray, ended: np.ndarray, streams: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """int64[n]: the same calls where each takes less by one time, the least by which all come to no more than that.

    streams[n]: that of each call
    """
    if not len(begun) or ended.max() - begun.min() <= within_ns:
        return begun, ended
    least, most = 0, int((ended - begun).max())
    while least < most:
        cost = (least + most) // 2
        firsts, lasts = shortened(cost, begun, ended, streams)
        least, most = (least, cost) if lasts.max() - firsts.min() <= within_ns else (cost + 1, most)
    return shortened(least, begun, ended, streams)


def shortened(
    cost_ns: int, begun: np.ndarray, ended: np.ndarray, streams: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """int64[n]: the same calls where none has so much added.

    All that follows comes sooner, by what the stream that has most taken off until then has: the order stays the same.
    """
    lost = np.clip(ended - begun - RESOLUTION_NS, 0, cost_ns)
    moments, sooner = np.concatenate([begun, ended]), np.zeros(2 * len(begun))
    for stream in set(streams):
        own = np.flatnonzero(np.array(streams) == stream)
        own = own[np.argsort(begun[own], kind="stable")]
        bounds = np.stack([begun[own], ended[own]], axis=1).ravel()
        taken = np.repeat(np.concatenate([[0], np.cumsum(lost[own])]), 2)[1:-1]
        sooner = np.maximum(sooner, np.interp(moments, bounds, taken))
    found = np.round(moments - sooner).astype(np.int64)
    firsts, lasts = found[: len(begun)], found[len(begun) :]
    # What took some time takes some still.
    return firsts, np.maximum(lasts, firsts + (ended > begun))
