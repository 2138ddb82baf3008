"""Roles: classes of processors that no simulation of a plan can distinguish, found without writing out all tasks.

Under data parallelism on 64 processors all 64 do the same at the same times: simulating one of them is enough. Roles
are found by colour refinement (`refine`). Passes and flows of one shape (the same templates on the same processors)
distinguish processors in the same way, so each shape is analysed once, however many layers have it. Tasks with equal
cost keys have equal durations; it does not know these.

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
from castile.planner.lowering.ragged import row_pointers
from castile.runtime.task import NUM_LANES, CostKey, Kind


class Shape(msgspec.Struct, frozen=True, eq=False):
    """Equal passes or flows, as n nodes: first their own tasks, then tasks of passes at a flow's ports.

    source, number         the first pass or flow of this shape; shapes are numbered in the order in which they are met
    own                    the number of own tasks, which come first, in their order
    rel[n], task[n]        0 for own tasks, k for those of the k-th pass that a flow touches; the task's index there
    kind[own], cost[own], private[own]   as in a task graph; cost keys are numbered by `Shapes`
    port_hash[n]           a hash of a flow's ports at which a pass's task is
    adding_hash[n]         the same of ports at which the task adds to a result; for a pass, the recording of its body
    lane_node, lane, nth   pairs of a node and a lane; the number of the block's tasks before it on the lane's engine
    steps                  the shape of each pass that a flow touches
    before, after          edges: node `after` needs node `before`
    buffer_proc[b], buffer_bytes[b], buffer_first[b]   as in a task graph, by node; -1 for persistent buffers
    use_node, use_buffer   pairs of a node and a buffer that it uses
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
    port_hash: np.ndarray
    adding_hash: np.ndarray
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
    """The fields of Shape that flows share whose tasks, edges and ports are equal, whatever they send and cost.

    node[port]            the node of each port, -1 for the host's, and -1 once more at the end
    rel, task, port_hash  as in Shape; port_hash as if nothing were read in strides
    lanes                 lane_node, lane, nth
    edges                 before, after
    uses                  use_node, use_buffer
    """

    node: np.ndarray
    rel: np.ndarray
    task: np.ndarray
    port_hash: np.ndarray
    lanes: tuple[np.ndarray, np.ndarray, np.ndarray]
    edges: tuple[np.ndarray, np.ndarray]
    uses: tuple[np.ndarray, np.ndarray]


class Block(NamedTuple):
    """A pass or flow of a plan: its shape, and the slots of the passes that it touches, as in `Shape.steps`."""

    shape: Shape
    slots: tuple[int, ...] = ()


