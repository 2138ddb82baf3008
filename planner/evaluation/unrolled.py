"""Unrolling: the task graph of a step in many microbatches, put together from that of a few by copying one of them.

All microbatches but the first and the last are alike: each has the tasks, needs and buffers of the one before it (`few`
checks that). With FEW = 5 lowered and 8 wanted, microbatch 3 is copied three times, and 4 comes behind the copies:

    lowered    0  1  2  3              4
    unrolled   0  1  2  3  3' 3'' 3''' 4'

Only the turns in which stages begin with microbatches (`lowering/stages`) depend on how many there are, and are made
anew. It does not know what tasks do, nor when.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from castile.planner.evaluation.few import EACH, FEW, Few, Relation, Waits
from castile.planner.evaluation.folding import Folded
from castile.planner.lowering.rows import Lazy, pointer, runs
from castile.planner.lowering.stages import Turns, turns
from castile.planner.simulation import repeats, window
from castile.planner.simulation.window import Alike
from castile.planner.step.program import Program
from castile.runtime.compiled import compiled
from castile.runtime.task import Buffer, Task, TaskGraph

NUMBER = re.compile(r"@(\d+)")
# How a pair (one, other) is copied: not at all; each copy of the one with that of the other; with the copy before; the
# one with the last copy of the other; with every copy.
ONCE, LIKE, BEFORE, LAST, ALL = range(5)
NONE = np.empty((2, 0), np.int64)


@dataclass(frozen=True)
class Unrolled:
    """The folded graph of a step with further microbatches copied, and the microbatch of each task, as
    `repeats.numbers` has it.

    alike   which tasks are of microbatches that are alike; None where one holds memory that lives on beyond it
    many    what is the same whatever waits for what
    """

    folded: Folded
    number: np.ndarray
    alike: Alike | None
    many: _Many

    def is_like(self, few: Folded) -> bool:
        """Whether it was made from a graph that differs from this one only in what waits for what."""
        return self.many.few.is_of(few)

    def called(self, later: int) -> tuple[Sequence[Task], Sequence[Buffer]]:
        """Its tasks and buffers, named as if the copied microbatch came so many microbatches later."""
        return self.many.called(later)


def unrolled(
    folded: Folded, program: Program, ahead: int, shown: int, known: Unrolled | None = None
) -> Unrolled | None:
    """The graph with `shown` microbatches, as if so many had been lowered; None where no microbatch can be copied.

    folded, program   the graph with FEW microbatches, and its program
    ahead             microbatches begun ahead, as the plan says
    known             an unrolled graph that `is_like` this one: all but what waits for what is taken over from it
    """
    few = Few(folded, program) if known is None else known.many.few
    waits = Waits(few, folded, turns(folded.rows(), ahead))
    if not (few.can_go_on and waits.can_go_on):
        return None
    many = known.many if known is not None and known.many.more == shown - FEW else _Many(few, shown - FEW)
    need_ptr, needs = many.needs(waits)
    graph = replace(many.folded.graph, need_ptr=need_ptr, needs=needs)
    return Unrolled(replace(many.folded, graph=graph), many.number, many.alike(waits), many)


class _Places:
    """Positions in a row of things, where behind each run of things that are repeated stand its copies: of a b c, with
    b repeated twice, a b b' b'' c.

    source, copy    by position: which thing stands there, and which copy of it, 0 for the original
    first, length   by thing: the position of the original, and the distance from copy to copy, 0 without copies
    """

    def __init__(self, repeated: np.ndarray, more: int) -> None:
        before = np.cumsum(repeated) - repeated
        begins = repeated & ~np.append(False, repeated[:-1])
        run = np.cumsum(begins) - 1
        length = np.bincount(run[repeated], minlength=1)
        first = np.arange(len(repeated)) + more * np.where(repeated, np.append(before[begins], 0)[run], before)
        # There may be millions, but 32 bits count them.
        self.length, self.first = np.where(repeated, length[run], 0).astype(np.int32), first.astype(np.int32)
        which, copies = np.flatnonzero(repeated), np.arange(1, more + 1, dtype=np.int32)[:, None]
        self.source = np.empty(len(repeated) + more * len(which), np.int32)
        self.copy = np.zeros(len(self.source), np.int32)
        self.source[self.first] = np.arange(len(repeated))
        place = self.of(which, copies)
        self.source[place], self.copy[place] = which, copies

    def of(self, which: np.ndarray, copy: np.ndarray | int = 0) -> np.ndarray:
        """The position of a copy of each of these things; of the only one where there are no copies."""
        place: np.ndarray = self.first[which] + copy * self.length[which]
        return place


class _Many:
    """The unrolled graph but for what waits for what: with `more` copies of the microbatch that is copied."""

    def __init__(self, few: Few, more: int) -> None:
        self.few, self.more = few, more
        self._task, self._buffer = (_Places(of == EACH, more) for of in (few.of_task, few.of_buffer))
        # How many microbatches later each is.
        self._later, self._held_later = (
            np.where(of[places.source] > EACH, more, places.copy)
            for of, places in ((few.of_task, self._task), (few.of_buffer, self._buffer))
        )

    @cached_property
    def folded(self) -> Folded:
        """The graph in which nothing waits."""
        few, graph, folded, task, buffer = self.few, self.few.graph, self.few.folded, self._task, self._buffer
        counts = np.diff(graph.lane_ptr)[task.source]
        use_ptr, uses = self._spread(few.uses, task, buffer)
        begun, by = self._spread(few.begun, buffer, task)
        first = np.full(len(buffer.source), -1)
        first[np.diff(begun) > 0] = by
        tasks, buffers = self.called(0)
        many = replace(
            graph, kind=graph.kind[task.source], order=self._order(), cost=graph.cost[task.source],
            lane_ptr=pointer(counts), lanes=graph.lanes[runs(graph.lane_ptr[task.source], counts)],
            need_ptr=np.zeros(len(task.source) + 1, np.int32), needs=NONE[0], use_ptr=use_ptr, uses=uses,
            buffer_first=first, buffer_proc=graph.buffer_proc[buffer.source],
            buffer_bytes=graph.buffer_bytes[buffer.source], private_bytes=graph.private_bytes[task.source],
            tasks=tasks, buffers=buffers,
        )  # fmt: skip
        plain = _Places(few.of_task[folded.into] == EACH, self.more)
        into = task.of(folded.into[plain.source], plain.copy).astype(np.int64)
        return replace(
            folded, graph=many, plain=folded.plain[plain.source], into=into, count=folded.count[task.source]
        )

    def called(self, later: int) -> tuple[Sequence[Task], Sequence[Buffer]]:
        """As `Unrolled` says."""
        few, (task, buffer) = self.few, (self._task.source, self._buffer.source)
        of_task, of_buffer = (
            known + later * (of[source] >= EACH)
            for known, of, source in ((self._later, few.of_task, task), (self._held_later, few.of_buffer, buffer))
        )
        tasks = Lazy(_written(few.graph, task, of_task), len(task))
        return tasks, Lazy(_held(few.graph, buffer, of_buffer), len(buffer))

    @cached_property
    def number(self) -> np.ndarray:
        """int64[T]: of which microbatch each task is."""
        number = self.few.number[self._task.source]
        return np.where(number < 0, -1, number + self._later)

    def needs(self, waits: Waits) -> tuple[np.ndarray, np.ndarray]:
        """(need_ptr, needs) of the graph."""
        turns = np.concatenate(self._turns(waits.turns), axis=1)
        return self._spread(waits.needs, self._task, self._task, turns)

    def alike(self, waits: Waits) -> Alike | None:
        """Which tasks are of the microbatch that is copied, and of its copies; None where memory of it lives on beyond
        it.
        """
        of, needs, uses = self.few.of_task, waits.needs, self.few.uses
        transient = self.few.graph.buffer_first[uses.other] >= 0
        if (transient & (uses.of_one < 0) & (uses.of_other == EACH)).any():
            return None
        kinds = window.LAST, window.ALIKE, window.FIRST
        part = np.select([of > EACH, of == EACH, of >= 0], kinds, window.NONE).astype(np.int8)
        part[needs.one[(needs.of_one < 0) & (needs.of_other == EACH)]] = window.ALL
        source, reach = self._task.source, int(waits.turns.begun[:, 3].max(initial=1))
        return Alike(part[source], self._task.copy, self._task.length[source], self.more + 1, reach)

    def _order(self) -> np.ndarray:
        """As in a graph that was lowered with all microbatches: copies come slots of the program later."""
        begin, end = self.few.slots
        order, of = (each[self._task.source] for each in (self.few.graph.order, self.few.of_task))
        later = self._later + self.more * ((of < 0) & (order >> repeats.SLOT > end))
        found: np.ndarray = order + ((end - begin) * later << repeats.SLOT)
        return found

    def _spread(
        self, pairs: Relation, one: _Places, other: _Places, more: np.ndarray = NONE
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pairs with all their copies, and `more` pairs of positions, int64[2, m], as rows: where the row of each
        position of `one` begins, and the positions of `other` in it, ascending and distinct; both int32.

        The numbers of `pairs.one` ascend.
        """
        is_one, is_other = pairs.of_one == EACH, pairs.of_other == EACH
        ways = [is_one & (pairs.of_other == EACH - 1), is_other & (pairs.of_one > EACH), is_one, is_other]
        kind = np.select(ways, [BEFORE, LAST, LIKE, ALL], ONCE).astype(np.int8)
        # A pair with the microbatch before becomes, from the first copy on, a pair with the copy before.
        of_each, of_before = (np.flatnonzero(self.few.of_task == micro) for micro in (EACH, EACH - 1))
        same = pairs.other.copy()
        same[ways[0]] = of_each[np.searchsorted(of_before, pairs.other[ways[0]])]
        per = np.bincount(pairs.one, minlength=len(one.first))
        times = np.where(np.isin(kind, (LIKE, BEFORE, ALL)), self.more + 1, 1)
        begin = np.zeros(len(one.source) + 1, np.int32)
        found = np.empty(int(times.sum()) + more.shape[1], np.int32)
        more = more[:, np.argsort(more[0])]
        size = compiled(_spread)(
            one.source, one.copy, pointer(per), kind, pairs.other, same, other.first, other.length, self.more,
            more[0], more[1], begin, found,
        )  # fmt: skip
        return begin, found[:size]

    def _turns(self, turns: Turns) -> list[np.ndarray]:
        """int64[2, n] for each microbatch: tasks that begin with it on a processor, and the last tasks there of the
        earlier microbatch that must be done.
        """
        begun, last, into = turns.begun, turns.last, self.few.folded.into
        task, found = into[begun[:, 0]], list[np.ndarray]()
        # By microbatch: which of the FEW it is a copy of, and which copy.
        every = np.arange(FEW + self.more)
        one_of, copy = np.minimum(every, EACH), np.clip(every - EACH, 0, self.more)
        one_of[-1] = FEW - 1
        for micro in every.tolist():
            mine = np.flatnonzero(begun[:, 1] == one_of[micro])
            earlier = micro - begun[mine, 3]
            mine, earlier = mine[earlier >= 0], earlier[earlier >= 0]
            before = last[one_of[earlier], begun[mine, 2]]
            pairs = np.stack([self._task.of(task[mine], copy[micro]), self._task.of(into[before], copy[earlier])])
            found.append(pairs[:, before >= 0])
        return found


