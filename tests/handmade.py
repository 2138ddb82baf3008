"""Task graphs written by hand for tests: tasks in program order become a TaskGraph, with needs by shared buffers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from castile.runtime.region import Box, whole
from castile.runtime.task import (
    NUM_LANES, Arg, Body, Buffer, Call, Comm, CostKey, Kind, Lane, Task, TaskGraph, Temp, View,
)  # fmt: skip
from castile.runtime.timeline import Timeline

STEP = 1000


class Hand:
    """Writes a graph task by task; each method returns the number of what it added."""

    def __init__(self, num_procs: int) -> None:
        self.num_procs = num_procs
        self.buffers: list[Buffer] = []
        self.first: list[int] = []
        self.tasks: list[Task] = []
        self.private: list[int] = []

    def buffer(self, region: str, shape: Sequence[int], proc: int, role: str = "", dtype: str = "float64") -> int:
        self.buffers.append(Buffer(region, whole(shape), dtype, proc, role))
        self.first.append(-1)
        return len(self.buffers) - 1

    def view(self, buffer: int, box: Box | None = None) -> View:
        return View(buffer, box or self.buffers[buffer].box)

    def compute(
        self, kernel: str, args: Sequence[object], out: int | View, name: str = "", temps: Sequence[Temp] = (),
        calls: Sequence[Call] = (), private: int = 0, accumulate: bool = False, **params: object,
    ) -> int:  # fmt: skip
        """One kernel over views (buffers stand for their whole); `calls` instead says all calls of the body."""
        operands = [self.view(a) if isinstance(a, int) else a for a in args]
        result = self.view(out) if isinstance(out, int) else out
        views = [a for a in operands if isinstance(a, View)] + [result]
        numbers = iter(range(len(views)))
        words = tuple(Arg("view", next(numbers)) if isinstance(a, View) else a for a in operands)
        call = Call(kernel, words, (Arg("view", len(views) - 1),), tuple(params.items()), accumulate)
        proc = self.buffers[result.buffer].proc
        body = Body(tuple(calls) or (call,), tuple(temps), private)
        return self._add(name or kernel, Kind.COMPUTE, (proc,), tuple(views), body, None, private)

    def transfer(
        self, form: str, group: Sequence[int], send: Sequence[View | None], receive: Sequence[View | None],
        scratch: Sequence[View | None] = (), counts: Sequence[Sequence[int]] = (),
    ) -> int:  # fmt: skip
        kind = Kind.MOVE if form == "move" else Kind.COLLECTIVE
        scratch = tuple(scratch) or (None,) * len(group)
        comm = Comm(form, tuple(group), tuple(send), tuple(receive), scratch, tuple(map(tuple, counts)))
        views = tuple(v for v in (*send, *receive, *scratch) if v is not None)
        return self._add(form, kind, tuple(dict.fromkeys(group)), views, Body(()), comm, 0)

    def move(self, source: int, target: int) -> int:
        pair = self.buffers[source].proc, self.buffers[target].proc
        n = self.buffers[source].box.volume
        return self.transfer("move", pair, (self.view(source), None), (None, self.view(target)), (), ((0, n), (0, 0)))

    def all_reduce(self, sends: Sequence[int], receives: Sequence[int]) -> int:
        """Pieces as even as can be; the scratch buffers are added here."""
        group = [self.buffers[b].proc for b in sends]
        n, size = self.buffers[sends[0]].box.volume, len(group)
        counts = [n // size + (j < n % size) for j in range(size)]
        dtype = self.buffers[sends[0]].dtype
        scratch = [self.buffer(f"scratch{len(self.tasks)}", ((size - 1) * c,), p, "", dtype)
                   for p, c in zip(group, counts)]  # fmt: skip
        sent, received = [self.view(b) for b in sends], [self.view(b) for b in receives]
        return self.transfer("all_reduce", group, sent, received, [self.view(b) for b in scratch], [counts] * size)

    def graph(self) -> TaskGraph:
        """Tasks that share a buffer run one after the other."""
        last: dict[int, int] = {}
        needs, lanes, uses = [], [], []
        for task in self.tasks:
            touched = sorted({view.buffer for view in task.views})
            needs.append(sorted({last[b] for b in touched if b in last}))
            last.update(dict.fromkeys(touched, task.index))
            uses.append(touched)
            lanes.append([p * NUM_LANES + _lane(task, p) for p in task.procs])
        sizes = [b.box.volume * np.dtype(b.dtype).itemsize for b in self.buffers]
        n = len(self.tasks)
        return TaskGraph(
            np.array([t.kind for t in self.tasks], np.int8), np.arange(n), np.zeros(n, np.int32),
            (CostKey("any", "", "float64", 1000, 2000),), *_flat(lanes), *_flat(needs), *_flat(uses),
            np.array([b.proc for b in self.buffers], np.int32), np.array(sizes, np.int64),
            np.array(self.first, np.int32), np.array(self.private, np.int64), self.num_procs, self.tasks, self.buffers,
        )  # fmt: skip

    def _add(self, name, kind, procs, views, body, comm, private) -> int:
        number = len(self.tasks)
        self.tasks.append(Task(number, f"{name}#{number}", kind, procs, views, body, comm))
        self.private.append(private)
        for view in views:
            if self.first[view.buffer] < 0 and not self.buffers[view.buffer].role:
                self.first[view.buffer] = number
        return number


def in_order(graph: TaskGraph) -> Timeline:
    """The timeline in which tasks run one after the other in program order."""
    start = np.arange(graph.num_tasks, dtype=np.int64) * STEP
    return Timeline(np.arange(graph.num_tasks), start, start + STEP)


def _lane(task: Task, proc: int) -> int:
    if task.comm is None:
        return Lane.COMPUTE
    if task.comm.form == "move":
        return Lane.SEND if proc == task.comm.group[0] else Lane.RECEIVE
    return Lane.COLLECTIVE


def _flat(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return ptr, np.array([x for row in rows for x in row], np.int64)
