"""Execution: lowers, times and packs a plan, and binds it to this rank's memory, ready to be stepped.

It does not know where data come from, nor what is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import xxhash

from castile.planner.bodies.vocabulary import wide
from castile.planner.cost import CostModel
from castile.planner.evaluation import folding
from castile.planner.evaluation.evaluator import FOLDED_FROM
from castile.planner.families.updates import filled
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.op import Tensor
from castile.planner.simulate import Simulated
from castile.planner.simulation import ordering, repeats
from castile.planner.step.beside import INITIAL_VALUES
from castile.planner.step.program import GRADIENT, in_whole
from castile.planner.strategy import Strategy
from castile.runtime import memory, rng
from castile.runtime.backends.base import Arenas, Backend, State
from castile.runtime.comm.base import Communicator
from castile.runtime.memory import Packing
from castile.runtime.region import Box, slices
from castile.runtime.runner import Runner
from castile.runtime.task import Arg, Task, TaskGraph
from castile.runtime.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan ready to run: its tasks, their simulated times, and where everything lies in memory."""

    tasks: TaskGraph
    simulated: Simulated
    packing: Packing

    @property
    def digest(self) -> str:
        """A hash of what ranks must agree on: tasks, the order in which they begin, and dependences through memory."""
        made = xxhash.xxh3_128(self.tasks.digest.encode())
        for numbers in (self.simulated.timeline.task, self.simulated.timeline.start, self.packing.edges):
            made.update(np.ascontiguousarray(numbers, np.int64).data)
        return made.hexdigest()


def prepare(lowering: Lowering, strategy: Strategy, cost: CostModel) -> Prepared:
    """Lower, simulate and pack a plan.

    Raises ValueError where it does not fit graph, machine or memory, or has too many transfers to write out.
    """
    _check_transfers(lowering, strategy)
    tasks = lowering.lower(strategy)
    machine = lowering.machine
    program, priced = lowering.program(strategy), cost.by_kind(tasks)
    number = repeats.numbers(program, tasks)
    tasks, simulated = ordering.simulate_in_order(number, tasks, priced, machine.engines, strategy.order)
    packing = memory.pack(tasks, simulated.timeline, capacities=machine.capacity)
    memory.refuse(tasks, simulated.timeline, packing.peak_bytes, machine.capacity)
    return Prepared(tasks, simulated, packing)


def _check_transfers(lowering: Lowering, strategy: Strategy) -> None:
    """Raises TooManyTransfers for a plan that no search takes either: writing out its tasks could exhaust memory.

    The lowering keeps the instances that are made here, so that composing tasks is fast.
    """
    if lowering.machine.num_procs >= FOLDED_FROM:
        lowering.instances(strategy, folding.MOST_TRANSFERS)


def initial(tensor: Tensor, seed: int, box: Box) -> np.ndarray:
    """The initial numbers of a box of a parameter, in float32 for 16-bit parameters.

    They depend on the seed, the name and the position in the parameter only, so every plan begins alike.
    """
    init, dtype = tensor.init, wide(tensor.dtype)
    if init is None or init.kind == "zeros":
        return np.zeros(box.shape, dtype)
    if init.kind == "ones":
        return np.ones(box.shape, dtype)
    if init.kind == "given":
        return np.asarray(init.values[slices(box)], dtype)
    if init.kind == "normal":
        return (rng.normal(seed, tensor.name, tensor.shape, box) * init.scale).astype(dtype)
    return ((2 * rng.uniform(seed, tensor.name, tensor.shape, box) - 1) * init.scale).astype(dtype)


Feed = Callable[[str, Box], np.ndarray]
Fill = Callable[[np.ndarray | float], None]


def feed_from(arrays: Mapping[str, np.ndarray]) -> Feed:
    """A feed that cuts boxes out of whole arrays."""
    return lambda region, box: arrays[region][slices(box)]


def read_by(task: Task) -> set[int]:
    """The numbers of the views that a task reads."""
    args = (arg for call in task.body.calls for arg in call.args)
    return {arg.index for arg in args if isinstance(arg, Arg) and arg.space == "view"}


def written_by(task: Task) -> set[int]:
    """The numbers of the views that a task writes."""
    return {arg.index for call in task.body.calls for arg in call.outs if arg.space == "view"}


def gradients_of(graph: Graph, tasks: TaskGraph, task: Task) -> dict[int, str]:
    """The gradients that a task updates parameters by: the number of the view, and the parameter's name."""
    regions = [tasks.buffers[view.buffer].region for view in task.views]
    written, read = written_by(task), read_by(task)
    renewed = {regions[n] for n in written} & {param.name for param in graph.trained}
    # an update reads its parameter, then the gradient; what puts parts of parameters together reads nothing else
    own = {n for n, name in enumerate(regions) if name in renewed}
    return {n + 1: regions[n] for n in own & (read - written) if n + 1 in (read - written) - own}


