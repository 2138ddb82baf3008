"""Ledger: what each processor's time goes into, and the longest chain of a step, entered stretch by stretch.

It does not know what tasks are for, beside the number of a cause, nor whether a step is one stretch or many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from castile.planner.simulation.agenda import NEVER
from castile.planner.simulation.window import ALIKE, LAST, Alike, Stretch
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, Lane, TaskGraph

COMPUTE = int(Lane.COMPUTE)
# What stands for a task that has no link yet, as it was not served when the last stretch ended; and for one that none
# which is still to begin can follow.
UNSERVED, PAST = -1, -2


class Links(NamedTuple):
    """Tasks that the longest chain may go through, each with the one with whose end it begins.

    former   the number of that link, -1 of the first
    cause    what the task is for
    lasts    picoseconds
    """

    former: np.ndarray
    cause: np.ndarray
    lasts: np.ndarray

    def picked(self, which: np.ndarray) -> Links:
        return Links(self.former[which], self.cause[which], self.lasts[which])


class Ledger:
    """The account of a step of T tasks on P processors, for C causes; picoseconds.

    spent[P, C]     what each processor does: computing goes before transfers beside it, of transfers the earlier one
    awaited[P, C]   how long nothing runs on a processor before a task that begins when one of that cause ends
    done[P]         when the last task of each ends
    until           when the step ends
    """

    def __init__(
        self, tasks: TaskGraph, engines: Sequence[int], cause: np.ndarray, num_causes: int, alike: Alike | None = None
    ) -> None:
        """cause[T] is the number of what each task is for; alike which ones stand for others, as in `window`."""
        self._tasks, self._cause, self._alike = tasks, cause.astype(np.int32), alike
        self._num_engines = max(engines) + 1
        self.spent, self.awaited = np.zeros((2, tasks.num_procs, num_causes), np.int64)
        self.done, self.until = np.zeros(tasks.num_procs, np.int64), 0
        # By task its link, and for what the one was with whose end it begins.
        self._link, self._of_former = np.full((2, tasks.num_tasks), UNSERVED, np.int32)
        self._links = Links(*(np.empty(0, kind) for kind in (np.int32, np.int32, np.int64)))
        # Of links that all that is still to come goes through; and the link of what ends last, -1 of nothing.
        self._trunk = np.zeros(num_causes, np.int64)
        self._last: int = -1

    def enter(self, stretch: Stretch) -> None:
        """Enters what comes to pass until the stretch ends."""
        tasks, until, start, end = self._tasks, stretch.until, stretch.start, stretch.end
        if self._alike is not None and stretch.by:
            compiled(_moved)(stretch.by, *self._alike[:4], self._link, self._of_former)
        queues = stretch.queue, stretch.queue_ptr, stretch.queue_end
        former = np.full(tasks.num_tasks, -1, np.int32)
        num_new, num_odd = compiled(_bound)(
            start, end, tasks.order, tasks.need_ptr, tasks.needs, *queues, self._link, self._cause, former,
            self._of_former,
        )  # fmt: skip
        assert not num_odd, "a task begins though nothing ends"
        compiled(_spend)(
            self.until, until, start, end, *queues, self._num_engines, tasks.lane_ptr, tasks.lanes, self._cause,
            self._of_former, self.done, self.spent, self.awaited,
        )  # fmt: skip
        self.until = until
        known = len(self._links.cause)
        links = Links(*(np.append(each, np.empty(num_new, each.dtype)) for each in self._links))
        size = compiled(_linked)(until, start, end, former, self._cause, self._link, known, *links)
        self._prune(links.picked(np.arange(size)), stretch)

    @property
    def chain(self) -> np.ndarray:
        """int64[C]: the longest chain: tasks that follow one another without a gap from the step's begin to its end; of
        those that end it the first in order.
        """
        found, links, at = self._trunk.copy(), self._links, self._last
        while at >= 0:
            found[links.cause[at]] += links.lasts[at]
            at = int(links.former[at])
        return found

    def _prune(self, links: Links, stretch: Stretch) -> None:
        """Keeps the links that what is still to come may follow; those that all of it does are summed up."""
        live = np.flatnonzero((stretch.end >= stretch.until) & (self._link >= 0))
        number, trunk = np.full((2, len(links.cause)), -1, np.int32)
        size, length = compiled(_numbered)(links.former, self._link[live], number, trunk)
        np.add.at(self._trunk, links.cause[trunk[:length]], links.lasts[trunk[:length]])
        left = links.picked(number >= 0)
        assert len(left.cause) == size
        self._links = left._replace(former=np.where(left.former < 0, -1, number[left.former]))
        here = number[self._link[live]]
        self._link[stretch.end < NEVER] = PAST
        self._link[live] = here
        if len(live):
            self._last = int(here[np.lexsort((self._tasks.order[live], -stretch.end[live]))[0]])


def _moved(by, part, copy, length, number, link, of_former):  # type: ignore[no-untyped-def]
    """What is known of those that are alike, where these stand so many later."""
    for t in range(len(part)):
        if part[t] == ALIKE and copy[t] + by < number:
            link[t], of_former[t] = link[t + by * length[t]], of_former[t + by * length[t]]
        elif part[t] == ALIKE or part[t] == LAST:
            link[t] = UNSERVED


def _bound(  # type: ignore[no-untyped-def]
    start, end, order, need_ptr, needs, queue, queue_ptr, queue_end, link, cause, former, of_former
):
    """With whose end each task begins that was served since the last stretch, and what that one is for: one that it
    needs, else the former one of an engine; of several the first in order. Gives how many were served, and of how many
    of them it is not seen why they begin when they do.
    """
    num_new, num_odd = 0, 0
    for e in range(len(queue_end)):
        for k in range(queue_ptr[e] + 1, queue_end[e]):
            after, before = np.int64(queue[k]), np.int64(queue[k - 1])
            if link[after] == UNSERVED and before != after and end[before] == start[after]:
                if former[after] < 0 or order[before] < order[former[after]]:
                    former[after] = before
    for t in range(len(start)):
        if link[t] != UNSERVED or end[t] == NEVER:
            continue
        tight = -1
        for k in range(need_ptr[t], need_ptr[t + 1]):
            if end[needs[k]] == start[t] and (tight < 0 or order[needs[k]] < order[tight]):
                tight = needs[k]
        if tight >= 0:
            former[t] = tight
        num_new += 1
        if former[t] >= 0:
            of_former[t] = cause[former[t]]
        if (former[t] >= 0) != (start[t] > 0):
            num_odd += 1
    return num_new, num_odd


def _spend(  # type: ignore[no-untyped-def]
    since, until, start, end, queue, queue_ptr, queue_end, num_engines, lane_ptr, lanes, cause, of_former, done, spent,
    awaited,
):  # fmt: skip
    """Enters for each processor what each moment goes into: a kernel that runs then, else of all that run the one that
    began first, in order of their numbers; and once something runs again what went by until then.
    """
    head, computes = np.empty(num_engines, np.int64), np.zeros(num_engines, np.bool_)
    for p in range(len(done)):
        for e in range(num_engines):
            # Of an engine's tasks ends ascend.
            low, high = np.int64(queue_ptr[p * num_engines + e]), np.int64(queue_end[p * num_engines + e])
            while low < high:
                middle = (low + high) >> 1
                if end[queue[middle]] <= since:
                    low = middle + 1
                else:
                    high = middle
            head[e] = -low - 1
        now = since
        while now < until:
            best, soon = -1, until
            for e in range(num_engines):
                k, tail = head[e], np.int64(queue_end[p * num_engines + e])
                is_next = k < 0
                k = -k - 1 if is_next else k
                while k < tail and end[queue[k]] <= now:
                    k, is_next = k + 1, True
                head[e] = k
                if k == tail:
                    continue
                t = np.int64(queue[k])
                if is_next:
                    computes[e] = False
                    for slot in range(lane_ptr[t], lane_ptr[t + 1]):
                        computes[e] |= lanes[slot] == p * NUM_LANES + COMPUTE
                if start[t] > now:
                    soon = min(soon, start[t])
                    continue
                soon = min(soon, end[t])
                if best >= 0:
                    b = np.int64(queue[head[best]])
                    if computes[best] or (not computes[e] and (start[t], t) >= (start[b], b)):
                        continue
                best = e
            if best >= 0:
                b = np.int64(queue[head[best]])
                awaited[p, of_former[b]] += now - done[p]
                spent[p, cause[b]] += soon - now
                done[p] = soon
            now = soon


def _linked(until, start, end, former, cause, link, size, of_former, of_cause, lasts):  # type: ignore[no-untyped-def]
    """Links of tasks that were served since the last stretch and may end when another begins, and of those before them;
    gives how many there are with these.
    """
    for t in range(len(start)):
        at = np.int64(t)
        if end[t] < until or end[t] == NEVER or link[t] != UNSERVED:
            continue
        while at >= 0 and link[at] == UNSERVED:
            link[at], of_cause[size], lasts[size] = size, cause[at], end[at] - start[at]
            f = former[at]
            of_former[size] = -1 if f < 0 else size + 1 if link[f] == UNSERVED else link[f]
            at, size = f, size + 1
    return size


def _numbered(former, live, number, trunk):  # type: ignore[no-untyped-def]
    """Numbers the links that lead to one that is live, but for a trunk that they all go through; gives how many these
    are, and how long the trunk is.
    """
    follows, follower = np.zeros((2, len(former)), np.int32)
    num_roots, root, length, size = 0, -1, 0, 0
    for at in live:
        follows[at] += 1
        while at >= 0 and number[at] < 0:
            number[at], before = 0, former[at]
            if before >= 0:
                follows[before] += 1
                follower[before] = at
            else:
                num_roots, root = num_roots + 1, at
            at = before
    while num_roots == 1 and follows[root] == 1 and number[follower[root]] >= 0 and former[follower[root]] == root:
        trunk[length], number[root] = root, -1
        root, length = follower[root], length + 1
    for at in range(len(number)):
        if number[at] >= 0:
            number[at], size = size, size + 1
    return size, length
