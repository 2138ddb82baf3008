"""Task graphs written by hand for tests: tasks in program order become a TaskGraph, with needs by shared buffers.

Random ones come with an interpreter that knows nothing of the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from castile.runtime.memory import Packing
from castile.runtime.region import Box, whole
from castile.runtime.task import (
    NUM_LANES,
    Arg,
    Body,
    Buffer,
    Call,
    Comm,
    CostKey,
    Kind,
    Lane,
    Task,
    TaskGraph,
    Temp,
    View,
)
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
        return self._add(name or kernel, Kind.COMPUTE, (proc,), tuple(views), body, (), private)

    def transfer(
        self, form: str, group: Sequence[int], send: Sequence[View | None], receive: Sequence[View | None],
        scratch: Sequence[View | None] = (), counts: Sequence[Sequence[int]] = (),
    ) -> int:  # fmt: skip
        kind = Kind.MOVE if form == "move" else Kind.COLLECTIVE
        scratch = tuple(scratch) or (None,) * len(group)
        comm = Comm(form, tuple(group), tuple(send), tuple(receive), scratch, tuple(map(tuple, counts)))
        views = tuple(v for v in (*send, *receive, *scratch) if v is not None)
        return self._add(form, kind, tuple(dict.fromkeys(group)), views, Body(()), (comm,), 0)

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

    def _add(self, name, kind, procs, views, body, comms, private) -> int:
        number = len(self.tasks)
        self.tasks.append(Task(number, f"{name}#{number}", kind, procs, views, body, comms))
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
    if task.kind == Kind.COMPUTE:
        return Lane.COMPUTE
    if task.kind == Kind.MOVE:
        return Lane.SEND if proc == task.comms[0].group[0] else Lane.RECEIVE
    return Lane.COLLECTIVE


def _flat(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return ptr, np.array([x for row in rows for x in row], np.int64)


def spread(graph: TaskGraph) -> Packing:
    """A packing in which nothing shares memory, persistent buffers lowest."""
    offset, private = np.zeros(graph.num_buffers, np.int64), np.zeros(graph.num_tasks, np.int64)
    top = np.zeros(graph.num_procs, np.int64)
    for b in sorted(range(graph.num_buffers), key=lambda b: graph.buffer_first[b] >= 0):
        offset[b] = top[graph.buffer_proc[b]]
        top[graph.buffer_proc[b]] += -(-int(graph.buffer_bytes[b]) // 64) * 64
    for t in range(graph.num_tasks):
        proc = graph.tasks[t].procs[0]
        private[t] = top[proc]
        top[proc] += -(-int(graph.private_bytes[t]) // 64) * 64
    return Packing(offset, private, top, top, np.empty((0, 2), np.int64))


def random_graph(seed: int, num_procs: int, num_tasks: int, n: int = 7, largest: int = 8) -> TaskGraph:
    """Values of n elements that are added, moved, and taken through every collective form; one output a processor."""
    rng = np.random.default_rng(seed)
    hand = Hand(num_procs)
    values = [[hand.buffer(f"x{p}", (n,), p, "input")] for p in range(num_procs)]

    def value(p: int) -> int:
        return int(rng.choice(values[p]))

    def new(p: int, size: int = n) -> int:
        return hand.buffer(f"t{len(hand.buffers)}", (size,), p)

    def add(p: int, target: int) -> None:
        hand.compute("add", [value(p), value(p)], target)

    while len(hand.tasks) < num_tasks:
        what = rng.choice(["add", "add", "move", *WAYS] if num_procs > 1 else ["add"])
        members = {"add": 1, "move": 2}.get(what) or rng.integers(2, min(largest, num_procs) + 1)
        group = rng.permutation(num_procs)[:members].tolist()
        results = [new(p) for p in group]
        if what == "add":
            add(group[0], results[0])
            values[group[0]].append(results[0])
            continue
        if what == "move":
            hand.move(value(group[0]), results[1])
        else:
            WAYS[what](hand, [value(p) for p in group], results, n)
        for p, result in list(zip(group, results))[what in ("move", "broadcast") :]:
            values[p].append(result)
    for p in range(num_procs):
        add(p, hand.buffer(f"y{p}", (n,), p, "output"))
    return hand.graph()


def _even(n: int, size: int) -> list[int]:
    return [n // size + (j < n % size) for j in range(size)]


def _scatter_and_gather(hand: Hand, sends: list[int], receives: list[int], n: int) -> None:
    group, size = [hand.buffers[b].proc for b in sends], len(sends)
    counts = _even(n, size)
    pieces = [hand.buffer(f"piece{len(hand.buffers)}", (c,), p) for p, c in zip(group, counts)]
    scratch = [hand.buffer(f"room{len(hand.buffers)}", ((size - 1) * c,), p) for p, c in zip(group, counts)]
    views = [[hand.view(b) for b in buffers] for buffers in (sends, pieces, scratch, receives)]
    hand.transfer("reduce_scatter", group, views[0], views[1], views[2], [counts] * size)
    hand.transfer("all_gather", group, views[1], views[3], (), [[c] * size for c in counts])


def _exchange(hand: Hand, sends: list[int], receives: list[int], n: int) -> None:
    group, size = [hand.buffers[b].proc for b in sends], len(sends)
    counts = [[n // size + (n % size if i == j else 0) for j in range(size)] for i in range(size)]
    hand.transfer("all_to_all", group, [hand.view(b) for b in sends], [hand.view(b) for b in receives], (), counts)


def _broadcast(hand: Hand, sends: list[int], receives: list[int], n: int) -> None:
    group, size = [hand.buffers[b].proc for b in sends], len(sends)
    send = [hand.view(sends[0]), *[None] * (size - 1)]
    hand.transfer("broadcast", group, send, [None, *map(hand.view, receives[1:])], (), [[n] * size] * size)


WAYS = {
    "all_reduce": lambda hand, sends, receives, n: hand.all_reduce(sends, receives),
    "scatter_and_gather": _scatter_and_gather,
    "all_to_all": _exchange,
    "broadcast": _broadcast,
}


def interpret(graph: TaskGraph, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a random graph, by plain numpy, one task after the other in program order."""
    arrays = [inputs.get(b.region, np.full(b.box.shape, np.nan)) for b in graph.buffers]
    for task in graph.tasks:
        if task.kind == Kind.COMPUTE:
            x, y, out = (view.buffer for view in task.views)
            arrays[out] = arrays[x] + arrays[y]
            continue
        for comm in task.comms:
            sent = [arrays[v.buffer] for v in comm.send if v is not None]
            for member, view in enumerate(comm.receive):
                if view is not None:
                    arrays[view.buffer] = _arrived(comm, sent, member)
    return {b.region: arrays[i] for i, b in enumerate(graph.buffers) if b.role == "output"}


def _arrived(comm: Comm, sent: list[np.ndarray], member: int) -> np.ndarray:
    if comm.form in ("move", "broadcast"):
        return sent[0]
    if comm.form == "all_gather":
        return np.concatenate(sent)
    ends = np.cumsum(comm.counts, axis=1)
    if comm.form == "all_to_all":
        return np.concatenate([s[e[member] - c[member] : e[member]] for s, e, c in zip(sent, ends, comm.counts)])
    total = sent[0]
    for array in sent[1:]:
        total = total + array
    begin = ends[0][member] - comm.counts[0][member]
    return total if comm.form == "all_reduce" else total[begin : ends[0][member]]


def random_inputs(graph: TaskGraph, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {b.region: rng.standard_normal(b.box.shape) for b in graph.buffers if b.role == "input"}
