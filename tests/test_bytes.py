"""Byte by byte in the arenas of drawn plans: whoever touches what another writes comes before or after it, and whatever
is read has been written.

In any order that respects what tasks wait for, not in the simulated one alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from castile.launch.jobs.execution import Prepared, prepare
from castile.launch.typed import optimizers
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.lower import Lowering
from castile.runtime.task import NUM_LANES, Arg, Task, TaskGraph, View
from tests.effort import examples
from tests.strategies import in_buckets, in_microbatches, machines, problems
from tests.test_any_strategy import drawn
from tests.test_one_graph import closure, needs


@dataclass(frozen=True, eq=False)
class Touch:
    """What a task touches of an arena: the first byte and which from there on; buffer -1 for its private memory."""

    task: int
    buffer: int
    writes: bool
    proc: int
    first: int
    places: np.ndarray


def views(task: Task) -> Iterator[tuple[View, bool]]:
    """What a task reads (False) and writes (True), call by call, in order."""
    for call in task.body.calls:
        outs = [task.views[out.index] for out in call.outs if out.space == "view"]
        read = [task.views[arg.index] for arg in call.args if isinstance(arg, Arg) and arg.space == "view"]
        yield from ((view, False) for view in [*read, *(outs if call.accumulate else [])])
        yield from ((view, True) for view in outs)
    for comm in task.comms:
        yield from ((view, False) for view in comm.send if view)
        yield from ((view, True) for view in (*comm.receive, *comm.scratch) if view)


def places(tasks: TaskGraph, view: View) -> np.ndarray:
    """The bytes of a view, counted from where its buffer begins."""
    held = tasks.buffers[view.buffer]
    cut = tuple(slice(a - o, b - o) for a, b, o in zip(view.box.lo, view.box.hi, held.box.lo, strict=True))
    elements = np.arange(prod(held.box.shape)).reshape(held.box.shape)[cut].reshape(-1, 1)
    size = np.dtype(held.dtype).itemsize
    return (elements * size + np.arange(size)).ravel()


def touches(plan: Prepared) -> Iterator[Touch]:
    tasks, packing = plan.tasks, plan.packing
    for task in tasks.tasks:
        for view, writes in views(task):
            proc, first = tasks.buffers[view.buffer].proc, int(packing.offset[view.buffer])
            found = places(tasks, view)
            assert found.max(initial=-1) < tasks.buffer_bytes[view.buffer]
            yield Touch(task.index, view.buffer, writes, proc, first, found)
        if private := int(tasks.private_bytes[task.index]):
            proc = int(tasks.lanes_of(task.index)[0]) // NUM_LANES
            yield Touch(task.index, -1, True, proc, int(packing.private_offset[task.index]), np.arange(private))


def check_ordered(plan: Prepared, of_proc: list[Touch], before: list[int]) -> int:
    """Asserts that of two tasks that touch a byte, which one of them writes, one waits for the other: how many do."""
    size = int(plan.packing.peak_bytes[of_proc[0].proc])
    there = np.zeros((len(of_proc), size), np.float32)
    for row, touch in zip(there, of_proc, strict=True):
        row[touch.first + touch.places] = 1
    writes = np.array([touch.writes for touch in of_proc])
    met = there[writes] @ there.T
    pairs = {
        (of_proc[a].task, of_proc[b].task)
        for a, b in zip(np.flatnonzero(writes)[np.nonzero(met)[0]], np.nonzero(met)[1])
    }
    for a, b in pairs:
        names = plan.tasks.tasks[a].name, plan.tasks.tasks[b].name
        assert a == b or before[a] >> b & 1 or before[b] >> a & 1, f"{names} share bytes and do not wait"
    return len(pairs)


def check_written(plan: Prepared, of_proc: list[Touch], rank: list[int]) -> None:
    """Asserts that what is read of a buffer that does not outlive the step was written into it before."""
    known: dict[int, np.ndarray] = {}
    for touch in sorted(of_proc, key=lambda touch: rank[touch.task]):
        if touch.buffer < 0 or plan.tasks.buffer_first[touch.buffer] < 0:
            continue
        is_there = known.setdefault(touch.buffer, np.zeros(int(plan.tasks.buffer_bytes[touch.buffer]), bool))
        name = plan.tasks.tasks[touch.task].name
        assert touch.writes or is_there[touch.places].all(), f"{name} reads what nobody wrote"
        is_there[touch.places] = True


OPTIMIZERS = ("sgd:momentum=0.5", "adam", "adafactor")


def test_bytes_are_written_before_they_are_read_and_by_one_at_a_time(tell: Callable[[str], None]) -> None:
    seen: Counter[str] = Counter()
    count = examples(80, 1 / 8)

    @drawn(count)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        count = data.draw(st.sampled_from((1, 2)))
        problem, on = data.draw(problems(batch=2 * count)), data.draw(machines())
        clip, scaled = data.draw(st.sampled_from((None, 1.0))), data.draw(st.sampled_from((None, True)))
        updates = Updates(optimizers.parse(data.draw(st.sampled_from(OPTIMIZERS))), clip, scaled=scaled)
        plan = data.draw(in_buckets(problem.graph, on.num_procs, updates))
        lowering, plans = (
            Lowering(problem.graph, on, updates),
            [data.draw(in_microbatches(plan, count)), plan],
        )
        try:
            lowering.check(plans[0])
        except ValueError as error:
            assert "microbatches" in str(error), error
            plans = plans[1:]
        prepared = prepare(lowering, plans[0], CostModel(on))
        edges = needs(prepared.tasks) | {(int(a), int(b)) for a, b in prepared.packing.edges}
        order = np.lexsort((prepared.tasks.order, prepared.simulated.timeline.start)).tolist()
        before, rank = closure(prepared.tasks.num_tasks, order, edges), np.argsort(order).tolist()
        every = list(touches(prepared))
        for proc in range(on.num_procs):
            of_proc = [touch for touch in every if touch.proc == proc]
            seen["pairs"] += check_ordered(prepared, of_proc, before) if of_proc else 0
            check_written(prepared, of_proc, rank)
        seen.update(
            {"examples": 1, "in microbatches": len(plans) - 1 and count > 1, "reuses": len(prepared.packing.edges) > 0}
        )

    check()
    tell(f"arenas byte by byte: {dict(seen)}")
    assert 8 * min(seen["reuses"], seen["in microbatches"]) > count and seen["pairs"] > 100 * count, seen
