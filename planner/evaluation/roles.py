"""Roles: which processors a plan treats alike, found without writing out all tasks.

Under data parallelism on 64 processors all 64 do the same at the same times: simulating one of them is enough. They are
found by colour refinement (`refined`). Passes and flows of one shape (the same templates on the same processors) tell
processors apart in the same way, so each distinct shape is looked at once, however many layers have it. Durations are
not looked at: what has the same cost key lasts the same.

  node    a task of a shape: its own (of a pass, or a flow's transfer), or one of a pass at a flow's port
  block   one pass or flow of the plan, which has a shape
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from castile.planner.evaluation.colours import distinct, mixed, sums
from castile.planner.lower import KEPT
from castile.planner.lowering.instances import HOST, NONE, FlowInstance, FlowTemplate, StepInstance
from castile.planner.lowering.rows import pointer
from castile.runtime.task import NUM_LANES, CostKey, Kind


class Shape(msgspec.Struct, frozen=True, eq=False):
    """A pass or flow, and all that look like it, as n nodes: first its own tasks, then those of passes at its ports.

    source, number         the first pass or flow of this shape; shapes are numbered as they are met
    own                    how many nodes are tasks of its own, which come first, in their order
    rel[n], task[n]        0 for its own, k for the k-th pass that a flow touches; the number of the task there
    steps                  the shape of each pass that a flow touches
    kind[own], cost[own], private[own]   as in a task graph; cost keys are numbered by `Shapes`
    ported[n], adding[n]   hashes of the ports by which a pass's task is touched, and of those at which it adds
    lane_node, lane, nth   the lanes of each node, and how many tasks of its own block come before it on that engine
    before, after          edges: node `after` waits for node `before`
    buffer_proc[b], buffer_bytes[b], buffer_first[b]   as in a task graph, by node; -1 for persistent ones
    use_node, use_buffer   which node touches which buffer
    strided, adds          of passes' tasks: (node, input port, shape of the array), (node, output port)
    """

    source: StepInstance | FlowInstance
    number: int
    own: int
    rel: np.ndarray
    task: np.ndarray
    kind: np.ndarray
    cost: np.ndarray
    private: np.ndarray
    ported: np.ndarray
    adding: np.ndarray
    lane_node: np.ndarray
    lane: np.ndarray
    nth: np.ndarray
    steps: tuple[int, ...] = ()
    before: np.ndarray = NONE
    after: np.ndarray = NONE
    buffer_proc: np.ndarray = NONE
    buffer_bytes: np.ndarray = NONE
    buffer_first: np.ndarray = NONE
    use_node: np.ndarray = NONE
    use_buffer: np.ndarray = NONE
    strided: Sequence[tuple[int, int, tuple[int, ...]]] = ()
    adds: Sequence[tuple[int, int]] = ()

    @property
    def num_nodes(self) -> int:
        return len(self.rel)

    @property
    def num_buffers(self) -> int:
        return len(self.buffer_proc)


class _Wiring(NamedTuple):
    """What flows share whose ports are touched in the same way by the same processors, whatever is sent and what it
    costs.

    node[port]         the node of each port, -1 where it is the host's, and -1 once more at the end
    rel, task, ported  as in Shape; ported as where nothing is read in strides lanes, pairs, uses fields of Shape that
    belong together: from lane_node, before and use_node on
    """

    node: np.ndarray
    rel: np.ndarray
    task: np.ndarray
    ported: np.ndarray
    lanes: tuple[np.ndarray, np.ndarray, np.ndarray]
    pairs: tuple[np.ndarray, np.ndarray]
    uses: tuple[np.ndarray, np.ndarray]


class Block(NamedTuple):
    """A pass or flow of a plan: its shape, and the slots of the passes that it touches, as `Shape.steps` has them."""

    shape: Shape
    slots: tuple[int, ...] = ()


class Shapes:
    """The shapes of the passes and flows that a lowering makes, each made once."""

    def __init__(self, engines: Sequence[int]) -> None:
        self.keys: dict[CostKey, int] = {}
        self._engines = np.asarray(engines)
        self._known: dict[StepInstance | FlowInstance, Block] = {}
        self._made: dict[Hashable, Shape] = {}
        # with the template, so that no other object gets the id of its ports
        self._wirings: dict[Hashable, tuple[FlowTemplate, _Wiring]] = {}
        # By processors of a pass: its tasks, their lanes, and how many tasks come before each there.
        self._placed: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._digests: dict[int, tuple[np.ndarray, bytes]] = {}

    def of(self, steps: Sequence[StepInstance], flows: Sequence[FlowInstance]) -> list[Block]:
        """All blocks: the steps by slot, then the flows."""
        if len(self._known) > KEPT:
            self._known.clear()
            self._made.clear()
            self._wirings.clear()
            self._placed.clear()
            self._digests.clear()
        known = self._known
        for step in steps:
            if step not in known:
                key = id(step.template), step.config
                if key not in self._made:
                    self._made[key] = self._step(step)
                known[step] = Block(self._made[key])
        found = list(map(known.__getitem__, steps))
        for flow in flows:
            if flow not in known:
                known[flow] = self._block(flow, found)
        return found + list(map(known.__getitem__, flows))

    def _step(self, step: StepInstance) -> Shape:
        if (procs := step.config.procs) not in self._placed:
            tasks = np.arange(step.num_tasks)
            self._placed[procs] = tasks, step.lanes, self._nth(tasks, step.lanes)
        (every, lane, nth), count = self._placed[procs], step.num_tasks
        numbers: dict[int, int] = {}
        of_works = np.array([numbers.setdefault(id(w.recording), len(numbers)) for w in step.template.does.each])
        recordings = of_works[step.template.does.number]
        return Shape(
            step, len(self._made), count, np.zeros(count, np.int64), every, np.full(count, int(Kind.COMPUTE)),
            self._numbered(step.template.does.keys[0])[step.costs], step.private, np.zeros(count, np.uint64),
            np.repeat(recordings, step.config.replicas).astype(np.uint64), every, lane, nth,
        )  # fmt: skip

    def _block(self, flow: FlowInstance, steps: Sequence[Block]) -> Block:
        # The version and its processors determine transfers and buffers; shapes and ports determine what touches these.
        key = flow.template, tuple([steps[slot].shape.number for slot in flow.slots])
        if key not in self._made:
            self._made[key] = self._flow(flow, [steps[slot].shape for slot in flow.slots])
        return Block(self._made[key], flow.slots)

    def _flow(self, flow: FlowInstance, steps: Sequence[Shape]) -> Shape:
        template, version = flow.template, flow.version
        # ports that are alike are one object, and so are lanes of steps on the same processors
        same = map(id, (template.port_step, *[s.lane for s in steps]))
        digests = map(self._digest, (version.edges, version.touched, *flow.lanes))
        like = (flow.num_tasks, template.reading.start, template.reading.stop, _only_lies(template), *same, *digests)
        if like not in self._wirings:
            self._wirings[like] = template, self._wired(flow, steps)
        wiring = self._wirings[like][1]
        ported, adding, strided, adds = self._marks(template, steps, wiring)
        return Shape(
            flow, len(self._made), flow.num_tasks, wiring.rel, wiring.task, version.kinds.astype(np.int64),
            self._numbered(version.keys[0])[version.keys[1]], np.zeros(flow.num_tasks, np.int64), ported, adding,
            *wiring.lanes, tuple([s.number for s in steps]), *wiring.pairs, template.buffer_procs,
            template.buffer_bytes, wiring.node[template.first], *wiring.uses, strided, adds,
        )  # fmt: skip

    def _wired(self, flow: FlowInstance, steps: Sequence[Shape]) -> _Wiring:
        template = flow.template
        is_port = (template.port_step != HOST) & (not _only_lies(template))
        port_rel = np.maximum(template.port_step + 1, 0)
        stride = max([flow.num_tasks, *(s.own for s in steps)]) + 1
        named, inverse = np.unique((port_rel * stride + template.port_task)[is_port], return_inverse=True)
        # port -1 stands for no port, as the host's do
        node = np.full(len(is_port) + 1, -1)
        node[:-1][is_port] = inverse
        rel, task = np.divmod(named, stride)
        assert (task[: flow.num_tasks] == np.arange(flow.num_tasks)).all()
        before, after = node[flow.version.edges].T
        pairs = distinct((after * len(named) + before)[(before >= 0) & (after >= 0) & (before != after)])
        users = node[flow.version.touched[:, 0]]
        uses = users[users >= 0], flow.version.touched[users >= 0, 1]
        step_ports = np.flatnonzero((template.port_step >= 0) & is_port)
        place = np.searchsorted([template.reading.start, template.reading.stop], step_ports, side="right")
        ported = sums(len(rel), node[step_ports], mixed(template.port_number[step_ports], place))
        return _Wiring(
            node, rel, task, ported, self._flow_lanes(flow, steps, rel, task),
            (pairs % max(1, len(named)), pairs // max(1, len(named))), uses,
        )  # fmt: skip

    def _flow_lanes(
        self, flow: FlowInstance, steps: Sequence[Shape], rel: np.ndarray, task: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nodes and their lanes, and how many of a block's tasks come before on the engine of each."""
        counts, own = flow.lanes
        owner = np.repeat(np.arange(flow.num_tasks), counts)
        nodes, lanes, nths = [owner], [own], [self._nth(owner, own)]
        for number, step in enumerate(steps, 1):
            mine = np.flatnonzero(rel == number)
            nodes.append(mine)
            lanes.append(step.lane[task[mine]])
            nths.append(step.nth[task[mine]])
        return np.concatenate(nodes), np.concatenate(lanes), np.concatenate(nths)

    def _marks(
        self, flow: FlowTemplate, steps: Sequence[Shape], wiring: _Wiring
    ) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, tuple[int, ...]]], list[tuple[int, int]]]:
        """By which ports steps' tasks are touched, where they read in strides, and where they add."""
        node, rel, task, ported = wiring.node, wiring.rel, wiring.task, wiring.ported
        strided: list[tuple[int, int, tuple[int, ...]]] = []
        if flow.strided:
            frames: dict[tuple[int, ...], int] = {}
            named = {(r, t): n for n, (r, t) in enumerate(zip(rel.tolist(), task.tolist()))}
            strided = [(named[step + 1, t], port, frame) for (step, t), port, frame in flow.strided]
            rows = [(n, port, frames.setdefault(frame, len(frames) + 3)) for n, port, frame in strided]
            at, port, frame = np.array(rows, np.int64).T
            ported = ported + sums(len(rel), at, mixed(port, frame))
        if not (flow.is_made and flow.version.is_sum):
            return ported, np.zeros(len(rel), np.uint64), strided, []
        at = np.flatnonzero(flow.version.adds)
        adds = list(zip(node[at].tolist(), flow.port_number[at].tolist()))
        recording = [steps[rel[n] - 1].adding[task[n]] for n, _ in adds]
        adding = sums(len(rel), node[at], mixed(flow.port_number[at], np.array(recording, np.uint64)))
        return ported, adding, strided, adds

    def _nth(self, owner: np.ndarray, lane: np.ndarray) -> np.ndarray:
        """How many tasks come before on the engine of each lane; two lanes of a task on one engine count as one."""
        engine = lane // NUM_LANES * NUM_LANES + self._engines[lane % NUM_LANES]
        order = np.lexsort((owner, engine))
        engine, owner = engine[order], owner[order]
        first = np.diff(engine, prepend=-1) != 0
        fresh = first | (np.diff(owner, prepend=-1) != 0)
        rank = np.cumsum(fresh) - 1
        nth = np.empty(len(lane), np.int64)
        nth[order] = rank - np.repeat(rank[first], np.diff(np.append(np.flatnonzero(first), len(order))))
        return nth

    def _digest(self, array: np.ndarray) -> bytes:
        """What stands for an array: those of large plans are long, and those of one object many."""
        if id(array) not in self._digests:
            self._digests[id(array)] = array, blake2b(array.tobytes(), digest_size=16).digest()
        return self._digests[id(array)][1]

    def _numbered(self, keys: Sequence[CostKey]) -> np.ndarray:
        return np.array([self.keys.setdefault(key, len(self.keys)) for key in keys], np.int64)


