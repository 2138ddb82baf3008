"""Copyable microbatches: whether the last but one of a few lowered microbatches can be copied.

All microbatches but the first and the last are equal: each has the tasks, needs and buffers of the one before it. Of 5,
numbered 0 to 4, microbatch 3 can be copied any number of times if it relates to 2 as 2 relates to 1. That is checked
here (`can_copy`); `unrolling` copies it. It does not know what tasks do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from castile.planner.evaluation.folding import Folded
from castile.planner.lowering.stages import MicrobatchEdges
from castile.planner.simulation import repeats
from castile.planner.step.program import Program
from castile.runtime.task import TaskGraph

# The number of microbatches that are lowered, and which of them is copied: the last but one.
NUM_LOWERED = repeats.LEAST
COPIED = NUM_LOWERED - 2
# The fields of a folded graph, and of its task graph, without the needs.
FOLDED = tuple(field.name for field in fields(Folded) if field.name != "graph")
GRAPH = tuple(field.name for field in fields(TaskGraph) if field.name not in ("need_ptr", "needs"))


@dataclass(frozen=True)
class Relation:
    """Pairs of items, such as tasks and the buffers that they use, and the microbatch of each, -1 for none."""

    one: np.ndarray
    other: np.ndarray
    micro_of_one: np.ndarray
    micro_of_other: np.ndarray

    def select(self, which: np.ndarray) -> Relation:
        return Relation(self.one[which], self.other[which], self.micro_of_one[which], self.micro_of_other[which])

    def pairs_of(self, micro: int, rank_one: np.ndarray, rank_other: np.ndarray) -> np.ndarray:
        """int64[3, n]: the pairs of a microbatch in terms of ranks in it and in the one before, so that they are equal
        for two microbatches if the second repeats the first.
        """
        mine = self.select((self.micro_of_one == micro) | (self.micro_of_other == micro) & (self.micro_of_one < 0))
        near = np.where(mine.micro_of_other < 0, -1, micro - mine.micro_of_other)
        one = np.where(mine.micro_of_one < 0, -1 - mine.one, rank_one[mine.one])
        return np.stack([one, near, np.where(mine.micro_of_other < 0, mine.other, rank_other[mine.other])])

    def is_repeated(self, *ranks: np.ndarray) -> bool:
        """Whether the copied microbatch has the same pairs as the one before it."""
        return _equal_columns(self.pairs_of(COPIED - 1, *ranks), self.pairs_of(COPIED, *ranks))


def _equal_columns(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same columns, in any order."""
    same = np.array_equal(one, other)
    return same or np.array_equal(one[:, np.lexsort(one)], other[:, np.lexsort(other)])


def _ranks(of: np.ndarray) -> np.ndarray:
    """The rank of each item among those of its microbatch."""
    by_micro = np.argsort(of, kind="stable")
    rank = np.empty(len(of), np.int64)
    rank[by_micro] = np.arange(len(of)) - np.searchsorted(of[by_micro], of[by_micro])
    return rank


