"""Incremental evaluation: when Configs of a plan change, only what this touches is priced and timed again.

It does not know which plans are worth a try, nor memory: the peak of a plan is what `simulate` says of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from castile.planner import blocks
from castile.planner.blocks import Block
from castile.planner.compose import compose
from castile.planner.cost import CostModel
from castile.planner.delta import Change, Delta
from castile.planner.instances import FlowInstance, StepInstance
from castile.planner.lower import KEPT, Lowering
from castile.planner.program import Program
from castile.planner.strategy import Config, Strategy, check, check_config
from castile.runtime.timeline import Timeline

Instance = StepInstance | FlowInstance
EMPTY = np.zeros(0, np.int64)


class _Lowered(NamedTuple):
    """A plan's program and the instances of its blocks."""

    program: Program
    steps: list[StepInstance]
    flows: list[FlowInstance]

    @property
    def instances(self) -> list[Instance]:
        return [*self.steps, *self.flows]


@dataclass(frozen=True, eq=False)
class _Laid:
    """A plan laid out: the number of each block's first task, and for how many there is room."""

    strategy: Strategy
    lowered: _Lowered
    touching: list[list[int]]
    first: np.ndarray
    room: np.ndarray
    delta: Delta


class Incremental:
    """The step of a plan as it is simulated, and what the steps of other plans would be.

    `propose` says how long a plan's step takes, `accept` goes over to the plan last proposed. Seconds are those of
    lowering and simulating the whole plan, exactly; the fewer Configs differ from the present plan's, the sooner they
    are found. Plans that cut the batch in time, and those with fetches and accumulators of their own where the present
    one has none, or the other way about, are laid out from nothing.
    """

    def __init__(self, lowering: Lowering, cost: CostModel, strategy: Strategy, form: str = "auto") -> None:
        self.lowering, self._cost, self._form = lowering, cost, form
        self._blocks: dict[Instance, Block] = {}
        self._laid = self._anew(strategy, self._lower(strategy, {}))
        self._proposed: _Laid | None = None

    @property
    def strategy(self) -> Strategy:
        """The present plan."""
        return self._laid.strategy

    @property
    def seconds(self) -> float:
        """How long its step takes."""
        return self._laid.delta.seconds

    @property
    def num_tasks(self) -> int:
        """How many tasks the present plan has."""
        return self._laid.delta.num_tasks

    @property
    def num_timed(self) -> int:
        """How many tasks of the last proposal were timed one by one, if it was not laid out from nothing."""
        return self._laid.delta.num_timed

    @property
    def timeline(self) -> Timeline:
        """When its tasks run, by their numbers in the lowered graph."""
        laid = self._laid
        counts = np.array([one.num_tasks for one in laid.lowered.instances], np.int64)
        spans = laid.delta.spans(_ranges(laid.first, counts))
        return Timeline(np.arange(counts.sum()), spans.start, spans.end)

    def propose(self, strategy: Strategy, limit: float = inf) -> float | None:
        """Seconds of a plan's step; None where they are more than `limit`.

        Raises ValueError in one sentence where the plan does not fit graph and machine.
        """
        self._proposed = None
        lowered = self._lower(strategy, self.strategy.configs)
        if lowered.program is not self._laid.lowered.program or strategy.microbatches > 1:
            laid = self._anew(strategy, lowered)
            found = laid.delta.seconds if laid.delta.seconds <= limit else None
        else:
            laid, change = self._changed(strategy, lowered)
            found = laid.delta.propose(change, limit)
        if found is not None:
            self._proposed = laid
        return found

    def accept(self) -> None:
        """Go over to the plan that was proposed last, and not refused."""
        assert self._proposed is not None, "there is no proposal"
        old, laid, self._proposed = self._laid, self._proposed, None
        if laid.delta is old.delta:
            laid.delta.accept()
            # Numbers that no task bears any more take time too.
            if laid.delta.size > 1000 + 4 * laid.delta.num_tasks:
                laid = self._anew(laid.strategy, laid.lowered)
        self._laid = laid

    def _lower(self, strategy: Strategy, known: Mapping[str, Config]) -> _Lowered:
        """The plan's program and instances. Configs that are known were checked before."""
        lowering = self.lowering
        if not known or not _alike(strategy, self.strategy):
            check(strategy, lowering.names, lowering.graph, lowering.machine)
        for name, config in strategy.configs.items():
            if known.get(name) is not config:
                node = lowering.names.nodes.get(name) or lowering.names.optional[name]
                check_config(node, config, lowering.machine.num_procs)
        program, configs = lowering.program(strategy), lowering.configs(strategy)
        numbers = {name: lowering._numbers.setdefault(c, len(lowering._numbers)) for name, c in configs.items()}
        steps = lowering._step_instances(program, configs, numbers)
        return _Lowered(program, steps, lowering._flow_instances(program, configs, numbers, steps))

    def _anew(self, strategy: Strategy, lowered: _Lowered) -> _Laid:
        """A plan laid out from nothing: its tasks are numbered as in the lowered graph."""
        machine = self.lowering.machine
        graph, durations = self._cost.by_kind(compose(lowered.steps, lowered.flows, machine.num_procs))
        counts = np.array([one.num_tasks for one in lowered.instances], np.int64)
        delta = Delta.of(graph, durations, machine.engines, self._form)
        return _Laid(strategy, lowered, blocks.touching(lowered.program), _pointer(counts)[:-1], counts, delta)

    def _changed(self, strategy: Strategy, lowered: _Lowered) -> tuple[_Laid, Change]:
        """Another plan of the same program: new instances and the steps that flows among them touch go and come."""
        old, num_slots = self._laid, len(lowered.steps)
        laid = replace(old, strategy=strategy, lowered=lowered, first=old.first.copy(), room=old.room.copy())
        before, instances = old.lowered.instances, lowered.instances
        fresh = [b for b, one in enumerate(before) if one is not instances[b]]
        moved = set(fresh)
        for b in fresh:
            if b >= num_slots:
                for flow in (before[b], instances[b]):
                    block = self._block(b, flow, num_slots)
                    moved.update(block.into, block.frames)
        counts = np.array([before[b].num_tasks for b in sorted(moved)], np.int64)
        removed = _ranges(old.first[sorted(moved)], counts)
        return laid, self._change(laid, instances, sorted(moved), removed)

    def _change(self, laid: _Laid, instances: list[Instance], moved: list[int], removed: np.ndarray) -> Change:
        """The tasks of these blocks come: with numbers from where their blocks' tasks had them, or behind all."""
        num_slots = len(laid.lowered.steps)
        own = [self._block(b, instances[b], num_slots) for b in moved]
        counts = np.array([block.num_tasks for block in own], np.int64)
        top = int((laid.first + laid.room).max(initial=0))
        for b, count in zip(moved, counts.tolist()):
            if count > laid.room[b]:
                laid.first[b], laid.room[b], top = top, count, top + count
        begin = _pointer(counts)
        lasts = _join([block.lasts for block in own])
        edges: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        begins = []
        for b, first in zip(moved, begin.tolist()):
            flows = [self._block(f, instances[f], num_slots) for f in laid.touching[b]]
            found = [flow.into[b] for flow in flows if b in flow.into]
            edges += found
            begins += [first] * len(found)
            if b < num_slots:
                self._stride(instances[b], [row for flow in flows for row in flow.frames.get(b, ())], lasts[first:])
        block, task, after = (_join([e[n] for e in edges]) for n in range(3))
        after = after + np.repeat(np.array(begins, np.int64), [len(e[0]) for e in edges])
        # needs are sorted and unique, as two flows may make a task wait for the same
        pairs = np.sort(after * (top + 1) + laid.first[block] + task)
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        need_ptr = _pointer(np.bincount(pairs // (top + 1), minlength=int(begin[-1])))
        return Change(
            removed, _ranges(laid.first[moved], counts), _join([block.order for block in own]), lasts,
            _pointer(_join([block.lane_count for block in own])), _join([block.lanes for block in own]),
            need_ptr, pairs % (top + 1),
        )  # fmt: skip

    def _stride(self, step: Instance, frames: list[tuple[int, int, tuple[int, ...]]], lasts: np.ndarray) -> None:
        """Write how long those tasks of a step take that read in strides."""
        if frames:
            assert isinstance(step, StepInstance)
            tasks, keys = blocks.strided(step, frames)
            lasts[tasks] = blocks.priced(self._cost, keys, np.arange(len(keys)), step.lanes[tasks])

    def _block(self, number: int, instance: Instance, num_slots: int) -> Block:
        if instance not in self._blocks:
            if len(self._blocks) > KEPT:
                self._blocks.clear()
            if isinstance(instance, StepInstance):
                self._blocks[instance] = blocks.of_step(instance, number, self._cost)
            else:
                self._blocks[instance] = blocks.of_flow(instance, number - num_slots, num_slots, self._cost)
        return self._blocks[instance]


def _alike(one: Strategy, other: Strategy) -> bool:
    """Whether two plans are made for the same and name the same nodes."""
    made_for = attrgetter("microbatches", "graph", "machine", "num_procs")
    return made_for(one) == made_for(other) and one.configs.keys() == other.configs.keys()


def _join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([EMPTY, *arrays])


def _pointer(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _ranges(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """first[i], first[i] + 1, ..., so many of each."""
    return np.repeat(first - _pointer(counts)[:-1], counts) + np.arange(counts.sum())
