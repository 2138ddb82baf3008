"""One graph: what is composed is what the whole program asks for, and memory is the packer's."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.jobs.execution import Execution, prepare
from castile.planner.cost import CostModel
from castile.planner.graph import Node
from castile.planner.lower import Lowering
from castile.planner.lowering.transfer_order import in_transfer_order
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from castile.runtime.comm.local import LocalWorld
from castile.runtime.epochs import Access, Launch
from castile.runtime.launches import build
from castile.runtime.machine import Level, Machine
from castile.runtime.region import Region
from castile.runtime.task import NOTHING, Arg, Kind, Task, TaskGraph, Use
from tests.effort import examples, some
from tests.strategies import Problem, machines, problems, regular, replicated, strategies
from tests.test_folding import check_plan
from tests.test_models import scaled
from tests.test_turns import num_engines
from tests.training import SGD

MANY = settings(max_examples=examples(150, 1 / 6))


@dataclass(frozen=True, eq=False)
class Lowered:
    """A graph on a machine, a plan for it, and its tasks."""

    problem: Problem
    machine: Machine
    strategy: Strategy
    lowering: Lowering
    tasks: TaskGraph


@st.composite
def lowered(draw: st.DrawFn) -> Lowered:
    problem, on = draw(problems()), draw(machines())
    strategy = draw(strategies(problem.graph, on.num_procs))
    lowering = Lowering(problem.graph, on, SGD)
    return Lowered(problem, on, strategy, lowering, lowering.lower(strategy))


# What runs is what was planned: that it is what was simulated any strategy shows.


def in_two(node: Node) -> Config:
    free = [axis for axis, extent in node.alignment.extents.items() if axis not in node.alignment.frozen and extent > 1]
    return Config({free[0]: 2}, 1, (0, 0)) if free else Config()


@pytest.mark.parametrize("name", models.available())
def test_a_warm_step_allocates_nothing_and_the_arena_is_the_packers(name: str) -> None:
    graph, on = models.parse(scaled(name)).graph(), machine.local(2)
    # cut in two on one processor, so that pieces are packed and summed, and no message is kept for a rank to come
    strategy = Strategy({n.name: in_two(n) for n in graph.nodes.values()})
    prepared = prepare(Lowering(graph, on, SGD), strategy, CostModel(on))
    execution = Execution(graph, prepared, LocalWorld(1).communicators[0], (0, 1))
    execution.initialise(0)
    execution.feed(lambda region, box: np.zeros(box.shape, graph.tensors[region].dtype))
    assert execution.runner.nbytes == prepared.packing.peak_bytes.sum()
    for _ in range(2):
        execution.step()
    # one of several, since other threads of the process are traced too
    assert any(traced_bytes(execution.runner.run) < 64 * 1024 for _ in range(3))


def traced_bytes(call: Callable[[], object]) -> int:
    """The most that lived at one time of what was allocated while a call ran."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - before


# The composed graph is that of the whole program.


def touches(task: Task) -> tuple[set[int], set[int]]:
    """The buffers that a task reads, and those that it writes: what its calls and messages say."""
    reads, writes = set(), set()
    for call in task.body.calls:
        reads |= {task.views[a.index].buffer for a in call.args if isinstance(a, Arg) and a.space == "view"}
        outs = {task.views[o.index].buffer for o in call.outs if o.space == "view"}
        writes |= outs
        reads |= outs if call.accumulate else set()
    for comm in task.comms:
        reads |= {view.buffer for view in comm.send if view}
        writes |= {view.buffer for view in (*comm.receive, *comm.scratch) if view}
    return reads, writes


def closure(num_tasks: int, order: list[int], edges: set[tuple[int, int]]) -> list[int]:
    """All that comes before each task, as bits; `order` respects the edges."""
    direct: dict[int, list[int]] = {}
    for a, b in edges:
        direct.setdefault(b, []).append(a)
    before = [0] * num_tasks
    for task in order:
        for a in direct.get(task, ()):
            before[task] |= before[a] | 1 << a
    return before


def needs(tasks: TaskGraph) -> set[tuple[int, int]]:
    return {(int(a), t) for t in range(tasks.num_tasks) for a in tasks.needs_of(t)}


@MANY
@given(lowered())
def test_every_two_tasks_that_conflict_come_in_program_order_and_no_others(plan: Lowered) -> None:
    tasks = plan.tasks
    order = np.argsort(tasks.order).tolist()
    touched = [touches(task) for task in tasks.tasks]
    conflicts = set()
    for at, b in enumerate(order):
        for a in order[:at]:
            (reads_a, writes_a), (reads_b, writes_b) = touched[a], touched[b]
            if writes_a & (reads_b | writes_b) or reads_a & writes_b:
                conflicts.add((a, b))
    expected = conflicts | turns(plan, order, {b for _, b in conflicts})
    assert closure(tasks.num_tasks, order, expected) == closure(tasks.num_tasks, order, needs(tasks))
    for task, (reads, writes) in zip(tasks.tasks, touched, strict=True):
        assert reads | writes == set(tasks.uses_of(task.index).tolist()), task.name


