"""Incremental evaluation: when Configs of a plan change, only what this touches is priced and timed again.

It does not know which plans are worth a try, nor memory: the peak of a plan is what `simulate` says of it.
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
from castile.planner.lowering.rows import pointer, runs
from castile.planner.lowering.template import InStrides
from castile.planner.lowering.turns import in_turn
from castile.planner.simulation import blocks, repeats
from castile.planner.simulation.blocks import Block, Contents, Edges
from castile.planner.simulation.delta import Change, Delta
from castile.planner.simulation.ordering import with_kernel_order
from castile.planner.step.program import Program
from castile.planner.strategy import READY, Config, Strategy, check, check_config
from castile.runtime.timeline import Timeline

Instance = StepInstance | FlowInstance
EMPTY = np.zeros(0, np.int64)


class _Lowered(NamedTuple):
    """A plan's program, every Config and its number, and the instances of its blocks."""

    program: Program
    configs: dict[str, Config]
    numbers: dict[str, int]
    blocks: list[Instance]


@dataclass(frozen=True, eq=False)
class _Laid:
    """A plan laid out: the number of each block's first task, for how many there is room, where all of it ends, and
    which blocks' tasks take turns.
    """

    strategy: Strategy
    lowered: _Lowered
    first: np.ndarray
    room: np.ndarray
    top: int
    delta: Delta
    turns: Mapping[int, Edges]


