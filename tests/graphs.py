"""Random and regular task graphs for tests: a drafting table, and hypothesis strategies that use it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from castile.runtime.region import whole
from castile.runtime.task import NUM_LANES, Buffer, CostKey, Kind, Lane, Task, TaskGraph, View


@dataclass
class Draft:
    """A task graph under construction; `cost` is a number, and equal numbers share a cost key."""

    num_procs: int
    kind: list[Kind] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    cost: list[int] = field(default_factory=list)
    lanes: list[list[int]] = field(default_factory=list)
    needs: list[list[int]] = field(default_factory=list)
    uses: list[list[int]] = field(default_factory=list)
    private: list[int] = field(default_factory=list)
    buffers: list[tuple[str, int, int, int]] = field(default_factory=list)

    def buffer(self, proc: int, nbytes: int, first: int = -1, name: str = "") -> int:
        self.buffers.append((name or f"r{len(self.buffers)}", proc, nbytes, first))
        if first >= 0:
            self.uses[first].append(len(self.buffers) - 1)
        return len(self.buffers) - 1

    def task(self, lanes, needs=(), cost=0, kind=Kind.COMPUTE, order=None, uses=(), private=0) -> int:
        """Adds a task on (proc, lane) pairs; returns its number."""
        self.kind.append(kind)
        self.order.append(len(self.order) if order is None else order)
        self.cost.append(cost)
        self.lanes.append([proc * NUM_LANES + lane for proc, lane in lanes])
        self.needs.append(list(needs))
        self.uses.append(list(uses))
        self.private.append(private)
        return len(self.kind) - 1

    def graph(self) -> TaskGraph:
        costs = sorted(set(self.cost))
        keys = tuple(CostKey(f"k{c}", "8", "float32", 2 * c, 4 * c) for c in costs)
        lane_ptr, lanes = flat(self.lanes)
        need_ptr, needs = flat([sorted(set(n)) for n in self.needs])
        use_ptr, uses = flat([sorted(set(u)) for u in self.uses])
        buffers = [
            Buffer(name, whole((size,)), "uint8", proc, "" if first >= 0 else "carried")
            for name, proc, size, first in self.buffers
        ]
        tasks = [self.written(t, buffers) for t in range(len(self.kind))]
        return TaskGraph(
            kind=np.array(self.kind, np.int8),
            order=np.array(self.order, np.int64),
            cost=np.array([costs.index(c) for c in self.cost], np.int32),
            cost_keys=keys,
            lane_ptr=lane_ptr,
            lanes=lanes,
            need_ptr=need_ptr,
            needs=needs,
            use_ptr=use_ptr,
            uses=uses,
            buffer_proc=np.array([proc for _, proc, _, _ in self.buffers], np.int32),
            buffer_bytes=np.array([size for _, _, size, _ in self.buffers], np.int64),
            buffer_first=np.array([first for _, _, _, first in self.buffers], np.int32),
            private_bytes=np.array(self.private, np.int64),
            num_procs=self.num_procs,
            tasks=tasks,
            buffers=buffers,
        )

    def written(self, t: int, buffers: list[Buffer]) -> Task:
        procs = tuple(dict.fromkeys(lane // NUM_LANES for lane in self.lanes[t]))
        views = tuple(View(b, buffers[b].box) for b in sorted(set(self.uses[t])))
        return Task(t, f"task{t}", self.kind[t], procs, views)


def flat(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ptr = np.concatenate([[0], np.cumsum([len(x) for x in lists])]) if lists else np.zeros(1)
    return ptr.astype(np.int32), np.array([x for row in lists for x in row], np.int32)


@st.composite
def task_graphs(draw, max_tasks: int = 14, max_procs: int = 3) -> TaskGraph:
    """Any valid graph: tasks on one lane, transfers on several, buffers with any users after their first task."""
    num_procs = draw(st.integers(1, max_procs))
    num_tasks = draw(st.integers(0, max_tasks))
    order = draw(st.permutations(range(num_tasks)))
    draft = Draft(num_procs)
    for t in range(num_tasks):
        group = draw(st.lists(st.integers(0, num_procs - 1), min_size=1, max_size=3, unique=True))
        needs = draw(st.lists(st.integers(0, t - 1), max_size=3, unique=True)) if t else []
        cost = draw(st.integers(0, 4))
        if len(group) > 1:
            lanes = [(p, Lane.SEND if i == 0 else Lane.RECEIVE) for i, p in enumerate(group)]
            if draw(st.booleans()):
                lanes = [(p, Lane.COLLECTIVE) for p in group]
            draft.task(lanes, needs, cost, Kind.COLLECTIVE, order[t])
        else:
            lane = draw(st.sampled_from([Lane.COMPUTE, Lane.COMPUTE, Lane.HOST]))
            draft.task([(group[0], lane)], needs, cost, Kind.COMPUTE, order[t], private=draw(st.integers(0, 200)))
    draw_buffers(draw, draft)
    return draft.graph()


def draw_buffers(draw, draft: Draft) -> None:
    """Transient buffers used by their first task and by tasks that come after it through needs, and persistent ones."""
    num_tasks = len(draft.kind)
    after = [reachable(draft.needs, t) for t in range(num_tasks)]
    for _ in range(draw(st.integers(0, num_tasks))):
        first = draw(st.integers(0, num_tasks - 1))
        proc = draw(st.sampled_from([lane // NUM_LANES for lane in draft.lanes[first]]))
        b = draft.buffer(proc, draw(st.integers(0, 300)), first)
        users = [u for u in after[first] if any(lane // NUM_LANES == proc for lane in draft.lanes[u])]
        for u in draw(st.lists(st.sampled_from(users), max_size=3, unique=True)) if users else []:
            draft.uses[u].append(b)
    for _ in range(draw(st.integers(0, 2))):
        draft.buffer(draw(st.integers(0, draft.num_procs - 1)), draw(st.integers(0, 300)))


def reachable(needs: list[list[int]], source: int) -> list[int]:
    """The tasks after `source` that need it, directly or not; needs always name earlier tasks."""
    seen = {source}
    for t in range(source + 1, len(needs)):
        if seen.intersection(needs[t]):
            seen.add(t)
    return sorted(seen - {source})


@st.composite
def timings(draw, graph: TaskGraph) -> np.ndarray:
    """Picoseconds of each cost key: small numbers, so that ties are common, and zeros."""
    size = len(graph.cost_keys)
    return np.array(draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)), np.int64)


ENGINES = (tuple(Lane), (0,) * NUM_LANES, (0, 1, 1, 1, 0), (2, 0, 0, 1, 1))
engine_maps = st.sampled_from(ENGINES)


@st.composite
def nearly_symmetric(draw: st.DrawFn) -> TaskGraph:
    """One program on every processor, with sums, shifts and exchanges between them, and perhaps a few odd tasks."""
    num_procs = draw(st.integers(2, 6))
    draft = Draft(num_procs)
    last: list[list[int]] = [[] for _ in range(num_procs)]
    for _ in range(draw(st.integers(1, 6))):
        form = draw(st.sampled_from(["compute", "compute", "sum", "shift", "pairs", "odd"]))
        cost = draw(st.integers(0, 2))
        if form == "compute":
            fresh = [draft.task([(p, Lane.COMPUTE)], last[p], cost, private=cost) for p in range(num_procs)]
        elif form == "sum":
            everything = [(p, Lane.COLLECTIVE) for p in range(num_procs)]
            fresh = [draft.task(everything, [t for needs in last for t in needs], cost, Kind.COLLECTIVE)] * num_procs
        elif form == "odd":
            p = draw(st.integers(0, num_procs - 1))
            last[p] = [draft.task([(p, Lane.COMPUTE)], last[p], cost)]
            continue
        else:
            step = draw(st.integers(1, num_procs - 1)) if form == "shift" else 1
            moves = [
                draft.task([(p, Lane.SEND), (to, Lane.RECEIVE)], last[p], cost, Kind.MOVE)
                for p, to in ((p, (p + step) % num_procs if form == "shift" else p ^ 1) for p in range(num_procs))
                if to < num_procs
            ]
            fresh = [moves[p % len(moves)] for p in range(num_procs)]
        keep = draw(st.booleans())
        last = [[f, *(last[p] if keep else [])][:4] for p, f in enumerate(fresh)]
        if form == "compute":
            for p in range(num_procs):
                draft.buffer(p, 10 * cost, fresh[p])
    return draft.graph()
