"""The debug ladder: DEBUG=1 the plan, 2 each task with its rates, 3 the task graph with transfers, 4 kernel sources.

It only writes text: what a plan says and where kernels' sources are is told by the caller.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache

from castile.runtime.task import Comm, Task, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

PLAN, TASKS, GRAPH, SOURCES = 1, 2, 3, 4


@cache
def level() -> int:
    """The rung that DEBUG asks for, read once. Raises ValueError where it is not 0 to 4."""
    text = os.environ.get("DEBUG", "") or "0"
    if text not in ("0", "1", "2", "3", "4"):
        raise ValueError(f"DEBUG={text!r}: set it to 1 (plan), 2 (tasks), 3 (task graph) or 4 (kernel sources)")
    return int(text)


def show(rung: int, rank: int, text: Callable[[], str]) -> None:
    """On rank 0, where DEBUG asks for this rung or a higher one, prints the text to stderr; else does not make it."""
    if rank == 0 and level() >= rung:
        print(text(), file=sys.stderr, flush=True)


def task_table(graph: TaskGraph, timeline: Timeline) -> str:
    """A line for each task of the timeline, as they began: when, on which processors, seconds, GB/s and GFLOP/s."""
    lines = [f"{'begin ms':>10} {'ms':>9} {'GB/s':>8} {'GFLOP/s':>8}  procs  task"]
    for at in timeline.start.argsort(kind="stable").tolist():
        number = int(timeline.task[at])
        task, key = graph.tasks[number], graph.cost_keys[graph.cost[number]]
        seconds = int(timeline.end[at] - timeline.start[at]) / PICOSECONDS
        begin = int(timeline.start[at]) / PICOSECONDS
        rates = "".join(f" {_rate(n, seconds):>8}" for n in (key.nbytes, key.flops))
        lines.append(f"{begin * 1e3:10.3f} {seconds * 1e3:9.4f}{rates}  {_procs(task):5}  {task.name} {key.shapes}")
    return "\n".join(lines)


def graph_table(graph: TaskGraph) -> str:
    """A line for each task: its number, kind and processors, what it waits for, and what a transfer moves."""
    counts = f"{graph.num_tasks} tasks, {graph.num_buffers} buffers, {graph.num_procs} processors"
    lines = [counts, f"{'task':>6} {'kind':10} {'procs':7} name"]
    for number in range(graph.num_tasks):
        task = graph.tasks[number]
        needs = " ".join(str(int(n)) for n in graph.needs_of(number))
        after = f" after {needs}" if needs else ""
        what = "".join(f" {_transfer(graph, comm)}" for comm in task.comms)
        lines.append(f"{number:6d} {task.kind.name.lower():10} {_procs(task):7} {task.name}{what}{after}")
    return "\n".join(lines)


def kernel_sources(graph: TaskGraph, source: Callable[[str], str]) -> str:
    """The source text of each kernel that the graph calls, by name."""
    called = {call.kernel for number in range(graph.num_tasks) for call in graph.tasks[number].body.calls}
    return "\n\n".join(f"{name}:\n{source(name).rstrip()}" for name in sorted(called))


def _rate(amount: int, seconds: float) -> str:
    return f"{amount / seconds / 1e9:.2f}" if amount and seconds else "-"


def _procs(task: Task) -> str:
    return ",".join(map(str, task.procs))


def _transfer(graph: TaskGraph, comm: Comm) -> str:
    """From where to where, and how many elements of what."""
    view = next(view for view in (*comm.send, *comm.receive) if view is not None)
    members = list(map(str, comm.group))
    from_one = comm.form in ("move", "broadcast")
    route = f"{members[0]} -> {' '.join(members[1:])}" if from_one else f"among {' '.join(members)}"
    buffer = graph.buffers[view.buffer]
    return f"({route}: {view.box.volume} {buffer.dtype} of {buffer.region})"
