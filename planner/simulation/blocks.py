"""Blocks: the tasks of one instance in flat arrays, as they enter any task graph, and what waits there for what.

Steps are blocks by slot, and the transfers of flows follow in the order of the flows. It does not know where in a
graph a block's tasks stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.lowering.instances import HOST, PATTERN, FlowInstance, StepInstance
from castile.planner.lowering.template import InStrides
from castile.planner.lowering.turns import pairs
from castile.planner.step.program import Program
from castile.runtime.task import NUM_LANES, CostKey, Kind


class Edges(NamedTuple):
    """What tasks of one block wait for, pair by pair.

    after[n]            the task that waits, by its number in the block
    block[n], task[n]   what it waits for: a block, and the number of a task there
    blocks              all blocks that are waited for
    identity            bytes that are equal for equal edges
    """

    block: np.ndarray
    task: np.ndarray
    after: np.ndarray
    blocks: frozenset[int]
    identity: bytes


class Contents(NamedTuple):
    """What a program's blocks have to do with each other.

    users      for each block the nodes whose Configs decide it
    blocks     for each node the blocks that it decides
    touching   for each block the blocks of the flows that may make its tasks wait: of a flow itself alone
    """

    num_slots: int
    users: list[tuple[str, ...]]
    blocks: dict[str, list[int]]
    touching: list[list[int]]


@dataclass(frozen=True, eq=False)
class Block:
    """The n tasks of an instance.

    order[n]              the key that breaks ties, as in a composed graph
    lasts[n]              picoseconds, at least 1
    lane_count[n], lanes  how many lanes each task occupies, and which
    into                  in the block of a flow: for each block what its tasks wait for because of the flow
    frames                in the block of a flow: by slot which tasks of a step read in strides, where, and out of what
    in_turn[n]            in the block of a flow: which tasks take turns with those of other blocks
    """

    order: np.ndarray
    lasts: np.ndarray
    lane_count: np.ndarray
    lanes: np.ndarray
    into: dict[int, Edges] = field(default_factory=dict)
    frames: dict[int, InStrides] = field(default_factory=dict)
    in_turn: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    @property
    def num_tasks(self) -> int:
        return len(self.order)


def of_step(step: StepInstance, slot: int, cost: CostModel) -> Block:
    """The tasks of a step, where none reads in strides."""
    count, keys = step.num_tasks, step.template.does.keys[0]
    lasts = priced(cost, keys, step.costs, step.lanes)
    return Block((slot + 1 << 40) + np.arange(count), lasts, np.ones(count, np.int64), step.lanes)


def of_flow(flow: FlowInstance, number: int, num_slots: int, cost: CostModel) -> Block:
    """The transfers of a flow, the `number`th of a program of `num_slots` steps, and all that waits because of it."""
    every = np.arange(flow.num_tasks)
    lane_count, lanes = flow.lanes
    lasts = priced(cost, flow.keys, every, lanes[np.cumsum(lane_count) - lane_count])
    order = (flow.slot + 1 << 40) + (number + 1 << 20) + every
    own = num_slots + number
    into, frames = _into(flow, own), {flow.slots[step]: rows for step, rows in flow.template.in_strides}
    in_turn = flow.version.kinds >= Kind.MOVE
    if own in into:
        in_turn[into[own].after] = False
    return Block(order, lasts, lane_count, lanes, into, frames, in_turn)


def turns(blocks: Mapping[int, Block], engines: Sequence[int]) -> dict[int, Edges]:
    """By block what its tasks wait for that take turns with those of other blocks; of all blocks that have such."""
    if not blocks:
        return {}
    every = [(np.flatnonzero(b.in_turn), b.order[b.in_turn], b.lane_count[b.in_turn],
              b.lanes[np.repeat(b.in_turn, b.lane_count)]) for b in blocks.values()]  # fmt: skip
    task, order, lane_count, lanes = (np.concatenate(rows) for rows in zip(*every))
    block = np.repeat(list(blocks), [len(rows[0]) for rows in every])
    before, after = pairs(order, lane_count, lanes, engines).T
    return _by_block(block[before], task[before], block[after], task[after])


def priced(cost: CostModel, keys: Sequence[CostKey], number: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """Picoseconds of tasks, given the number of each one's key and the first of its lanes."""
    kinds = range(len(cost.machine.kinds))
    if len(kinds) == 1 or len(keys) == 0:
        return cost.picoseconds(keys)[number]
    table = np.stack([cost.picoseconds(keys, kind) for kind in kinds])
    return table[cost.machine.kind_of[lane // NUM_LANES], number]


def _into(flow: FlowInstance, own: int) -> dict[int, Edges]:
    """The edges of a flow by the block of the later task."""
    # port -1 stands for no port
    block = np.append(np.where(flow.port_step == PATTERN, own, flow.port_step), HOST)
    task = np.append(flow.port_task, 0)
    before, after = flow.version.edges.T
    real = (block[before] >= 0) & (block[after] >= 0)
    real &= (block[before] != block[after]) | (task[before] != task[after])
    before, after = before[real], after[real]
    return _by_block(block[before], task[before], block[after], task[after])


def _by_block(block: np.ndarray, task: np.ndarray, into: np.ndarray, after: np.ndarray) -> dict[int, Edges]:
    """Edges from tasks of blocks into others, by the block of the later task."""
    by_block = np.argsort(into, kind="stable")
    block, task, into, after = (row[by_block] for row in (block, task, into, after))
    starts = np.flatnonzero(np.diff(into, prepend=-1))
    pieces = zip(starts.tolist(), [*starts[1:].tolist(), len(into)])
    return {int(into[a]): _edges(block[a:b], task[a:b], after[a:b]) for a, b in pieces}


def _edges(block: np.ndarray, task: np.ndarray, after: np.ndarray) -> Edges:
    return Edges(block, task, after, frozenset(block.tolist()), np.concatenate([block, task, after]).tobytes())


def contents(program: Program) -> Contents:
    """What a program's blocks have to do with each other."""
    num_slots = len(program.steps)
    users = [(step.node.name,) for step in program.steps] + list(program.users)
    decided: dict[str, list[int]] = {}
    for block, names in enumerate(users):
        for name in names:
            decided.setdefault(name, []).append(block)
    touching: list[list[int]] = [[] for _ in range(num_slots)]
    for number, flow in enumerate(program.flows):
        for slot in {slot for slot, _ in (*flow.producers, *flow.readers, *flow.overwriters)}:
            touching[slot].append(num_slots + number)
    return Contents(num_slots, users, decided, touching + [[num_slots + n] for n in range(len(program.flows))])