@dataclass
class Execution:
    """This rank's part of a prepared plan: initialises parameters, feeds inputs, runs steps, reads outputs.

    state   parameters and optimizer state by (region, box, processor), shared between executions of one training
    seed    decides, with the number of the step, what the host fills in for "noise"
    lent    the arenas of another execution, none of whose steps runs while one of this does
    """

    graph: Graph
    prepared: Prepared
    comm: Communicator
    procs: Sequence[int]
    state: State = field(default_factory=dict)
    seed: int = 0
    backend: str | type[Backend] = "numpy"
    poison: bool = False
    lent: Arenas | None = None

    def __post_init__(self) -> None:
        p = self.prepared
        self.runner = Runner(
            p.tasks, p.simulated.timeline, p.packing, self.procs, self.comm, self.backend, self.state, self.poison,
            lent=self.lent,
        )  # fmt: skip
        self._inputs: list[tuple[str, Box, Fill]] = []
        self._scalars: list[tuple[str, Fill]] = []
        for (region, box, proc), array in self.runner.persistent("input").items():
            name, there = in_whole(self.graph, region, box)
            fill = partial(self.runner.backend(proc).fill, array)
            if name in self.graph.inputs:
                self._inputs.append((name, there, fill))
            elif name.endswith(GRADIENT):
                # the gradient of the loss is one; that of a result that nobody uses is zero
                fill(region == self.graph.loss + GRADIENT)
            else:
                self._scalars.append((name, fill))

        outputs = self.runner.persistent("output").items()
        self._outputs = {name: self._reading(name, proc, array) for (name, _, proc), array in reversed(outputs)}

    @property
    def inputs(self) -> list[tuple[str, Box]]:
        """What this rank must be fed: each input of the graph, and the box of the whole that it holds."""
        return [(name, box) for name, box, _ in self._inputs]

    @property
    def carried(self) -> State:
        """This rank's parameters and state, by (region, box, processor)."""
        return self.runner.persistent("carried")

    def initialise(self, seed: int, values: Mapping[str, np.ndarray] | None = None) -> None:
        """Fill all state that steps carry over.

        Parameters and running statistics get those of `values`, by name, or else their initial numbers; optimizer state
        begins with zeros, or as INITIAL_VALUES says.
        """
        for (region, box, proc), array in self.carried.items():
            fill = partial(self.runner.backend(proc).fill, array)
            if values is not None and region in values:
                fill(values[region][slices(box)])
            elif region in self.graph.tensors:
                fill(initial(self.graph.tensors[region], seed, box))
            else:
                fill(INITIAL_VALUES.get(region, 0))

    def restore(self, read: Feed) -> None:
        """Fill parameters and state from a checkpoint: `read` gives the array of a region and a box."""
        for (region, box, proc), array in self.carried.items():
            self.runner.backend(proc).fill(array, read(region, box))

    def saved(self) -> State:
        """What `carried` holds, as arrays on the host, which the next step may overwrite."""
        return {key: self.runner.backend(key[2]).read(array) for key, array in self.carried.items()}

    def feed(self, feed: Feed, rate: float = 0.0, step: int = 0) -> None:
        """Fill this rank's boxes of the inputs, and the step's learning rate, number (from 0) and noise."""
        for name, box, fill in self._inputs:
            fill(feed(name, box))
        scalars = {filled("lr"): rate, filled("step"): step + 1}
        for name, fill in self._scalars:
            # drawn only where it is wanted, as that takes longer than to fill in all others
            fill(rng.number(self.seed, name, step) if name == "noise" else scalars[name])

    def run(self, meanwhile: Callable[[], object] | None = None, timed: bool = False) -> None:
        """Run one step, `timed` if its `timeline` will be asked for.

        meanwhile   called while it runs; it may feed the next step where the runner `feeds_ahead`
        """
        self.runner.run(timed, meanwhile)

    def timeline(self) -> Timeline:
        """When each of this rank's tasks ran in the last step, which was timed."""
        return self.runner.timeline()

    def step(self) -> Timeline:
        """Run one step; returns when each of this rank's tasks ran."""
        self.run(timed=True)
        return self.timeline()

    def output(self, region: str) -> np.ndarray | None:
        """The whole of an output after the last step; None on ranks that do not hold it."""
        read = self._outputs.get(region)
        return read() if read is not None else None

    def _reading(self, region: str, proc: int, array: np.ndarray) -> Callable[[], np.ndarray]:
        """The call that reads an output."""
        read, order = partial(self.runner.backend(proc).read, array), self.graph.orders.get(region)
        return (lambda: np.transpose(read(), np.argsort(order))) if order else read
