"""Tuning for a job: each kernel call of its tasks uses the choice that was fastest on its device.

It does not know how a call is timed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from castile.kernels import tuning
from castile.kernels.table import Table
from castile.launch.jobs import kernel_choices
from castile.launch.jobs.jobs import Job
from castile.launch.measuring.task_kinds import is_among
from castile.launch.reports import progress
from castile.planner.costs.database import Way
from castile.runtime.region import relative
from castile.runtime.task import Arg, Body, CostKey, TaskGraph, View


@dataclass(frozen=True)
class TunedCall:
    """A kernel call of a task, and the form that runs it; `setting` as text, "" where the form has none.

    ways   all choices that were timed, the fastest first; empty where there was nothing to choose
    binds  what bounds it, where that was estimated from compiled code
    """

    kernel: str
    form: str
    setting: str
    ways: tuple[Way, ...]
    binds: str = ""


@cache
def _table(backend: str) -> Table:
    """The kernels as a backend runs them."""
    return Table("numpy" if backend == "numpy" else "triton")


def tune(
    job: Job,
    graphs: Iterable[tuple[TaskGraph, Container[CostKey] | None]],
    again: bool,
    meter: tuning.Meter | None = None,
) -> int:
    """Time the choices of those kernel calls that have several; returns how many calls that were.

    Calls that the database knows are left out. The ranks share the others, store what they find after each call, and
    use the fastest choices from then on.

    graphs  tasks, and the kinds of tasks whose calls are timed, None for all
    again   time what the database knows, too
    meter   where calls are timed; by default the device of the job's backend
    """
    table = _table(job.backend)
    mine: set[str] = set()
    for graph, only in graphs:
        asked = np.array([is_among(key, only) for key in graph.cost_keys])
        for tasks in map(graph.tasks_of, job.procs):
            mine.update(names(table, graph, tasks[asked[graph.cost[tasks]]]))
    parts = job.comm.gather_bytes(msgspec.json.encode(sorted(mine)))
    known = set() if again else {way.call for way in job.ways}

    def missing() -> bytes:
        every = {name for part in parts or [] for name in msgspec.json.decode(part, type=list[str])}
        return msgspec.json.encode([name for name in sorted(every - known) if tuning.choices(table, name)])

    todo: list[str] = msgspec.json.decode(job.agree(missing))
    own = todo[job.comm.rank :: job.comm.size]
    if own and meter is None:
        with progress.bar(job.leads, "compiling") as advance:
            tuning.precompile(
                [(name, way) for name in own for way in tuning.choices(table, name)], partial(advance, "kernels")
            )
    with progress.bar(job.leads, "tuning") as advance:
        for turn, done in enumerate(range(0, len(todo), job.comm.size)):
            advance("kernels", done, len(todo))
            found = [way for name in own[turn : turn + 1] for way in _timed(table, name, meter or tuning.gpu())]
            _keep(job, found)
    return len(todo)


def settings_line(job: Job, graph: TaskGraph, command: str) -> str:
    """A line on how many kernel calls of this rank's tasks use the choice that was fastest here, and the command that
    times the others; "" where nothing is left to choose, as on a CPU.
    """
    if job.backend == "numpy":
        return ""
    table = _table(job.backend)
    called = {name for proc in job.procs for name in names(table, graph, graph.tasks_of(proc))}
    open_ = {name for name in called if tuning.choices(table, name)}
    num_known = len(open_ & {way.call for way in job.ways})
    if not open_:
        return ""
    if num_known == len(open_):
        return f"kernels: all {num_known} calls that leave a choice run as was fastest here"
    left = f"{len(open_) - num_known} of {len(open_)} calls that leave a choice run with default settings"
    return f"kernels: {left}; to measure what is fastest here: {command}"


def kernels_of(job: Job, graph: TaskGraph, task: int) -> tuple[TunedCall, ...]:
    """The kernels that a task calls, each once, and their choices."""
    table, by_call = _table(job.backend), kernel_choices.by_call(job.ways)
    found: dict[str, TunedCall] = {}
    body = graph.tasks[task].body
    for call, name in zip(body.calls, names(table, graph, [task]), strict=True):
        timed = by_call.get(name, ())
        form = timed[0].form if timed else table.form if call.kernel in table.forms else "reference"
        found.setdefault(call.kernel, TunedCall(call.kernel, form, timed[0].setting if timed else "", timed))
    return tuple(found.values())


def names(table: Table, graph: TaskGraph, tasks: Iterable[int]) -> Iterator[str]:
    """The keys of the kernel calls of these tasks, in the order of the calls."""
    # Most tasks have their body and the shapes of what they see in common with others. The body stays, or its id is not
    # its own.
    known: dict[tuple[Any, ...], tuple[Body, list[str]]] = {}
    for number in tasks:
        task = graph.tasks[int(number)]
        views = tuple(_array_of(graph, view) for view in task.views)
        which = (id(task.body), views)
        if which not in known:
            known[which] = task.body, [*called(table, task.body, views)]
        yield from known[which][1]


def called(table: Table, body: Body, views: Sequence[tuning.Array]) -> Iterator[str]:
    """The keys of the kernel calls of one body on these arrays."""
    arrays = {"view": views, "temp": [tuning.dense(temp.shape, temp.dtype) for temp in body.temps]}

    def operand(arg: object) -> object:
        return arg.among(arrays) if isinstance(arg, Arg) else arg

    for call in body.calls:
        outs = [out.among(arrays) for out in call.outs]
        yield tuning.call_key(
            table, call.kernel, outs, list(map(operand, call.args)), dict(call.params), call.accumulate
        )


def _array_of(graph: TaskGraph, view: View) -> tuning.Array:
    """Shape, strides and dtype of the array that a backend makes of a view."""
    buffer = graph.buffers[view.buffer]
    if view.shape is not None:
        return tuning.dense(view.shape, buffer.dtype)
    whole = tuning.dense(buffer.box.shape, buffer.dtype)
    return whole._replace(shape=relative(view.box, buffer.box).shape)


def _timed(table: Table, name: str, meter: tuning.Meter) -> list[Way]:
    found = tuning.tune(table, name, meter)
    return [Way(name, choice.form, choice.setting, seconds) for choice, seconds in found.items()]


def _keep(job: Job, found: Sequence[Way]) -> None:
    """Put what all ranks found into the job and the database; calls use it from now on."""
    parts = job.comm.gather_bytes(msgspec.json.encode(found))
    answer = job.agree(lambda: msgspec.json.encode([way for part in parts or [] for way in msgspec.json.decode(part)]))
    new = msgspec.json.decode(answer, type=tuple[Way, ...])
    calls = {way.call for way in new}
    kept = [way for way in job.ways if way.call not in calls]
    job.ways = tuple(sorted([*kept, *new], key=lambda way: (way.call, way.seconds)))
    kernel_choices.apply_choices(job.ways)
    if job.database is not None and job.leads:
        job.database.add_ways(job.snapshot.environment, new)