def _only_lies(template: FlowTemplate) -> bool:
    """Whether a flow only lies in memory, all the step, for any to read: who reads it changes neither time nor memory.

    The learning rate is read by every update: a million tasks of a thousand updates on as many processors.
    """
    version = template.version
    return not (template.num_tasks or len(version.edges) or version.is_strided) and bool(template.outlives.all())


class Union:
    """Distinct shapes side by side in flat arrays: the fields of `Shape`, with numbers of nodes of the whole.

    engine[...]      the engine of each lane, as in `Machine.engines`, over all processors
    shape[n]         which of the shapes each node belongs to, by its place here
    own[n]           whether it is a task of that shape's own
    alias[n]         the node, in the shape of its pass, of the same task
    """

    def __init__(self, shapes: Sequence[Shape], engines: Sequence[int], kind_of: np.ndarray) -> None:
        self.shapes, self.kind_of = shapes, kind_of
        sizes = np.array([s.num_nodes for s in shapes], np.int64)
        self.node_ptr, self.buffer_ptr = pointer(sizes), pointer([s.num_buffers for s in shapes])
        self.num_nodes, self.num_buffers = int(self.node_ptr[-1]), int(self.buffer_ptr[-1])
        self.shape = np.repeat(np.arange(len(shapes)), sizes)
        owns = np.array([s.own for s in shapes], np.int64)
        self.own = self.node_ptr[self.shape] + owns[self.shape] > np.arange(self.num_nodes)
        self.rel, self.task = self._all("rel"), self._all("task")
        self.alias = self._aliases()
        self.kind, self.cost, self.private = (self._of_own(name) for name in ("kind", "cost", "private"))
        self.ported, self.adding = self._all("ported", np.uint64), self._all("adding", np.uint64)
        self.lane_node, self.lane, self.nth = self._all("lane_node", of="lane"), self._all("lane"), self._all("nth")
        self.proc, kinds = self.lane // NUM_LANES, self.lane % NUM_LANES
        self.engine = self.proc * NUM_LANES + np.asarray(engines)[kinds]
        self.role = mixed(kinds, self.nth)
        self.before, self.after = self._all("before", of="before"), self._all("after", of="before")
        self.buffer_proc, self.buffer_bytes = self._all("buffer_proc"), self._all("buffer_bytes")
        first = self._all("buffer_first")
        self.buffer_shape = np.repeat(np.arange(len(shapes)), np.diff(self.buffer_ptr))
        self.buffer_first = np.where(first < 0, -1, first + self.node_ptr[self.buffer_shape])
        self.use_node = self._all("use_node", of="use_node")
        self.use_buffer = self._all("use_buffer", of="use_node", base=self.buffer_ptr)
        # Every node has a lane; one whose lanes are all on one processor has that as its home.
        self.home = np.full(self.num_nodes, -1)
        self.home[self.lane_node] = self.proc
        self.spans = np.zeros(self.num_nodes, bool)
        self.spans[self.lane_node[self.home[self.lane_node] != self.proc]] = True

    def _all(self, name: str, dtype: type = np.int64, of: str = "", base: np.ndarray | None = None) -> np.ndarray:
        """A field of all shapes; with `of`, numbers of nodes (or what `base` begins), as many as that field has."""
        joined = np.concatenate([np.zeros(0, dtype), *map(attrgetter(name), self.shapes)])
        if not of:
            return joined
        begin = self.node_ptr if base is None else base
        return joined + np.repeat(begin[:-1], [*map(len, map(attrgetter(of), self.shapes))])

    def _aliases(self) -> np.ndarray:
        place = {s.number: n for n, s in enumerate(self.shapes)}
        tables = [(n, *(place[number] for number in s.steps)) for n, s in enumerate(self.shapes)]
        begin = pointer([len(t) for t in tables])
        table = np.array([n for t in tables for n in t], np.int64)
        return self.node_ptr[table[begin[self.shape] + self.rel]] + self.task

    def _of_own(self, name: str) -> np.ndarray:
        """A field that only tasks of their own have, 0 for the others."""
        values = np.zeros(self.num_nodes, np.int64)
        values[self.own] = self._all(name)
        return values


