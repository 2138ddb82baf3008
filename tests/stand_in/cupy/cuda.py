"""A stand-in for cupy.cuda: devices, memory, streams that do their work late and in turns, events, graphs.

Work that is put onto a stream is done when somebody waits: then streams take turns at random, each in its order, so
that a wait that is missing shows in the numbers. It refuses what CUDA refuses.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from tests.stand_in.cublas import PATH as CUBLAS
from tests.stand_in.cupy import graphs
from tests.stand_in.cupy.graphs import Capture, Graph
from tests.stand_in.cupy.memories import Memory, MemoryPointer, memcpy_async
from tests.stand_in.cupy.memories import alloc_pinned_memory as alloc_pinned_memory
from tests.stand_in.cupy.memories import memory as memory

# Work: False where it cannot go on yet, as a transfer whose peer has not come.
Work = Callable[[], object]
NUM_DEVICES = 2
STUCK = 2000
# How many streams lag.
LAGGING = 0.3


NOT_READY, ILLEGAL_ADDRESS = 600, 700
STATUSES = {ILLEGAL_ADDRESS: "cudaErrorIllegalAddress: an illegal memory access was encountered"}


class CUDARuntimeError(RuntimeError):
    """What CUDA says, of itself or for a status."""

    def __init__(self, what: str | int) -> None:
        super().__init__(STATUSES[what] if isinstance(what, int) else what)


class _World:
    """All that there is on the host."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.device = 0
        self.streams: list[Stream] = []
        self.live: WeakValueDictionary[int, Memory] = WeakValueDictionary()
        self.pinned: WeakValueDictionary[int, ctypes.Array[ctypes.c_uint8]] = WeakValueDictionary()
        self.clock = 0
        self.idle_looks = 0
        # every piece of work as it was done: (stream, name)
        self.done: list[tuple[Stream, str]] = []
        # After so many of them the next one fails, and with it its device; the device that has failed, and at what.
        self.fails_at = -1
        self.broken: dict[int, Work] = {}
        self.events: WeakValueDictionary[int, Event] = WeakValueDictionary()
        self.graphs: WeakSet[Graph] = WeakSet()
        # What the driver made of graphs, by address: the nodes, and whether each has its own priority.
        self.made: dict[int, tuple[Graph, bool]] = {}
        # Every node of a graph as it was done: its name, and the priority that it had.
        self.priorities: list[tuple[str, int]] = []
        self.current: list[Stream] = []


world = _World(0)


def renew(seed: int) -> None:
    """Devices that have seen nothing."""
    global world
    world = _World(seed)
    world.current.append(Stream())


def attempt(device: int, work: Work) -> bool:
    """Does a piece of work on a device; False where it cannot go on yet, or the device has failed, now or before."""
    if not world.broken and len(world.done) == world.fails_at:
        world.broken[device] = work
    return device not in world.broken and work() is not False


def refuse_broken(device: int) -> None:
    """What has failed says so at every call."""
    if device in world.broken:
        raise CUDARuntimeError(ILLEGAL_ADDRESS)


def status(device: int, done: bool) -> int:
    """What a query of CUDA's gives."""
    return ILLEGAL_ADDRESS if device in world.broken else 0 if done else NOT_READY


def take_turns() -> bool:
    """Lets streams go on by a random share of what they have, those that lag where no other can; whether any could."""
    streams = world.random.sample(world.streams, len(world.streams))
    moved = any([_goes_on(stream) for stream in streams if not stream.lags])
    moved = moved or any([_goes_on(stream) for stream in streams if stream.lags])
    world.idle_looks = 0 if moved else world.idle_looks + 1
    if world.idle_looks > STUCK:
        raise RuntimeError(
            f"streams would wait for ever: {[(s.name, s.queue[0][1]) for s in world.streams if s.queue]}"
        )
    return moved


def _goes_on(stream: Stream) -> bool:
    """Whether a stream did anything."""
    most = world.random.randint(1, 4)
    done = 0
    while done < most and stream.do_one():
        done += 1
    return done > 0


class Device:
    """A device by number."""

    def __init__(self, number: int | None = None) -> None:
        self.id = world.device if number is None else int(number)
        if not 0 <= self.id < NUM_DEVICES:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    def use(self) -> None:
        world.device = self.id

    def synchronize(self) -> None:
        while any(stream.queue for stream in world.streams):
            refuse_broken(self.id)
            take_turns()


class Marker:
    """A moment of a stream: one recording of an event."""

    def __init__(self) -> None:
        self.done, self.time = False, 0
        self.capture: Capture | None = None

    def mark(self) -> None:
        world.clock += 1
        self.done, self.time = True, world.clock


