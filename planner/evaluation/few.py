"""A step of which a few microbatches are written out: whether the last but one of them can be copied.

All microbatches but the first and the last are alike: each has the tasks, needs and buffers of the one before it. So of
5, numbered 0 to 4, microbatch 3 can be copied any number of times if it is to 2 as 2 is to 1: that is checked here
(`can_go_on`), and `unrolled` copies it. It does not know what tasks do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from castile.planner.evaluation.folding import Folded
from castile.planner.lowering.stages import Turns
from castile.planner.simulation import repeats
from castile.planner.step.program import Program
from castile.runtime.task import TaskGraph

# How many microbatches are written out, and the number of the one that is copied, the last but one.
FEW = repeats.LEAST
EACH = FEW - 2
# The fields of a folded graph, and of its task graph, but for what waits for what.
FOLDED = tuple(field.name for field in fields(Folded) if field.name != "graph")
GRAPH = tuple(field.name for field in fields(TaskGraph) if field.name not in ("need_ptr", "needs"))


@dataclass(frozen=True)
class Relation:
    """Pairs of things (such as tasks and the buffers that they touch), and the microbatch of each, -1 where it is of
    none.
    """

    one: np.ndarray
    other: np.ndarray
    of_one: np.ndarray
    of_other: np.ndarray

    def picked(self, which: np.ndarray) -> Relation:
        return Relation(self.one[which], self.other[which], self.of_one[which], self.of_other[which])

    def pattern(self, micro: int, rank_one: np.ndarray, rank_other: np.ndarray) -> np.ndarray:
        """int64[3, n]: the pairs of a microbatch with things named by their ranks: within it, within the one before it,
        or among those of no microbatch. Equal for two microbatches of which the second repeats the first.
        """
        mine = self.picked((self.of_one == micro) | (self.of_other == micro) & (self.of_one < 0))
        near = np.where(mine.of_other < 0, -1, micro - mine.of_other)
        one = np.where(mine.of_one < 0, -1 - mine.one, rank_one[mine.one])
        return np.stack([one, near, np.where(mine.of_other < 0, mine.other, rank_other[mine.other])])

    def is_repeated(self, *ranks: np.ndarray) -> bool:
        """Whether the microbatch that is to be copied has the same pairs as the one before it."""
        return _alike(self.pattern(EACH - 1, *ranks), self.pattern(EACH, *ranks))


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two sets of columns are equal in whatever order; mostly the order is the same too."""
    same = np.array_equal(one, other)
    return same or np.array_equal(one[:, np.lexsort(one)], other[:, np.lexsort(other)])


def _ranks(of: np.ndarray) -> np.ndarray:
    """The rank of each among those of its microbatch."""
    by_micro = np.argsort(of, kind="stable")
    rank = np.empty(len(of), np.int64)
    rank[by_micro] = np.arange(len(of)) - np.searchsorted(of[by_micro], of[by_micro])
    return rank


