"""Instances of templates: a step under a Config, a region's version between such steps; and their `Task` objects.

Nothing here knows its number: an instance is cached as long as its Configs stay, wherever its tasks come to stand.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from castile.planner.bodies.vocabulary import itemsize, round_up
from castile.planner.lowering.template import InStrides, StepTemplate
from castile.planner.lowering.versions import Placed
from castile.planner.step.program import Flow, Step, touched
from castile.planner.strategy import Config
from castile.runtime import transfer
from castile.runtime.dependence import Version
from castile.runtime.task import NUM_LANES, Buffer, CostKey, Kind, Lane, Task, View

PATTERN, HOST = -1, -2
COMPUTE = int(Lane.COMPUTE)
NONE = np.zeros(0, dtype=np.int64)


class StepInstance(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A step under its Config; its task part * replicas + replica lies on config.procs of that number."""

    step: Step
    template: StepTemplate
    config: Config

    @property
    def num_tasks(self) -> int:
        return len(self.config.procs)

    @cached_property
    def lanes(self) -> np.ndarray:
        return np.array(self.config.procs, dtype=np.int64) * NUM_LANES + COMPUTE

    @property
    def costs(self) -> np.ndarray:
        """The number of each task's cost key among the template's."""
        return np.repeat(self.template.does.keys[1], self.config.replicas)

    @property
    def private(self) -> np.ndarray:
        """The private bytes of each task that adds nothing up."""
        alone = (False,) * len(self.step.outputs)
        return np.repeat(self.template.does.private_adding(alone), self.config.replicas)

    def task(self, number: int, local: int, buffers: Sequence[int], adds: Sequence[bool]) -> Task:
        """The `Task` object; buffers by port, -1 where a port is not touched."""
        part, replica = divmod(local, self.config.replicas)
        piece = self.template.part(part)
        boxes = (*piece.inputs, *piece.outputs)
        views = tuple(View(int(b), box) for b, box in zip(buffers, boxes, strict=True) if box is not None)
        copy = f"~{replica}" if self.config.replicas > 1 else ""
        name = f"{self.step.name}[{part}{copy}]"
        return Task(number, name, Kind.COMPUTE, (self.config.procs[local],), views, piece.body(tuple(map(bool, adds))))


