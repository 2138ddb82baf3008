"""Incremental evaluation: when a plan's Configs change, only the tasks that this changes are priced and timed again.

It does not know which plans are worth a try, nor memory: the peak of a plan is what `simulate` computes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.graph import Node
from castile.planner.lower import KEPT, Lowering
from castile.planner.lowering.buckets import Composed
from castile.planner.lowering.compose import compose
from castile.planner.lowering.instances import FlowInstance, StepInstance
from castile.planner.lowering.ragged import ranges, row_pointers
from castile.planner.lowering.template import InStrides
from castile.planner.lowering.transfer_order import in_transfer_order
from castile.planner.simulation import blocks, repeats
from castile.planner.simulation.blocks import Block, BlockIndex, Edges
from castile.planner.simulation.delta import Change, Delta
from castile.planner.simulation.ordering import with_kernel_order
from castile.planner.step.program import Program
from castile.planner.strategy import READY, Config, Strategy, check, check_config
from castile.runtime.timeline import Timeline

Instance = StepInstance | FlowInstance
EMPTY = np.zeros(0, np.int64)


class _LoweredPlan(NamedTuple):
    """A plan's program, the Config of each node and its number, and the instance of each block."""

    program: Program
    configs: dict[str, Config]
    numbers: dict[str, int]
    blocks: list[Instance]


@dataclass(frozen=True, eq=False)
class _NumberedPlan:
    """A lowered plan whose tasks have numbers in a delta simulation.

    first   by block: the number of its first task
    room    by block: how many numbers are reserved for its tasks
    top     one more than the largest reserved number
    turns   by block: the edges that make its transfers take turns
    """

    strategy: Strategy
    lowered: _LoweredPlan
    first: np.ndarray
    room: np.ndarray
    top: int
    delta: Delta
    turns: Mapping[int, Edges]


