"""Composition: concatenates instances into one task graph in flat arrays.

Edges connect ports of one version only; composition only adds the numbers of its tasks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from castile.planner.lowering import stages
from castile.planner.lowering.catalogue import Catalogue
from castile.planner.lowering.instances import HOST, NONE, FlowInstance, StepInstance
from castile.planner.lowering.ragged import LazySequence, row_pointers, to_csr
from castile.planner.lowering.stages import Rows
from castile.planner.lowering.template import InStrides
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, Buffer, CostKey, Kind, Task, TaskGraph

# Ports that one whole number of 64 bits has a bit for.
WORD = 62


def compose(
    steps: Sequence[StepInstance], flows: Sequence[FlowInstance], num_procs: int, catalogue: Catalogue, ahead: int = 0
) -> TaskGraph:
    """The task graph of these instances: the tasks of the steps in their order, then those of the flows.

    catalogue   of the kinds of instances met before, to which new ones are added
    ahead       how many microbatches more than its depth a stage may have in flight
    """
    layout = Layout(steps, flows, catalogue)
    cost, keys = layout.costs()
    need_ptr, needs = to_csr(*layout.edges(ahead), layout.num_tasks)
    use_ptr, uses = to_csr(*layout.uses(), layout.num_tasks)
    lane_count, lanes = layout.lanes()
    buffer_proc, buffer_bytes, buffer_first = layout.buffers()
    return TaskGraph(
        kind=layout.kinds(),
        order=layout.order(),
        cost=cost,
        cost_keys=keys,
        lane_ptr=row_pointers(lane_count),
        lanes=lanes,
        need_ptr=need_ptr,
        needs=needs,
        use_ptr=use_ptr,
        uses=uses,
        buffer_proc=buffer_proc,
        buffer_bytes=buffer_bytes,
        buffer_first=buffer_first,
        private_bytes=layout.private(),
        num_procs=num_procs,
        tasks=LazySequence(layout.task, layout.num_tasks),
        buffers=LazySequence(layout.buffer, layout.num_buffers),
    )


class Layout:
    """The first task and buffer of each instance, and what follows from that."""

    def __init__(self, steps: Sequence[StepInstance], flows: Sequence[FlowInstance], catalogue: Catalogue) -> None:
        self.steps, self.flows, self._catalogue = steps, flows, catalogue
        self._step_kind, self._flow_kind = catalogue.kinds(steps, [f.template for f in flows])
        sizes = catalogue.step_sizes.of(self._step_kind)[0]
        transfers, buffers = catalogue.flow_sizes.of(self._flow_kind)[0]
        self.step_base = row_pointers(sizes[0])
        self.flow_base = self.step_base[-1] + row_pointers(transfers)
        self.buffer_base = row_pointers(buffers)
        self.num_tasks, self.num_buffers = int(self.flow_base[-1]), int(self.buffer_base[-1])

    @cached_property
    def _of_steps(self) -> np.ndarray:
        """Cost, lane and private bytes of the tasks of steps."""
        return self._catalogue.tasks.of(self._step_kind)[0]

    @cached_property
    def _of_flows(self) -> np.ndarray:
        """Kind, cost and number of lanes of the tasks of flows."""
        return self._catalogue.transfers.of(self._flow_kind)[0]

    @property
    def rows(self) -> Rows:
        """The steps, with the processors of their tasks."""
        return Rows(self.steps, self.step_base, self._of_steps[1] // NUM_LANES)

    def kinds(self) -> np.ndarray:
        """int8: the kind of each task."""
        compute = np.full(self.flow_base[0], Kind.COMPUTE, dtype=np.int8)
        return np.append(compute, self._of_flows[0].astype(np.int8))

    def costs(self) -> tuple[np.ndarray, tuple[CostKey, ...]]:
        """The cost of each task: the number of its key, and the keys in the order of the tasks, strided readers last.
        """
        cost = np.append(self._of_steps[0], self._of_flows[1])
        steps = map(self.steps.__getitem__, self._in_strides)
        each = [s.template.strided(s.config.replicas, rows) for s, rows in zip(steps, self._in_strides.values())]
        begin = self.step_base[np.fromiter(self._in_strides, np.int64, len(each))]
        counts = np.array([len(tasks) for tasks, _ in each], np.int64)
        strided = np.repeat(begin, counts) + np.concatenate([NONE, *(tasks for tasks, _ in each)])
        numbers = np.concatenate([NONE, *(self._catalogue.keys.numbered(keys) for _, keys in each)])
        every = np.append(cost, numbers)
        cost[strided] = numbers
        # backwards, so that of those with one key the first stays
        first = np.full(len(self._catalogue.keys.each), -1)
        first[every[::-1]] = np.arange(len(every))[::-1]
        met = np.flatnonzero(first >= 0)
        met = met[np.argsort(first[met])]
        number = np.zeros(len(first), np.int64)
        number[met] = np.arange(len(met))
        return number[cost], tuple([self._catalogue.keys.each[n] for n in met.tolist()])

    def lanes(self) -> tuple[np.ndarray, np.ndarray]:
        """How many lanes each task occupies, and which."""
        one = np.ones(self.flow_base[0], dtype=np.int64)
        lanes = self._catalogue.lanes.of(self._flow_kind)[0]
        return np.append(one, self._of_flows[2]), np.append(self._of_steps[1], lanes[0])

    def order(self) -> np.ndarray:
        """Sort keys that do not depend on what was lowered first: by slot in the program, computation before transfers,
        by number.
        """
        sizes = np.diff(self.step_base)
        slots = np.repeat(np.arange(len(self.steps)), sizes)
        of_steps = (slots + 1 << 40) + np.arange(self.step_base[-1]) - self.step_base[slots]
        sending = np.flatnonzero(np.diff(self.flow_base))
        starts = np.array([(self.flows[n].slot + 1 << 40) + (n + 1 << 20) for n in sending.tolist()], dtype=np.int64)
        starts -= self.flow_base[sending]
        of_flows = np.arange(self.flow_base[0], self.num_tasks) + np.repeat(starts, np.diff(self.flow_base)[sending])
        return np.append(of_steps, of_flows)

    @cached_property
    def _begins(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the buffers and tasks of each flow begin, then those of each step that it touches; and where in these
        its tasks are.
        """
        every = [f.slots for f in self.flows]
        slots, counts = np.fromiter(chain.from_iterable(every), np.int64), np.array([*map(len, every)], np.int64)
        first = np.cumsum(counts) - counts
        own = np.stack([self.buffer_base[:-1], self.flow_base[:-1]]).T.reshape(-1)
        return np.insert(self.step_base[slots], np.repeat(first, 2), own), first + 2 * np.arange(len(first)) + 1

    def _tasks(self, owner: np.ndarray, task: np.ndarray, flow: np.ndarray) -> np.ndarray:
        """The numbers of tasks, from owners in these flows as a catalogue gives them."""
        return compiled(_numbered)(*self._begins, owner, task, flow)

    def edges(self, ahead: int) -> tuple[np.ndarray, np.ndarray]:
        """All edges: the tasks that wait, and those for which they wait."""
        after, before = self._catalogue.edges.placed(self._flow_kind, *self._begins)
        waits = stages.throttle_edges(self.rows, ahead)
        return np.append(after, waits[:, 0]), np.append(before, waits[:, 1])

    def uses(self) -> tuple[np.ndarray, np.ndarray]:
        """Tasks, and buffers that they touch."""
        tasks, buffers = self._catalogue.uses.placed(self._flow_kind, *self._begins)
        return tasks, buffers

    def buffers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The processor of each buffer, its bytes, and the task that begins its life, -1 for what outlives the step."""
        (procs, nbytes, owner, task), flow = self._catalogue.buffers.of(self._flow_kind)
        return procs, nbytes, np.where(task < 0, -1, self._tasks(owner, task, flow))

    def private(self) -> np.ndarray:
        """Private bytes of all tasks; a task that adds to a result may need more than one that writes it.

        Transfers need no memory of their own: staging is among the buffers.
        """
        of_flows = np.zeros(self.num_tasks - int(self.flow_base[0]), dtype=np.int64)
        result = np.append(self._of_steps[2], of_flows)
        (owner, task, port), flow = self._catalogue.adds.of(self._flow_kind)
        # of nodes of many results the sets of ports take several words
        ports = np.zeros((int(port.max(initial=0)) // WORD + 1, self.flow_base[0]), np.int64)
        np.bitwise_or.at(ports, (port // WORD, self._tasks(owner, task, flow)), 1 << port % WORD)
        adding = np.flatnonzero(ports.any(0))
        slot = np.searchsorted(self.step_base, adding, side="right") - 1
        kind = alike = self._step_kind[slot]
        for word in ports[:, adding]:
            met, number = np.unique(word, return_inverse=True)
            alike = alike * len(met) + number
        _, first, each = np.unique(alike, return_index=True, return_inverse=True)
        through = [sum(int(word) << n * WORD for n, word in enumerate(of)) for of in ports[:, adding[first]].T]
        nbytes = [self._catalogue.private_adding(*pair) for pair in zip(kind[first].tolist(), through, strict=True)]
        begin = row_pointers([len(of) for of in nbytes])
        result[adding] = np.concatenate([NONE, *nbytes])[begin[each] + adding - self.step_base[slot]]
        return result

    @cached_property
    def _in_strides(self) -> dict[int, list[InStrides]]:
        """By slot, what its tasks read in strides: rows of (task, port, shape)."""
        found: dict[int, list[InStrides]] = {}
        for f in np.flatnonzero(self._catalogue.strided.of(self._flow_kind)[0][0]).tolist():
            for step, rows in self.flows[f].template.in_strides:
                found.setdefault(self.flows[f].slots[step], []).append(rows)
        return found

    @cached_property
    def _adding(self) -> dict[int, list[tuple[int, np.ndarray]]]:
        """By slot, its output ports through which tasks add to existing numbers, and these tasks."""
        adding: dict[int, list[tuple[int, np.ndarray]]] = {}
        for flow in self.flows:
            for step, port, tasks in flow.template.adding:
                adding.setdefault(flow.slots[step], []).append((port, tasks))
        return adding

    @cached_property
    def _buffers(self) -> list[np.ndarray]:
        """For each step the buffer of each port (inputs, then outputs) of each task."""
        tables = [np.full((len(s.step.inputs) + len(s.step.outputs), s.num_tasks), -1) for s in self.steps]
        for f, base in zip(self.flows, self.buffer_base[:-1], strict=True):
            # what is carried through a forward pass is made, but nobody writes it
            for (slot, task, port), instance in zip(f.touches(f.template.writing), f.version.made, strict=False):
                tables[slot][len(self.steps[slot].step.inputs) + port, task] = base + instance
            for (slot, task, port), instance in zip(f.touches(f.template.reading), f.version.located, strict=True):
                if slot != HOST:
                    tables[slot][port, task] = base + instance
        return tables

    def task(self, number: int) -> Task:
        slots, flows, first_buffers = self._firsts
        if number >= flows[0]:
            flow = bisect_right(flows, number) - 1
            return self.flows[flow].task(number, number - flows[flow], first_buffers[flow])
        slot = bisect_right(slots, number) - 1
        local = number - slots[slot]
        ports = {port for port, tasks in self._adding.get(slot, ()) if local in tasks}
        adds = [port in ports for port in range(len(self.steps[slot].step.outputs))]
        return self.steps[slot].task(number, local, self._buffers[slot][:, local].tolist(), adds)

    def buffer(self, number: int) -> Buffer:
        first_buffers = self._firsts[2]
        flow = bisect_right(first_buffers, number) - 1
        return self.flows[flow].buffer(number - first_buffers[flow])

    @cached_property
    def _firsts(self) -> tuple[list[int], list[int], list[int]]:
        """The first task of each step and of each flow, and the first buffer of each flow; and the ends."""
        return self.step_base.tolist(), self.flow_base.tolist(), self.buffer_base.tolist()


def _numbered(begin, first, owner, task, flow):  # type: ignore[no-untyped-def]
    """begin[owner + first[flow]] + task, elementwise."""
    found = np.empty(len(task), np.int64)
    for k in range(len(task)):
        found[k] = begin[owner[k] + first[flow[k]]] + task[k]
    return found