class LoweredMicrobatches:
    """The tasks and buffers of NUM_LOWERED microbatches, without the needs.

    number[T]                             the microbatch of each task (`repeats.numbers`)
    micro_of_task[T], micro_of_buffer[B]  the same, also for tasks and buffers of one and the whole batch; -1 for none
                                          or several
    """

    def __init__(self, folded: Folded, program: Program) -> None:
        self.folded, self.graph, self.program = folded, folded.graph, program
        self.number = repeats.numbers(program, self.graph)
        self.micro_of_task = repeats.belongs(program, self.graph)

    @property
    def microbatches(self) -> tuple[np.ndarray, np.ndarray]:
        """(micro_of_task, micro_of_buffer)."""
        return self.micro_of_task, self.micro_of_buffer

    def shares_arrays(self, folded: Folded) -> bool:
        """Whether a graph differs from this one only in its needs."""
        pairs = (self.folded, folded, FOLDED), (self.graph, folded.graph, GRAPH)
        return all(getattr(one, name) is getattr(other, name) for one, other, names in pairs for name in names)

    @cached_property
    def _uses(self) -> tuple[np.ndarray, np.ndarray]:
        """(tasks, buffers): pairs of a task and a buffer that it uses or allocates."""
        graph = self.graph
        begun = np.flatnonzero(graph.buffer_first >= 0)
        tasks = np.append(np.repeat(np.arange(graph.num_tasks), np.diff(graph.use_ptr)), graph.buffer_first[begun])
        return tasks, np.append(graph.uses, begun)

    @cached_property
    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """(first, last): by buffer, the first and the last microbatch whose tasks use it."""
        tasks, buffers = self._uses
        touched = self.micro_of_task[tasks] >= 0
        first, last = np.full(self.graph.num_buffers, NUM_LOWERED), np.full(self.graph.num_buffers, -1)
        np.minimum.at(first, buffers[touched], self.micro_of_task[tasks[touched]])
        np.maximum.at(last, buffers[touched], self.micro_of_task[tasks[touched]])
        return first, last

    @cached_property
    def micro_of_buffer(self) -> np.ndarray:
        first, last = self._range
        found = np.where(first == last, first, -1)
        # In a folded graph it is not known which tasks use buffers that outlive the step.
        given = {flow.region: of for flow, of in zip(self.program.flows, self.program.one_micro_of_flow) if flow.role}
        for buffer in np.flatnonzero((last < 0) & (self.graph.buffer_first < 0)).tolist():
            found[buffer] = given.get(self.graph.buffers[buffer].region, -1)
        return found

    @cached_property
    def uses(self) -> Relation:
        """Which tasks use which buffers."""
        tasks, buffers = self._uses
        tasks, buffers = tasks[: len(self.graph.uses)], buffers[: len(self.graph.uses)].astype(np.int64)
        return Relation(tasks, buffers, self.micro_of_task[tasks], self.micro_of_buffer[buffers])

    @cached_property
    def begun(self) -> Relation:
        """Which buffers are allocated by which tasks."""
        buffers = np.flatnonzero(self.graph.buffer_first >= 0)
        tasks = self.graph.buffer_first[buffers].astype(np.int64)
        return Relation(buffers, tasks, self.micro_of_buffer[buffers], self.micro_of_task[tasks])

    @cached_property
    def slots(self) -> tuple[int, int]:
        """The slots of the program at which the copied microbatch begins and ends."""
        of = np.flatnonzero(np.array(self.program.micro_of_step) == COPIED)
        return int(of[0]), int(of[-1]) + 1

    @cached_property
    def can_copy(self) -> bool:
        """Whether the copied microbatch relates to the one before it as that to the one before, except for needs."""
        graph, (begin, end) = self.graph, self.slots
        alike = (np.array(self.program.micro_of_step[begin:end]) == COPIED).all()
        slot = (graph.order >> repeats.SLOT) - 1
        between = (self.micro_of_task < 0) & (slot >= begin) & (slot < end)
        first, last = self._range
        shared = (first != last) & ((first == COPIED) | (last == COPIED))
        return bool(alike and not (between.any() or shared.any())) and self._is_repeated

    @property
    def _is_repeated(self) -> bool:
        """Whether the copied microbatch and the one before it have equal tasks, buffers and uses."""
        sizes = [len(self.micro_of_task[self.micro_of_task == micro]) for micro in (COPIED - 2, COPIED - 1, COPIED)]
        return (
            len({*sizes}) == 1
            and all(np.array_equal(*pair) for pair in zip(self._properties(COPIED - 1), self._properties(COPIED)))
            and self.uses.is_repeated(self.ranks, self.buffer_ranks)
            and self.begun.is_repeated(self.buffer_ranks, self.ranks)
        )

    @cached_property
    def ranks(self) -> np.ndarray:
        """int64[T]: the rank of each task in its microbatch."""
        return _ranks(self.micro_of_task)

    @cached_property
    def buffer_ranks(self) -> np.ndarray:
        """int64[B]: the rank of each buffer in its microbatch."""
        return _ranks(self.micro_of_buffer)

    def _properties(self, micro: int) -> Iterator[np.ndarray]:
        """The properties of a microbatch's tasks and buffers, one array for each."""
        graph, mine, held = self.graph, self.micro_of_task == micro, self.micro_of_buffer == micro
        counts = np.diff(graph.lane_ptr)
        yield from (each[mine] for each in (graph.kind, graph.cost, graph.private_bytes, self.folded.count, counts))
        yield graph.lanes[np.repeat(mine, counts)]
        yield from (each[held] for each in (graph.buffer_proc, graph.buffer_bytes))


class Dependencies:
    """The needs of NUM_LOWERED microbatches, without those that only make stages take turns."""

    def __init__(self, few: LoweredMicrobatches, folded: Folded, turns: MicrobatchEdges) -> None:
        self._few, self.turns, graph = few, turns, folded.graph
        after = np.repeat(np.arange(graph.num_tasks), np.diff(graph.need_ptr))
        before = graph.needs.astype(np.int64)
        needs = Relation(after, before, few.micro_of_task[after], few.micro_of_task[before])
        self.needs = needs.select(~self._is_turn(needs))

    def _is_turn(self, needs: Relation) -> np.ndarray:
        """bool[n]: which needs reach back further than one microbatch because stages take turns. `unrolling` makes
        these anew.
        """
        number, into = len(self._few.micro_of_task), self._few.folded.into
        far = needs.micro_of_one - needs.micro_of_other > 1
        after, before = into[self.turns.edges].T
        known = after * number + before
        is_known = np.isin(needs.one * number + needs.other, known)
        return far & (needs.micro_of_other >= 0) & (needs.micro_of_one >= 0) & is_known

    @property
    def can_copy(self) -> bool:
        """Whether the copied microbatch needs the one before it as that needs the one before."""
        needs = self.needs.select((self.needs.micro_of_one >= 0) & (self.needs.micro_of_other >= 0))
        far = (needs.micro_of_one < needs.micro_of_other) | (needs.micro_of_one > needs.micro_of_other + 1)
        return not far.any() and self.needs.is_repeated(self._few.ranks, self._few.ranks)