class Shapes:
    """The shapes of the passes and flows of a lowering, each made once."""

    def __init__(self, engines: Sequence[int]) -> None:
        self.keys: dict[CostKey, int] = {}
        self._engines = np.asarray(engines)
        self._known: dict[StepInstance | FlowInstance, Block] = {}
        self._shapes: dict[Hashable, Shape] = {}
        # The template is kept, so that no other object gets the id of its ports.
        self._wirings: dict[Hashable, tuple[FlowTemplate, _Wiring]] = {}
        # By the processors of a pass: lane_node, lane and nth of its shape.
        self._step_lanes: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._digests: dict[int, tuple[np.ndarray, bytes]] = {}

    def of(self, steps: Sequence[StepInstance], flows: Sequence[FlowInstance]) -> list[Block]:
        """The blocks of a plan: the steps by slot, then the flows."""
        if len(self._known) > KEPT:
            self._known.clear()
            self._shapes.clear()
            self._wirings.clear()
            self._step_lanes.clear()
            self._digests.clear()
        known = self._known
        for step in steps:
            if step not in known:
                key = id(step.template), step.config
                if key not in self._shapes:
                    self._shapes[key] = self._step(step)
                known[step] = Block(self._shapes[key])
        found = list(map(known.__getitem__, steps))
        for flow in flows:
            if flow not in known:
                known[flow] = self._block(flow, found)
        return found + list(map(known.__getitem__, flows))

    def _step(self, step: StepInstance) -> Shape:
        if (procs := step.config.procs) not in self._step_lanes:
            tasks = np.arange(step.num_tasks)
            self._step_lanes[procs] = tasks, step.lanes, self._nth(tasks, step.lanes)
        (every, lane, nth), count = self._step_lanes[procs], step.num_tasks
        numbers: dict[int, int] = {}
        of_works = np.array([numbers.setdefault(id(w.recording), len(numbers)) for w in step.template.does.each])
        recordings = of_works[step.template.does.number]
        return Shape(
            step, len(self._shapes), count, np.zeros(count, np.int64), every, np.full(count, int(Kind.COMPUTE)),
            self._key_numbers(step.template.does.keys[0])[step.costs], step.private, np.zeros(count, np.uint64),
            np.repeat(recordings, step.config.replicas).astype(np.uint64), every, lane, nth,
        )  # fmt: skip

    def _block(self, flow: FlowInstance, steps: Sequence[Block]) -> Block:
        # The template determines transfers, buffers and ports; the shapes of passes determine the tasks at ports.
        key = flow.template, tuple([steps[slot].shape.number for slot in flow.slots])
        if key not in self._shapes:
            self._shapes[key] = self._flow(flow, [steps[slot].shape for slot in flow.slots])
        return Block(self._shapes[key], flow.slots)

    def _flow(self, flow: FlowInstance, steps: Sequence[Shape]) -> Shape:
        template, version = flow.template, flow.version
        # equal ports are one object, and so are lanes of steps on the same processors
        same = map(id, (template.port_step, *[s.lane for s in steps]))
        digests = map(self._digest, (version.edges, version.touched, *flow.lanes))
        key = (flow.num_tasks, template.reading.start, template.reading.stop, _is_static(template), *same, *digests)
        if key not in self._wirings:
            self._wirings[key] = template, self._wire(flow, steps)
        wiring = self._wirings[key][1]
        port_hash, adding_hash, strided, adds = self._port_hashes(template, steps, wiring)
        return Shape(
            flow, len(self._shapes), flow.num_tasks, wiring.rel, wiring.task, version.kinds.astype(np.int64),
            self._key_numbers(version.keys[0])[version.keys[1]], np.zeros(flow.num_tasks, np.int64), port_hash,
            adding_hash, *wiring.lanes, tuple([s.number for s in steps]), *wiring.edges, template.buffer_procs,
            template.buffer_bytes, wiring.node[template.first], *wiring.uses, strided, adds,
        )  # fmt: skip

    def _wire(self, flow: FlowInstance, steps: Sequence[Shape]) -> _Wiring:
        template = flow.template
        is_port = (template.port_step != HOST) & (not _is_static(template))
        port_rel = np.maximum(template.port_step + 1, 0)
        stride = max([flow.num_tasks, *(s.own for s in steps)]) + 1
        named, inverse = np.unique((port_rel * stride + template.port_task)[is_port], return_inverse=True)
        # port -1 stands for no port, as the host's do
        node = np.full(len(is_port) + 1, -1)
        node[:-1][is_port] = inverse
        rel, task = np.divmod(named, stride)
        assert (task[: flow.num_tasks] == np.arange(flow.num_tasks)).all()
        before, after = node[flow.version.edges].T
        edges = distinct((after * len(named) + before)[(before >= 0) & (after >= 0) & (before != after)])
        users = node[flow.version.touched[:, 0]]
        uses = users[users >= 0], flow.version.touched[users >= 0, 1]
        step_ports = np.flatnonzero((template.port_step >= 0) & is_port)
        place = np.searchsorted([template.reading.start, template.reading.stop], step_ports, side="right")
        port_hash = sums(len(rel), node[step_ports], mixed(template.port_number[step_ports], place))
        return _Wiring(
            node, rel, task, port_hash, self._flow_lanes(flow, steps, rel, task),
            (edges % max(1, len(named)), edges // max(1, len(named))), uses,
        )  # fmt: skip

    def _flow_lanes(
        self, flow: FlowInstance, steps: Sequence[Shape], rel: np.ndarray, task: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(lane_node, lane, nth) of a flow's shape."""
        counts, own = flow.lanes
        owner = np.repeat(np.arange(flow.num_tasks), counts)
        nodes, lanes, nths = [owner], [own], [self._nth(owner, own)]
        for number, step in enumerate(steps, 1):
            mine = np.flatnonzero(rel == number)
            nodes.append(mine)
            lanes.append(step.lane[task[mine]])
            nths.append(step.nth[task[mine]])
        return np.concatenate(nodes), np.concatenate(lanes), np.concatenate(nths)

    def _port_hashes(
        self, flow: FlowTemplate, steps: Sequence[Shape], wiring: _Wiring
    ) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, tuple[int, ...]]], list[tuple[int, int]]]:
        """(port_hash, adding_hash, strided, adds) of a flow's shape."""
        node, rel, task, port_hash = wiring.node, wiring.rel, wiring.task, wiring.port_hash
        strided: list[tuple[int, int, tuple[int, ...]]] = []
        if flow.strided:
            frames: dict[tuple[int, ...], int] = {}
            named = {(r, t): n for n, (r, t) in enumerate(zip(rel.tolist(), task.tolist()))}
            strided = [(named[step + 1, t], port, frame) for (step, t), port, frame in flow.strided]
            rows = [(n, port, frames.setdefault(frame, len(frames) + 3)) for n, port, frame in strided]
            at, port, frame = np.array(rows, np.int64).T
            port_hash = port_hash + sums(len(rel), at, mixed(port, frame))
        if not (flow.is_made and flow.version.is_sum):
            return port_hash, np.zeros(len(rel), np.uint64), strided, []
        at = np.flatnonzero(flow.version.adds)
        adds = list(zip(node[at].tolist(), flow.port_number[at].tolist()))
        recording = [steps[rel[n] - 1].adding_hash[task[n]] for n, _ in adds]
        adding_hash = sums(len(rel), node[at], mixed(flow.port_number[at], np.array(recording, np.uint64)))
        return port_hash, adding_hash, strided, adds

    def _nth(self, owner: np.ndarray, lane: np.ndarray) -> np.ndarray:
        """int64: how many tasks precede each lane's task on its engine; lanes of a task on one engine count once."""
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
        """A digest in place of an array as a key: arrays of large plans are long, and one object is met often."""
        if id(array) not in self._digests:
            self._digests[id(array)] = array, blake2b(array.tobytes(), digest_size=16).digest()
        return self._digests[id(array)][1]

    def _key_numbers(self, keys: Sequence[CostKey]) -> np.ndarray:
        return np.array([self.keys.setdefault(key, len(self.keys)) for key in keys], np.int64)