class Incremental:
    """The simulated step of a present plan, from which the steps of similar plans are simulated.

    `propose` returns the seconds of a plan's step, `accept` makes the plan last proposed the present one. Seconds equal
    those of lowering and simulating the whole plan; the fewer Configs differ from the present plan's, the faster they
    are found. Simulated from scratch are plans that cut the batch into microbatches, plans with buckets, which may hold
    messages of any two nodes, and plans of which only one has fetches and accumulators of its own.
    """

    def __init__(self, lowering: Lowering, cost: CostModel, strategy: Strategy, form: str = "auto") -> None:
        self.lowering, self._cost, self._form = lowering, cost, form
        self._blocks: dict[Instance, Block] = {}
        self._strided_durations: dict[tuple[Hashable, ...], np.ndarray] = {}
        self._update_configs: dict[tuple[str, Config], Config] = {}
        self._block_indices: dict[int, BlockIndex] = {}
        self._present = self._simulate_from_scratch(strategy, self._lower_from_scratch(strategy))
        self._proposed: _NumberedPlan | None = None

    @property
    def strategy(self) -> Strategy:
        """The present plan."""
        return self._present.strategy

    @property
    def seconds(self) -> float:
        """The seconds of its step."""
        return self._present.delta.seconds

    @property
    def num_tasks(self) -> int:
        """The number of tasks of the present plan."""
        return self._present.delta.num_tasks

    @property
    def num_timed(self) -> int:
        """How many tasks of the last proposal were served one by one, unless it was simulated from scratch."""
        return self._present.delta.num_timed

    @property
    def timeline(self) -> Timeline:
        """When its tasks run, by their numbers in the lowered graph."""
        plan = self._present
        counts = np.array([one.num_tasks for one in plan.lowered.blocks], np.int64)
        every = np.arange(self.num_tasks)
        spans = plan.delta.spans(every if plan.strategy.bucket_bytes else ranges(plan.first, counts))
        return Timeline(every, spans.start, spans.end)

    def propose(self, strategy: Strategy, limit: float = inf) -> float | None:
        """Seconds of a plan's step; None where they exceed `limit`.

        Raises ValueError in one sentence where the plan does not fit graph and machine.
        """
        self._proposed = None
        lowered = self._lower_from_present(strategy)
        if lowered is None:
            plan = self._simulate_from_scratch(strategy, self._lower_from_scratch(strategy))
            seconds = plan.delta.seconds if plan.delta.seconds <= limit else None
        else:
            plan, change = self._numbered_change(strategy, *lowered)
            seconds = plan.delta.propose(change, limit)
        if seconds is not None:
            self._proposed = plan
        return seconds

    def accept(self) -> None:
        """Make the plan last proposed, which must not have exceeded its limit, the present one."""
        assert self._proposed is not None, "there is no proposal"
        old, plan, self._proposed = self._present, self._proposed, None
        if plan.delta is old.delta:
            plan.delta.accept()
            # Unused numbers cost time too.
            if plan.delta.size > 1000 + 4 * plan.delta.num_tasks:
                plan = self._simulate_from_scratch(plan.strategy, plan.lowered)
        self._present = plan

    def _lower_from_scratch(self, strategy: Strategy) -> _LoweredPlan:
        """Lower a plan; raises ValueError where it does not fit graph and machine."""
        lowering = self.lowering
        check(strategy, lowering.names, lowering.graph, lowering.machine)
        for name, config in strategy.configs.items():
            check_config(self._node(name), config, lowering.machine.num_procs)
        program, configs = lowering.program(strategy), lowering.configs(strategy)
        return self._lower_instances(
            program, configs, {name: self.lowering.number(config) for name, config in configs.items()}
        )

    def _lower_instances(self, program: Program, configs: dict[str, Config], numbers: dict[str, int]) -> _LoweredPlan:
        """Lower all instances of a program."""
        steps, flows = self.lowering.instances_of(program, configs, numbers)
        return _LoweredPlan(program, configs, numbers, [*steps, *flows])

    def _lower_from_present(self, strategy: Strategy) -> tuple[_LoweredPlan, list[int]] | None:
        """Lower a plan by replacing instances of the present one; returns it, and the blocks that may differ.

        None where the two have different nodes, or where one has microbatches, recomputation, buckets or an order.
        """
        lowering, old = self.lowering, self._present.lowered
        known = self.strategy.configs
        if strategy.configs.keys() != known.keys() or not (_is_plain(strategy) and _is_plain(self.strategy)):
            return None
        fresh = self._changed_configs(strategy)
        numbers = old.numbers | {name: lowering.number(config) for name, config in fresh.items()}
        configs, index = old.configs | fresh, self._index_of(old.program)
        changed = sorted({block for name in fresh for block in index.blocks[name]})
        instances, program = old.blocks.copy(), id(old.program)
        try:
            for block in changed:
                key = tuple(numbers[name] for name in index.users[block])
                if block < index.num_slots:
                    instances[block] = lowering._steps[program, block, key[0]]
                else:
                    instances[block] = lowering._flows[program, block - index.num_slots, key]
        except KeyError:
            return self._lower_instances(old.program, configs, numbers), changed
        return _LoweredPlan(old.program, configs, numbers, instances), changed

    def _changed_configs(self, strategy: Strategy) -> dict[str, Config]:
        """By node, the Configs that differ from the present plan's. Raises ValueError where the plan does not fit."""
        lowering, known = self.lowering, self.strategy.configs
        if not _have_same_target(strategy, self.strategy):
            check(strategy, lowering.names, lowering.graph, lowering.machine)
        fresh = {name: config for name, config in strategy.configs.items() if known[name] is not config}
        for name, config in fresh.items():
            check_config(self._node(name), config, lowering.machine.num_procs)
        if lowering._together or lowering._cast:
            # All updates wait for one factor, and casts are placed as updates are.
            old = self._present.lowered.configs
            return {name: config for name, config in lowering.configs(strategy).items() if old[name] is not config}
        for update, _, user, _ in lowering._users:
            if user in fresh and update not in known:
                fresh[update] = self._update_config(update, user, strategy)
        return fresh

    def _update_config(self, update: str, user: str, strategy: Strategy) -> Config:
        """The Config of an update that the strategy does not name; that of one user of the parameter decides it."""
        key = update, strategy.configs[user]
        if key not in self._update_configs:
            self._update_configs[key] = self.lowering.configs(strategy)[update]
        return self._update_configs[key]

    def _node(self, name: str) -> Node:
        return self.lowering.names.nodes.get(name) or self.lowering.names.optional[name]

    def _index_of(self, program: Program) -> BlockIndex:
        if id(program) not in self._block_indices:
            self._block_indices[id(program)] = blocks.index_blocks(program)
        return self._block_indices[id(program)]

    def _simulate_from_scratch(self, strategy: Strategy, lowered: _LoweredPlan) -> _NumberedPlan:
        """Simulate a whole plan, with tasks numbered as in the lowered graph."""
        machine, num_slots = self.lowering.machine, len(lowered.program.steps)
        steps, flows = lowered.blocks[:num_slots], lowered.blocks[num_slots:]
        tasks = compose(steps, flows, machine.num_procs, self.lowering.catalogue)  # type: ignore[arg-type]
        tasks = Composed(steps, flows, tasks).bucketed(strategy.bucket_bytes).graph  # type: ignore[arg-type]
        graph, durations = self._cost.by_kind(in_transfer_order(tasks, machine.engines))
        number = repeats.numbers(lowered.program, graph)
        graph = with_kernel_order(number, graph, (graph, durations), machine.engines, strategy.order)
        counts = np.array([one.num_tasks for one in lowered.blocks], np.int64)
        delta = Delta.of(graph, durations, machine.engines, self._form)
        turns = self._turn_edges(lowered, num_slots)
        return _NumberedPlan(strategy, lowered, row_pointers(counts)[:-1], counts, int(counts.sum()), delta, turns)

    def _turn_edges(self, lowered: _LoweredPlan, num_slots: int) -> dict[int, Edges]:
        """By block, the edges that make its transfers take turns."""
        flows = {b: self._block(b, one, num_slots) for b, one in enumerate(lowered.blocks[num_slots:], num_slots)}
        in_turn = {b: block for b, block in flows.items() if block.in_turn.any()}
        return blocks.turn_edges(in_turn, self.lowering.machine.engines)

    def _numbered_change(
        self, strategy: Strategy, lowered: _LoweredPlan, changed: list[int]
    ) -> tuple[_NumberedPlan, Change]:
        """Number the tasks of a plan of the same program; returns it, and the change that makes it of the present one.

        The change replaces the blocks whose instances, edges or durations differ.
        """
        old, index = self._present, self._index_of(lowered.program)
        before, instances = old.lowered.blocks, lowered.blocks
        fresh = [b for b in changed if before[b] is not instances[b]]
        first, room, top = old.first.copy(), old.room.copy(), old.top
        renumbered = [b for b in fresh if instances[b].num_tasks > room[b]]
        for b in renumbered:
            first[b], room[b] = top, instances[b].num_tasks
            top += int(room[b])
        replaced, turns = set(fresh), old.turns
        for b in fresh:
            if b >= index.num_slots:
                was, now = (self._block(b, one[b], index.num_slots) for one in (before, instances))
                replaced.update(_blocks_with_other_edges(was.edges, now.edges, renumbered))
                replaced.update(_steps_with_other_strides(was, now))
                if turns is old.turns and (was.in_turn.any() or now.in_turn.any()):
                    turns = self._turn_edges(lowered, index.num_slots)
        replaced.update(_blocks_with_other_edges(old.turns, turns, renumbered))
        order = sorted(replaced)
        removed = ranges(old.first[order], np.array([before[b].num_tasks for b in order], np.int64))
        plan = _NumberedPlan(strategy, lowered, first, room, top, old.delta, turns)
        return plan, self._change_of_blocks(plan, index, order, removed)

    def _change_of_blocks(
        self, plan: _NumberedPlan, index: BlockIndex, replaced: list[int], removed: np.ndarray
    ) -> Change:
        """The change that removes the tasks of these numbers and adds those of blocks.

        replaced   the blocks whose tasks are added
        """
        instances, num_slots = plan.lowered.blocks, index.num_slots
        touching = {f for b in replaced for f in index.touching[b]}
        found = {b: self._block(b, instances[b], num_slots) for b in touching.union(replaced)}
        own = [found[b] for b in replaced]
        counts = np.array([block.num_tasks for block in own], np.int64)
        begin = row_pointers(counts)
        edges: list[Edges] = []
        begins, durations = [], []
        for b, block, at in zip(replaced, own, begin.tolist()):
            flows = [found[f] for f in index.touching[b]]
            into = [edges_of[b] for edges_of in (*(flow.edges for flow in flows), plan.turns) if b in edges_of]
            edges += into
            begins += [at] * len(into)
            strided = tuple([flow.strided[b] for flow in flows if b in flow.strided]) if b < num_slots else ()
            durations.append(self._durations_with_strides(instances[b], block, strided) if strided else block.durations)
        return Change(
            removed, ranges(plan.first[replaced], counts), _joined([block.order for block in own]), _joined(durations),
            row_pointers(_joined([block.lane_count for block in own])), _joined([block.lanes for block in own]),
            *_needs(plan, edges, begins, int(begin[-1])),
        )  # fmt: skip

    def _durations_with_strides(self, step: Instance, block: Block, strided: tuple[InStrides, ...]) -> np.ndarray:
        """int64[n]: picoseconds of a step's tasks, some of which read in strides."""
        assert isinstance(step, StepInstance)
        if (step, *strided) not in self._strided_durations:
            tasks, keys = step.template.strided(step.config.replicas, strided)
            durations = block.durations.copy()
            durations[tasks] = blocks.task_durations(self._cost, keys, np.arange(len(keys)), step.lanes[tasks])
            if len(self._strided_durations) > KEPT:
                self._strided_durations.clear()
            self._strided_durations[step, *strided] = durations
        return self._strided_durations[step, *strided]

    def _block(self, number: int, instance: Instance, num_slots: int) -> Block:
        if instance not in self._blocks:
            if len(self._blocks) > KEPT:
                self._blocks.clear()
            if isinstance(instance, StepInstance):
                self._blocks[instance] = blocks.step_block(instance, number, self._cost)
            else:
                self._blocks[instance] = blocks.flow_block(instance, number - num_slots, num_slots, self._cost)
        return self._blocks[instance]


