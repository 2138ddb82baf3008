"""Composition: instances laid end to end become one task graph in flat arrays.

Edges run between ports of one version only; where its tasks have come to stand is all that composition adds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import chain
from typing import Generic, TypeVar

import numpy as np

from castile.planner.instances import HOST, NONE, PATTERN, FlowInstance, StepInstance
from castile.planner.rows import Lazy, compressed, pointer
from castile.planner.template import InStrides
from castile.runtime.dependence import NO_KINDS
from castile.runtime.task import Buffer, CostKey, Kind, Task, TaskGraph

NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


def compose(steps: Sequence[StepInstance], flows: Sequence[FlowInstance], num_procs: int) -> TaskGraph:
    """The task graph of these instances: the tasks of the steps in their order, then those of the flows."""
    layout = Layout(steps, flows)
    cost, keys = layout.costs()
    need_ptr, needs = compressed(*layout.edges(), layout.num_tasks)
    use_ptr, uses = compressed(*layout.uses(), layout.num_tasks)
    lane_count, lanes = layout.lanes()
    buffer_proc, buffer_bytes, buffer_first = layout.buffers()
    return TaskGraph(
        kind=layout.kinds(),
        order=layout.order(),
        cost=cost,
        cost_keys=keys,
        lane_ptr=pointer(lane_count),
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
        tasks=Lazy(layout.task, layout.num_tasks),
        buffers=Lazy(layout.buffer, layout.num_buffers),
    )


Kin = TypeVar("Kin")


class _Alike(Generic[Kin]):
    """Things of which many are alike: `kinds` are one of each, in the order in which they come.

    which[n]   the kind of thing n
    """

    def __init__(self, things: Sequence[Kin], keys: Sequence[Hashable]) -> None:
        one_of = dict(zip(keys, things, strict=True))
        place = {key: n for n, key in enumerate(one_of)}
        self.kinds = list(one_of.values())
        self.which = np.array([place[key] for key in keys], dtype=np.int64)

    def counts(self, of: Callable[[Kin], int]) -> np.ndarray:
        """A number of each kind."""
        return np.array([of(kind) for kind in self.kinds], dtype=np.int64)

    def where(self, of: Callable[[Kin], bool]) -> list[int]:
        """The things of whose kinds that is so."""
        return np.flatnonzero(np.array([of(kind) for kind in self.kinds], dtype=bool)[self.which]).tolist()

    def rows(self, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of kinds, kind[row] ascending, for all things end to end: which row each is, and of which thing."""
        counts = np.bincount(kind, minlength=len(self.kinds))
        each = counts[self.which]
        thing = np.repeat(np.arange(len(each)), each)
        begin = (np.cumsum(counts) - counts)[self.which] - (np.cumsum(each) - each)
        return np.arange(len(thing)) + begin[thing], thing

    def together(self, of: Callable[[Kin], np.ndarray], none: np.ndarray = NONE) -> tuple[np.ndarray, np.ndarray]:
        """Whose each row is of what the kinds have, and the rows; `none` of them are like those."""
        arrays = [of(kind) for kind in self.kinds]
        kind = np.repeat(np.arange(len(arrays)), np.array([len(array) for array in arrays], dtype=np.int64))
        return kind, np.concatenate([none, *arrays]).astype(none.dtype, copy=False)

    def joined(self, of: Callable[[Kin], np.ndarray], none: np.ndarray = NONE) -> np.ndarray:
        """What kinds have, for all things end to end."""
        kind, rows = self.together(of, none)
        return rows[self.rows(kind)[0]]


