"""Composition: instances laid end to end become one task graph in flat arrays.

Edges run between ports of one version only; where its tasks have come to stand is all that composition adds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from castile.planner.instances import HOST, NONE, PATTERN, FlowInstance, FlowTemplate, StepInstance
from castile.runtime.task import NUM_LANES, Buffer, CostKey, Kind, Lane, Task, TaskGraph

# Where the host's tasks begin: no number of a task makes it the number of one.
NOWHERE = -(2**62)
COMPUTE = int(Lane.COMPUTE)


def compose(steps: Sequence[StepInstance], flows: Sequence[FlowInstance], num_procs: int) -> TaskGraph:
    """The task graph of these instances: the tasks of the steps in their order, then those of the flows."""
    layout = _Layout(steps, flows)
    templates = layout.templates
    cost, keys = layout.costs()
    need_ptr, needs = _rows(*layout.edges(), layout.num_tasks)
    use_ptr, uses = _rows(*layout.uses(), layout.num_tasks)
    compute = np.full(layout.flow_base[0], Kind.COMPUTE, dtype=np.int8)
    one_lane = np.ones(layout.flow_base[0], dtype=np.int64)
    return TaskGraph(
        kind=_join([compute, *[t.version.kinds for t in templates]], np.int8),
        order=layout.order(),
        cost=cost,
        cost_keys=keys,
        lane_ptr=_pointer(_join([one_lane, *[t.lanes[0] for t in templates]])),
        lanes=_join([layout.step_lanes(), *[t.lanes[1] for t in templates]]),
        need_ptr=need_ptr,
        needs=needs,
        use_ptr=use_ptr,
        uses=uses,
        buffer_proc=_join([t.buffer_procs for t in templates]),
        buffer_bytes=_join([t.buffer_bytes for t in templates]),
        buffer_first=layout.first(),
        private_bytes=layout.private(),
        num_procs=num_procs,
        tasks=_Lazy(layout.task, layout.num_tasks),
        buffers=_Lazy(layout.buffer, layout.num_buffers),
    )


class _Layout:
    """Where the tasks and buffers of each instance begin, and what follows from that."""

    def __init__(self, steps: Sequence[StepInstance], flows: Sequence[FlowInstance]) -> None:
        self.steps, self.flows = steps, flows
        self.step_base = _pointer(np.array([len(s.config.procs) for s in steps], dtype=np.int64))
        self.flow_base = self.step_base[-1] + _pointer(np.array([f.num_tasks for f in flows], dtype=np.int64))
        self.buffer_base = _pointer(np.array([f.num_buffers for f in flows], dtype=np.int64))
        self.num_tasks, self.num_buffers = int(self.flow_base[-1]), int(self.buffer_base[-1])

    @cached_property
    def templates(self) -> list[FlowTemplate]:
        return [f.template for f in self.flows]

    def costs(self) -> tuple[np.ndarray, tuple[CostKey, ...]]:
        """What each task costs: the number of its key, and the keys."""
        keys: dict[CostKey, int] = {}
        numbers = {template: _numbered(keys, template.keys[0]) for template in {s.template: None for s in self.steps}}
        of_steps = [numbers[s.template][s.costs] for s in self.steps]
        versions = {t.version: None for t in self.templates if t.version.patterns}
        of_flows = {v: _numbered(keys, v.keys[0])[v.keys[1]] for v in versions}
        cost = _join([*of_steps, *[of_flows[t.version] for t in self.templates if t.version.patterns]])
        known: dict[Hashable, tuple[np.ndarray, np.ndarray]] = {}
        for slot, rows in self._in_strides.items():
            step = self.steps[slot]
            # Steps that are alike read alike: their flows have one template, whose rows these are.
            key = (step.template, step.config.replicas, *map(id, rows))
            if key not in known:
                tasks, strided = _strided(step, rows)
                known[key] = tasks, _numbered(keys, strided)
            tasks, numbers_of = known[key]
            cost[self.step_base[slot] + tasks] = numbers_of
        return cost, tuple(keys)

    def step_lanes(self) -> np.ndarray:
        """The lane of each task of a step."""
        procs = chain.from_iterable([s.config.procs for s in self.steps])
        return np.fromiter(procs, np.int64, int(self.step_base[-1])) * NUM_LANES + COMPUTE

    def order(self) -> np.ndarray:
        """Keys, unique whatever was made first: by slot in the program, computation before transfers, by number."""
        sizes = np.diff(self.step_base)
        slots = np.repeat(np.arange(len(self.steps)), sizes)
        of_steps = (slots + 1 << 40) + np.arange(self.step_base[-1]) - np.repeat(self.step_base[:-1], sizes)
        sizes = np.diff(self.flow_base)
        starts = np.array([(f.slot + 1 << 40) + (n + 1 << 20) for n, f in enumerate(self.flows)], dtype=np.int64)
        numbers = np.arange(self.flow_base[0], self.num_tasks) - np.repeat(self.flow_base[:-1], sizes)
        return np.concatenate([of_steps, np.repeat(starts, sizes) + numbers])

    @cached_property
    def _ports(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the ports of each flow begin, and the task of each port, -1 for the host; the last stands for none."""
        num_ports = np.array([len(t.port_step) for t in self.templates], dtype=np.int64)
        # of each flow where its own tasks begin, where the host's would, then where those of each of its steps do
        slots = np.array([slot for f in self.flows for slot in (PATTERN, HOST, *f.slots)], dtype=np.int64)
        begin = np.where(slots >= 0, self.step_base[slots], NOWHERE)
        table = _pointer(np.array([2 + len(f.slots) for f in self.flows], dtype=np.int64))[:-1]
        begin[table] = self.flow_base[:-1]
        step = _join([t.port_step for t in self.templates])
        step = np.where(step >= 0, step + 2, -1 - step)
        task = begin[step + np.repeat(table, num_ports)] + _join([t.port_task for t in self.templates])
        return _pointer(num_ports)[:-1], np.append(np.maximum(task, -1), -1)

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """All edges: the tasks that wait, and those for which they wait."""
        offset, task = self._ports
        before, after = task[_shifted([t.version.edges for t in self.templates], offset)].T
        real = (before != after) & (before >= 0) & (after >= 0)
        turns = self._one_by_one()
        return np.append(after[real], turns[:, 1]), np.append(before[real], turns[:, 0])

    def uses(self) -> tuple[np.ndarray, np.ndarray]:
        """Tasks, and buffers that they touch."""
        offset, task = self._ports
        pairs = [t.version.touched for t in self.templates]
        if not pairs:
            return NONE, NONE
        ports, buffers = np.concatenate(pairs).T
        counts = [len(p) for p in pairs]
        users = task[ports + np.repeat(offset, counts)]
        return users[users >= 0], (buffers + np.repeat(self.buffer_base[:-1], counts))[users >= 0]

    def first(self) -> np.ndarray:
        """The task that begins each buffer's life, -1 for what outlives the step."""
        offset, task = self._ports
        first = _join([t.first for t in self.templates])
        return task[np.where(first >= 0, first + np.repeat(offset, np.diff(self.buffer_base)), -1)]

    def _one_by_one(self) -> np.ndarray:
        """A processor does one microbatch after the other: else the activations of all would be live."""
        last: dict[tuple[int, int], int] = {}
        pairs = []
        for slot, step in enumerate(self.steps):
            number, count = step.step.micro.number, step.step.micro.count
            if count == 1:
                continue
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
        result = _join([*[s.private for s in self.steps], of_flows])
        # Steps that are alike add alike: their flows have one template, whose arrays these are.
        known: dict[Hashable, list[tuple[np.ndarray, np.ndarray]]] = {}
        for slot, rows in self._adding.items():
            step = self.steps[slot]
            key = (step.template, step.config.replicas, *[(port, id(tasks)) for port, tasks in rows])
            if key not in known:
                known[key] = _private_adding(step, rows)
            for tasks, nbytes in known[key]:
                result[self.step_base[slot] + tasks] = nbytes
        return result

    @cached_property
    def _in_strides(self) -> dict[int, list[list[tuple[int, int, tuple[int, ...]]]]]:
        """For each slot what its tasks read in strides, as the flows' templates tell: rows of (task, port, shape)."""
        found: dict[int, list[list[tuple[int, int, tuple[int, ...]]]]] = {}
        for f, template in zip(self.flows, self.templates):
            for step, rows in template.in_strides if template.version.is_strided else ():
                found.setdefault(f.slots[step], []).append(rows)
        return found

    @cached_property
    def _adding(self) -> dict[int, list[tuple[int, np.ndarray]]]:
        """For each slot its output ports through which tasks add to what is there already, and which tasks do."""
        adding: dict[int, list[tuple[int, np.ndarray]]] = {}
        for f in self.flows:
            for step, port, tasks in f.template.adding:
                adding.setdefault(f.slots[step], []).append((port, tasks))
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


