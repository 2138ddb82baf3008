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
        self._readers: list[list[int]] = [[] for _ in self.nodes]
        for n, (_, _, needs) in enumerate(self.nodes):
            for need in needs:
                self._readers[need].append(n)
        self.graph = id(self)
        cuda.world.graphs.add(self)

    def launch(self, stream: cuda.Stream | None = None, by_node: bool = False) -> None:
        stream = stream or cuda.get_current_stream()
        # what is on its way holds no graph
        nodes, readers = self.nodes, self._readers
        missing = [len(needs) for _, _, needs in nodes]
        ready, ended = {n for n, count in enumerate(missing) if not count}, set[int]()
        own = self._priorities if by_node else [None] * len(missing)
        priorities = [stream.priority if one is None else one for one in own]

        def end(n: int) -> list[int]:
            """Those that nothing else is missing to."""
            ended.add(n)
            for reader in readers[n]:
                missing[reader] -= 1
            return [reader for reader in readers[n] if not missing[reader]]

        def go_on() -> bool:
            after: list[int] = []
            for n in cuda.world.random.sample(sorted(ready), len(ready)):
                work, name, _ = nodes[n]
                if cuda.attempt(stream.device_id, work):
                    cuda.world.done.append((stream, name))
                    cuda.world.priorities.append((name, priorities[n]))
                    ready.remove(n)
                    after += end(n)
            ready.update(after)
            return len(ended) == len(missing)

        def run() -> bool:
            before = len(ended)
            while not go_on():
                if len(ended) == before:
                    return False
                before = len(ended)
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
