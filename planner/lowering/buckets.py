"""Buckets: small sums over the same processors become one sum over contiguous arrays; other transfers start together.

A rewrite of a task graph. Nothing is packed: arrays are allocated next to the others of their bucket. Each element is
the sum of the same numbers in the same order as before. It does not know operators, nor what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from castile.planner.bodies.vocabulary import round_up
from castile.planner.lowering.contraction import Contracted, Contraction
from castile.planner.lowering.instances import FlowInstance, StepInstance
from castile.planner.lowering.ragged import LazySequence, to_csr
from castile.planner.lowering.task_merging import (
    groups_in_chains,
    groups_of_equal_calls,
    mergeable_calls,
    merged,
    only_calls,
    sum_chains,
    tasks_of_passes,
)
from castile.planner.lowering.transfer_groups import END_TO_END, Joinable, groups_of, joinable
from castile.runtime.region import Box, contiguous, whole
from castile.runtime.task import Buffer, Call, Comm, CostKey, Task, TaskGraph, View


class Candidates(NamedTuple):
    """The tasks of a graph that may be joined, whatever the size of buckets.

    transfers   from `joinable`
    sums        chains of tasks that add to one array, from `sum_chains`
    calls       tasks that make the same call on different arrays, from `mergeable_calls`
    """

    transfers: Sequence[Joinable]
    sums: Sequence[Sequence[tuple[int, Call | None]]]
    calls: Sequence[tuple[int, Call]]


def candidates(
    steps: Sequence[StepInstance], flows: Sequence[FlowInstance], of_steps: Iterable[Sequence[tuple[int, int]]]
) -> Candidates:
    """The tasks that may be joined in a graph of these instances; of_steps: from `tasks_of_passes`."""
    alone, tasks = only_calls(steps), list(of_steps)
    return Candidates(
        joinable(steps, flows), sum_chains(steps, flows, tasks, alone), mergeable_calls(steps, flows, tasks, alone)
    )


@dataclass(frozen=True, eq=False)
class Composed:
    """The graph composed of instances, from which graphs with buckets of any size are made."""

    steps: Sequence[StepInstance]
    flows: Sequence[FlowInstance]
    tasks: TaskGraph

    @cached_property
    def candidates(self) -> Candidates:
        return candidates(self.steps, self.flows, tasks_of_passes(self.steps))

    def bucketed(self, most_bytes: int) -> Contracted:
        """The graph with transfers joined up to `most_bytes`, and with the updates merged that then can be; as it is
        for 0.
        """
        if not most_bytes:
            return Contracted(self.tasks, np.arange(self.tasks.num_tasks))
        able = self.candidates
        return _contracted(self.tasks, groups_of(able.transfers, most_bytes), able, identity(self.tasks))


def bucketed_roles(tasks: TaskGraph, able: Candidates, most_bytes: int, where: Representatives) -> Contracted | None:
    """The same for a graph of one processor of each role; None where buckets make processors of one role differ.

    where   the numbers in this graph of transfers, buffers and processors, or of their representatives Transfers with
            one representative must be in groups with one representative: then dependences, engines and memory have the
            same roles as before, or those of the joined ones.
    """
    groups = groups_of(able.transfers, most_bytes)
    company: dict[int, tuple[int, ...]] = {}
    for group in groups:
        standing = where.standing(group)
        if any(company.setdefault(task, standing) != standing for task in standing):
            return None
    joins = {one.task for group in groups for one in group}
    alone = [one.task for one in able.transfers if one.task not in joins]
    if np.isin(where.task[alone], list(company)).any():
        return None
    return _contracted(tasks, groups, able, where)


def _contracted(
    tasks: TaskGraph, groups: Sequence[Sequence[Joinable]], able: Candidates, where: Representatives
) -> Contracted:
    """The graph with these groups joined, and then equal calls merged."""
    sums = [group for group in groups if group[0].pattern.name == END_TO_END]
    others = dict.fromkeys([where.standing(group) for group in groups if group[0].pattern.name != END_TO_END])
    fewer = with_joined_sums(tasks, sums, where)
    begun = merged(fewer.graph, [fewer.number[list(group)].tolist() for group in others])
    # transfers stand behind the steps, whose tasks keep their numbers
    summed = merged(begun.graph, groups_in_chains(begun.graph, able.sums))
    calls = [(int(summed.number[task]), call) for task, call in able.calls]
    found = merged(summed.graph, groups_of_equal_calls(summed.graph, calls))
    return Contracted(found.graph, found.number[summed.number[begun.number[fewer.number]]])


class Representatives(NamedTuple):
    """For all tasks, buffers and processors of a machine, the number of their representative in a graph, -1 for none.
    """

    task: np.ndarray
    buffer: np.ndarray
    proc: np.ndarray

    def standing(self, group: Sequence[Joinable]) -> tuple[int, ...]:
        """The representatives of these transfers."""
        return tuple(self.task[[one.task for one in group]].tolist())


def identity(tasks: TaskGraph) -> Representatives:
    """The numbers in a graph of the whole machine."""
    return Representatives(np.arange(tasks.num_tasks), np.arange(tasks.num_buffers), np.arange(tasks.num_procs))


class Place(NamedTuple):
    """The position of a buffer in another one: its number, and the first element."""

    buffer: int
    first: int


@dataclass(frozen=True, eq=False)
class _Bucket:
    """Sums that become one, task `number`, in the order in which their arrays lie, and its first buffer.

    where   the representatives of their buffers and processors
    """

    sums: tuple[Joinable, ...]
    number: int
    first_buffer: int
    where: Representatives

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The elements that each member adds up."""
        elements, members = sum(one.elements for one in self.sums), len(self.sums[0].comm.group)
        return tuple([elements // members + (m < elements % members) for m in range(members)])

    @cached_property
    def buffers(self) -> list[tuple[int, str, Box]]:
        """Member, use and box of each buffer; all members have equal ones, whatever their share of the elements."""
        elements, others = sum(self.counts), len(self.counts) - 1
        sizes = {"send": elements, "receive": elements, "scratch": others * max(self.counts)}
        here = [m for m, proc in enumerate(self.procs) if proc >= 0]
        return [(m, use, whole((size,))) for m in here for use, size in sizes.items()]

    @cached_property
    def procs(self) -> list[int]:
        """The processor of each member in the graph."""
        return self.where.proc[list(self.sums[0].procs)].tolist()

    @cached_property
    def views(self) -> dict[tuple[int, str], View]:
        """Each member's buffers, whole."""
        return {(m, use): View(self.first_buffer + n, box) for n, (m, use, box) in enumerate(self.buffers)}

    @property
    def touching(self) -> np.ndarray:
        """Its task, repeated for each of its buffers."""
        buffers = self.first_buffer + np.arange(len(self.buffers))
        return np.stack([np.full_like(buffers, self.number), buffers])

    def places(self) -> dict[int, Place]:
        """The positions of the sums' buffers."""
        starts = np.cumsum([0, *(one.elements for one in self.sums[:-1])]).tolist()
        found: dict[int, Place] = {}
        for use, to in self.views.items():
            rows = zip(self.was[use], starts, strict=True)
            found |= {old: Place(to.buffer, first) for old, first in rows if old >= 0}
        return found

    @cached_property
    def was(self) -> dict[tuple[int, str], list[int]]:
        """By member and use, the former buffer of each sum, -1 for none."""
        found: dict[tuple[int, str], list[int]] = {use: [] for use in self.views}
        for one in self.sums:
            comm = one.comm
            for (member, use), olds in found.items():
                view = getattr(comm, use)[member]
                olds.append(-1 if view is None else one.first_buffer + view.buffer)
        return {use: np.where(np.array(olds) < 0, -1, self.where.buffer[olds]).tolist() for use, olds in found.items()}

    def comm(self, group: tuple[int, ...]) -> Comm:
        """The sum of all."""
        each = [tuple([self.views.get((m, use)) for m in range(len(group))]) for use in ("send", "receive", "scratch")]
        return Comm(END_TO_END, group, each[0], each[1], each[2], (self.counts,) * len(group))


def with_joined_sums(tasks: TaskGraph, buckets: Sequence[Sequence[Joinable]], where: Representatives) -> Contracted:
    """The graph with each of these lists of sums as one task."""
    rewrite = _Rewrite(tasks, buckets, where)
    return Contracted(rewrite.graph() if buckets else tasks, rewrite.number)


class _Rewrite:
    """Old and new numbers of tasks and buffers; a bucket has the number of the last of its sums.

    Where a task represents several, it may also represent several buckets.
    """

    def __init__(self, tasks: TaskGraph, buckets: Sequence[Sequence[Joinable]], where: Representatives) -> None:
        self.old = tasks
        groups = dict.fromkeys(map(where.standing, buckets))
        self.contraction = Contraction(tasks, list(groups))
        self.kept, self.number = self.contraction.kept, self.contraction.number
        touched = cache(lambda pattern: np.array([*pattern.reads, *pattern.writes]))
        moved = [one.first_buffer + touched(one.pattern) for sums in buckets for one in sums]
        # the last entry is for those that are not there
        goes = np.zeros(tasks.num_buffers + 1, dtype=bool)
        goes[where.buffer[np.concatenate([np.empty(0, np.int64), *moved])]] = True
        self.stay = np.flatnonzero(~goes[:-1])
        self.buckets: list[_Bucket] = []
        self.num_buffers = len(self.stay)
        for sums in buckets:
            # What is no multiple of 64 bytes comes last, so that the others begin where vectors do.
            ordered = sorted(sums, key=lambda one: one.pattern.key.nbytes % 64 > 0)
            number = int(self.number[where.task[sums[-1].task]])
            made = _Bucket(tuple(ordered), number, self.num_buffers, where)
            self.buckets.append(made)
            self.num_buffers += len(made.buffers)
        self.of_task = {bucket.number: bucket for bucket in self.buckets}
        self.places = {old: place for bucket in self.buckets for old, place in bucket.places().items()}
        self.buffer = np.zeros(tasks.num_buffers, dtype=np.int64)
        self.buffer[self.stay] = np.arange(len(self.stay))
        self.buffer[list(self.places)] = [place.buffer for place in self.places.values()]

    def graph(self) -> TaskGraph:
        old, kept = self.old, self.kept
        cost, keys = self.costs()
        procs, nbytes, first, turns = self.added()
        users = np.concatenate([np.repeat(self.number, np.diff(old.use_ptr)), *[b.touching[0] for b in self.buckets]])
        used = np.concatenate([self.buffer[old.uses], *[b.touching[1] for b in self.buckets]])
        use_ptr, uses = to_csr(users, used, len(kept))
        began = old.buffer_first[self.stay]
        return replace(
            old, **self.contraction.fields(turns), cost=cost, cost_keys=keys, use_ptr=use_ptr, uses=uses,
            buffer_proc=np.append(old.buffer_proc[self.stay], procs),
            buffer_bytes=np.append(old.buffer_bytes[self.stay], nbytes),
            buffer_first=np.append(np.where(began < 0, -1, self.number[began]), first),
            private_bytes=old.private_bytes[kept],
            tasks=LazySequence(self.task, len(kept)), buffers=LazySequence(self.made_buffer, self.num_buffers),
        )  # fmt: skip

    def costs(self) -> tuple[np.ndarray, tuple[CostKey, ...]]:
        """The cost of each task; a bucket's is that of one sum of as many bytes."""
        keys = {key: n for n, key in enumerate(self.old.cost_keys)}
        cost = self.old.cost[self.kept]
        for bucket in self.buckets:
            nbytes = sum(one.pattern.key.nbytes for one in bucket.sums)
            key = msgspec.structs.replace(bucket.sums[0].pattern.key, nbytes=nbytes)
            cost[bucket.number] = keys.setdefault(key, len(keys))
        return cost, tuple(keys)

    def added(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Processor, bytes and first task of each buffer of a bucket, and the edges that make that task the first."""
        rows, turns = [], [np.empty((0, 2), np.int64)]
        for bucket in self.buckets:
            itemsize = np.dtype(bucket.sums[0].pattern.key.dtype).itemsize
            for m, use, box in bucket.buffers:
                first = bucket.number
                if use == "send":
                    sent = [old for old in bucket.was[m, use] if old >= 0]
                    makers = np.unique(self.old.buffer_first[sent])
                    earliest = makers[np.argmin(self.old.order[makers])]
                    first = int(self.number[earliest])
                    others = self.number[makers[makers != earliest]]
                    turns.append(np.stack([np.full_like(others, first), others], axis=1))
                rows.append((bucket.procs[m], round_up(box.volume * itemsize), first))
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2], np.concatenate(turns)

    def task(self, number: int) -> Task:
        """The `Task` object of a number."""
        task = self.old.tasks[int(self.kept[number])]
        bucket = self.of_task.get(number)
        if bucket is not None:
            name = f"{task.name} and {len(bucket.sums) - 1} more"
            return replace(task, index=number, name=name, comms=(bucket.comm(task.procs),))
        comms = tuple(map(self.comm, task.comms))
        return replace(task, index=number, views=tuple(map(self.view, task.views)), comms=comms)

    def comm(self, comm: Comm) -> Comm:
        """The same transfer at the new positions."""
        send, receive, scratch = (
            tuple([view and self.view(view) for view in views]) for views in (comm.send, comm.receive, comm.scratch)
        )
        return msgspec.structs.replace(comm, send=send, receive=receive, scratch=scratch)

    def view(self, view: View) -> View:
        """The same view at its new position."""
        place = self.places.get(view.buffer)
        if place is None:
            return view._replace(buffer=int(self.buffer[view.buffer]))
        frame = self.old.buffers[view.buffer].box
        assert contiguous(view.box, frame), "only a run of elements lies in a bucket"
        first = place.first + _offset(view.box, frame)
        shape = view.box.shape if view.shape is None else view.shape
        return View(place.buffer, Box((first,), (first + view.box.volume,)), shape)

    def made_buffer(self, number: int) -> Buffer:
        """The `Buffer` object of a number."""
        if number < len(self.stay):
            return self.old.buffers[int(self.stay[number])]
        bucket = next(b for b in reversed(self.buckets) if b.first_buffer <= number)
        member, _, box = bucket.buffers[number - bucket.first_buffer]
        one = bucket.sums[0]
        region = self.old.buffers[bucket.was[member, "send"][0]].region
        name = f"{region} and {len(bucket.sums) - 1} more"
        return Buffer(name, box, one.pattern.key.dtype, one.procs[member])


def _offset(box: Box, frame: Box) -> int:
    """The offset in an array over `frame` of a box that is contiguous there."""
    offset = 0
    for lo, first, extent in zip(box.lo, frame.lo, frame.shape, strict=True):
        offset = offset * extent + lo - first
    return offset
