"""A pattern on castile's runtime: a launch for each task, and the rest follows from what the launches touch.

It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.task_bench import kernel
from benchmarks.task_bench.patterns import Pattern, owner
from castile.kernels.table import Table
from castile.planner.cost import CostModel
from castile.planner.simulate import simulate
from castile.runtime import machine, memory
from castile.runtime.backends import base, numpy
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.processors import rank_of
from castile.runtime.epochs import Access, Launch
from castile.runtime.launches import build
from castile.runtime.memory import Packing
from castile.runtime.region import Box, Region
from castile.runtime.runner import Runner, run_local
from castile.runtime.task import Arg, Body, Call, CostKey, TaskGraph, Use

BUSY = "busy"
ORDER = Box((0,), (kernel.ORDER,))


class Kernels(Table):
    """The product's kernels, and the one of this benchmark."""

    def bind(
        self,
        name: str,
        args: tuple[Any, ...],
        outs: tuple[np.ndarray, ...],
        params: dict[str, Any],
        scratch: np.ndarray | None = None,
        accumulate: bool = False,
    ) -> Callable[[], Any]:
        if name != BUSY:
            return super().bind(name, args, outs, params, scratch, accumulate)
        order, *tokens = args
        inputs = list(zip((token[0] for token in tokens), params["reads"], strict=True))
        return kernel.bind(order, outs[0][0], params["point"], inputs)


class Backend(numpy.Backend):
    """The product's backend with the kernel of this benchmark beside its own."""

    def __init__(
        self, graph: TaskGraph, packing: Packing, proc: int, state: base.State, poison: bool,
        lent: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        super().__init__(graph, packing, proc, state, poison, lent)
        self._table = Kernels("numpy")


def lowered(pattern: Pattern, num_procs: int) -> TaskGraph:
    """All tasks of a pattern: region `order` is fed by the host, region `step n` holds a token for each of its points.

    The last step's tokens stay where they were written.
    """
    steps = range(pattern.num_steps)
    regions = {f"step {n}": Region(f"step {n}", (len(pattern.points(n)), kernel.TOKEN), "int64") for n in steps}
    regions["order"] = Region("order", ORDER.hi, "int64")
    launches = [_launch(pattern, n, point, num_procs) for n in steps for point in pattern.points(n)]
    last = pattern.num_steps - 1
    homes = {
        f"step {last}": [(owner(p, pattern.width, num_procs), _box(pattern, last, p)) for p in pattern.points(last)]
    }
    return build(launches, regions, machine.local(num_procs), homes, inputs=["order"])


def _launch(pattern: Pattern, step: int, point: int, num_procs: int) -> Launch:
    reads = pattern.reads(step, point)
    accesses = [Access("order", ORDER, Use.READ)]
    accesses += [Access(f"step {step - 1}", _box(pattern, step - 1, p), Use.READ) for p in reads]
    accesses.append(Access(f"step {step}", _box(pattern, step, point), Use.WRITE))
    *args, out = (Arg("view", n) for n in range(len(accesses)))
    body = Body((Call(BUSY, tuple(args), (out,), (("point", point), ("reads", reads))),))
    key = CostKey(BUSY, "", "int64", 0, 8 * kernel.TOKEN)
    return Launch(f"{step}[{point}]", (owner(point, pattern.width, num_procs),), tuple(accesses), body, key)


def _box(pattern: Pattern, step: int, point: int) -> Box:
    at = point - pattern.points(step).start
    return Box((at, 0), (at + 1, kernel.TOKEN))


class OnCastile:
    """A pattern, ready to run by the ranks `comms` of this process; num_procs processors in all."""

    def __init__(self, pattern: Pattern, num_procs: int, comms: Sequence[Communicator], poison: bool = False) -> None:
        self.pattern = pattern
        self.graph = lowered(pattern, num_procs)
        on = machine.local(num_procs)
        timeline = simulate(self.graph, CostModel(on).picoseconds(self.graph.cost_keys), on.engines).timeline
        packing = memory.pack(self.graph, timeline)
        self.runners = []
        for comm in comms:
            procs = [proc for proc, rank in enumerate(rank_of(num_procs, comm.size)) if rank == comm.rank]
            self.runners.append(Runner(self.graph, timeline, packing, procs, comm, Backend, poison=poison))
        self._num_runs = 0

    def run(self, num_turns: int) -> None:
        """All tasks once, each of so many turns. Raises WrongInput where one got another token than it reads."""
        orders = [array for runner in self.runners for array in runner.persistent("input").values()]
        for order in orders:
            order[:] = self._num_runs * self.pattern.num_steps, num_turns
        self._num_runs += 1
        if len(self.runners) == 1:
            self.runners[0].run()
        else:
            run_local(self.runners)

    def check(self) -> None:
        """Raises WrongInput where the last run did not end with the tokens of its last step."""
        stamp = self._num_runs * self.pattern.num_steps - 1
        first = self.pattern.points(self.pattern.num_steps - 1).start
        for runner in self.runners:
            for (_, box, _), token in runner.persistent("carried").items():
                if token.tolist() != [[stamp, first + box.lo[0]]]:
                    raise kernel.WrongInput(f"the run ended with {token.tolist()} at point {first + box.lo[0]}")
