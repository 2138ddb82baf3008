"""Instances of templates: a step under a Config, a region's version between such steps; and their tasks, written out.

Nothing here has a number of its own: an instance is kept while its Configs stay, wherever its tasks come to stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from castile.planner.program import Flow, Step
from castile.planner.strategy import Config
from castile.planner.template import StepTemplate
from castile.planner.vocabulary import round_up
from castile.runtime import transfer
from castile.runtime.dependence import Version
from castile.runtime.task import NUM_LANES, Buffer, CostKey, Kind, Lane, Task, View

PATTERN, HOST = -1, -2


@dataclass(frozen=True, eq=False)
class StepInstance:
    """A step under its Config; its task part * replicas + replica lies on config.procs of that number."""

    step: Step
    template: StepTemplate
    config: Config

    @property
    def num_tasks(self) -> int:
        return len(self.config.procs)

    @cached_property
    def lanes(self) -> np.ndarray:
        return np.array(self.config.procs, dtype=np.int64) * NUM_LANES + Lane.COMPUTE

    @cached_property
    def costs(self) -> np.ndarray:
        """The number of each task's cost key among the template's."""
        return np.repeat(self.template.keys[1], self.config.replicas)

    @cached_property
    def private(self) -> np.ndarray:
        """The private bytes of each task where nothing is added up."""
        return np.repeat(self.template.private, self.config.replicas)

    def touching(self, port: int, output: bool) -> np.ndarray:
        """The tasks that touch a port, in order."""
        return self.template.touching(port, output, self.config.replicas)

    def private_adding(self, local: int, adds: Sequence[bool]) -> int:
        """The private bytes of a task that adds to some of its results."""
        return self.template.parts[local // self.config.replicas].body(tuple(adds)).private_bytes

    def task(self, number: int, local: int, buffers: Sequence[int], adds: Sequence[bool]) -> Task:
        """The task written out; buffers by port, -1 where a port is not touched."""
        part, replica = divmod(local, self.config.replicas)
        piece = self.template.parts[part]
        boxes = (*piece.inputs, *piece.outputs)
        views = tuple(View(int(b), box) for b, box in zip(buffers, boxes, strict=True) if box is not None)
        copy = f"~{replica}" if self.config.replicas > 1 else ""
        name = f"{self.step.name}[{part}{copy}]"
        return Task(number, name, Kind.COMPUTE, (self.config.procs[local],), views, piece.body(tuple(map(bool, adds))))


@dataclass(frozen=True, eq=False)
class FlowInstance:
    """A version of a region between instances of steps; procs[slot of the version] is a processor.

    port_step, port_task, port_number   for each port of the version the slot of its step, its task there, and which
                                        input or output of the step it is; PATTERN and HOST stand for the version's own
                                        transfers and for the host
    """

    flow: Flow
    version: Version
    procs: tuple[int, ...]
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
        begin = self.num_tasks + (len(self.version.made) if self.flow.producers else 0)
        return slice(begin, begin + len(self.version.located))

    @property
    def writing(self) -> slice:
        """The ports that write what was made: the producers', or those that overwrite what is carried."""
        return slice(len(self.version.made)) if self.flow.producers else slice(self.reading.stop, None)

    def touches(self, ports: slice) -> Iterator[tuple[int, int, int]]:
        """(slot, task, which input or output of the step) of each of these ports."""
        return zip(*(a[ports].tolist() for a in (self.port_step, self.port_task, self.port_number)), strict=True)

    @cached_property
    def outlives(self) -> np.ndarray:
        """bool: the buffers that outlive the step: sources of carried and input regions, and what the host reads."""
        if self.flow.role == "output":
            return np.arange(self.num_buffers) == self.version.located[-1]
        return self.version.are_sources & bool(self.flow.role)

    @cached_property
    def first(self) -> np.ndarray:
        """The port that begins each buffer's life, -1 for what outlives the step."""
        return np.where(self.outlives, -1, self.version.first)

    @property
    def kinds(self) -> np.ndarray:
        return self.version.kinds

    @cached_property
    def keys(self) -> tuple[CostKey, ...]:
        return tuple([p.key for p in self.version.patterns])

    @cached_property
    def private(self) -> np.ndarray:
        """Transfers need no memory of their own: staging is among the buffers."""
        return np.zeros(self.num_tasks, dtype=np.int64)

    @cached_property
    def lanes(self) -> tuple[np.ndarray, np.ndarray]:
        """How many lanes each transfer occupies, and which."""
        counts, lanes = self.version.lanes
        return counts, self._procs[lanes // NUM_LANES] * NUM_LANES + lanes % NUM_LANES

    @cached_property
    def buffer_procs(self) -> np.ndarray:
        return self._procs[self.version.slots]

    @cached_property
    def buffer_bytes(self) -> np.ndarray:
        return round_up(self.version.volumes * np.dtype(self.flow.dtype).itemsize)

    @cached_property
    def _procs(self) -> np.ndarray:
        return np.array(self.procs, dtype=np.int64)

    @cached_property
    def strided(self) -> list[tuple[tuple[int, int], int, tuple[int, ...]]]:
        """((slot, task), input port, shape of the array) wherever a step reads an array in strides."""
        if not self.version.is_strided:
            return []
        seen = zip(self.touches(self.reading), self.version.frames, strict=True)
        return [((step, task), port, frame) for (step, task, port), frame in seen if frame is not None and step >= 0]

    @cached_property
    def slot(self) -> int:
        """The slot that the transfers follow: the last producer's, or the one before the first reader's."""
        of_producers = (slot for slot, _ in self.flow.producers)
        return max(of_producers, default=min((slot for slot, _ in self.flow.readers), default=0) - 1)

    def task(self, number: int, local: int, first_buffer: int) -> Task:
        """The transfer written out."""
        pattern = self.version.patterns[local]
        return transfer.task(pattern, number, f"{self.flow.region}:{pattern.name}[{local}]", self.procs, first_buffer)

    def buffer(self, local: int) -> Buffer:
        """The buffer written out."""
        instance = self.version.instances[local]
        role = self.flow.role if self.outlives[local] else ""
        return Buffer(self.flow.region, instance.box, self.flow.dtype, self.procs[instance.proc], role)


def flow_instance(flow: Flow, version: Version, procs: tuple[int, ...], steps: Sequence[StepInstance]) -> FlowInstance:
    """Find the task of each port of a version."""

    def ports(of: Sequence[tuple[int, int]], output: bool) -> list[tuple[int, int, np.ndarray]]:
        return [(slot, port, steps[slot].touching(port, output)) for slot, port in of]

    made = ports(flow.producers, True)
    transfers = (PATTERN, 0, np.arange(len(version.patterns)))
    host = [(HOST, 0, np.zeros(1, dtype=np.int64))] if flow.role == "output" else []
    rows = [*made, transfers, *ports(flow.readers, False), *host, *ports(flow.overwriters, True)]
    sizes = [len(tasks) for _, _, tasks in rows]
    step, number = (np.repeat([row[n] for row in rows], sizes) for n in (0, 1))
    task = np.concatenate([tasks for _, _, tasks in rows])
    if len({slot for slot, _ in flow.producers}) == len(flow.producers):
        return FlowInstance(flow, version, procs, step, task, number)
    order = np.arange(len(task))
    # A step that makes one region through several ports does so part by part, as its tasks follow each other.
    first = sum(sizes[: len(made)])
    part = task[:first] // np.array([steps[slot].config.replicas for slot in step[:first]], dtype=np.int64)
    order[:first] = np.lexsort((task[:first], number[:first], part, step[:first]))
    return FlowInstance(flow, version, procs, step[order], task[order], number[order])