def _written(graph: TaskGraph, source: np.ndarray, later: np.ndarray) -> Callable[[int], Task]:
    """Gives copies of tasks. It holds no more than it needs: in a reference cycle only the collector would free it."""

    def written(number: int) -> Task:
        task: Task = graph.tasks[int(source[number])]
        return replace(task, name=_named(task.name, int(later[number])))

    return written


def _held(graph: TaskGraph, source: np.ndarray, later: np.ndarray) -> Callable[[int], Buffer]:
    """The same of a buffer."""

    def held(number: int) -> Buffer:
        of: Buffer = graph.buffers[int(source[number])]
        return Buffer(_named(of.region, int(later[number])), of.box, of.dtype, of.proc, of.role)

    return held


def _spread(  # type: ignore[no-untyped-def]
    source, copy, pair_ptr, kind, other, same, first, length, more, more_ones, more_others, begin, found
):
    """The compiled loop of `_Many._spread`; gives how many positions `found` has. The pairs of thing t are those from
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
                o, at = same[k], c - 1
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
        # Rows are short, or in order but for a few (Shell, "A High-Speed Sorting Procedure", CACM 1959).
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
def _named(name: str, later: int) -> str:
    """The name of a task or a region so many microbatches later."""
    return NUMBER.sub(lambda found: f"@{int(found[1]) + later}", name) if later else name