class Layout:
    """Where the tasks and buffers of each instance begin, and what follows from that."""

    def __init__(self, steps: Sequence[StepInstance], flows: Sequence[FlowInstance]) -> None:
        self.steps, self.flows = steps, flows
        self.of_steps = _Alike(steps, [(id(s.template), id(s.config)) for s in steps])
        templates = [f.template for f in flows]
        self.of_flows = _Alike(templates, templates)
        sizes = self.of_steps.counts(lambda s: s.num_tasks)
        transfers, buffers = (self.of_flows.counts(of) for of in (lambda t: t.num_tasks, lambda t: t.num_buffers))
        self.step_base = pointer(sizes[self.of_steps.which])
        self.flow_base = self.step_base[-1] + pointer(transfers[self.of_flows.which])
        self.buffer_base = pointer(buffers[self.of_flows.which])
        self.num_tasks, self.num_buffers = int(self.flow_base[-1]), int(self.buffer_base[-1])

    def kinds(self) -> np.ndarray:
        """int8: what each task is."""
        compute = np.full(self.flow_base[0], Kind.COMPUTE, dtype=np.int8)
        return np.append(compute, self.of_flows.joined(lambda t: t.version.kinds, NO_KINDS))

    def costs(self) -> tuple[np.ndarray, tuple[CostKey, ...]]:
        """What each task costs: the number of its key, and the keys."""
        keys: dict[CostKey, int] = {}
        templates = {s.template: None for s in self.of_steps.kinds}
        of_template = {template: _numbered(keys, template.keys[0]) for template in templates}
        of_steps = self.of_steps.joined(lambda s: of_template[s.template][s.costs])
        versions = {t.version: None for t in self.of_flows.kinds if t.version.patterns}
        of_version = {v: _numbered(keys, v.keys[0])[v.keys[1]] for v in versions}
        cost = np.append(of_steps, self.of_flows.joined(lambda t: of_version.get(t.version, NONE)))
        numbers: dict[int, np.ndarray] = {}
        for slot, rows in self._in_strides.items():
            tasks, strided = self.steps[slot].template.strided(self.steps[slot].config.replicas, rows)
            if id(strided) not in numbers:
                numbers[id(strided)] = _numbered(keys, strided)
            cost[self.step_base[slot] + tasks] = numbers[id(strided)]
        return cost, tuple(keys)

    def lanes(self) -> tuple[np.ndarray, np.ndarray]:
        """How many lanes each task occupies, and which."""
        one = np.ones(self.flow_base[0], dtype=np.int64)
        counts, lanes = (self.of_flows.joined(of) for of in (lambda t: t.lanes[0], lambda t: t.lanes[1]))
        return np.append(one, counts), np.append(self.of_steps.joined(lambda s: s.lanes), lanes)

    def order(self) -> np.ndarray:
        """Keys, unique whatever was made first: by slot in the program, computation before transfers, by number."""
        sizes = np.diff(self.step_base)
        slots = np.repeat(np.arange(len(self.steps)), sizes)
        of_steps = (slots + 1 << 40) + np.arange(self.step_base[-1]) - self.step_base[slots]
        sending = np.flatnonzero(np.diff(self.flow_base))
        starts = np.array([(self.flows[n].slot + 1 << 40) + (n + 1 << 20) for n in sending.tolist()], dtype=np.int64)
        starts -= self.flow_base[sending]
        of_flows = np.arange(self.flow_base[0], self.num_tasks) + np.repeat(starts, np.diff(self.flow_base)[sending])
        return np.append(of_steps, of_flows)

    @cached_property
    def _ports(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the ports of each kind of flow begin, which of its flow's steps each is of, and which task of that."""
        counts = self.of_flows.counts(lambda t: len(t.port_step))
        steps, tasks = (
            self.of_flows.together(lambda t: t.port_step)[1],
            self.of_flows.together(lambda t: t.port_task)[1],
        )
        return np.cumsum(counts) - counts, steps, tasks

    @cached_property
    def _begins(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the tasks of each flow begin, then those of each step that it touches; and where these rows begin."""
        slots = np.fromiter(chain.from_iterable([f.slots for f in self.flows]), dtype=np.int64)
        counts = np.array([len(f.slots) for f in self.flows], dtype=np.int64)
        first = np.cumsum(counts) - counts
        return np.insert(self.step_base[slots], first, self.flow_base[:-1]), first + np.arange(len(first))

    def _tasks(self, port: np.ndarray, row: np.ndarray, flow: np.ndarray) -> np.ndarray:
        """The tasks at ports of kinds, none of them a host's: those of these rows, in these flows."""
        _, step, task = self._ports
        begin, first = self._begins
        # what stands for a flow's own tasks is one less than the number of its first step
        return begin[(step[port] - PATTERN)[row] + first[flow]] + task[port][row]

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """All edges: the tasks that wait, and those for which they wait."""
        first, step, task = self._ports
        kind, pairs = self.of_flows.together(lambda t: t.version.edges, NO_PAIRS)
        before, after = (pairs + first[kind][:, None]).T
        real = (step[before] != HOST) & (step[after] != HOST)
        real &= (step[before] != step[after]) | (task[before] != task[after])
        row, flow = self.of_flows.rows(kind[real])
        before, after = (self._tasks(port[real], row, flow) for port in (before, after))
        turns = self._one_by_one()
        return np.append(after, turns[:, 1]), np.append(before, turns[:, 0])

    def uses(self) -> tuple[np.ndarray, np.ndarray]:
        """Tasks, and buffers that they touch."""
        first, step, _ = self._ports
        kind, pairs = self.of_flows.together(lambda t: t.version.touched, NO_PAIRS)
        port, buffer = pairs[:, 0] + first[kind], pairs[:, 1]
        real = step[port] != HOST
        row, flow = self.of_flows.rows(kind[real])
        return self._tasks(port[real], row, flow), buffer[real][row] + self.buffer_base[flow]

    def buffers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where each buffer lies, its bytes, and the task that begins its life, -1 for what outlives the step."""
        kind, first = self.of_flows.together(lambda t: t.first)
        row, flow = self.of_flows.rows(kind)
        begun = np.flatnonzero(first[row] >= 0)
        task = np.full(len(row), -1)
        task[begun] = self._tasks(first + self._ports[0][kind], row[begun], flow[begun])
        procs, nbytes = (self.of_flows.together(of)[1] for of in (lambda t: t.buffer_procs, lambda t: t.buffer_bytes))
        return procs[row], nbytes[row], task

    def _one_by_one(self) -> np.ndarray:
        """A processor does one microbatch after the other: else the activations of all would be live."""
        last: dict[tuple[int, int], int] = {}
        pairs = []
        for slot in [slot for slot, step in enumerate(self.steps) if step.step.micro.count > 1]:
            step = self.steps[slot]
            number = step.step.micro.number
            for local, proc in enumerate(step.config.procs):
                task = int(self.step_base[slot]) + local
                if number and step.step.which == "F" and (number - 1, proc) in last:
                    pairs.append((last[number - 1, proc], task))
                last[number, proc] = task
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    def private(self) -> np.ndarray:
        """Private bytes of all tasks; a task that adds to a result may need more than one that writes it.

        Transfers need no memory of their own: staging is among the buffers.
        """
        of_flows = np.zeros(self.num_tasks - int(self.flow_base[0]), dtype=np.int64)
        result = np.append(self.of_steps.joined(lambda s: s.private), of_flows)
        for slot, rows in self._adding.items():
            tasks, nbytes = self.steps[slot].template.adding(self.steps[slot].config.replicas, rows)
            result[self.step_base[slot] + tasks] = nbytes
        return result

    @cached_property
    def _in_strides(self) -> dict[int, list[InStrides]]:
        """For each slot what its tasks read in strides, as the flows' templates tell: rows of (task, port, shape)."""
        found: dict[int, list[InStrides]] = {}
        for f in self.of_flows.where(lambda t: t.version.is_strided):
            for step, rows in self.flows[f].template.in_strides:
                found.setdefault(self.flows[f].slots[step], []).append(rows)
        return found

    @cached_property
    def _adding(self) -> dict[int, list[tuple[int, np.ndarray]]]:
        """For each slot its output ports through which tasks add to what is there already, and which tasks do."""
        adding: dict[int, list[tuple[int, np.ndarray]]] = {}
        for f in self.of_flows.where(lambda t: bool(t.adding)):
            for step, port, tasks in self.flows[f].template.adding:
                adding.setdefault(self.flows[f].slots[step], []).append((port, tasks))
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
        if number >= self.flow_base[0]:
            flow = int(np.searchsorted(self.flow_base, number, side="right")) - 1
            return self.flows[flow].task(number, number - int(self.flow_base[flow]), int(self.buffer_base[flow]))
        slot = int(np.searchsorted(self.step_base, number, side="right")) - 1
        local = number - int(self.step_base[slot])
        ports = {port for port, tasks in self._adding.get(slot, ()) if local in tasks}
        adds = [port in ports for port in range(len(self.steps[slot].step.outputs))]
        return self.steps[slot].task(number, local, self._buffers[slot][:, local].tolist(), adds)

    def buffer(self, number: int) -> Buffer:
        flow = int(np.searchsorted(self.buffer_base, number, side="right")) - 1
        return self.flows[flow].buffer(number - int(self.buffer_base[flow]))


def _numbered(keys: dict[CostKey, int], distinct: Sequence[CostKey]) -> np.ndarray:
    return np.array([keys.setdefault(k, len(keys)) for k in distinct], dtype=np.int64)