def _is_static(template: FlowTemplate) -> bool:
    """Whether a flow is only memory that is alive for the whole step: its readers change neither times nor memory.

    Such is the learning rate, which every update reads: a million tasks of a thousand updates on as many processors.
    """
    version = template.version
    return not (template.num_tasks or len(version.edges) or version.is_strided) and bool(template.outlives.all())


class Union:
    """The disjoint union of distinct shapes: the fields of `Shape` in flat arrays, with nodes of the union.

    engine[...]   the engine of each lane, over all processors
    shape[n]      the index of each node's shape
    own[n]        whether the node is an own task of its shape
    alias[n]      the node of the same task in the shape of its pass
    home[n]       the processor of the node; spans[n] whether it has several
    """

    def __init__(self, shapes: Sequence[Shape], engines: Sequence[int], kind_of: np.ndarray) -> None:
        self.shapes, self.kind_of = shapes, kind_of
        sizes = np.array([s.num_nodes for s in shapes], np.int64)
        self.node_ptr, self.buffer_ptr = row_pointers(sizes), row_pointers([s.num_buffers for s in shapes])
        self.num_nodes, self.num_buffers = int(self.node_ptr[-1]), int(self.buffer_ptr[-1])
        self.shape = np.repeat(np.arange(len(shapes)), sizes)
        owns = np.array([s.own for s in shapes], np.int64)
        self.own = self.node_ptr[self.shape] + owns[self.shape] > np.arange(self.num_nodes)
        self.rel, self.task = self._joined("rel"), self._joined("task")
        self.alias = self._aliases()
        self.kind, self.cost, self.private = (self._own_field(name) for name in ("kind", "cost", "private"))
        self.port_hash, self.adding_hash = self._joined("port_hash", np.uint64), self._joined("adding_hash", np.uint64)
        self.lane_node = self._joined("lane_node", of="lane")
        self.lane, self.nth = self._joined("lane"), self._joined("nth")
        self.proc, kinds = self.lane // NUM_LANES, self.lane % NUM_LANES
        self.engine = self.proc * NUM_LANES + np.asarray(engines)[kinds]
        self.role = mixed(kinds, self.nth)
        self.before, self.after = self._joined("before", of="before"), self._joined("after", of="before")
        self.buffer_proc, self.buffer_bytes = self._joined("buffer_proc"), self._joined("buffer_bytes")
        first = self._joined("buffer_first")
        self.buffer_shape = np.repeat(np.arange(len(shapes)), np.diff(self.buffer_ptr))
        self.buffer_first = np.where(first < 0, -1, first + self.node_ptr[self.buffer_shape])
        self.use_node = self._joined("use_node", of="use_node")
        self.use_buffer = self._joined("use_buffer", of="use_node", base=self.buffer_ptr)
        # Every node has a lane.
        self.home = np.full(self.num_nodes, -1)
        self.home[self.lane_node] = self.proc
        self.spans = np.zeros(self.num_nodes, bool)
        self.spans[self.lane_node[self.home[self.lane_node] != self.proc]] = True

    def _joined(self, name: str, dtype: type = np.int64, of: str = "", base: np.ndarray | None = None) -> np.ndarray:
        """A field of all shapes, concatenated. With `of`, a field of the same length, its entries are numbers of nodes,
        or of items that begin at `base` in each shape, and become those of the union.
        """
        joined = np.concatenate([np.zeros(0, dtype), *map(attrgetter(name), self.shapes)])
        if not of:
            return joined
        begin = self.node_ptr if base is None else base
        return joined + np.repeat(begin[:-1], [*map(len, map(attrgetter(of), self.shapes))])

    def _aliases(self) -> np.ndarray:
        place = {s.number: n for n, s in enumerate(self.shapes)}
        tables = [(n, *(place[number] for number in s.steps)) for n, s in enumerate(self.shapes)]
        begin = row_pointers([len(t) for t in tables])
        table = np.array([n for t in tables for n in t], np.int64)
        return self.node_ptr[table[begin[self.shape] + self.rel]] + self.task

    def _own_field(self, name: str) -> np.ndarray:
        """A field of own tasks, 0 for other nodes."""
        values = np.zeros(self.num_nodes, np.int64)
        values[self.own] = self._joined(name)
        return values


