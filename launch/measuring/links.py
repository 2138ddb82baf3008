"""Times every form of transfer by itself, over groups of 2, 4, 8, ... processors and from few bytes to many.

Forms of which plans start several at once are timed so, too, which shows what each of them costs besides its bytes. It
does not know plans, nor how transfers are timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from castile.launch.jobs.jobs import Job
from castile.launch.measuring.isolation import Bench, without_reuse
from castile.runtime import rng, transfer
from castile.runtime.forms import SPECIAL_FORMS
from castile.runtime.machine import Machine
from castile.runtime.region import whole
from castile.runtime.runner import Runner
from castile.runtime.task import AT_ONCE, NOTHING, Buffer, Comm, CostKey, Kind, Task, TaskGraph, View
from castile.runtime.timeline import Timeline

Lengths = tuple[int, ...]  # elements of each member of a group

FORMS = ("move", *SPECIAL_FORMS)
# The cost model interpolates between neighbours of which one is up to four times the other.
LEAST_BYTES, MOST_BYTES, RATIO = 64, 2**26, 3
# So many begin together, of some of the sizes: their time is a sum of a share for each and one for the bytes.
NUMBERS, EVERY = (4, 16), 4
# All arrays of a transfer together take at most this share of a processor's memory.
MEMORY_SHARE = 0.25
SEND, RECEIVE, SCRATCH = "send", "receive", "scratch"


class Exchange(NamedTuple):
    """A transfer to measure, made by all groups of processors at the same time.

    form     as in `Comm`: move, all_reduce, ...
    nbytes   what one transfer moves, counted as CostKey counts it
    num      how many such transfers start together in each group
    """

    form: str
    groups: tuple[tuple[int, ...], ...]
    nbytes: int
    dtype: str
    num: int = 1

    @property
    def elements(self) -> int:
        """The number of elements of `nbytes`; each member of a group has an equal share of them."""
        return self.nbytes // np.dtype(self.dtype).itemsize


def exchanges(machine: Machine, dtype: str) -> Iterator[Exchange]:
    """All transfers worth measuring on a machine: in pairs, in groups of 4, 8, ... and among all processors."""
    room = MEMORY_SHARE * int(machine.capacity.min())
    for groups in _groups(machine):
        size = len(groups[0])
        share, most = size * np.dtype(dtype).itemsize, min(MOST_BYTES, room / 3)
        for nbytes in _sizes(share, most):
            for form in FORMS if size == 2 else SPECIAL_FORMS:
                yield Exchange(form, groups, nbytes, dtype)
        for num, form in product(NUMBERS, AT_ONCE):
            for nbytes in _sizes(share, most / num)[::EVERY]:
                yield Exchange(form, groups, nbytes, dtype, num)


def _groups(machine: Machine) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Disjoint groups of equal size: of neighbours, and of processors at the same position in different groups of a
    level, such as the hosts.
    """
    num_procs = machine.num_procs
    for stride in (1, *(level.group for level in machine.levels[:-1])):
        most = -(-num_procs // stride)
        for size in [*(2**n for n in range(1, most.bit_length()) if 2**n < most), most] if most > 1 else []:
            span = size * stride
            begins = (at for first in range(0, num_procs, span) for at in range(first, first + stride))
            groups = (tuple(range(at, at + span, stride)) for at in begins)
            yield tuple(group for group in groups if group[-1] < num_procs)


def _sizes(share: int, most: float) -> list[int]:
    """Sizes in bytes, from few to `most`, each RATIO times the one before, rounded to a multiple of `share`."""
    counts = range(int(math.log(max(most / LEAST_BYTES, 1), RATIO)) + 1)
    return list(dict.fromkeys(max(1, LEAST_BYTES * RATIO**n // share) * share for n in counts))


def key_of(machine: Machine, exchange: Exchange) -> CostKey:
    """The cost key of such a transfer in a plan."""
    group = exchange.groups[0]
    key = CostKey(exchange.form, "", exchange.dtype, 0, exchange.nbytes, machine.link(group).name, len(group))
    return key.begun_with([key] * (exchange.num - 1)) if exchange.num > 1 else key


def graph_of(machine: Machine, exchange: Exchange) -> TaskGraph:
    """The tasks of a step that consists of this exchange only."""
    buffers: list[Buffer] = []
    tasks = [_task(number, group, exchange, buffers) for number, group in enumerate(exchange.groups)]
    num, lanes = len(tasks), [transfer.lanes(task.kind, task.procs) for task in tasks]
    uses = [sorted(_touched(task)) for task in tasks]
    first = np.full(len(buffers), -1, np.int32)
    for task, touched in zip(tasks, uses, strict=True):
        first[[b for b in touched if not buffers[b].role]] = task.index
    nbytes = [b.box.volume * np.dtype(b.dtype).itemsize for b in buffers]
    return TaskGraph(
        np.array([task.kind for task in tasks], np.int8), np.arange(num), np.zeros(num, np.int32),
        (key_of(machine, exchange),), *_flat(lanes), *_flat([[] for _ in tasks]), *_flat(uses),
        np.array([b.proc for b in buffers], np.int32), np.array(nbytes, np.int64), first, np.zeros(num, np.int64),
        machine.num_procs, tasks, buffers,
    )  # fmt: skip


def bench(job: Job, exchange: Exchange) -> Bench:
    """The exchange, ready to run on this rank, with random numbers to send."""
    graph = graph_of(job.machine, exchange)
    order = np.arange(graph.num_tasks)
    runner = Runner(graph, Timeline(order, order, order + 1), without_reuse(graph), job.procs, job.comm, job.backend)
    sent = runner.persistent("input")
    for (name, box, proc), array in sent.items():
        runner.backend(proc).fill(array, rng.uniform(0, name, box.shape, box))
    return Bench(job, graph, runner, tuple(sent.values()))


def _task(number: int, group: tuple[int, ...], exchange: Exchange, buffers: list[Buffer]) -> Task:
    """The transfers of a group; their buffers are appended to `buffers`."""
    lengths, counts = _lengths(exchange.form, len(group), exchange.elements)

    def view(role: str, which: int, proc: int, length: int) -> View | None:
        if not length:
            return None
        box, kind = whole((length,)), "input" if role == SEND else ""
        buffers.append(Buffer(f"{role}{number}.{which}", box, exchange.dtype, proc, kind))
        return View(len(buffers) - 1, box)

    def comm(which: int) -> Comm:
        send, receive, scratch = (
            tuple(view(role, which, proc, length) for proc, length in zip(group, those, strict=True))
            for role, those in zip((SEND, RECEIVE, SCRATCH), lengths, strict=True)
        )
        return Comm(exchange.form, group, send, receive, scratch, counts)

    kind = Kind.MOVE if exchange.form == "move" else Kind.COLLECTIVE
    return Task(number, f"{exchange.form}[{number}]", kind, group, (), NOTHING, tuple(map(comm, range(exchange.num))))


def _lengths(form: str, size: int, elements: int) -> tuple[tuple[Lengths, Lengths, Lengths], tuple[Lengths, ...]]:
    """What each member of a group sends, receives and works in, as runtime/collectives lays it out; and `Comm.counts`.
    """
    piece = elements // size
    every, pieces, nothing = (elements,) * size, (piece,) * size, (0,) * size
    staging = ((size - 1) * piece,) * size
    if form == "move":
        return ((elements, 0), (0, elements), nothing), ((0, elements), nothing)
    if form == "broadcast":
        return ((elements, *nothing[1:]), (0, *every[1:]), nothing), (every,) * size
    sides = {
        "all_reduce": (every, every, staging),
        "reduce_scatter": (every, pieces, staging),
        "all_gather": (pieces, every, nothing),
        "all_to_all": (every, every, nothing),
    }
    return sides[form], (pieces,) * size


def _touched(task: Task) -> set[int]:
    return {
        view.buffer for comm in task.comms for view in (*comm.send, *comm.receive, *comm.scratch) if view is not None
    }


def _flat(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Where each row begins and the last one ends, int64[n + 1]; and all rows end to end, int64."""
    ends = np.cumsum([0, *map(len, rows)])
    return ends.astype(np.int64), np.array([n for row in rows for n in row], np.int64)
