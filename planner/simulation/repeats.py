"""Repeats: of a step in many equal microbatches a few are simulated, and what the whole step takes follows exactly.

Once all is as it was one microbatch before, only later, it will be so again until the last one comes: what is served
next follows from what is left and what is ready when. It does not know how plans are lowered, nor how few microbatches
are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from castile.planner.lowering.instances import FlowInstance
from castile.planner.simulate import Simulated
from castile.planner.step.program import Program
from castile.runtime.task import TaskGraph

# The bits of a task's order: its slot, which flow's transfer it is, and its number.
SLOT, FLOW = 40, 20


def shown(count: int) -> list[int]:
    """How many of so many microbatches to write out, the cheapest first: two that are alike, the first and the last."""
    few = [4 << n for n in range(count.bit_length()) if 4 << n < count]
    return [*few, count]


def numbers(program: Program, tasks: TaskGraph) -> np.ndarray:
    """int64[T]: of which microbatch each task is, -1 where it is of none or of several."""
    slot, rest = (tasks.order >> SLOT) - 1, tasks.order & (1 << SLOT) - 1
    flow = (rest >> FLOW) - 1
    of_step, of_flow = np.array([*program.micro_of_step, -1]), np.array([*program.micro_of_flow, -1])
    return np.where(flow < 0, of_step[slot], of_flow[flow])


def times(program: Program) -> np.ndarray:
    """int64[M + 1]: for how many each microbatch that is written out stands; last 1, of what is of none."""
    found = {step.micro.number: step.micro.times for step in program.steps if step.micro.count > 1}
    return np.array([*(found[number] for number in sorted(found)), 1], np.int64)


def period(tasks: TaskGraph, number: np.ndarray, simulated: Simulated) -> int | None:
    """Picoseconds by which a step is longer for each further microbatch; None where these are not seen to be enough.

    number[T]   of which microbatch each task is
    They are enough where, when the first task of the last one becomes ready, all is as it was when that of the last but
    one did, one microbatch before: what is left of each is what was left of the one before it, and what is ready of
    that became ready, begins and ends as much later. So would all be once more if another microbatch came in between.
    Of no microbatch nothing becomes ready meanwhile, and nothing of the first is left.
    """
    start, end = simulated.timeline.start, simulated.timeline.end
    ready = np.zeros(tasks.num_tasks, np.int64)
    np.maximum.at(ready, np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.need_ptr)), end[tasks.needs])
    of = [np.flatnonzero(number == n) for n in range(int(number.max()) + 1)]
    first, until = (int(ready[micro].min()) for micro in of[-2:])
    is_left, was_left = end > until, end > first
    if is_left[of[0]].any() or (was_left & (ready < until))[number < 0].any():
        return None
    for earlier, later in pairwise(of[:-1]):
        if not is_left[later].any() and not was_left[earlier].any():
            continue
        if len(earlier) != len(later) or (tasks.cost[earlier] != tasks.cost[later]).any():
            return None
        is_ready, was_ready = is_left[later] & (ready[later] < until), was_left[earlier] & (ready[earlier] < first)
        if (is_left[later] != was_left[earlier]).any() or (is_ready != was_ready).any():
            return None
        if any(((when[later] - when[earlier])[is_ready] != until - first).any() for when in (ready, start, end)):
            return None
    return until - first


def lasting(program: Program, flows: Sequence[FlowInstance], num_procs: int, alignment: int = 1) -> np.ndarray:
    """int64[P]: bytes of each processor that hold, all step long, what the host gives to microbatches that are not
    written out; every buffer rounded up to a multiple of the alignment."""
    found, of = np.zeros(num_procs, np.int64), times(program)
    for instance, number in zip(flows, program.micro_of_flow, strict=True):
        template = instance.template
        if instance.flow.role and of[number] > 1:
            nbytes = -(-template.buffer_bytes // alignment) * alignment
            np.add.at(found, template.buffer_procs, (of[number] - 1) * nbytes * template.outlives)
    return found
