"""Periodic schedules: a few microbatches of a step are simulated, and a step of many equal ones follows exactly.

Once the simulation is in the same state as some microbatches before, only later, it repeats the same states until the
last microbatch: what is served next depends only on which tasks are left and when they are ready. The period is mostly
one microbatch; it is longer where pipeline stages of nearly equal time wait for each other in turns. It does not know
how plans are lowered, nor how few microbatches are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from castile.planner.lowering.instances import FlowInstance
from castile.planner.simulate import Simulated
from castile.planner.step.program import Program
from castile.runtime.task import TaskGraph
from castile.runtime.timeline import Timeline

# The bits of a task's order at which its slot begins, and the number of the flow whose transfer it is.
SLOT, FLOW = 40, 20
# The first, three equal ones, and the last: a step of any number of microbatches can be composed of these.
LEAST = 5
# The longest period that is looked for, in microbatches.
MOST_APART = 16
# The most doublings of the number that is written out: where 16 times as many showed no period, no number but all did.
DOUBLINGS = 5
# A doubled number seldom shows a period that the first one does not (1 of 18 pipelines on 64 processors): it is tried
# only where there are this many times as many microbatches, or too many to write out.
SELDOM = 16


class Cycle(NamedTuple):
    """A period: so many further microbatches make a step so many picoseconds longer. They repeat what happens in the
    last period before the time `until`.
    """

    microbatches: int
    picoseconds: int
    until: int


def shown(count: int, least: int = LEAST, can_be_all: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """The numbers of microbatches to write out, of `count`, in the order in which to try them: `least`, doublings, all.

    can_be_all   whether all can be written out: then few doublings are tried before. Called only if needed
    Doublings are at most half of all: where a third showed no period, two thirds hardly ever did.
    """
    for number in (least << n for n in range(DOUBLINGS + 1) if least << n < count):
        if number == least or SELDOM * number <= count or (2 * number <= count and not can_be_all()):
            yield number
    yield count


def numbers(program: Program, tasks: TaskGraph) -> np.ndarray:
    """int64[T]: the microbatch of each task; -1 for tasks of none or several, or of one and the whole batch."""
    return _of_each(tasks, program.micro_of_step, program.micro_of_flow)


def belongs(program: Program, tasks: TaskGraph) -> np.ndarray:
    """int64[T]: the same, where transfers between a microbatch and the whole batch belong to the microbatch."""
    return _of_each(tasks, program.micro_of_step, program.one_micro_of_flow)


def _of_each(tasks: TaskGraph, of_step: Sequence[int], of_flow: Sequence[int]) -> np.ndarray:
    slot, rest = (tasks.order >> SLOT) - 1, tasks.order & (1 << SLOT) - 1
    flow = (rest >> FLOW) - 1
    return np.where(flow < 0, np.array([*of_step, -1])[slot], np.array([*of_flow, -1])[flow])


def times(count: int, shown: int) -> np.ndarray:
    """int64[shown + 1]: how many of `count` microbatches each written one stands for: the last but one for all that are
    left. The last entry, 1, is for tasks of no microbatch (-1).
    """
    found = np.ones(shown + 1, np.int64)
    found[shown - 2] += count - shown
    return found


def cycle(tasks: TaskGraph, number: np.ndarray, simulated: Simulated) -> Cycle | None:
    """The shortest period of a simulated step; None if the microbatches that are written out show none.

    number[T]   the microbatch of each task
    """
    start, end = simulated.timeline.start, simulated.timeline.end
    ready = np.zeros(tasks.num_tasks, np.int64)
    np.maximum.at(ready, np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.need_ptr)), end[tasks.needs])
    # Tasks are grouped by microbatch once: searching all tasks for each of thousands would be slow.
    order = np.argsort(number, kind="stable")
    bounds = np.searchsorted(number[order], np.arange(int(number.max()) + 2))
    of = [order[begin:end] for begin, end in pairwise(bounds.tolist())]
    when = _When(ready, start, end, tasks.cost, of, number < 0)
    firsts = [int(ready[micro].min()) for micro in of]
    for apart in range(1, min(MOST_APART, len(of) - 2) + 1):
        if _is_as_before(when, firsts, apart):
            return Cycle(apart, firsts[-1] - firsts[-1 - apart], firsts[-1])
    return None


def stretched(timeline: Timeline, cycle: Cycle, times: int) -> Timeline:
    """The timeline with `times` further periods, drawn as one with the last simulated period: tasks that run during it
    run so many periods longer.
    """
    begin = cycle.until - cycle.picoseconds

    def later(moments: np.ndarray) -> np.ndarray:
        return moments + times * np.clip(moments - begin, 0, cycle.picoseconds)

    return replace(timeline, start=later(timeline.start), end=later(timeline.end))


class _When(NamedTuple):
    """Ready, start and end times of tasks; their costs; the tasks of each microbatch, and which tasks have none."""

    ready: np.ndarray
    start: np.ndarray
    end: np.ndarray
    cost: np.ndarray
    of: list[np.ndarray]
    of_none: np.ndarray


def _is_as_before(when: _When, firsts: Sequence[int], apart: int) -> bool:
    """Whether the state when the last microbatch's first task gets ready equals, but for a shift in time, the state
    when the first task of the microbatch `apart` before it did. Then `apart` further microbatches would repeat it.

    States are equal if each microbatch has the same tasks left as the one `apart` before it, and those that are ready
    got ready, start and end later by the same time. Between the two states no task without a microbatch may get ready,
    and no task of the first `apart` microbatches may be left. Of the very first microbatch none may be left at the
    earlier state either, so that all gradient sums hold memory.
    """
    first, until, of = firsts[-1 - apart], firsts[-1], when.of
    is_left, was_left = when.end > until, when.end > first
    if (
        was_left[of[0]].any()
        or any(is_left[micro].any() for micro in of[:apart])
        or (was_left & (when.ready < until))[when.of_none].any()
    ):
        return False
    for earlier, later in zip(of[: -1 - apart], of[apart:-1], strict=True):
        if not is_left[later].any() and not was_left[earlier].any():
            continue
        if len(earlier) != len(later) or (when.cost[earlier] != when.cost[later]).any():
            return False
        is_ready, was_ready = (
            is_left[later] & (when.ready[later] < until),
            was_left[earlier] & (when.ready[earlier] < first),
        )
        if (is_left[later] != was_left[earlier]).any() or (is_ready != was_ready).any():
            return False
        if any(((at[later] - at[earlier])[is_ready] != until - first).any() for at in when[:3]):
            return False
    return True


def lasting(
    program: Program, flows: Sequence[FlowInstance], num_procs: int, left: int, alignment: int = 1
) -> dict[str, np.ndarray]:
    """int64[P] by region: bytes on each processor of the inputs of the `left` microbatches that are not written out,
    which are held for the whole step. Every buffer is rounded up to a multiple of `alignment`.
    """
    found, stands = dict[str, np.ndarray](), max(program.micro_of_step) - 1
    for instance, number in zip(flows, program.micro_of_flow, strict=True):
        template = instance.template
        if instance.flow.role and number == stands:
            nbytes = -(-template.buffer_bytes // alignment) * alignment
            total = found.setdefault(instance.flow.region, np.zeros(num_procs, np.int64))
            np.add.at(total, template.buffer_procs, left * nbytes * template.outlives)
    return found