class Few:
    """What is known of the microbatches that are written out, but for what waits for what.

    of_task[T], of_buffer[B]   the microbatch of each, also of those shared with the whole batch; -1 for none or several
    """

    def __init__(self, folded: Folded, program: Program) -> None:
        self.folded, self.graph, self.program = folded, folded.graph, program
        self.number = repeats.numbers(program, self.graph)
        self.of_task = repeats.belongs(program, self.graph)

    def is_of(self, folded: Folded) -> bool:
        """Whether it holds for another graph too: for one that shares all arrays but needs."""
        pairs = (self.folded, folded, FOLDED), (self.graph, folded.graph, GRAPH)
        return all(getattr(one, name) is getattr(other, name) for one, other, names in pairs for name in names)

    @cached_property
    def _uses(self) -> tuple[np.ndarray, np.ndarray]:
        """(tasks, buffers): pairs of a task and a buffer that it touches or begins."""
        graph = self.graph
        begun = np.flatnonzero(graph.buffer_first >= 0)
        tasks = np.append(np.repeat(np.arange(graph.num_tasks), np.diff(graph.use_ptr)), graph.buffer_first[begun])
        return tasks, np.append(graph.uses, begun)

    @cached_property
    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """(first, last): by buffer the first and the last microbatch of which tasks touch it."""
        tasks, buffers = self._uses
        touched = self.of_task[tasks] >= 0
        first, last = np.full(self.graph.num_buffers, FEW), np.full(self.graph.num_buffers, -1)
        np.minimum.at(first, buffers[touched], self.of_task[tasks[touched]])
        np.maximum.at(last, buffers[touched], self.of_task[tasks[touched]])
        return first, last

    @cached_property
    def of_buffer(self) -> np.ndarray:
        first, last = self._range
        found = np.where(first == last, first, -1)
        # Where processors are folded it is not known which tasks touch buffers that outlive the step.
        given = {flow.region: of for flow, of in zip(self.program.flows, self.program.one_micro_of_flow) if flow.role}
        for buffer in np.flatnonzero((last < 0) & (self.graph.buffer_first < 0)).tolist():
            found[buffer] = given.get(self.graph.buffers[buffer].region, -1)
        return found

    @cached_property
    def uses(self) -> Relation:
        """What touches which buffer."""
        tasks, buffers = self._uses
        tasks, buffers = tasks[: len(self.graph.uses)], buffers[: len(self.graph.uses)].astype(np.int64)
        return Relation(tasks, buffers, self.of_task[tasks], self.of_buffer[buffers])

    @cached_property
    def begun(self) -> Relation:
        """Which buffer is begun by which task."""
        buffers = np.flatnonzero(self.graph.buffer_first >= 0)
        tasks = self.graph.buffer_first[buffers].astype(np.int64)
        return Relation(buffers, tasks, self.of_buffer[buffers], self.of_task[tasks])

    @cached_property
    def slots(self) -> tuple[int, int]:
        """The slots of the program at which the copied microbatch begins and ends."""
        of = np.flatnonzero(np.array(self.program.micro_of_step) == EACH)
        return int(of[0]), int(of[-1]) + 1

    @cached_property
    def can_go_on(self) -> bool:
        """Whether the copied microbatch is to the one before it as that is to the one before, needs aside."""
        graph, (begin, end) = self.graph, self.slots
        alike = (np.array(self.program.micro_of_step[begin:end]) == EACH).all()
        slot = (graph.order >> repeats.SLOT) - 1
        between = (self.of_task < 0) & (slot >= begin) & (slot < end)
        first, last = self._range
        shared = (first != last) & ((first == EACH) | (last == EACH))
        return bool(alike and not (between.any() or shared.any())) and self._look_alike

    @property
    def _look_alike(self) -> bool:
        """Whether the copied microbatch and the one before it have the same tasks, buffers and uses."""
        sizes = [len(self.of_task[self.of_task == micro]) for micro in (EACH - 2, EACH - 1, EACH)]
        return (
            len({*sizes}) == 1
            and all(np.array_equal(*pair) for pair in zip(self._items(EACH - 1), self._items(EACH)))
            and self.uses.is_repeated(self.ranks, self.buffer_ranks)
            and self.begun.is_repeated(self.buffer_ranks, self.ranks)
        )

    @cached_property
    def ranks(self) -> np.ndarray:
        """Which of the tasks of its microbatch each is."""
        return _ranks(self.of_task)

    @cached_property
    def buffer_ranks(self) -> np.ndarray:
        """Which of the buffers of its microbatch each is."""
        return _ranks(self.of_buffer)

    def _items(self, micro: int) -> Iterator[np.ndarray]:
        """The properties of a microbatch's tasks and buffers, one array after the other."""
        graph, mine, held = self.graph, self.of_task == micro, self.of_buffer == micro
        counts = np.diff(graph.lane_ptr)
        yield from (each[mine] for each in (graph.kind, graph.cost, graph.private_bytes, self.folded.count, counts))
        yield graph.lanes[np.repeat(mine, counts)]
        yield from (each[held] for each in (graph.buffer_proc, graph.buffer_bytes))


class Waits:
    """What waits for what among the microbatches that are written out."""

    def __init__(self, few: Few, folded: Folded, turns: Turns) -> None:
        self._few, self.turns, graph = few, turns, folded.graph
        after = np.repeat(np.arange(graph.num_tasks), np.diff(graph.need_ptr))
        before = graph.needs.astype(np.int64)
        needs = Relation(after, before, few.of_task[after], few.of_task[before])
        self.needs = needs.picked(~self._in_turn(needs))

    def _in_turn(self, needs: Relation) -> np.ndarray:
        """bool: which needs reach back further than one microbatch because stages take turns. `unrolled` makes these
        anew.
        """
        number, into = len(self._few.of_task), self._few.folded.into
        far = needs.of_one - needs.of_other > 1
        after, before = into[self.turns.edges].T
        known = after * number + before
        return far & (needs.of_other >= 0) & (needs.of_one >= 0) & np.isin(needs.one * number + needs.other, known)

    @property
    def can_go_on(self) -> bool:
        """Whether the copied microbatch waits for the one before it as that does for the one before."""
        needs = self.needs.picked((self.needs.of_one >= 0) & (self.needs.of_other >= 0))
        far = (needs.of_one < needs.of_other) | (needs.of_one > needs.of_other + 1)
        return not far.any() and self.needs.is_repeated(self._few.ranks, self._few.ranks)
