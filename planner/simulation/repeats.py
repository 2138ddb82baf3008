"""Repeats: of a step in many equal microbatches a few are simulated, and what the whole step takes follows exactly.

Once all is as it was some microbatches before, only later, it will be so again and again until the last one comes: what
is served next follows from what is left and what is ready when. Mostly it is as it was one before; stages of a pipeline
that take nearly equally long wait for each other in turns. It does not know how plans are lowered, nor how few
microbatches are enough.
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

# The bits of a task's order: its slot, which flow's transfer it is, and its number.
SLOT, FLOW = 40, 20
# The first, three that are alike, and the last: of these any number can be made.
LEAST = 5
# All is looked for as it was one microbatch before, two before, and so on, at most so many.
MOST_APART = 16
# So often as many are written out again at most: what 16 times as many did not say only all of them were seen to.
DOUBLINGS = 5
# What the first did not say somewhat more seldom do, in 1 of 18 tries with pipelines on 64 processors: these are looked
# at only where all are so many times as many, or too many to write out.
SELDOM = 16


class Cycle(NamedTuple):
    """So many microbatches more make a step so many picoseconds longer: what is done in as many picoseconds before
    `until` is done once more."""

    microbatches: int
    picoseconds: int
    until: int


def shown(count: int, least: int = LEAST, can_be_all: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """How many of so many microbatches to write out, the cheapest first; but for that one at most half of them, or all,
    and no more than a few times as many.

    can_be_all   whether all can be written out; asked where it counts, as where they can that is tried sooner
    Where a third does not say what all take, two thirds were next to never seen to.
    """
    for number in (least << n for n in range(DOUBLINGS + 1) if least << n < count):
        if number == least or SELDOM * number <= count or (2 * number <= count and not can_be_all()):
            yield number
    yield count


def numbers(program: Program, tasks: TaskGraph) -> np.ndarray:
    """int64[T]: of which microbatch each task is, -1 where it is of none or of several, or of one and the batch."""
    return _of_each(tasks, program.micro_of_step, program.micro_of_flow)


def belongs(program: Program, tasks: TaskGraph) -> np.ndarray:
    """int64[T]: the same, with transfers between one and the whole batch taken for its own."""
    return _of_each(tasks, program.micro_of_step, program.one_micro_of_flow)


def _of_each(tasks: TaskGraph, of_step: Sequence[int], of_flow: Sequence[int]) -> np.ndarray:
    slot, rest = (tasks.order >> SLOT) - 1, tasks.order & (1 << SLOT) - 1
    flow = (rest >> FLOW) - 1
    return np.where(flow < 0, np.array([*of_step, -1])[slot], np.array([*of_flow, -1])[flow])


def times(count: int, shown: int) -> np.ndarray:
    """int64[shown + 1]: for how many of so many microbatches each of those stands that are written out, the last but
    one for more than itself; last 1, of what is of none."""
    found = np.ones(shown + 1, np.int64)
    found[shown - 2] += count - shown
    return found


def cycle(tasks: TaskGraph, number: np.ndarray, simulated: Simulated) -> Cycle | None:
    """The shortest one in which a step goes on; None where these microbatches are not seen to be enough to tell.

    number[T]   of which microbatch each task is
    """
    start, end = simulated.timeline.start, simulated.timeline.end
    ready = np.zeros(tasks.num_tasks, np.int64)
    np.maximum.at(ready, np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.need_ptr)), end[tasks.needs])
    # Of thousands of microbatches each is not looked for among all tasks.
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
    """A step of so many cycles more, as if they were one with the last that is written out: whoever was at work then is
    so for as many times as long."""
    begin = cycle.until - cycle.picoseconds

    def later(moments: np.ndarray) -> np.ndarray:
        return moments + times * np.clip(moments - begin, 0, cycle.picoseconds)

    return replace(timeline, start=later(timeline.start), end=later(timeline.end))


class _When(NamedTuple):
    """When tasks are ready, begin and end, what they cost, those of each microbatch, and which are of none."""

    ready: np.ndarray
    start: np.ndarray
    end: np.ndarray
    cost: np.ndarray
    of: list[np.ndarray]
    of_none: np.ndarray


def _is_as_before(when: _When, firsts: Sequence[int], apart: int) -> bool:
    """Whether all is, when the first task of the last microbatch becomes ready, as it was when that of the one so many
    before did: what is left of each is what was left of the one so many before it, and what is ready of that became
    ready, begins and ends as much later. So would all be once more if as many others came in between.

    Of no microbatch nothing becomes ready meanwhile, and nothing of the first ones is left. Of the very first nothing
    was left before, either: all that sums gradients had begun to hold memory, as it does from then on.
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
    """int64[P] by region: bytes of each processor that hold, all step long, what the host gives to so many microbatches
    that are not written out, for which the last but one stands; every buffer rounded up to a multiple of the alignment.
    """
    found, stands = dict[str, np.ndarray](), max(program.micro_of_step) - 1
    for instance, number in zip(flows, program.micro_of_flow, strict=True):
        template = instance.template
        if instance.flow.role and number == stands:
            nbytes = -(-template.buffer_bytes // alignment) * alignment
            total = found.setdefault(instance.flow.region, np.zeros(num_procs, np.int64))
            np.add.at(total, template.buffer_procs, left * nbytes * template.outlives)
    return found
