"""Busy times: how long a node's kernels occupy each processor under a Config, whatever the rest of the plan is.

It does not know when kernels run, nor what transfers cost.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.planner.step.program import Program, Step
from castile.planner.strategy import Config


class BusyTimes:
    """Busy times of a lowering's nodes by a cost model, computed once for all nodes of one kind with equal Configs."""

    def __init__(self, lowering: Lowering, cost: CostModel) -> None:
        self._lowering, self._cost = lowering, cost
        self._known: dict[tuple[Hashable, Config], np.ndarray] = {}

    def picoseconds(self, name: str, config: Config) -> np.ndarray:
        """int64[P]: picoseconds that a node's kernels occupy each processor, over all microbatches."""
        key = self._kinds.get(name, ()), config
        if key not in self._known:
            machine, procs = self._lowering.machine, np.array(config.procs)
            total = np.zeros(machine.num_procs, np.int64)
            for step in self._steps.get(name, ()):
                template = self._lowering.templates.get(step, config.split, self._program.dtypes.__getitem__)
                keys, of_part = template.does.keys
                lasts = np.stack([self._cost.picoseconds(keys, kind) for kind in range(len(machine.kinds))])
                each = lasts[machine.kind_of[procs], np.repeat(of_part, config.replicas)]
                np.add.at(total, procs, step.micro.times * each)
            self._known[key] = total
        return self._known[key]

    @cached_property
    def _kinds(self) -> dict[str, Hashable]:
        """By node, its kind: nodes of equal kinds have passes with the same templates under every split."""
        kind, dtypes = self._lowering.templates.kind, self._program.dtypes.__getitem__
        return {name: tuple((kind(s, dtypes), s.micro.times) for s in steps) for name, steps in self._steps.items()}

    @cached_property
    def _program(self) -> Program:
        # All microbatches have the same kernels, so two are written out.
        return self._lowering.shortened(2).program(self._lowering.plan({}))

    @cached_property
    def _steps(self) -> dict[str, list[Step]]:
        """The passes of each node, by its name."""
        found: dict[str, list[Step]] = {}
        for step in self._program.steps:
            found.setdefault(step.node.name, []).append(step)
        return found
