"""Folding: a plan's task graph with the tasks of only one processor of each role (`roles`).

It is made without the whole graph, and its simulation holds exactly for the whole machine. It does not know durations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, pairwise

import msgspec
import numpy as np

from castile.planner.cost import CostModel
from castile.planner.evaluation.colours import mixed
from castile.planner.evaluation.roles import Block, Roles, Shapes, Union, refine
from castile.planner.lower import Lowering
from castile.planner.lowering import buckets, stages
from castile.planner.lowering.buckets import Candidates, Representatives
from castile.planner.lowering.catalogue import Catalogue
from castile.planner.lowering.compose import Layout
from castile.planner.lowering.instances import NONE, FlowInstance, StepInstance
from castile.planner.lowering.ragged import LazySequence, ranges, row_pointers, to_csr
from castile.planner.lowering.stages import Rows
from castile.planner.lowering.transfer_order import in_transfer_order
from castile.planner.simulate import Simulated
from castile.planner.strategy import Strategy
from castile.runtime.garbage import uncollected
from castile.runtime.task import NUM_LANES, TaskGraph

# The most different transfers of a plan: each takes two kilobytes and 20 us to make. A collective counts once; where
# each of a thousand processors sends to dozens of others at every layer there are millions.
MOST_TRANSFERS = 2**18


@dataclass(frozen=True, eq=False)
class Folded:
    """A small graph of T tasks: those of C processors, one of each class, and the transfers in which these take part.

    Its `tasks` and `buffers` have the names and processors of the whole machine; a joined task those of its first part.

    proc_class[P]       the processor of `graph` that stands for each processor
    representative[C]   the processor of the whole machine that each processor of `graph` is
    plain[N], into[N]   the numbers in the whole graph of the tasks before joining, and the task of `graph` that each is
                        part of
    count[T]            how many tasks of the whole graph each task stands for
    rows                returns the passes, with their tasks before joining, and the processors of these
    """

    graph: TaskGraph
    proc_class: np.ndarray
    representative: np.ndarray
    plain: np.ndarray
    into: np.ndarray
    count: np.ndarray
    rows: Callable[[], Rows]

    @property
    def num_tasks(self) -> int:
        """The number of tasks of the whole graph."""
        return int(self.count.sum())

    @property
    def number(self) -> np.ndarray:
        """int64[T]: the number in the whole graph of each task, or of the first part of a joined task."""
        return self.plain[np.unique(self.into, return_index=True)[1]]

    def on_whole_machine(self, tasks: TaskGraph) -> TaskGraph:
        """Tasks of `graph`, moved to the processors of the whole machine that they represent."""
        proc, lane = np.divmod(tasks.lanes, NUM_LANES)
        return replace(tasks, lanes=self.representative[proc] * NUM_LANES + lane)


class Folding:
    """Folds plans of one lowering; each shape is analysed once."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self._shapes = Shapes(lowering.machine.engines)
        # Only of the last plan: bucket sizes are tried in turn, each with a call before it is folded.
        self._last_folded: tuple[Strategy, Folded | None] | None = None
        self._last_assembly: tuple[Strategy, _Assembly] | None = None

    def fold(self, strategy: Strategy) -> Folded:
        """The folded graph of a plan, or its whole graph where buckets make processors of one role differ.

        Raises ValueError where the plan does not fit graph and machine, or has more than MOST_TRANSFERS.
        """
        return self.by_roles(strategy) or self.whole(strategy)

    def whole(self, strategy: Strategy) -> Folded:
        """The whole graph of a plan: each processor stands for itself. Raises ValueError as `Lowering.lower` does."""
        graph, number = self.lowering.contracted(strategy)
        every = np.arange(self.lowering.machine.num_procs)
        ones, plain = np.ones(graph.num_tasks, np.int64), np.arange(len(number))
        return Folded(graph, every, every, plain, number, ones, partial(self._rows, strategy))

    def _rows(self, strategy: Strategy) -> Rows:
        return Layout(*self.lowering.instances(strategy), self.lowering.catalogue).rows

    def by_roles(self, strategy: Strategy) -> Folded | None:
        """The folded graph of a plan; None where buckets make processors of one role differ."""
        if self._last_folded is None or self._last_folded[0] != strategy:
            with uncollected():
                self._last_folded = strategy, self._fold_by_roles(strategy)
        return self._last_folded[1]

    def num_tasks(self, strategy: Strategy) -> int:
        """The number of tasks of a plan's folded graph before any are joined. Raises ValueError as `fold` does."""
        with uncollected():
            return int(self._assembly_of(strategy).base[-1])

    def _assembly_of(self, strategy: Strategy) -> _Assembly:
        # microbatches begun ahead change only needs
        plain = msgspec.structs.replace(strategy, bucket_bytes=0, ahead=0)
        if self._last_assembly is None or self._last_assembly[0] != plain:
            # The last one is freed first, as it is large on a large machine.
            self._last_assembly = None
            self._last_assembly = plain, self._assemble(*self.instances(plain))
        return self._last_assembly[1]

    def _fold_by_roles(self, strategy: Strategy) -> Folded | None:
        assembly, engines = self._assembly_of(strategy), self.lowering.machine.engines
        folded = assembly.folded(strategy.ahead)
        if not strategy.bucket_bytes:
            return replace(folded, graph=in_transfer_order(folded.graph, engines))
        found = buckets.bucketed_roles(folded.graph, assembly.candidates, strategy.bucket_bytes, assembly.where)
        if found is None:
            return None
        kept, every = np.unique(found.number, return_index=True)[1], folded.graph.tasks
        graph = replace(
            in_transfer_order(found.graph, engines), tasks=LazySequence(lambda n: every[int(kept[n])], len(kept))
        )
        return replace(folded, graph=graph, into=found.number, count=folded.count[kept])

    def instances(self, strategy: Strategy) -> tuple[list[StepInstance], list[FlowInstance]]:
        """The instances of a plan: steps by slot, and flows. Raises ValueError as `fold` does."""
        return self.lowering.instances(strategy, MOST_TRANSFERS)

    def fold_instances(self, steps: Sequence[StepInstance], flows: Sequence[FlowInstance]) -> Folded:
        """The folded graph of instances, in which no transfers take turns and nothing is begun ahead."""
        return self._assemble(steps, flows).folded()

    def _assemble(self, steps: Sequence[StepInstance], flows: Sequence[FlowInstance]) -> _Assembly:
        blocks = self._shapes.of(steps, flows)
        shapes, machine = list(dict.fromkeys(b.shape for b in blocks)), self.lowering.machine
        union = Union(shapes, machine.engines, machine.kind_of)
        small, keys = _SmallTasks(union, refine(union)), tuple(self._shapes.keys)
        return _Assembly(steps, flows, blocks, small, keys, self.lowering.catalogue)


