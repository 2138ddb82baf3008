"""Trial: a few steps of any plan in this process alone, on the user's own arrays, with all that they make.

All processors of the plan are this one's core, whatever machine it was made for. It does not know how plans are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from castile.launch.data import as_input
from castile.launch.jobs.execution import Execution, feed_from, gradients_of, prepare, read_by
from castile.launch.jobs.offline import Desk
from castile.planner.graph import Graph
from castile.planner.step.beside import SCALE, STREAK, TAKEN
from castile.planner.step.program import GRADIENT
from castile.planner.strategy import Strategy
from castile.runtime.backends.numpy import watched
from castile.runtime.comm.local import LocalWorld
from castile.runtime.region import Box, slices
from castile.runtime.strict import suggestion
from castile.runtime.task import Task, TaskGraph

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Step:
    """What a step has made, whole and under the tensors' names.

    results     of nodes, those that other nodes read
    gradients   of the loss by these results, and by parameters as their updates take them
    """

    loss: float
    results: Arrays
    gradients: Arrays


@dataclass
class Trial:
    """Steps of a plan for a model on a machine, in this process, whose parameters begin by the seed or as `values` say,
    by name and whole; those that are not among them begin by the seed, and so does what another optimizer keeps.

    Raises ValueError for a plan that fits neither, or not into the machine's memory, and for values that are of nothing
    that is carried from step to step, or of another shape.
    """

    desk: Desk
    plan: Strategy
    seed: int = 0
    values: Mapping[str, np.ndarray] | None = None
    num_steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        evaluator = self.desk.evaluator
        self.graph = evaluator.lowering.graph
        prepared = prepare(evaluator.lowering, self.plan, evaluator.cost)
        self._arrays = _Arrays(self.graph, prepared.tasks)
        comm, procs = LocalWorld(1).communicators[0], range(self.desk.machine.num_procs)
        backend = watched(self._arrays.look)
        self._execution = Execution(self.graph, prepared, comm, procs, seed=self.seed, backend=backend)
        values = None if self.values is None else _fitting(self.values, _extents(self._execution.carried), self.graph)
        self._execution.initialise(self.seed, values)

    def step(self, inputs: Mapping[str, np.ndarray], rate: float = 0.0) -> Step:
        """Take a step on a whole batch of each input, at a learning rate; at 0 plain descent changes no parameter.

        Raises ValueError for inputs that are not those of the graph, in their shapes, and for what are no whole numbers
        where it takes these.
        """
        given = {name: np.asarray(array) for name, array in inputs.items()}
        _check(self.graph, given)
        arrays = {name: as_input(name, array, not self.graph.tensors[name].floating) for name, array in given.items()}
        scale = self._scale()
        self._arrays.begin()
        self._execution.feed(feed_from(arrays), rate, self.num_steps)
        self._execution.run()
        self.num_steps += 1
        loss = self._execution.output(self.graph.loss)
        assert loss is not None
        return Step(float(loss), *self._arrays.in_order(scale))

    def _scale(self) -> float:
        """What the loss is multiplied by in the next step, so that gradients in float16 are not too small."""
        carried = self._execution.carried.items()
        return next((float(array) for (region, _, _), array in carried if region == SCALE), 1.0)

    @property
    def parameters(self) -> Arrays:
        """The parameters after the steps so far, and what else is carried from one to the next, whole."""
        saved = self._execution.saved()
        extents = _extents(saved)
        found: Arrays = {}
        for (region, box, _), array in saved.items():
            found.setdefault(region, np.empty(extents[region], array.dtype))[slices(box)] = array
        return found


@dataclass
class _Arrays:
    """What tasks were given in a step: whole there, where what they make may be a part of a sum."""

    graph: Graph
    tasks: TaskGraph
    results: Arrays = field(default_factory=dict)
    gradients: Arrays = field(default_factory=dict)

    def begin(self) -> None:
        self.results, self.gradients = {}, {}

    def in_order(self, scale: float) -> tuple[Arrays, Arrays]:
        """Results and gradients, their dims in the graph's order, the gradients by results without the loss's scale."""
        orders = self.graph.orders
        by_results = {n: a for n, a in self.gradients.items() if scale != 1 and not self.graph.tensors[n].param}
        gradients = self.gradients | {n: a.astype(np.float32) / np.float32(scale) for n, a in by_results.items()}
        turned = [
            {n: a.transpose(np.argsort(orders[n])) if n in orders else a for n, a in found.items()}
            for found in (self.results, gradients)
        ]
        return turned[0], turned[1]

    def look(self, task: Task, arrays: Sequence[np.ndarray]) -> None:
        """A task has run, whose views are these arrays now."""
        by_parameter = gradients_of(self.graph, self.tasks, task)
        for n in read_by(task):
            region, _, micro = self._parted(task, n)
            of = region.removesuffix(GRADIENT)
            is_result = of in self.graph.tensors and not self.graph.tensors[of].param and of != self.graph.loss
            if n in by_parameter:
                self._take(self.gradients, by_parameter[n], "", task, n, arrays[n])
            elif is_result and of not in self.graph.inputs:
                self._take(self.gradients if of != region else self.results, of, micro, task, n, arrays[n])

    def _parted(self, task: Task, n: int) -> tuple[str, str, str]:
        """What a view's region is of, and which microbatch of how many, "" for the whole batch."""
        region = self.tasks.buffers[task.views[n].buffer].region
        return region.partition("@")

    def _take(self, found: Arrays, name: str, micro: str, task: Task, n: int, array: np.ndarray) -> None:
        """Put a view where it belongs in a tensor, whose dims lie as tasks have them."""
        tensor, box = self.graph.tensors[name], task.views[n].box
        order = list(self.graph.orders.get(name, range(len(tensor.shape))))
        whole = found.setdefault(name, np.empty([tensor.shape[dim] for dim in order], array.dtype))
        if micro:
            number, count = map(int, micro.split(":"))
            size = self.graph.batch // count
            whole = whole[(slice(None),) * order.index(0) + (slice(number * size, (number + 1) * size),)]
        whole[slices(box)] = array.reshape(box.shape)


