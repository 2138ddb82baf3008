"""Unrolling: the task graph of a step in many microbatches, made from that of a few by copying one of them.

All microbatches but the first and the last are equal: each has the tasks, needs and buffers of the one before it, as
`copyable` checks. With NUM_LOWERED = 5 and 8 wanted, microbatch 3 is copied three times, and 4 follows the copies:

    lowered    0  1  2  3              4
    unrolled   0  1  2  3  3' 3'' 3''' 4'

Only the turns in which pipeline stages begin with microbatches (`lowering/stages`) depend on their number, and are made
anew. It does not know what tasks do, nor when they run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from castile.planner.evaluation.copyable import COPIED, NUM_LOWERED, Dependencies, LoweredMicrobatches, Relation
from castile.planner.evaluation.folding import Folded
from castile.planner.lowering.ragged import LazySequence, ranges, row_pointers
from castile.planner.lowering.stages import MicrobatchEdges, microbatch_edges
from castile.planner.simulation import repeats, window
from castile.planner.simulation.window import Alike
from castile.planner.step.program import Program
from castile.runtime.compiled import compiled
from castile.runtime.task import Buffer, Task, TaskGraph

NUMBER = re.compile(r"@(\d+)")
# How a pair (one, other) is copied: not at all; copy k of one with copy k of the other; with copy k - 1; one with the
# last copy of the other; one with every copy.
ONCE, LIKE, BEFORE, LAST, ALL = range(5)
NONE = np.empty((2, 0), np.int64)


@dataclass(frozen=True)
class Unrolled:
    """The folded graph of a step with copied microbatches.

    number[T]   the microbatch of each task (`repeats.numbers`)
    alike       which tasks belong to equal microbatches; None where one holds memory that outlives it
    arrays      what does not depend on the needs
    """

    folded: Folded
    number: np.ndarray
    alike: Alike | None
    arrays: _UnrolledArrays

    def differs_only_in_needs(self, lowered: Folded) -> bool:
        """Whether it was made from a graph that differs from this one only in its needs."""
        return self.arrays.lowered.shares_arrays(lowered)

    def renamed(self, later: int) -> tuple[Sequence[Task], Sequence[Buffer]]:
        """Its tasks and buffers, with names as if the copied microbatch came `later` microbatches later."""
        return self.arrays.renamed(later)


def unroll(
    folded: Folded, program: Program, ahead: int, shown: int, known: Unrolled | None = None
) -> Unrolled | None:
    """The graph with `shown` microbatches, equal to lowering that many; None where no microbatch can be copied.

    folded, program   the graph with NUM_LOWERED microbatches, and its program
    ahead             microbatches begun ahead, as the plan says
    known             an unrolled graph that `differs_only_in_needs` from this one, whose arrays are reused
    """
    lowered = LoweredMicrobatches(folded, program) if known is None else known.arrays.lowered
    dependencies = Dependencies(lowered, folded, microbatch_edges(folded.rows(), ahead))
    if not (lowered.can_copy and dependencies.can_copy):
        return None
    more = shown - NUM_LOWERED
    arrays = known.arrays if known is not None and known.arrays.more == more else _UnrolledArrays(lowered, more)
    need_ptr, needs = arrays.needs(dependencies)
    graph = replace(arrays.folded.graph, need_ptr=need_ptr, needs=needs)
    return Unrolled(replace(arrays.folded, graph=graph), arrays.number, arrays.alike(dependencies), arrays)


class _Positions:
    """Positions of items in a row in which the copies of each run of copied items follow it: of a b c, with b copied
    twice, a b b' b'' c.

    source, copy    by position: the item there, and the number of the copy, 0 for the original
    first, length   by item: the position of the original, and the distance from copy to copy, 0 without copies
    """

    def __init__(self, repeated: np.ndarray, more: int) -> None:
        before = np.cumsum(repeated) - repeated
        begins = repeated & ~np.append(False, repeated[:-1])
        run = np.cumsum(begins) - 1
        length = np.bincount(run[repeated], minlength=1)
        first = np.arange(len(repeated)) + more * np.where(repeated, np.append(before[begins], 0)[run], before)
        # There may be millions; 32 bits are enough and save memory.
        self.length, self.first = np.where(repeated, length[run], 0).astype(np.int32), first.astype(np.int32)
        which, copies = np.flatnonzero(repeated), np.arange(1, more + 1, dtype=np.int32)[:, None]
        self.source = np.empty(len(repeated) + more * len(which), np.int32)
        self.copy = np.zeros(len(self.source), np.int32)
        self.source[self.first] = np.arange(len(repeated))
        position = self.of(which, copies)
        self.source[position], self.copy[position] = which, copies

    def of(self, which: np.ndarray, copy: np.ndarray | int = 0) -> np.ndarray:
        """The positions of a copy of these items; of the original for items without copies."""
        position: np.ndarray = self.first[which] + copy * self.length[which]
        return position


class _UnrolledArrays:
    """The unrolled graph, with `more` copies of a microbatch, except for its needs."""

    def __init__(self, lowered: LoweredMicrobatches, more: int) -> None:
        self.lowered, self.more = lowered, more
        self._task, self._buffer = (_Positions(of == COPIED, more) for of in lowered.microbatches)
        # By task and by buffer: by how many microbatches it comes later than its original.
        self._task_later, self._buffer_later = (
            np.where(of[positions.source] > COPIED, more, positions.copy)
            for of, positions in zip(lowered.microbatches, (self._task, self._buffer))
        )

    @cached_property
    def folded(self) -> Folded:
        """The graph without needs."""
        lowered, task, buffer = self.lowered, self._task, self._buffer
        graph, folded = lowered.graph, lowered.folded
        counts = np.diff(graph.lane_ptr)[task.source]
        use_ptr, uses = self._spread(lowered.uses, task, buffer)
        begun, by = self._spread(lowered.begun, buffer, task)
        first = np.full(len(buffer.source), -1)
        first[np.diff(begun) > 0] = by
        tasks, buffers = self.renamed(0)
        copied = replace(
            graph, kind=graph.kind[task.source], order=self._order(), cost=graph.cost[task.source],
            lane_ptr=row_pointers(counts), lanes=graph.lanes[ranges(graph.lane_ptr[task.source], counts)],
            need_ptr=np.zeros(len(task.source) + 1, np.int32), needs=NONE[0], use_ptr=use_ptr, uses=uses,
            buffer_first=first, buffer_proc=graph.buffer_proc[buffer.source],
            buffer_bytes=graph.buffer_bytes[buffer.source], private_bytes=graph.private_bytes[task.source],
            tasks=tasks, buffers=buffers,
        )  # fmt: skip
        plain = _Positions(lowered.micro_of_task[folded.into] == COPIED, self.more)
        into = task.of(folded.into[plain.source], plain.copy).astype(np.int64)
        return replace(
            folded, graph=copied, plain=folded.plain[plain.source], into=into, count=folded.count[task.source]
        )

    def renamed(self, later: int) -> tuple[Sequence[Task], Sequence[Buffer]]:
        """As in `Unrolled`."""
        lowered, (task, buffer) = self.lowered, (self._task.source, self._buffer.source)
        task_later = self._task_later + later * (lowered.micro_of_task[task] >= COPIED)
        buffer_later = self._buffer_later + later * (lowered.micro_of_buffer[buffer] >= COPIED)
        tasks = LazySequence(_task_copies(lowered.graph, task, task_later), len(task))
        return tasks, LazySequence(_buffer_copies(lowered.graph, buffer, buffer_later), len(buffer))

    @cached_property
    def number(self) -> np.ndarray:
        """int64[T]: the microbatch of each task."""
        number = self.lowered.number[self._task.source]
        return np.where(number < 0, -1, number + self._task_later)

    def needs(self, dependencies: Dependencies) -> tuple[np.ndarray, np.ndarray]:
        """(need_ptr, needs) of the graph."""
        turns = np.concatenate(self._turns(dependencies.turns), axis=1)
        return self._spread(dependencies.needs, self._task, self._task, turns)

    def alike(self, dependencies: Dependencies) -> Alike | None:
        """Which tasks belong to the copied microbatch and its copies; None where it holds memory that outlives it."""
        of, needs, uses = self.lowered.micro_of_task, dependencies.needs, self.lowered.uses
        transient = self.lowered.graph.buffer_first[uses.other] >= 0
        if (transient & (uses.micro_of_one < 0) & (uses.micro_of_other == COPIED)).any():
            return None
        kinds = window.LAST, window.ALIKE, window.FIRST
        part = np.select([of > COPIED, of == COPIED, of >= 0], kinds, window.NONE).astype(np.int8)
        part[needs.one[(needs.micro_of_one < 0) & (needs.micro_of_other == COPIED)]] = window.ALL
        source, reach = self._task.source, int(dependencies.turns.begun[:, 3].max(initial=1))
        return Alike(part[source], self._task.copy, self._task.length[source], self.more + 1, reach)

    def _order(self) -> np.ndarray:
        """int64[T]: the order of tasks as if all microbatches were lowered: copies come some slots later."""
        begin, end = self.lowered.slots
        order, of = (each[self._task.source] for each in (self.lowered.graph.order, self.lowered.micro_of_task))
        later = self._task_later + self.more * ((of < 0) & (order >> repeats.SLOT > end))
        found: np.ndarray = order + ((end - begin) * later << repeats.SLOT)
        return found

    def _spread(
        self, pairs: Relation, one: _Positions, other: _Positions, more: np.ndarray = NONE
    ) -> tuple[np.ndarray, np.ndarray]:
        """Copy pairs, and add the pairs of positions `more`, int64[2, m]. Returns them as CSR, both int32: where the
        row of each position of `one` begins, and the positions of `other` in it, ascending and distinct.

        The items of `pairs.one` must ascend.
        """
        is_one, is_other = pairs.micro_of_one == COPIED, pairs.micro_of_other == COPIED
        is_before = is_one & (pairs.micro_of_other == COPIED - 1)
        cases = [is_before, is_other & (pairs.micro_of_one > COPIED), is_one, is_other]
        kind = np.select(cases, [BEFORE, LAST, LIKE, ALL], ONCE).astype(np.int8)
        # From the first copy on, a pair with the microbatch before becomes a pair with the copy before.
        of_copied, of_before = (np.flatnonzero(self.lowered.micro_of_task == micro) for micro in (COPIED, COPIED - 1))
        copied_other = pairs.other.copy()
        copied_other[is_before] = of_copied[np.searchsorted(of_before, pairs.other[is_before])]
        num_pairs = np.bincount(pairs.one, minlength=len(one.first))
        times = np.where(np.isin(kind, (LIKE, BEFORE, ALL)), self.more + 1, 1)
        begin = np.zeros(len(one.source) + 1, np.int32)
        found = np.empty(int(times.sum()) + more.shape[1], np.int32)
        more = more[:, np.argsort(more[0])]
        size = compiled(_spread)(
            one.source, one.copy, row_pointers(num_pairs), kind, pairs.other, copied_other, other.first, other.length,
            self.more, more[0], more[1], begin, found,
        )  # fmt: skip
        return begin, found[:size]

    def _turns(self, turns: MicrobatchEdges) -> list[np.ndarray]:
        """int64[2, n] for each microbatch: tasks with which it begins on a processor, and the last task there of the
        earlier microbatch that must be done before.
        """
        begun, last, into = turns.begun, turns.last, self.lowered.folded.into
        task, found = into[begun[:, 0]], list[np.ndarray]()
        # By microbatch: which lowered one it is a copy of, and which copy.
        every = np.arange(NUM_LOWERED + self.more)
        one_of, copy = np.minimum(every, COPIED), np.clip(every - COPIED, 0, self.more)
        one_of[-1] = NUM_LOWERED - 1
        for micro in every.tolist():
            mine = np.flatnonzero(begun[:, 1] == one_of[micro])
            earlier = micro - begun[mine, 3]
            mine, earlier = mine[earlier >= 0], earlier[earlier >= 0]
            before = last[one_of[earlier], begun[mine, 2]]
            pairs = np.stack([self._task.of(task[mine], copy[micro]), self._task.of(into[before], copy[earlier])])
            found.append(pairs[:, before >= 0])
        return found


def _task_copies(graph: TaskGraph, source: np.ndarray, later: np.ndarray) -> Callable[[int], Task]:
    """A function that makes copies of tasks, by number.

    It refers to nothing else, so that no reference cycle keeps a graph alive until garbage is collected.
    """

    def copy_task(number: int) -> Task:
        task: Task = graph.tasks[int(source[number])]
        return replace(task, name=_later_name(task.name, int(later[number])))

    return copy_task


def _buffer_copies(graph: TaskGraph, source: np.ndarray, later: np.ndarray) -> Callable[[int], Buffer]:
    """A function that makes copies of buffers, by number."""

    def copy_buffer(number: int) -> Buffer:
        of: Buffer = graph.buffers[int(source[number])]
        return Buffer(_later_name(of.region, int(later[number])), of.box, of.dtype, of.proc, of.role)

    return copy_buffer


def _spread(  # type: ignore[no-untyped-def]
    source, copy, pair_ptr, kind, other, copied_other, first, length, more, more_ones, more_others, begin, found
):
    """The compiled loop of `_UnrolledArrays._spread`; returns the length of `found`. The pairs of item t are those from
    pair_ptr[t] to pair_ptr[t + 1]; `more_ones` ascend.
    """
    size, num_more = 0, 0
    for p in range(len(source)):
        t, c, low, num_all = source[p], copy[p], size, 0
        for k in range(pair_ptr[t], pair_ptr[t + 1]):
            o, at = other[k], 0
            if kind[k] == ALL:
                num_all += 1
                continue
            if kind[k] == LIKE:
                at = c
            elif kind[k] == LAST:
                at = more
            elif kind[k] == BEFORE and c > 0:
                o, at = copied_other[k], c - 1
            found[size] = first[o] + at * length[o]
            size += 1
        for at in range(more + 1 if num_all > 0 else 0):
            for k in range(pair_ptr[t], pair_ptr[t + 1]):
                if kind[k] == ALL:
                    found[size] = first[other[k]] + at * length[other[k]]
                    size += 1
        while num_more < len(more_ones) and more_ones[num_more] == p:
            found[size] = more_others[num_more]
            size, num_more = size + 1, num_more + 1
        # Shell sort (CACM 1959): rows are short, or nearly sorted.
        gap = 1
        while 3 * gap < size - low:
            gap = 3 * gap + 1
        while gap > 0:
            for k in range(low + gap, size):
                value, at = found[k], k
                while at >= low + gap and found[at - gap] > value:
                    found[at] = found[at - gap]
                    at -= gap
                found[at] = value
            gap //= 3
        high, size = size, low
        for k in range(low, high):
            if k == low or found[k] != found[size - 1]:
                found[size] = found[k]
                size += 1
        begin[p + 1] = size
    return size


@lru_cache(maxsize=2**16)
def _later_name(name: str, later: int) -> str:
    """The name of a task or a region `later` microbatches later."""
    return NUMBER.sub(lambda found: f"@{int(found[1]) + later}", name) if later else name