@dataclass(frozen=True, eq=False)
class FlowTemplate:
    """A version of a region between steps of these templates and Configs, wherever in a program they stand.

    procs[slot of the version] is a processor. Of each port of the version:
    port_step     its step, as an index into `touched`
    port_task, port_number   its task there, and the number of the input or output
    PATTERN and HOST stand for the version's own transfers and for the host.
    """

    version: Version
    procs: tuple[int, ...]
    role: str
    dtype: str
    is_made: bool
    port_step: np.ndarray
    port_task: np.ndarray
    port_number: np.ndarray

    @property
    def num_tasks(self) -> int:
        return len(self.version.patterns)

    @property
    def num_buffers(self) -> int:
        return len(self.version.instances)

    @cached_property
    def reading(self) -> slice:
        """The ports that read, the host's among them."""
        begin = self.num_tasks + (len(self.version.made) if self.is_made else 0)
        return slice(begin, begin + len(self.version.located))

    @property
    def writing(self) -> slice:
        """The ports that write what was made: those of producers, or of updates that overwrite a carried region."""
        return slice(len(self.version.made)) if self.is_made else slice(self.reading.stop, None)

    @cached_property
    def outlives(self) -> np.ndarray:
        """bool: the buffers that outlive the step: sources of carried and input regions, and what the host reads."""
        if self.role == "output":
            return np.arange(self.num_buffers) == self.version.located[-1]
        return self.version.are_sources & bool(self.role)

    @cached_property
    def first(self) -> np.ndarray:
        """The port that begins each buffer's life, -1 for what outlives the step."""
        if not self.role:
            return self.version.first
        return np.where(self.outlives, -1, self.version.first)

    @cached_property
    def keys(self) -> tuple[CostKey, ...]:
        """The cost key of each transfer."""
        return tuple([p.key for p in self.version.patterns])

    @cached_property
    def lanes(self) -> tuple[np.ndarray, np.ndarray]:
        """How many lanes each transfer occupies, and which."""
        if not self.version.patterns:
            return NONE, NONE
        counts, lanes = self.version.lanes
        return counts, self._procs[lanes // NUM_LANES] * NUM_LANES + lanes % NUM_LANES

    @cached_property
    def served(self) -> list[int]:
        """The steps, as indices into `touched`, that read what transfers bring."""
        brought = ~self.version.are_sources[self.version.located]
        steps = np.unique(self.port_step[self.reading][brought])
        return steps[steps >= 0].tolist()

    @cached_property
    def buffer_procs(self) -> np.ndarray:
        return self._procs[self.version.slots]

    @cached_property
    def buffer_bytes(self) -> np.ndarray:
        return round_up(self.version.volumes * itemsize(self.dtype))

    @cached_property
    def _procs(self) -> np.ndarray:
        return np.array(self.procs, dtype=np.int64)

    @cached_property
    def strided(self) -> list[tuple[tuple[int, int], int, tuple[int, ...]]]:
        """((step, task), input port, shape of the array) wherever a step reads an array in strides."""
        if not self.version.is_strided:
            return []
        ports = zip(*(a[self.reading].tolist() for a in (self.port_step, self.port_task, self.port_number)))
        seen = zip(ports, self.version.frames, strict=True)
        return [((step, task), port, frame) for (step, task, port), frame in seen if frame is not None and step >= 0]

    @cached_property
    def in_strides(self) -> list[tuple[int, InStrides]]:
        """The same by step: (step, its rows of (task, input port, shape of the array))."""
        found: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {}
        for (step, task), port, frame in self.strided:
            found.setdefault(step, []).append((task, port, frame))
        return [(step, tuple(rows)) for step, rows in found.items()]

    @cached_property
    def adding(self) -> list[tuple[int, int, np.ndarray]]:
        """(step, output port, tasks) wherever tasks of a step add to what is there already."""
        if not self.version.is_sum or not self.is_made:
            return []
        at = np.flatnonzero(self.version.adds)
        step, number, task = self.port_step[at], self.port_number[at], self.port_task[at]
        pairs = dict.fromkeys(zip(step.tolist(), number.tolist()))
        return [(s, n, task[(step == s) & (number == n)]) for s, n in pairs]


def lying(templates: Sequence[FlowTemplate]) -> tuple[np.ndarray, np.ndarray]:
    """The processors of the buffers of flows, concatenated, and their bytes."""
    counts, num_procs = [t.num_buffers for t in templates], [len(t.procs) for t in templates]
    first = np.repeat(np.cumsum(num_procs) - num_procs, counts)
    procs = np.fromiter(chain.from_iterable([t.procs for t in templates]), np.int64, sum(num_procs))
    slots = np.concatenate([NONE, *[t.version.slots for t in templates]])
    volumes = np.concatenate([NONE, *[t.version.volumes for t in templates]])
    sizes = np.repeat(np.array([itemsize(t.dtype) for t in templates], np.int64), counts)
    return procs[first + slots], round_up(volumes * sizes)


class FlowInstance(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A flow between instances of steps, and the slots of these, in the order of `touched`."""

    flow: Flow
    template: FlowTemplate
    slots: tuple[int, ...]

    @property
    def version(self) -> Version:
        return self.template.version

    @property
    def procs(self) -> tuple[int, ...]:
        return self.template.procs

    @property
    def num_tasks(self) -> int:
        return len(self.template.version.patterns)

    @property
    def num_buffers(self) -> int:
        return len(self.template.version.instances)

    @property
    def lanes(self) -> tuple[np.ndarray, np.ndarray]:
        """How many lanes each transfer occupies, and which."""
        return self.template.lanes

    @property
    def keys(self) -> tuple[CostKey, ...]:
        """What each transfer costs."""
        return self.template.keys

    @property
    def port_task(self) -> np.ndarray:
        """The task of each port in its step."""
        return self.template.port_task

    @property
    def port_step(self) -> np.ndarray:
        """The slot of each port's step, or PATTERN or HOST."""
        return np.array([*self.slots, HOST, PATTERN])[self.template.port_step]

    def touches(self, ports: slice) -> Iterator[tuple[int, int, int]]:
        """(slot, task, number of the step's input or output) of each of these ports."""
        rows = (self.port_step, self.template.port_task, self.template.port_number)
        return zip(*(row[ports].tolist() for row in rows), strict=True)

    @cached_property
    def slot(self) -> int:
        """The slot that the transfers follow: the last producer's, or the one before the first that reads what they
        bring.
        """
        if self.flow.producers:
            return max([slot for slot, _ in self.flow.producers])
        return min([self.slots[n] for n in self.template.served], default=0) - 1

    def task(self, number: int, local: int, first_buffer: int) -> Task:
        """The transfer's `Task` object."""
        pattern = self.version.patterns[local]
        return transfer.task(pattern, number, f"{self.flow.region}:{pattern.name}[{local}]", self.procs, first_buffer)

    def buffer(self, local: int) -> Buffer:
        """The `Buffer` object."""
        instance = self.version.instances[local]
        role = self.flow.role if self.template.outlives[local] else ""
        return Buffer(self.flow.region, instance.box, self.flow.dtype, self.procs[instance.proc], role)


class _Ports(NamedTuple):
    """The fields of a `FlowTemplate` that say what touches a version."""

    step: np.ndarray
    task: np.ndarray
    number: np.ndarray


class FlowTemplates:
    """The templates made so far: one for all flows between steps whose tasks touch the same version alike."""

    def __init__(self) -> None:
        self._made: dict[Hashable, FlowTemplate] = {}
        self._ports: dict[Hashable, _Ports] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._made.clear()
        self._ports.clear()

    def get(
        self, flow: Flow, slots: Sequence[int], version: Version, procs: tuple[int, ...], made: Sequence[Placed],
        read: Sequence[Placed], overwritten: Sequence[Placed],
    ) -> FlowTemplate:  # fmt: skip
        """The template of a flow of this version, whose slots are these processors.

        slots                     of the steps that the flow touches, in the order of `touched`
        made, read, overwritten   the layouts of its producers', readers' and overwriters' ports
        """
        place, is_output = {slot: n for n, slot in enumerate(slots)}, flow.role == "output"
        ports = zip((*flow.producers, *flow.readers, *flow.overwriters), (*made, *read, *overwritten), strict=True)
        rows = [(place[slot], port, placed.tasks) for (slot, port), placed in ports]
        several = len({slot for slot, _ in flow.producers}) < len(made)
        replicas = tuple([p.config.replicas for p in made]) if several else ()
        # tasks that are the same are one array
        named = tuple([(step, port, id(tasks)) for step, port, tasks in rows])
        like = named, len(made), len(read), len(version.patterns), is_output, replicas
        if like not in self._ports:
            if is_output:
                rows.insert(len(made) + len(read), (HOST, 0, np.zeros(1, dtype=np.int64)))
            rows.insert(len(made), (PATTERN, 0, np.arange(len(version.patterns))))
            self._ports[like] = _ports(rows, len(made), replicas)
        fields = self._ports[like]
        key = version, procs, flow.role, flow.dtype, bool(made), id(fields)
        if key not in self._made:
            self._made[key] = FlowTemplate(version, procs, flow.role, flow.dtype, bool(made), *fields)
        return self._made[key]


def _ports(rows: Sequence[tuple[int, int, np.ndarray]], num_made: int, replicas: Sequence[int]) -> _Ports:
    """The ports of rows of (step, input or output of it, tasks), the first `num_made` of which make the version.

    replicas   of a step that makes it through several ports: it does so part by part, as its tasks follow each other
    """
    sizes = [len(tasks) for _, _, tasks in rows]
    step, number = (np.repeat([row[n] for row in rows], sizes) for n in range(2))
    task = np.concatenate([tasks for _, _, tasks in rows])
    if replicas:
        first, order = sum(sizes[:num_made]), np.arange(len(task))
        part = task[:first] // np.repeat(np.array(replicas, dtype=np.int64), sizes[:num_made])
        order[:first] = np.lexsort((task[:first], number[:first], part, step[:first]))
        step, task, number = step[order], task[order], number[order]
    return _Ports(step, task, number)


def flow_instance(
    flow: Flow, version: Version, procs: tuple[int, ...], made: Sequence[Placed], read: Sequence[Placed],
    overwritten: Sequence[Placed],
) -> FlowInstance:  # fmt: skip
    """A flow with a template of its own."""
    slots = touched(flow)
    return FlowInstance(flow, FlowTemplates().get(flow, slots, version, procs, made, read, overwritten), slots)