def expand(folded: Folded, simulated: Simulated) -> Simulated:
    """The simulation of a folded graph with bytes and busy times of all P processors; the timeline is not expanded."""
    procs = folded.proc_class
    persistent, peak, busy = simulated.persistent_bytes, simulated.peak_bytes, simulated.busy_seconds
    return Simulated(simulated.timeline, persistent[procs], peak[procs], busy[procs])


def price_graph(folded: Folded, cost: CostModel) -> tuple[TaskGraph, np.ndarray]:
    """(the small graph, picoseconds by cost key) for `simulate`, priced for the kind of processor of each task."""
    graph, durations = cost.by_kind(folded.on_whole_machine(folded.graph))
    return replace(graph, lanes=folded.graph.lanes), durations


class _SmallTasks:
    """Which tasks of each shape of a union are in the small graph: the small tasks, numbered within their shape.

    place[n]            the small task that stands for each node, in the shape that the node is a task of
    is_here[n]          whether the node itself is in the small graph
    picked, pick_ptr    the nodes of small tasks, in CSR form by shape
    count               how many nodes of its shape each small task stands for
    """

    def __init__(self, union: Union, roles: Roles) -> None:
        self.union, self.proc_class = union, roles.proc
        self.representative = np.unique(roles.proc, return_index=True)[1]
        # The number of each processor in the small graph, -1 where another stands for it.
        self.small_proc = np.full(len(roles.proc), -1)
        self.small_proc[self.representative] = np.arange(len(self.representative))
        self._number(np.flatnonzero(union.own), roles)

    def _number(self, own: np.ndarray, roles: Roles) -> None:
        """Number a small task for each class of nodes that span processors, else for each class and kept processor."""
        union = self.union
        spans = union.spans[own]
        side = np.where(spans, 0, 1 + self.proc_class[union.home[own]])
        _, inverse = np.unique(mixed(roles.node[own], side), return_inverse=True)
        _, node_class = np.unique(roles.node[own], return_inverse=True)
        # Classes are ordered by their least members, so that each engine serves them in the order of their members.
        num = int(inverse.max(initial=-1)) + 1
        least = np.full((2, num), union.num_nodes)
        np.minimum.at(least[0], inverse, own)
        first = np.full(num, union.num_nodes)
        np.minimum.at(first, node_class, own)
        least[1][inverse] = first[node_class]
        kept = self.small_proc[union.proc] >= 0
        touches = np.zeros(union.num_nodes, bool)
        touches[union.lane_node[kept]] = True
        pick = np.full(num, union.num_nodes)
        np.minimum.at(pick, inverse[touches[own]], own[touches[own]])
        assert (pick < union.num_nodes).all(), "a class without a representative"
        order = np.lexsort((least[0], least[1], union.shape[pick]))
        rank = np.empty(num, np.int64)
        rank[order] = np.arange(num)
        self.picked = pick[order]
        self.pick_ptr = np.searchsorted(union.shape[self.picked], np.arange(len(union.shapes) + 1))
        self.place = np.full(union.num_nodes, -1)
        self.place[own] = rank[inverse] - self.pick_ptr[union.shape[own]]
        self.count = np.bincount(rank[inverse], minlength=num)
        # A pass's task at a flow's port is here if its processor is, a transfer if it was picked.
        ports = np.flatnonzero(~union.own)
        self.place[ports] = self.place[union.alias[ports]]
        self.is_here = self.small_proc[union.home] >= 0
        self.is_here[own] = False
        self.is_here[self.picked] = True


