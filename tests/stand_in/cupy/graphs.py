"""What a stand-in captures of streams, and what CuPy and the driver make of it to launch."""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

from tests.stand_in.cupy import cuda

# Of the driver: CUDA_ERROR_INVALID_VALUE, and CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.
INVALID_VALUE, BY_NODE = 1, 8
# No two graphs of a process, be they of different tests, have the same.
_addresses = itertools.count(1)


class Capture:
    """Work that is recorded: (work, name, what it comes after), one list for all streams that take part."""

    def __init__(self, origin: cuda.Stream) -> None:
        self.origin, self.is_over = origin, False
        self.nodes: list[tuple[cuda.Work, str, set[int]]] = []
        self.priorities: list[int | None] = []
        self.heads: dict[cuda.Stream, set[int]] = {origin: set()}
        self.marks: dict[cuda.Marker, set[int]] = {}

    def add(self, stream: cuda.Stream, work: cuda.Work, name: str) -> None:
        self.nodes.append((work, name, self.heads[stream]))
        # Kernels alone have one.
        self.priorities.append(None if name in ("memset", "copy") else stream.priority)
        self.heads[stream] = {len(self.nodes) - 1}

    def before(self, heads: set[int]) -> set[int]:
        """All nodes that have ended when these have."""
        found, todo = set(), list(heads)
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += self.nodes[node][2]
        return found


class Graph:
    """A captured step; a launch does its nodes in any order that their needs allow.

    As CuPy makes it all nodes have the priority of the stream on which it is launched.
    """

    def __init__(self, capture: Capture, device: int) -> None:
        self.nodes, self._priorities, self._device = capture.nodes, capture.priorities, device
        self.graph = id(self)
        cuda.world.graphs.add(self)

    def launch(self, stream: cuda.Stream | None = None, by_node: bool = False) -> None:
        stream = stream or cuda.get_current_stream()
        left, ended = dict(enumerate(self.nodes)), set[int]()
        own = self._priorities if by_node else [None] * len(left)
        priorities = [stream.priority if one is None else one for one in own]

        def go_on() -> bool:
            ready = [n for n, (_, _, needs) in left.items() if needs <= ended]
            for n in cuda.world.random.sample(ready, len(ready)):
                work, name, _ = left[n]
                if cuda.attempt(stream.device_id, work):
                    cuda.world.done.append((stream, name))
                    cuda.world.priorities.append((name, priorities[n]))
                    del left[n]
                    ended.add(n)
            return not left

        def run() -> bool:
            before = len(left)
            while not go_on():
                if len(left) == before:
                    return False
                before = len(left)
            return True

        # who asks what is on its way
        vars(run)["parts"] = [work for work, _, _ in self.nodes]
        stream.enqueue(run, "graph")


def instantiate(made: Any, graph: int, flags: int) -> int:
    """As the driver makes something to launch of a graph; the status."""
    which = next((one for one in cuda.world.graphs if one.graph == graph), None)
    if which is None or flags not in (0, BY_NODE):
        return INVALID_VALUE
    address = next(_addresses)
    cuda.world.made[address] = which, flags == BY_NODE
    ctypes.cast(made, ctypes.POINTER(ctypes.c_void_p))[0] = address
    return 0


def launch(address: int, stream: int) -> None:
    graph, by_node = cuda.world.made[address]
    graph.launch(cuda.stream_of(stream), by_node)


def libcuda() -> SimpleNamespace:
    """The driver as ctypes opens it."""
    types = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_ulonglong)
    return SimpleNamespace(cuGraphInstantiateWithFlags=ctypes.CFUNCTYPE(ctypes.c_int, *types)(instantiate))