@dataclass(frozen=True, eq=False)
class Roles:
    """Which nodes and processors no simulation can tell apart.

    node[n]   equal colours: tasks of one shape that begin and end at the same times
    proc[P]   classes of processors whose engines serve alike and whose memory holds alike, numbered by their first
    """

    node: np.ndarray
    proc: np.ndarray


def refined(union: Union) -> Roles:
    """The roles, by colour refinement of engines.

    All engines of one kind of processor begin with one colour. A task's colour is made of its shape, its cost, its
    place (the k-th of its block) on the engines that it occupies, and the colours of the tasks that it needs; an
    engine's new colour of those of its tasks. That is repeated until no colour splits.

    Why tasks of one colour have the same times: a start depends only on needs and on the sequence within each engine.
    An engine serves the blocks of a plan in one sequence, and the tasks of a block in their order, so by induction over
    the tasks as they are served all times of a colour are equal. Memory moves no task, so it is looked at last.
    """
    colours = np.repeat(union.kind_of.astype(np.uint64), NUM_LANES)
    ident = mixed(union.shape, union.rel)
    static = mixed(ident, union.kind, union.cost, union.ported)
    count = 0
    while True:
        lanes = sums(union.num_nodes, union.lane_node, mixed(union.role, colours[union.engine]))
        nodes = mixed(ident, lanes)
        if count == (count := len(distinct(colours))):
            return Roles(nodes, _classes(_held(union, nodes), colours))
        needs = sums(union.num_nodes, union.after, nodes[union.before])
        tasks = mixed(static, nodes, needs)
        colours = mixed(colours, sums(len(colours), union.engine, mixed(union.role, tasks[union.lane_node])))