class _Assembly:
    """The small graph, assembled from the small tasks of all blocks."""

    def __init__(
        self, steps: Sequence[StepInstance], flows: Sequence[FlowInstance], blocks: Sequence[Block], small: _SmallTasks,
        keys: tuple, catalogue: Catalogue,
    ) -> None:  # fmt: skip
        self.steps, self.flows, self.small, self.union, self.keys = steps, flows, small, small.union, keys
        self._catalogue = catalogue
        where = {shape: n for n, shape in enumerate(small.union.shapes)}
        shapes, slots = zip(*blocks, strict=True)
        self.shape = np.fromiter(map(where.__getitem__, shapes), np.int64, len(blocks))
        self.base = row_pointers(np.diff(small.pick_ptr)[self.shape])
        # By block, the blocks that `Shape.rel` numbers: itself, then the passes that it touches.
        begin, touched = row_pointers([*map(len, slots)]), np.fromiter(chain.from_iterable(slots), np.int64)
        self.rel_ptr = begin + np.arange(len(begin))
        self.rel_block = np.insert(touched, begin[:-1], np.arange(len(blocks)))

    def _in_every_block(self, shape: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Repeat entries, sorted by their shape, in every block of the shape: (entry, block)."""
        begin = np.searchsorted(shape, np.arange(len(self.union.shapes) + 1))
        counts = np.diff(begin)[self.shape]
        return ranges(begin[self.shape], counts), np.repeat(np.arange(len(self.shape)), counts)

    def _task(self, node: np.ndarray, block: np.ndarray) -> np.ndarray:
        """The task of the small graph for each node in its block."""
        return self.base[self.rel_block[self.rel_ptr[block] + self.union.rel[node]]] + self.small.place[node]

    @cached_property
    def _tasks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(index in `picked`, node, block) of each task of the small graph."""
        pick, block = self._in_every_block(self.union.shape[self.small.picked])
        return pick, self.small.picked[pick], block

    @cached_property
    def _buffers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(buffer of the union, block, number in the whole graph) of each buffer of the small graph."""
        union, small = self.union, self.small
        kept = np.flatnonzero(small.small_proc[union.buffer_proc] >= 0)
        entry, block = self._in_every_block(union.buffer_shape[kept])
        local = kept[entry] - union.buffer_ptr[union.buffer_shape[kept[entry]]]
        return kept[entry], block, self.full.buffer_base[block - len(self.steps)] + local

    @cached_property
    def full(self) -> Layout:
        """The numbers of all tasks and buffers in the whole graph."""
        return Layout(self.steps, self.flows, self._catalogue)

    @cached_property
    def where(self) -> Representatives:
        """Which tasks, buffers and processors of the small graph stand for those of the whole; tasks only of flows."""
        union, small, full = self.union, self.small, self.full
        task, buffer = np.full(full.num_tasks, -1), np.full(full.num_buffers, -1)
        for number, begin in enumerate(full.flow_base[:-1].tolist(), len(self.steps)):
            first, own = union.node_ptr[self.shape[number]], union.shapes[self.shape[number]].own
            task[begin : begin + own] = self.base[number] + small.place[first : first + own]
        _, _, written = self._buffers
        buffer[written] = np.arange(len(written))
        return Representatives(task, buffer, small.small_proc)

    @cached_property
    def candidates(self) -> Candidates:
        """The tasks of the small graph that may be joined."""
        return buckets.candidates(self.steps, self.flows, self._tasks_of_steps())

    def _tasks_of_steps(self) -> Iterator[list[tuple[int, int]]]:
        """By step, (task of the step, its number in the small graph) for each of its tasks there."""
        task = self.union.task[self._tasks[1]].tolist()
        for begin, end in pairwise(self.base[: len(self.steps) + 1].tolist()):
            yield list(zip(task[begin:end], range(begin, end)))

    def folded(self, ahead: int = 0) -> Folded:
        """The folded graph with `ahead` microbatches begun ahead."""
        need_ptr, needs = self._needs(ahead)
        return replace(self._without_needs, graph=replace(self._without_needs.graph, need_ptr=need_ptr, needs=needs))

    @cached_property
    def _without_needs(self) -> Folded:
        """The folded graph without needs."""
        union, small, full = self.union, self.small, self.full
        pick, node, block = self._tasks
        lane_ptr, lanes = self._lanes(num_tasks := len(node))
        buffer, buffer_block, written = self._buffers
        first = union.buffer_first[buffer]
        born = np.full(len(buffer), -1)
        born[first >= 0] = self._task(first[first >= 0], buffer_block[first >= 0])
        use_ptr, uses = self._uses(num_tasks, row_pointers(np.bincount(buffer_block, minlength=len(self.shape))))
        number = np.concatenate([full.step_base[:-1], full.flow_base[:-1]])[block] + union.task[node]
        cost, keys = self._costs(node, block)
        graph = TaskGraph(
            kind=union.kind[node].astype(np.int8), order=self._order(block), cost=cost, cost_keys=keys,
            lane_ptr=lane_ptr, lanes=lanes, need_ptr=np.zeros(num_tasks + 1, np.int64), needs=NONE, use_ptr=use_ptr,
            uses=uses, buffer_proc=small.small_proc[union.buffer_proc[buffer]], buffer_bytes=union.buffer_bytes[buffer],
            buffer_first=born, private_bytes=self._private(node, block), num_procs=len(small.representative),
            tasks=LazySequence(lambda n: full.task(int(number[n])), num_tasks),
            buffers=LazySequence(lambda n: full.buffer(int(written[n])), len(buffer)),
        )  # fmt: skip
        # `rows` alone is kept, not this assembly, which takes a gigabyte for 16,384 processors
        every, rows = np.arange(num_tasks), self._rows
        return Folded(graph, small.proc_class, small.representative, number, every, small.count[pick], lambda: rows)

    def _order(self, block: np.ndarray) -> np.ndarray:
        """int64[T]: the order of tasks, as in a composed graph."""
        starts, flows = np.arange(1, len(self.shape) + 1) << 40, np.flatnonzero(np.diff(self.base[len(self.steps) :]))
        slots = np.array([self.flows[n].slot for n in flows.tolist()], np.int64)
        starts[len(self.steps) + flows] = (slots + 1 << 40) + (flows + 1 << 20)
        return starts[block] + np.arange(len(block)) - self.base[block]

    def _lanes(self, num_tasks: int) -> tuple[np.ndarray, np.ndarray]:
        union, small = self.union, self.small
        kept = np.flatnonzero((small.small_proc[union.proc] >= 0) & union.own[union.lane_node])
        entry, block = self._in_every_block(union.shape[union.lane_node[kept]])
        at = kept[entry]
        lane = small.small_proc[union.proc[at]] * NUM_LANES + union.lane[at] % NUM_LANES
        return to_csr(self._task(union.lane_node[at], block), lane, num_tasks)

    def _needs(self, ahead: int) -> tuple[np.ndarray, np.ndarray]:
        here = np.flatnonzero(self.small.is_here[self.union.after])
        entry, block = self._in_every_block(self.union.shape[self.union.after[here]])
        at = here[entry]
        before, after = self._task(self.union.before[at], block), self._task(self.union.after[at], block)
        waits = stages.throttle_edges(self._rows, ahead)
        return to_csr(np.append(after, waits[:, 0]), np.append(before, waits[:, 1]), len(self._tasks[1]))

    @cached_property
    def _rows(self) -> Rows:
        """The steps, with the processors of the tasks of each that are in the small graph."""
        base = self.base[: len(self.steps) + 1]
        return Rows(self.steps, base, self.union.home[self._tasks[1][: base[-1]]])

    def _uses(self, num_tasks: int, base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        union = self.union
        kept = np.flatnonzero(self.small.small_proc[union.buffer_proc] >= 0)
        place = np.full(union.num_buffers, -1)
        place[kept] = np.arange(len(kept)) - np.searchsorted(union.buffer_shape[kept], union.buffer_shape[kept])
        kept = np.flatnonzero(place[union.use_buffer] >= 0)
        entry, block = self._in_every_block(union.shape[union.use_node[kept]])
        at = kept[entry]
        return to_csr(self._task(union.use_node[at], block), base[block] + place[union.use_buffer[at]], num_tasks)

    def _costs(self, node: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, tuple]:
        """(cost, cost_keys) of the small graph; a task that reads in strides has a key of its own."""
        frames: dict[int, dict[int, tuple[int, ...]]] = {}
        strided = self._at_ports([s.strided for s in self.union.shapes])
        for task, port, frame in strided:
            frames.setdefault(task, {})[port] = frame
        numbers, cost = np.unique(self.union.cost[node], return_inverse=True)
        keys = {self.keys[n]: k for k, n in enumerate(numbers.tolist())}
        for task, of_port in frames.items():
            step = self.steps[block[task]]
            work = step.template.does.of(self.union.task[node[task]] // step.config.replicas)
            cost[task] = keys.setdefault(work.strided_key(tuple(sorted(of_port.items()))), len(keys))
        return cost, tuple(keys)

    def _private(self, node: np.ndarray, block: np.ndarray) -> np.ndarray:
        """int64[T]: private bytes; a task that adds to a result may need more than one that writes it."""
        adding: dict[int, set[int]] = {}
        for task, port in self._at_ports([s.adds for s in self.union.shapes]):
            adding.setdefault(task, set()).add(port)
        private = self.union.private[node]
        for task, ports in adding.items():
            step = self.steps[block[task]]
            adds = [port in ports for port in range(len(step.step.outputs))]
            part = int(self.union.task[node[task]]) // step.config.replicas
            private[task] = step.template.does.private_adding(tuple(adds))[part]
        return private

    def _at_ports(self, rows: Sequence[Sequence[tuple]]) -> list[tuple]:
        """Rows (task, ...) of the small graph, from rows (node, ...) by shape, for nodes here, in all blocks."""
        here = [
            (n, self.union.node_ptr[n] + row[0], row[1:])
            for n, of_shape in enumerate(rows)
            for row in of_shape
            if self.small.is_here[self.union.node_ptr[n] + row[0]]
        ]
        if not here:
            return []
        entry, block = self._in_every_block(np.array([n for n, _, _ in here]))
        tasks = self._task(np.array([node for _, node, _ in here])[entry], block)
        return [(task, *here[e][2]) for task, e in zip(tasks.tolist(), entry.tolist())]
