"""Blocks: the tasks of one lowered instance in flat arrays, as they enter any task graph, and the edges among blocks.

A program's blocks are numbered: its steps by slot, then its flows, whose blocks are transfers. It does not know which
numbers a block's tasks have in a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.lowering.instances import HOST, PATTERN, FlowInstance, StepInstance
from castile.planner.lowering.template import InStrides
from castile.planner.lowering.transfer_order import order_edges
from castile.planner.step.program import Program
from castile.runtime.task import NUM_LANES, CostKey, Kind


class Edges(NamedTuple):
    """E edges into the tasks of one block.

    block[E], task[E]   the task that is needed: its block, and its index there
    after[E]            the index of the task that needs it
    blocks              all blocks that are needed
    identity            bytes that are equal for equal edges
    """

    block: np.ndarray
    task: np.ndarray
    after: np.ndarray
    blocks: frozenset[int]
    identity: bytes


class BlockIndex(NamedTuple):
    """How the blocks of a program relate to its nodes and flows.

    users      by block: the nodes whose Configs decide it
    blocks     by node: the blocks that it decides
    touching   by block: the blocks of flows that may make its tasks wait; for a flow only itself
    """

    num_slots: int
    users: list[tuple[str, ...]]
    blocks: dict[str, list[int]]
    touching: list[list[int]]


@dataclass(frozen=True, eq=False)
class Block:
    """The n tasks of an instance. A flow's block also holds what the flow does to other blocks.

    order[n]              the key that breaks ties, as in a composed graph
    durations[n]          picoseconds, at least 1
    lane_count[n], lanes  the number of lanes that each task occupies, and which
    edges                 by block: the edges of the flow into its tasks
    strided               by slot: which tasks of a step read the flow's array in strides
    in_turn[n]            which transfers of the flow take turns with those of other blocks
    """

    order: np.ndarray
    durations: np.ndarray
    lane_count: np.ndarray
    lanes: np.ndarray
    edges: dict[int, Edges] = field(default_factory=dict)
    strided: dict[int, InStrides] = field(default_factory=dict)
    in_turn: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    @property
    def num_tasks(self) -> int:
        return len(self.order)


def step_block(step: StepInstance, slot: int, cost: CostModel) -> Block:
    """The block of a step; its durations hold where no task reads in strides."""
    count, keys = step.num_tasks, step.template.does.keys[0]
    durations = task_durations(cost, keys, step.costs, step.lanes)
    return Block((slot + 1 << 40) + np.arange(count), durations, np.ones(count, np.int64), step.lanes)


def flow_block(flow: FlowInstance, number: int, num_slots: int, cost: CostModel) -> Block:
    """The block of a flow, the `number`th of a program of `num_slots` steps."""
    every = np.arange(flow.num_tasks)
    lane_count, lanes = flow.lanes
    durations = task_durations(cost, flow.keys, every, lanes[np.cumsum(lane_count) - lane_count])
    order = (flow.slot + 1 << 40) + (number + 1 << 20) + every
    own = num_slots + number
    edges, strided = _edges_of_flow(flow, own), {flow.slots[step]: rows for step, rows in flow.template.in_strides}
    in_turn = flow.version.kinds >= Kind.MOVE
    if own in edges:
        in_turn[edges[own].after] = False
    return Block(order, durations, lane_count, lanes, edges, strided, in_turn)


def turn_edges(blocks: Mapping[int, Block], engines: Sequence[int]) -> dict[int, Edges]:
    """By block, the edges that make transfers take turns (`lowering/transfer_order`).

    blocks   all blocks with tasks that take turns
    """
    if not blocks:
        return {}
    every = [(np.flatnonzero(b.in_turn), b.order[b.in_turn], b.lane_count[b.in_turn],
              b.lanes[np.repeat(b.in_turn, b.lane_count)]) for b in blocks.values()]  # fmt: skip
    task, order, lane_count, lanes = (np.concatenate(rows) for rows in zip(*every))
    block = np.repeat(list(blocks), [len(rows[0]) for rows in every])
    before, after = order_edges(order, lane_count, lanes, engines).T
    return _edges_by_block(block[before], task[before], block[after], task[after])


def task_durations(cost: CostModel, keys: Sequence[CostKey], number: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """int64[n]: picoseconds of n tasks.

    number[n]   the index of each task's key in `keys`
    lane[n]     the first lane of each task
    """
    kinds = range(len(cost.machine.kinds))
    if len(kinds) == 1 or len(keys) == 0:
        return cost.picoseconds(keys)[number]
    table = np.stack([cost.picoseconds(keys, kind) for kind in kinds])
    return table[cost.machine.kind_of[lane // NUM_LANES], number]


def _edges_of_flow(flow: FlowInstance, own: int) -> dict[int, Edges]:
    """The edges of a flow, by the block of the waiting task; `own` is the number of the flow's block."""
    # block -1 stands for no port
    block = np.append(np.where(flow.port_step == PATTERN, own, flow.port_step), HOST)
    task = np.append(flow.port_task, 0)
    before, after = flow.version.edges.T
    real = (block[before] >= 0) & (block[after] >= 0)
    real &= (block[before] != block[after]) | (task[before] != task[after])
    before, after = before[real], after[real]
    return _edges_by_block(block[before], task[before], block[after], task[after])


def _edges_by_block(
    block: np.ndarray, task: np.ndarray, after_block: np.ndarray, after: np.ndarray
) -> dict[int, Edges]:
    """Edges from tasks of blocks to tasks of others, by the block of the waiting task."""
    by_block = np.argsort(after_block, kind="stable")
    block, task, after_block, after = (row[by_block] for row in (block, task, after_block, after))
    starts = np.flatnonzero(np.diff(after_block, prepend=-1))
    pieces = zip(starts.tolist(), [*starts[1:].tolist(), len(after_block)])
    return {int(after_block[a]): _as_edges(block[a:b], task[a:b], after[a:b]) for a, b in pieces}


def _as_edges(block: np.ndarray, task: np.ndarray, after: np.ndarray) -> Edges:
    return Edges(block, task, after, frozenset(block.tolist()), np.concatenate([block, task, after]).tobytes())


def index_blocks(program: Program) -> BlockIndex:
    """The relations of a program's blocks to its nodes and flows."""
    num_slots = len(program.steps)
    users = [(step.node.name,) for step in program.steps] + list(program.users)
    blocks: dict[str, list[int]] = {}
    for block, names in enumerate(users):
        for name in names:
            blocks.setdefault(name, []).append(block)
    touching: list[list[int]] = [[] for _ in range(num_slots)]
    for number, flow in enumerate(program.flows):
        for slot in {slot for slot, _ in (*flow.producers, *flow.readers, *flow.overwriters)}:
            touching[slot].append(num_slots + number)
    return BlockIndex(num_slots, users, blocks, touching + [[num_slots + n] for n in range(len(program.flows))])