def _held(union: Union, nodes: np.ndarray) -> np.ndarray:
    """A hash for each processor of the bytes that live on it, and from when till when."""
    num_procs = len(union.kind_of)
    users = sums(union.num_buffers, union.use_buffer, nodes[union.use_node])
    # Persistent buffers have no first node: -1 finds the zero at the end.
    firsts = np.append(nodes, np.uint64(0))[union.buffer_first]
    # Arenas are packed by number where blocks are alike, so the sequence of buffers counts too.
    buffers = mixed(union.buffer_shape, _ranks(union), union.buffer_bytes, firsts, users)
    alone = ~union.spans & (union.own | (union.adding > 0))
    # Adding may take other private bytes, which depends on what a pass records: only where something is added.
    adding = np.where(union.own, 0, union.adding)
    private = mixed(nodes, union.private, adding)[alone]
    return sums(num_procs, union.buffer_proc, buffers) + sums(num_procs, union.home[alone], private)


def _ranks(union: Union) -> np.ndarray:
    """How many buffers of the same shape and processor come before each."""
    order = np.lexsort((union.buffer_proc, union.buffer_shape))
    group = union.buffer_shape[order] * len(union.kind_of) + union.buffer_proc[order]
    rank = np.empty(union.num_buffers, np.int64)
    rank[order] = np.arange(union.num_buffers) - np.searchsorted(group, group)
    return rank


def _classes(held: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """The class of each processor: equal memory and equal engines."""
    columns = colours.reshape(-1, NUM_LANES).T
    _, first, inverse = np.unique(mixed(held, *columns), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
