"""Ledger: an account of each processor's time by cause, and the critical path of a step, built stretch by stretch.

It does not know what a cause is, nor whether a step is one stretch or many.
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
# In place of a task's link: the task was not served when the last stretch ended; or it is done, and no task that is
# still to begin can follow it.
UNSERVED, DONE = -1, -2


class Links(NamedTuple):
    """Tasks that may be on the critical path, each linked to its predecessor, whose end it begins with.

    predecessor   the number of the predecessor's link, -1 for the first task
    cause         the cause of the task
    lasts         picoseconds of the task
    """

    predecessor: np.ndarray
    cause: np.ndarray
    lasts: np.ndarray

    def select(self, which: np.ndarray) -> Links:
        return Links(self.predecessor[which], self.cause[which], self.lasts[which])


class Ledger:
    """The account of a step of T tasks on P processors, for C causes, in picoseconds.

    spent[P, C]     busy time by cause: while several tasks run, that of the kernel, else of the transfer begun first
    awaited[P, C]   idle time by the cause of the task whose end it waits for
    done[P]         when the last task of each processor ends
    until           when the step ends
    """

    def __init__(
        self, tasks: TaskGraph, engines: Sequence[int], cause: np.ndarray, num_causes: int, alike: Alike | None = None
    ) -> None:
        """An empty account.

        cause   int[T], the number of each task's cause
        alike   which tasks stand for those of other microbatches, as in `window`
        """
        self._tasks, self._cause, self._alike = tasks, cause.astype(np.int32), alike
        self._num_engines = max(engines) + 1
        self.spent, self.awaited = np.zeros((2, tasks.num_procs, num_causes), np.int64)
        self.done, self.until = np.zeros(tasks.num_procs, np.int64), 0
        # By task: its link, and the cause of its predecessor.
        self._link, self._cause_before = np.full((2, tasks.num_tasks), UNSERVED, np.int32)
        self._links = Links(*(np.empty(0, kind) for kind in (np.int32, np.int32, np.int64)))
        # Picoseconds by cause of the links that every path to a live link has in common, which are not kept; and the
        # link of the task that ends last, -1 before there is one.
        self._prefix = np.zeros(num_causes, np.int64)
        self._latest: int = -1

    def enter(self, stretch: Stretch) -> None:
        """Account for the time up to the end of a stretch."""
        tasks, until, start, end = self._tasks, stretch.until, stretch.start, stretch.end
        if self._alike is not None and stretch.by:
            compiled(_move_links)(stretch.by, *self._alike[:4], self._link, self._cause_before)
        queues = stretch.queue, stretch.queue_ptr, stretch.queue_end
        predecessor = np.full(tasks.num_tasks, -1, np.int32)
        num_new, num_unexplained = compiled(_find_predecessors)(
            start, end, tasks.order, tasks.need_ptr, tasks.needs, *queues, self._link, self._cause, predecessor,
            self._cause_before,
        )  # fmt: skip
        assert not num_unexplained, "a task begins when no other ends"
        compiled(_account_for_time)(
            self.until, until, start, end, *queues, self._num_engines, tasks.lane_ptr, tasks.lanes, self._cause,
            self._cause_before, self.done, self.spent, self.awaited,
        )  # fmt: skip
        self.until = until
        known = len(self._links.cause)
        links = Links(*(np.append(each, np.empty(num_new, each.dtype)) for each in self._links))
        size = compiled(_append_links)(until, start, end, predecessor, self._cause, self._link, known, *links)
        self._prune(links.select(np.arange(size)), stretch)

    @property
    def critical_path(self) -> np.ndarray:
        """int64[C]: picoseconds by cause on the critical path: tasks that follow one another without a gap from the
        begin of the step to its end. Of tasks that end last it takes the first in order.
        """
        found, links, at = self._prefix.copy(), self._links, self._latest
        while at >= 0:
            found[links.cause[at]] += links.lasts[at]
            at = int(links.predecessor[at])
        return found

    def _prune(self, links: Links, stretch: Stretch) -> None:
        """Keep only links that lead to a live task; the prefix that all of these share is summed up by cause."""
        live = np.flatnonzero((stretch.end >= stretch.until) & (self._link >= 0))
        number, prefix = np.full((2, len(links.cause)), -1, np.int32)
        size, length = compiled(_number_live_links)(links.predecessor, self._link[live], number, prefix)
        np.add.at(self._prefix, links.cause[prefix[:length]], links.lasts[prefix[:length]])
        left = links.select(number >= 0)
        assert len(left.cause) == size
        self._links = left._replace(predecessor=np.where(left.predecessor < 0, -1, number[left.predecessor]))
        here = number[self._link[live]]
        self._link[stretch.end < NEVER] = DONE
        self._link[live] = here
        if len(live):
            self._latest = int(here[np.lexsort((self._tasks.order[live], -stretch.end[live]))[0]])


def _move_links(by, part, copy, length, number, link, cause_before):  # type: ignore[no-untyped-def]
    """Move what is known of alike microbatches to the places of those `by` before them."""
    for t in range(len(part)):
        if part[t] == ALIKE and copy[t] + by < number:
            link[t], cause_before[t] = link[t + by * length[t]], cause_before[t + by * length[t]]
        elif part[t] == ALIKE or part[t] == LAST:
            link[t] = UNSERVED


def _find_predecessors(  # type: ignore[no-untyped-def]
    start, end, order, need_ptr, needs, queue, queue_ptr, queue_end, link, cause, predecessor, cause_before
):
    """Find the predecessor of each task served since the last stretch, and its cause: a task that it needs, else the
    previous one on an engine, that ends when it begins; of several the first in order. Returns the number of these
    tasks, and how many should have a predecessor but have none, or the reverse.
    """
    num_new, num_unexplained = 0, 0
    for e in range(len(queue_end)):
        for k in range(queue_ptr[e] + 1, queue_end[e]):
            after, before = np.int64(queue[k]), np.int64(queue[k - 1])
            if link[after] == UNSERVED and before != after and end[before] == start[after]:
                if predecessor[after] < 0 or order[before] < order[predecessor[after]]:
                    predecessor[after] = before
    for t in range(len(start)):
        if link[t] != UNSERVED or end[t] == NEVER:
            continue
        tight = -1
        for k in range(need_ptr[t], need_ptr[t + 1]):
            if end[needs[k]] == start[t] and (tight < 0 or order[needs[k]] < order[tight]):
                tight = needs[k]
        if tight >= 0:
            predecessor[t] = tight
        num_new += 1
        if predecessor[t] >= 0:
            cause_before[t] = cause[predecessor[t]]
        if (predecessor[t] >= 0) != (start[t] > 0):
            num_unexplained += 1
    return num_new, num_unexplained


def _account_for_time(  # type: ignore[no-untyped-def]
    since, until, start, end, queue, queue_ptr, queue_end, num_engines, lane_ptr, lanes, cause, cause_before, done,
    spent, awaited,
):  # fmt: skip
    """Account for each processor's time from `since` to `until`: to the kernel that runs, else to the running task that
    began first, of several the first by number. Idle time is entered once a task runs again.
    """
    head, computes = np.empty(num_engines, np.int64), np.zeros(num_engines, np.bool_)
    for p in range(len(done)):
        for e in range(num_engines):
            # The tasks of an engine end in order.
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
                awaited[p, cause_before[b]] += now - done[p]
                spent[p, cause[b]] += soon - now
                done[p] = soon
            now = soon


def _append_links(until, start, end, predecessor, cause, link, size, cause_before, of_cause, lasts):  # type: ignore[no-untyped-def]
    """Append links for tasks served since the last stretch that end at `until` or later, and for their predecessors;
    returns the new number of links.
    """
    for t in range(len(start)):
        at = np.int64(t)
        if end[t] < until or end[t] == NEVER or link[t] != UNSERVED:
            continue
        while at >= 0 and link[at] == UNSERVED:
            link[at], of_cause[size], lasts[size] = size, cause[at], end[at] - start[at]
            f = predecessor[at]
            cause_before[size] = -1 if f < 0 else size + 1 if link[f] == UNSERVED else link[f]
            at, size = f, size + 1
    return size


def _number_live_links(predecessor, live, number, prefix):  # type: ignore[no-untyped-def]
    """Number the links that lead to a live one, without the prefix that all of these share; returns their number, and
    the length of the prefix.
    """
    follows, follower = np.zeros((2, len(predecessor)), np.int32)
    num_roots, root, length, size = 0, -1, 0, 0
    for at in live:
        follows[at] += 1
        while at >= 0 and number[at] < 0:
            number[at], before = 0, predecessor[at]
            if before >= 0:
                follows[before] += 1
                follower[before] = at
            else:
                num_roots, root = num_roots + 1, at
            at = before
    while num_roots == 1 and follows[root] == 1 and number[follower[root]] >= 0 and predecessor[follower[root]] == root:
        prefix[length], number[root] = root, -1
        root, length = follower[root], length + 1
    for at in range(len(number)):
        if number[at] >= 0:
            number[at], size = size, size + 1
    return size, length