def _strided(
    step: StepInstance, rows: Sequence[Sequence[tuple[int, int, tuple[int, ...]]]]
) -> tuple[np.ndarray, list[CostKey]]:
    """The tasks of a step that read arrays in strides, and the cost keys that say so; rows: (task, port, shape)."""
    frames: dict[int, dict[int, tuple[int, ...]]] = {}
    for task, port, frame in chain.from_iterable(rows):
        frames.setdefault(task, {})[port] = frame
    parts, replicas = step.template.parts, step.config.replicas
    keys = [parts[task // replicas].strided_key(tuple(sorted(of.items()))) for task, of in frames.items()]
    return np.array(list(frames), np.int64), keys


def _private_adding(step: StepInstance, rows: Sequence[tuple[int, np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The tasks of a step that add to what is there already, and the private bytes of each, by the ports that they add
    through.

    rows   for each output port the tasks that add through it
    """
    ports = np.zeros(step.num_tasks, dtype=np.int64)
    for port, tasks in rows:
        ports[tasks] |= 1 << port
    found = []
    for added in set(ports.tolist()) - {0}:
        tasks = np.flatnonzero(ports == added)
        adds = tuple([bool(added >> port & 1) for port in range(len(step.step.outputs))])
        found.append((tasks, step.template.private_adding(adds)[tasks // step.config.replicas]))
    return found


class _Lazy(Sequence):
    """A sequence whose items are made when they are asked for."""

    def __init__(self, make: Callable, length: int) -> None:
        self._make, self._length = make, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        if not 0 <= number < self._length:
            raise IndexError(number)
        return self._make(int(number))


def _numbered(keys: dict[CostKey, int], distinct: Sequence[CostKey]) -> np.ndarray:
    return np.array([keys.setdefault(k, len(keys)) for k in distinct], dtype=np.int64)


def _join(arrays: Sequence[np.ndarray], dtype: type = np.int64) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype)


def _shifted(arrays: Sequence[np.ndarray], offsets: np.ndarray) -> np.ndarray:
    """All arrays in one, each with its offset added."""
    if not arrays:
        return np.zeros(0, np.int64)
    shift = np.repeat(offsets, [len(a) for a in arrays])
    joined = np.concatenate(arrays)
    joined += shift[:, None] if joined.ndim == 2 else shift
    return joined


def _pointer(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _rows(rows: np.ndarray, values: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Compressed rows with sorted, unique values."""
    width = int(values.max()) + 1 if len(values) else 1
    pairs = rows * width
    pairs += values
    pairs.sort()
    pairs = pairs[np.concatenate([pairs[:1] == pairs[:1], pairs[1:] != pairs[:-1]])]
    return _pointer(np.bincount(pairs // width, minlength=num_rows)), pairs % width