@dataclass(frozen=True, eq=False)
class Roles:
    """Classes of nodes and processors that no simulation can distinguish.

    node[n]   a colour: tasks of one shape with equal colours have equal times
    proc[P]   the class of each processor: equal service of its engines, and equal memory; numbered by first members
    """

    node: np.ndarray
    proc: np.ndarray


def refine(union: Union) -> Roles:
    """The roles, by colour refinement of engines.

    At first all engines of one kind of processor have one colour. A task's colour is a hash of its shape, its cost, its
    rank in its block on the engines that it occupies, the colours of these, and the colours of the tasks that it needs.
    An engine's new colour is a hash of those of its tasks. This is repeated until no colour splits.

    Tasks of one colour have equal times: a start depends only on needs and on the sequence within each engine. An
    engine serves the blocks of a plan in one sequence, and the tasks of a block in their order. So all times of a
    colour are equal, by induction over the tasks as they are served. Memory moves no task, so it is compared last.
    """
    colours = np.repeat(union.kind_of.astype(np.uint64), NUM_LANES)
    ident = mixed(union.shape, union.rel)
    static = mixed(ident, union.kind, union.cost, union.port_hash)
    count = 0
    while True:
        lanes = sums(union.num_nodes, union.lane_node, mixed(union.role, colours[union.engine]))
        nodes = mixed(ident, lanes)
        if count == (count := len(distinct(colours))):
            return Roles(nodes, _classes(_memory_hashes(union, nodes), colours))
        needs = sums(union.num_nodes, union.after, nodes[union.before])
        tasks = mixed(static, nodes, needs)
        colours = mixed(colours, sums(len(colours), union.engine, mixed(union.role, tasks[union.lane_node])))


def _memory_hashes(union: Union, nodes: np.ndarray) -> np.ndarray:
    """uint64[P]: a hash of the bytes that are alive on each processor, and of when they are."""
    num_procs = len(union.kind_of)
    users = sums(union.num_buffers, union.use_buffer, nodes[union.use_node])
    # Persistent buffers have no first node: -1 finds the zero at the end.
    firsts = np.append(nodes, np.uint64(0))[union.buffer_first]
    # Equal buffers are packed into an arena by number, so their sequence counts too.
    buffers = mixed(union.buffer_shape, _ranks(union), union.buffer_bytes, firsts, users)
    alone = ~union.spans & (union.own | (union.adding_hash > 0))
    # Private bytes of a task that adds to a result depend on the recording of its body.
    adding_hash = np.where(union.own, 0, union.adding_hash)
    private = mixed(nodes, union.private, adding_hash)[alone]
    return sums(num_procs, union.buffer_proc, buffers) + sums(num_procs, union.home[alone], private)


def _ranks(union: Union) -> np.ndarray:
    """int64: the number of buffers of the same shape and processor before each buffer."""
    order = np.lexsort((union.buffer_proc, union.buffer_shape))
    group = union.buffer_shape[order] * len(union.kind_of) + union.buffer_proc[order]
    rank = np.empty(union.num_buffers, np.int64)
    rank[order] = np.arange(union.num_buffers) - np.searchsorted(group, group)
    return rank


def _classes(held: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """int64[P]: the class of each processor, of equal memory and equal engines."""
    columns = colours.reshape(-1, NUM_LANES).T
    _, first, inverse = np.unique(mixed(held, *columns), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
