"""Periodic schedules: of a step in many equal microbatches a few are simulated, and the whole step follows exactly.

Once the simulation is in the same state as some microbatches before, only later, it goes through the same states again
and again until the last microbatch comes: what is served next depends only on what is left and when that is ready. The
period is mostly one microbatch; it is longer where stages of a pipeline that take nearly equally long wait for each
other in turns. It does not know how plans are lowered, nor how few microbatches are enough.
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

# Where in a task's order its slot begins, and the number of the flow whose transfer it is, in bits from the lowest.
SLOT, FLOW = 40, 20
# The first, three that are alike, and the last: a step of any number of microbatches can be made of these.
LEAST = 5
# The longest period that is looked for, in microbatches.
MOST_APART = 16
# How often the number that is written out is doubled at most: if 16 times as many showed no period, only all of them
# were seen to be enough.
DOUBLINGS = 5
# Somewhat more than the first number seldom show a period that it does not, in 1 of 18 tries with pipelines on 64
# processors: they are tried only where all microbatches are so many times as many, or too many to write out.
SELDOM = 16


class Cycle(NamedTuple):
    """A period: this many further microbatches make a step this many picoseconds longer. They repeat what is done in
    the last so many picoseconds before the time `until`."""

    microbatches: int
    picoseconds: int
    until: int


def shown(count: int, least: int = LEAST, can_be_all: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """How many of `count` microbatches to write out, in the order in which to try: `least`, its doublings, then all.

    can_be_all   whether all can be written out; where they can, few doublings are tried before. Called only if needed
    Doublings are at most half of all: if a third showed no period, two thirds hardly ever did.
    """
    for number in (least << n for n in range(DOUBLINGS + 1) if least << n < count):
        if number == least or SELDOM * number <= count or (2 * number <= count and not can_be_all()):
            yield number
    yield count


def numbers(program: Program, tasks: TaskGraph) -> np.ndarray:
    """int64[T]: the microbatch of each task, -1 for tasks of none or several, or of one and the whole batch."""
    return _of_each(tasks, program.micro_of_step, program.micro_of_flow)


def belongs(program: Program, tasks: TaskGraph) -> np.ndarray:
    """int64[T]: the same, where transfers between a microbatch and the whole batch belong to the microbatch."""
    return _of_each(tasks, program.micro_of_step, program.one_micro_of_flow)


def _of_each(tasks: TaskGraph, of_step: Sequence[int], of_flow: Sequence[int]) -> np.ndarray:
    slot, rest = (tasks.order >> SLOT) - 1, tasks.order & (1 << SLOT) - 1
    flow = (rest >> FLOW) - 1
    return np.where(flow < 0, np.array([*of_step, -1])[slot], np.array([*of_flow, -1])[flow])


def times(count: int, shown: int) -> np.ndarray:
    """int64[shown + 1]: how many of `count` microbatches each one that is written out stands for, the last but one for
    more than itself; the last entry, 1, is for tasks of no microbatch (-1)."""
    found = np.ones(shown + 1, np.int64)
    found[shown - 2] += count - shown
    return found


def cycle(tasks: TaskGraph, number: np.ndarray, simulated: Simulated) -> Cycle | None:
    """The shortest period of a simulated step; None if none shows in the microbatches that are written out.

    number[T]   the microbatch of each task
    """
    start, end = simulated.timeline.start, simulated.timeline.end
    ready = np.zeros(tasks.num_tasks, np.int64)
    np.maximum.at(ready, np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.need_ptr)), end[tasks.needs])
    # Tasks are grouped by microbatch once: to search all of them for each would be slow with thousands.
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
    """The timeline with `times` further periods, drawn as one with the last that was simulated: tasks that run during
    that last period run so many periods longer."""
    begin = cycle.until - cycle.picoseconds

    def later(moments: np.ndarray) -> np.ndarray:
        return moments + times * np.clip(moments - begin, 0, cycle.picoseconds)

    return replace(timeline, start=later(timeline.start), end=later(timeline.end))


class _When(NamedTuple):
    """Times at which tasks are ready, start and end; their costs; the tasks of each microbatch, and which have none."""

    ready: np.ndarray
    start: np.ndarray
    end: np.ndarray
    cost: np.ndarray
    of: list[np.ndarray]
    of_none: np.ndarray


def _is_as_before(when: _When, firsts: Sequence[int], apart: int) -> bool:
    """Whether the state at which the first task of the last microbatch becomes ready equals that at which the first
    task of the microbatch `apart` before it did, only later: of each microbatch the same tasks are left as of the one
    `apart` before it, and those that are ready became ready, start and end by as much later. Then the same would happen
    once more if `apart` further microbatches came in between.

    Between the two no task without a microbatch may become ready, and of the first `apart` microbatches nothing may be
    left. Of the very first nothing may be left at the earlier state either: then all sums of gradients hold memory.
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
    """int64[P] by region: bytes on each processor that hold the inputs of the `left` microbatches that are not written
    out, for the whole step; the last but one stands for them. Every buffer is rounded up to a multiple of `alignment`.
    """
    found, stands = dict[str, np.ndarray](), max(program.micro_of_step) - 1
    for instance, number in zip(flows, program.micro_of_flow, strict=True):
        template = instance.template
        if instance.flow.role and number == stands:
            nbytes = -(-template.buffer_bytes // alignment) * alignment
            total = found.setdefault(instance.flow.region, np.zeros(num_procs, np.int64))
            np.add.at(total, template.buffer_procs, left * nbytes * template.outlives)
    return found