def _needs(
    plan: _NumberedPlan, edges: Sequence[Edges], begins: Sequence[int], num_tasks: int
) -> tuple[np.ndarray, np.ndarray]:
    """(need_ptr, needs) of added tasks; begins: by entry of `edges` the index of its block's first added task."""
    before, task, after = (_joined([e[n] for e in edges]) for n in range(3))  # type: ignore[misc]
    after = after + np.repeat(np.array(begins, np.int64), [len(e.after) for e in edges])
    # sorted and unique: two flows may make a task wait for the same one
    pairs = np.sort(after * (plan.top + 1) + plan.first[before] + task)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return row_pointers(np.bincount(pairs // (plan.top + 1), minlength=num_tasks)), pairs % (plan.top + 1)


def _is_plain(plan: Strategy) -> bool:
    """Whether Configs are all that a plan says."""
    return plan.microbatches == 1 and not plan.recompute and not plan.bucket_bytes and plan.order == READY


def _have_same_target(one: Strategy, other: Strategy) -> bool:
    """Whether two plans are for the same graph, machine and number of microbatches."""
    target = attrgetter("microbatches", "graph", "machine", "num_procs")
    return bool(target(one) == target(other))


def _blocks_with_other_edges(
    was: Mapping[int, Edges], now: Mapping[int, Edges], renumbered: Sequence[int]
) -> Iterator[int]:
    """The blocks whose edges change, or come from a block whose tasks are renumbered."""
    for b in was.keys() | now.keys():
        old, new = was.get(b), now.get(b)
        if old is None or new is None or old.identity != new.identity or not new.blocks.isdisjoint(renumbered):
            yield b


def _steps_with_other_strides(was: Block, now: Block) -> Iterator[int]:
    """The steps whose strided reads of a flow's array change."""
    for b in was.strided.keys() | now.strided.keys():
        if was.strided.get(b) != now.strided.get(b):
            yield b


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([EMPTY, *arrays])