class Stream:
    """A queue of work on the device that was current when it was made."""

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        self.device_id = world.device
        self.queue: deque[tuple[Work, str]] = deque()
        self.capture: Capture | None = None
        world.streams.append(self)
        self.name = f"stream {len(world.streams)}"
        self.ptr, self.priority = 1000 + len(world.streams), priority or 0
        # Else it waits for whoever uses the default one, which waits for it.
        self.non_blocking = non_blocking
        # Whether all others are ahead of it, as far as they do not wait for it.
        self.lags = world.random.random() < LAGGING
        # those of a green context
        self.multiprocessors = range(0)

    @staticmethod
    def from_external(outside: Any) -> Stream:
        """The stream that another library made."""
        version, ptr = outside.__cuda_stream__()
        assert version == 0
        return stream_of(ptr)

    def __enter__(self) -> Stream:
        world.current.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        world.current.pop()

    def enqueue(self, work: Work, name: str, *places: MemoryPointer) -> None:
        """Puts work onto the stream. CUDARuntimeError where another device is current, or the memory is another's."""
        if world.device != self.device_id:
            raise CUDARuntimeError(f"cudaErrorInvalidResourceHandle: {name} on a stream of device {self.device_id}")
        for place in places:
            if place.device_id != self.device_id:
                raise CUDARuntimeError(f"cudaErrorIllegalAddress: {name} on memory of device {place.device_id}")
        refuse_broken(self.device_id)
        if self.capture is not None:
            self.capture.add(self, work, name)
            return
        self.queue.append((work, name))
        if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            self.synchronize()

    def do_one(self) -> bool:
        """Does the first piece of work; False where there is none or it cannot go on."""
        if not self.queue or not attempt(self.device_id, self.queue[0][0]):
            return False
        world.done.append((self, self.queue.popleft()[1]))
        return True

    def no_capture(self, what: str) -> None:
        if self.capture is not None:
            raise CUDARuntimeError(f"cudaErrorStreamCaptureUnsupported: {what}")

    def synchronize(self) -> None:
        self.no_capture("a wait of the host")
        refuse_broken(self.device_id)
        while self.queue:
            take_turns()
            refuse_broken(self.device_id)

    def look(self) -> int:
        """The status of a query."""
        self.no_capture("a look")
        take_turns()
        return status(self.device_id, not self.queue)

    @property
    def done(self) -> bool:
        """As in CuPy 14 False where the device has failed."""
        return self.look() == 0

    def wait_event(self, event: Event) -> None:
        marker = event.marker
        if marker is None:
            return
        if marker.capture is not None:
            if marker.capture.is_over:
                raise CUDARuntimeError("cudaErrorCapturedEvent: the event belongs to a capture that has ended")
            if self.capture is None:
                self.capture = marker.capture
                self.capture.heads[self] = set()
            assert self.capture is marker.capture
            self.capture.heads[self] = self.capture.heads[self] | self.capture.marks[marker]
            return
        if self.capture is not None:
            raise CUDARuntimeError("cudaErrorStreamCaptureIsolation: an event of outside the capture")
        self.enqueue(lambda: marker.done, "wait")

    def begin_capture(self, mode: Any = None) -> None:
        self.no_capture("another capture")
        refuse_broken(self.device_id)
        self.capture = Capture(self)

    def end_capture(self) -> Graph:
        capture = self.capture
        if capture is None or capture.origin is not self:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnmatched: no capture began here")
        capture.is_over = True
        for stream in capture.heads:
            stream.capture = None
        joined = capture.before(capture.heads[self])
        if len(joined) < len(capture.nodes):
            raise CUDARuntimeError("cudaErrorStreamCaptureUnjoined: work of another stream is not waited for")
        return Graph(capture, self.device_id)


class Event:
    """A place on a stream that others can wait for."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.timed = not disable_timing
        self.marker: Marker | None = None
        self.device_id, self.ptr = world.device, 1 + len(world.events)
        while self.ptr in world.events:
            self.ptr += 1
        world.events[self.ptr] = self

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or get_current_stream()
        if stream.device_id != self.device_id:
            raise CUDARuntimeError(f"cudaErrorInvalidResourceHandle: an event of device {self.device_id}")
        marker = self.marker = Marker()
        if stream.capture is not None:
            marker.capture = stream.capture
            stream.capture.marks[marker] = set(stream.capture.heads[stream])
        else:
            stream.enqueue(marker.mark, "record")

    def look(self) -> int:
        """The status of a query."""
        marker = self._outside()
        if marker is not None and not marker.done:
            take_turns()
        return status(self.device_id, marker is None or marker.done)

    @property
    def done(self) -> bool:
        """As in CuPy 14 False where the device has failed."""
        return self.look() == 0

    def synchronize(self) -> None:
        while not self.done:
            refuse_broken(self.device_id)

    def _outside(self) -> Marker | None:
        if self.marker is not None and self.marker.capture is not None:
            raise CUDARuntimeError("cudaErrorCapturedEvent: the event belongs to a capture")
        return self.marker


def get_elapsed_time(first: Event, second: Event) -> float:
    """Milliseconds: one for each recording in between."""
    refuse_broken(first.device_id)
    moments = [event._outside() for event in (first, second)]
    if not (first.timed and second.timed) or any(m is None or not m.done for m in moments):
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle: events without times")
    return float(moments[1].time - moments[0].time)  # type: ignore[union-attr]


def get_current_stream() -> Stream:
    return world.current[-1]


def stream_of(ptr: int) -> Stream:
    """The stream of that address."""
    return next(stream for stream in world.streams if stream.ptr == ptr)


def refuse_in_capture(what: str) -> None:
    if any(stream.capture is not None for stream in world.streams):
        raise CUDARuntimeError(f"cudaErrorStreamCaptureUnsupported: {what} while a stream is captured")


def is_available() -> bool:
    return True


cublas = SimpleNamespace(__file__=CUBLAS)
runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    getDevice=lambda: world.device,
    setDevice=lambda number: Device(number).use(),
    getDeviceCount=lambda: NUM_DEVICES,
    # as CuPy 14.2 for CUDA 13 has them
    driverGetVersion=lambda: 13000,
    runtimeGetVersion=lambda: 13020,
    memcpyAsync=memcpy_async,
    graphLaunch=graphs.launch,
    graphExecDestroy=lambda address: world.made.pop(address, None),
    eventQuery=lambda ptr: world.events[ptr].look(),
    streamQuery=lambda ptr: stream_of(ptr).look(),
    memGetInfo=lambda: (2**30, 2**31),
    getDeviceProperties=lambda number: {"name": b"stand-in", "totalGlobalMem": 2**31, "multiProcessorCount": 4},
)