def _extents(carried: Iterable[tuple[str, Box, int]]) -> dict[str, tuple[int, ...]]:
    """The shape of each region of which there are these boxes."""
    ends: dict[str, list[tuple[int, ...]]] = {}
    for region, box, _ in carried:
        ends.setdefault(region, []).append(box.hi)
    return {region: tuple(map(max, zip(*his, strict=True))) for region, his in ends.items()}


def _fitting(values: Mapping[str, np.ndarray], extents: Mapping[str, tuple[int, ...]], graph: Graph) -> Arrays:
    """The values of regions that are carried. What an optimizer keeps is called PARAMETER/LABEL, and may be another's;
    of float16 there is the loss's scale, too.
    """
    for name in values:
        is_kept = name in (SCALE, STREAK, TAKEN) or name.rpartition("/")[0] in graph.tensors
        if name not in extents and not is_kept:
            raise ValueError(f"{graph.name} has no parameter {name!r}{suggestion(name, list(extents))}")
    found = {name: np.asarray(values[name]) for name in values if name in extents}
    for name, array in found.items():
        if array.shape != extents[name]:
            raise ValueError(f"the value of {name!r} has shape {array.shape}, it should have {extents[name]}")
    return found


def _check(graph: Graph, arrays: Arrays) -> None:
    for name in graph.inputs:
        wanted = graph.tensors[name].shape
        if name not in arrays:
            raise ValueError(f"no array for the input {name!r}, of shape {wanted}: give one for each input")
        if arrays[name].shape != wanted:
            raise ValueError(f"input {name!r} has shape {arrays[name].shape}, and the graph takes {wanted}")
    if strange := next((name for name in arrays if name not in graph.inputs), None):
        near = suggestion(strange, list(graph.inputs)) or f"; it takes {', '.join(graph.inputs)}"
        raise ValueError(f"the graph has no input {strange!r}{near}")