class Incremental:
    """The step of a plan as it is simulated, and what the steps of other plans would be.

    `propose` says how long a plan's step takes, `accept` goes over to the plan last proposed. Seconds are those of
    lowering and simulating the whole plan, exactly; the fewer Configs differ from the present plan's, the sooner they
    are found. Laid out from nothing are plans that cut the batch in time, those with buckets, which may hold what any
    two nodes send, and those with fetches and accumulators of their own where the present one has none, or the other
    way about.
    """

    def __init__(self, lowering: Lowering, cost: CostModel, strategy: Strategy, form: str = "auto") -> None:
        self.lowering, self._cost, self._form = lowering, cost, form
        self._blocks: dict[Instance, Block] = {}
        self._lasts: dict[tuple[Hashable, ...], np.ndarray] = {}
        self._homes: dict[tuple[str, Config], Config] = {}
        self._contents: dict[int, Contents] = {}
        self._laid = self._anew(strategy, self._from_scratch(strategy))
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
        counts = np.array([one.num_tasks for one in laid.lowered.blocks], np.int64)
        every = np.arange(self.num_tasks)
        spans = laid.delta.spans(every if laid.strategy.bucket_bytes else runs(laid.first, counts))
        return Timeline(every, spans.start, spans.end)

    def propose(self, strategy: Strategy, limit: float = inf) -> float | None:
        """Seconds of a plan's step; None where they are more than `limit`.

        Raises ValueError in one sentence where the plan does not fit graph and machine.
        """
        self._proposed = None
        near = self._from_present(strategy)
        if near is None:
            laid = self._anew(strategy, self._from_scratch(strategy))
            found = laid.delta.seconds if laid.delta.seconds <= limit else None
        else:
            laid, change = self._changed(strategy, *near)
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

    def _from_scratch(self, strategy: Strategy) -> _Lowered:
        """A plan's program and instances."""
        lowering = self.lowering
        check(strategy, lowering.names, lowering.graph, lowering.machine)
        for name, config in strategy.configs.items():
            check_config(self._node(name), config, lowering.machine.num_procs)
        program, configs = lowering.program(strategy), lowering.configs(strategy)
        return self._instances(
            program, configs, {name: self.lowering.number(config) for name, config in configs.items()}
        )

    def _instances(self, program: Program, configs: dict[str, Config], numbers: dict[str, int]) -> _Lowered:
        """All of a program's instances."""
        steps, flows = self.lowering.instances_of(program, configs, numbers)
        return _Lowered(program, configs, numbers, [*steps, *flows])

    def _from_present(self, strategy: Strategy) -> tuple[_Lowered, list[int]] | None:
        """A plan's instances, found by way of those of the present one, and which of them may be others.

        None where the two name not the same nodes, or one of them cuts the batch in time, drops results, or has buckets
        or an order.
        """
        lowering, old = self.lowering, self._laid.lowered
        known = self.strategy.configs
        if strategy.configs.keys() != known.keys() or not (_is_plain(strategy) and _is_plain(self.strategy)):
            return None
        if not _are_comparable(strategy, self.strategy):
            check(strategy, lowering.names, lowering.graph, lowering.machine)
        fresh = {name: config for name, config in strategy.configs.items() if known[name] is not config}
        for name, config in fresh.items():
            check_config(self._node(name), config, lowering.machine.num_procs)
        if not lowering._together and not lowering._cast:
            for update, _, user, _ in lowering._users:
                if user in fresh and update not in known:
                    fresh[update] = self._home(update, user, strategy)
        else:
            # All updates wait for one factor, and casts lie as updates do.
            every = lowering.configs(strategy)
            fresh = {name: config for name, config in every.items() if old.configs[name] is not config}
        numbers = old.numbers | {name: self.lowering.number(config) for name, config in fresh.items()}
        configs, contents = old.configs | fresh, self._contents_of(old.program)
        changed = sorted({block for name in fresh for block in contents.blocks[name]})
        instances, program = old.blocks.copy(), id(old.program)
        try:
            for block in changed:
                key = tuple(numbers[name] for name in contents.users[block])
                if block < contents.num_slots:
                    instances[block] = lowering._steps[program, block, key[0]]
                else:
                    instances[block] = lowering._flows[program, block - contents.num_slots, key]
        except KeyError:
            return self._instances(old.program, configs, numbers), changed
        return _Lowered(old.program, configs, numbers, instances), changed

    def _home(self, update: str, user: str, strategy: Strategy) -> Config:
        """The Config of an update that the strategy leaves open: it follows from that of one user of the parameter."""
        key = update, strategy.configs[user]
        if key not in self._homes:
            self._homes[key] = self.lowering.configs(strategy)[update]
        return self._homes[key]

    def _node(self, name: str) -> Node:
        return self.lowering.names.nodes.get(name) or self.lowering.names.optional[name]

    def _contents_of(self, program: Program) -> Contents:
        if id(program) not in self._contents:
            self._contents[id(program)] = blocks.contents(program)
        return self._contents[id(program)]

    def _anew(self, strategy: Strategy, lowered: _Lowered) -> _Laid:
        """A plan laid out from nothing: its tasks are numbered as in the lowered graph."""
        machine, num_slots = self.lowering.machine, len(lowered.program.steps)
        steps, flows = lowered.blocks[:num_slots], lowered.blocks[num_slots:]
        tasks = compose(steps, flows, machine.num_procs, self.lowering.catalogue)  # type: ignore[arg-type]
        tasks = Composed(steps, flows, tasks).bucketed(strategy.bucket_bytes).graph  # type: ignore[arg-type]
        graph, durations = self._cost.by_kind(in_turn(tasks, machine.engines))
        number = repeats.numbers(lowered.program, graph)
        graph = with_kernel_order(number, graph, (graph, durations), machine.engines, strategy.order)
        counts = np.array([one.num_tasks for one in lowered.blocks], np.int64)
        delta = Delta.of(graph, durations, machine.engines, self._form)
        return _Laid(
            strategy, lowered, pointer(counts)[:-1], counts, int(counts.sum()), delta, self._turns(lowered, num_slots)
        )

    def _turns(self, lowered: _Lowered, num_slots: int) -> dict[int, Edges]:
        """By block what waits for those before it on its lanes."""
        every = {b: self._block(b, one, num_slots) for b, one in enumerate(lowered.blocks[num_slots:], num_slots)}
        taking = {b: block for b, block in every.items() if block.in_turn.any()}
        return blocks.turns(taking, self.lowering.machine.engines)

    def _changed(self, strategy: Strategy, lowered: _Lowered, changed: list[int]) -> tuple[_Laid, Change]:
        """Another plan of the same program: new instances go and come, and steps that now wait for others or take
        another time.
        """
        old, contents = self._laid, self._contents_of(lowered.program)
        before, instances = old.lowered.blocks, lowered.blocks
        fresh = [b for b in changed if before[b] is not instances[b]]
        first, room, top = old.first.copy(), old.room.copy(), old.top
        elsewhere = [b for b in fresh if instances[b].num_tasks > room[b]]
        for b in elsewhere:
            first[b], room[b] = top, instances[b].num_tasks
            top += int(room[b])
        moved, turns = set(fresh), old.turns
        for b in fresh:
            if b >= contents.num_slots:
                was, now = (self._block(b, one[b], contents.num_slots) for one in (before, instances))
                moved.update(_differing(was.into, now.into, elsewhere), _read_otherwise(was, now))
                if turns is old.turns and (was.in_turn.any() or now.in_turn.any()):
                    turns = self._turns(lowered, contents.num_slots)
        moved.update(_differing(old.turns, turns, elsewhere))
        order = sorted(moved)
        removed = runs(old.first[order], np.array([before[b].num_tasks for b in order], np.int64))
        laid = _Laid(strategy, lowered, first, room, top, old.delta, turns)
        return laid, self._change(laid, contents, order, removed)

    def _change(self, laid: _Laid, contents: Contents, moved: list[int], removed: np.ndarray) -> Change:
        """The tasks of these blocks come: with numbers from where their blocks' tasks had them, or behind all."""
        instances, num_slots, top = laid.lowered.blocks, contents.num_slots, laid.top
        near = {f for b in moved for f in contents.touching[b]}
        found = {b: self._block(b, instances[b], num_slots) for b in near.union(moved)}
        own = [found[b] for b in moved]
        counts = np.array([block.num_tasks for block in own], np.int64)
        begin = pointer(counts)
        edges: list[Edges] = []
        begins, lasts = [], []
        for b, block, at in zip(moved, own, begin.tolist()):
            flows = [found[f] for f in contents.touching[b]]
            into = [from_[b] for from_ in (*(flow.into for flow in flows), laid.turns) if b in from_]
            edges += into
            begins += [at] * len(into)
            frames = tuple([flow.frames[b] for flow in flows if b in flow.frames]) if b < num_slots else ()
            lasts.append(self._strided(instances[b], block, frames) if frames else block.lasts)
        before, task, after = (_join([e[n] for e in edges]) for n in range(3))  # type: ignore[misc]
        after = after + np.repeat(np.array(begins, np.int64), [len(e.after) for e in edges])
        # needs are sorted and unique, as two flows may make a task wait for the same
        pairs = np.sort(after * (top + 1) + laid.first[before] + task)
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        need_ptr = pointer(np.bincount(pairs // (top + 1), minlength=int(begin[-1])))
        return Change(
            removed, runs(laid.first[moved], counts), _join([block.order for block in own]), _join(lasts),
            pointer(_join([block.lane_count for block in own])), _join([block.lanes for block in own]),
            need_ptr, pairs % (top + 1),
        )  # fmt: skip

    def _strided(self, step: Instance, block: Block, frames: tuple[InStrides, ...]) -> np.ndarray:
        """How long the tasks of a step take, of which some read in strides."""
        assert isinstance(step, StepInstance)
        if (step, *frames) not in self._lasts:
            tasks, keys = step.template.strided(step.config.replicas, frames)
            lasts = block.lasts.copy()
            lasts[tasks] = blocks.priced(self._cost, keys, np.arange(len(keys)), step.lanes[tasks])
            if len(self._lasts) > KEPT:
                self._lasts.clear()
            self._lasts[step, *frames] = lasts
        return self._lasts[step, *frames]

    def _block(self, number: int, instance: Instance, num_slots: int) -> Block:
        if instance not in self._blocks:
            if len(self._blocks) > KEPT:
                self._blocks.clear()
            if isinstance(instance, StepInstance):
                self._blocks[instance] = blocks.of_step(instance, number, self._cost)
            else:
                self._blocks[instance] = blocks.of_flow(instance, number - num_slots, num_slots, self._cost)
        return self._blocks[instance]


def _is_plain(plan: Strategy) -> bool:
    """Whether all of a plan follows from its Configs."""
    return plan.microbatches == 1 and not plan.recompute and not plan.bucket_bytes and plan.order == READY


def _are_comparable(one: Strategy, other: Strategy) -> bool:
    """Whether two plans are made for the same."""
    made_for = attrgetter("microbatches", "graph", "machine", "num_procs")
    return bool(made_for(one) == made_for(other))


def _differing(was: Mapping[int, Edges], now: Mapping[int, Edges], elsewhere: Sequence[int]) -> Iterator[int]:
    """The blocks that wait for other tasks than they did; the tasks of some blocks are elsewhere."""
    for b in was.keys() | now.keys():
        old, new = was.get(b), now.get(b)
        if old is None or new is None or old.identity != new.identity or not new.blocks.isdisjoint(elsewhere):
            yield b


def _read_otherwise(was: Block, now: Block) -> Iterator[int]:
    """The steps that read what a flow brings otherwise than they did."""
    for b in was.frames.keys() | now.frames.keys():
        if was.frames.get(b) != now.frames.get(b):
            yield b


def _join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([EMPTY, *arrays])