def turns(plan: Lowered, order: list[int], waiting: set[int]) -> set[tuple[int, int]]:
    """Of transfers that wait for nothing each comes after the one before it on its engines."""
    last: dict[tuple[int, int], int] = {}
    found = set()
    for task in order:
        if plan.tasks.kind[task] >= Kind.MOVE and task not in waiting:
            for engine in num_engines(plan.tasks, task, plan.machine.engines):
                found |= {(last[engine], task)} if engine in last else set()
                last[engine] = task
    return found


@MANY
@given(lowered())
def test_the_same_program_launch_by_launch_is_the_same_graph(plan: Lowered) -> None:
    tasks = plan.tasks
    flows = {f.region: f for f in plan.lowering.program(plan.strategy).flows}
    regions = {name: Region(name, f.shape, f.dtype) for name, f in flows.items()}
    homes: dict[str, list] = {name: [] for name, f in flows.items() if f.role == "carried"}
    for buffer in tasks.buffers:
        if buffer.role == "carried":
            homes[buffer.region].append((buffer.proc, buffer.box))
    inputs, outputs = ([n for n, f in flows.items() if f.role == role] for role in ("input", "output"))
    built = build(list(launches(tasks)), regions, plan.machine, homes, inputs, outputs)
    again = in_transfer_order(built, plan.machine.engines)
    assert names(again) == names(tasks)
    assert named(again) == named(tasks)


def launches(tasks: TaskGraph):
    """The compute tasks as launches, replicas together."""
    parts: dict[str, list[Task]] = {}
    for task in tasks.tasks:
        if not task.kind:
            parts.setdefault(re.sub(r"~\d+\]$", "]", task.name), []).append(task)
    for name, replicas in parts.items():
        reads, writes = touched_views(replicas[0])
        accesses = []
        for n, view in enumerate(replicas[0].views):
            buffer = tasks.buffers[view.buffer]
            written = Use.WRITE if buffer.role == "carried" else Use.REDUCE
            accesses.append(Access(buffer.region, view.box, written if n in writes else Use.READ))
            assert (n in writes) != (n in reads - writes)
        key = tasks.cost_keys[tasks.cost[replicas[0].index]]
        yield Launch(name, tuple(t.procs[0] for t in replicas), tuple(accesses), lambda adds: NOTHING, key)


def touched_views(task: Task) -> tuple[set[int], set[int]]:
    calls = task.body.calls
    return (
        {a.index for c in calls for a in c.args if isinstance(a, Arg) and a.space == "view"},
        {o.index for c in calls for o in c.outs if o.space == "view"},
    )


def plain(name: str) -> str:
    return re.sub(r"\[(\d+)~(\d+)\]$", r"[\1]~\2", name)


def names(tasks: TaskGraph) -> list[tuple]:
    return sorted((plain(t.name), t.kind, t.procs) for t in tasks.tasks)


def named(tasks: TaskGraph) -> set[tuple[str, str]]:
    return {(plain(tasks.tasks[a].name), plain(tasks.tasks[b].name)) for a, b in needs(tasks)}


# Lowering is a function of the plan.


@MANY
@given(lowered(), st.data())
def test_a_lowering_that_has_seen_other_plans_gives_the_same_graph(plan: Lowered, data: st.DataObject) -> None:
    graph, on = plan.problem.graph, plan.machine
    other = data.draw(strategies(graph, on.num_procs))
    fresh = Lowering(graph, on, SGD)
    first, alone = plan.lowering.lower(other), fresh.lower(other)
    expected = list(alone.tasks)
    assert first.digest == alone.digest
    assert plan.lowering.lower(plan.strategy).digest == plan.tasks.digest == fresh.lower(plan.strategy).digest
    for a, b in zip(first.tasks, expected, strict=True):
        assert a == b
    same = plan.lowering.configs(other) == plan.lowering.configs(plan.strategy)
    chosen = {n for n in {*other.configs} ^ {*plan.strategy.configs} if not n.endswith("/update")}
    assert (first.digest == plan.tasks.digest) == (same and not chosen)


@pytest.mark.parametrize("name", some(models.available()))
def test_processors_of_equal_role_are_simulated_once_to_the_same_end(name: str) -> None:
    # without latency sums are all-reduces, in which all take part alike
    links = (Level("links", 4, 0.0, 1e9),)
    graph, on = models.parse(scaled(name)).graph(), Machine("four", machine.local(4).processors, links)
    configs = {n.name: regular(n, "first", range(4)) for n in graph.nodes.values()}
    # partial losses would come to processor 0 one after another, each at its own time
    strategy = Strategy(configs | {graph.loss: replicated(range(4))})
    folded = check_plan(Lowering(graph, on), strategy)
    assert folded.graph.num_tasks < folded.count.sum()
