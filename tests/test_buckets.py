"""Small sums and updates put together: the same numbers, fewer tasks, never a longer step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch import models, optimizers
from castile.launch.execution import Execution, Prepared, feed_from
from castile.planner.buckets import SIZES, gathered, joinable, joined
from castile.planner.compose import compose
from castile.planner.cost import CostModel
from castile.planner.evaluator import moved_bytes
from castile.planner.graph import Node
from castile.planner.lower import Lowering
from castile.planner.seeds import seed, seeds
from castile.planner.simulate import Simulated, simulate
from castile.planner.strategy import Config, Strategy
from castile.planner.together import alike, repeatable, together
from castile.planner.updates import Updates
from castile.runtime import machine as machines
from castile.runtime import memory
from castile.runtime.comm.local import LocalWorld
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.region import contains
from castile.runtime.runner import run_local
from castile.runtime.task import NUM_LANES, Kind, TaskGraph
from tests.strategies import Problem, batches, beginnings, problems, regular, strategies
from tests.test_models import scaled
from tests.training import difference, gather, start

MODELS = ("convnet", "gpt", "lstm", "mlp", "resnet")
MACHINES = ("dgx-h100", "local:procs=4", "p3.16xlarge")
OPTIMIZERS = ("sgd:momentum=0.5", "adamw", "lion")
DRAWN = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def links(num_procs: int) -> Machine:
    """Where a sum costs what the link takes to begin, so that all sums are all-reduces."""
    processor = Processor("p", 1e9, 1e14, 2**30, 0, 1e-6)
    return Machine("links", (processor,) * num_procs, (Level("links", num_procs, 0.0, 1e12),))


def both(lowering: Lowering, strategy: Strategy, size: int) -> tuple[TaskGraph, TaskGraph]:
    """A plan's graph as it is, and with all put together that may be so."""
    steps, flows = lowering.instances(strategy)
    tasks = compose(steps, flows, lowering.machine.num_procs)
    fewer = joined(tasks, gathered(tasks, joinable(steps, flows), size))
    return tasks, together(fewer, alike(fewer, repeatable(steps)))


def num_sums(tasks: TaskGraph) -> int:
    return int((tasks.kind == Kind.COLLECTIVE).sum())


def timed(tasks: TaskGraph, on: Machine) -> Simulated:
    return simulate(*CostModel(on).by_kind(tasks), on.engines)


def run(problem: Problem, tasks: TaskGraph, on: Machine, exact: bool, size: int) -> Mapping[str, np.ndarray]:
    """What two steps on poisoned memory leave, and the losses."""
    simulated = timed(tasks, on)
    prepared = Prepared(tasks, simulated, memory.pack(tasks, simulated.timeline))
    world, values = LocalWorld(size), beginnings(problem, exact)
    executions: list[Execution] = [start(problem.graph, prepared, comm, values) for comm in world.communicators]
    losses = []
    for step, arrays in enumerate(batches(problem, 2, exact)):
        for execution in executions:
            execution.feed(feed_from(arrays), 0.125, step)
        run_local([execution.runner for execution in executions])
        losses += [found for e in executions if (found := e.output(problem.graph.loss)) is not None]
    return {**gather(problem.graph, executions), "losses": np.array(losses)}


def in_halves(node: Node, num_procs: int) -> Config:
    first = node.alignment.axes[0] if node.alignment.axes else ""
    is_cut = first and node.alignment.extents[first] > 1 and first not in node.alignment.frozen
    return Config({first: 2} if is_cut else {}, num_procs, tuple(range(num_procs)) * (2 if is_cut else 1))


@st.composite
def plans(draw: st.DrawFn, exact: bool) -> tuple[Problem, Lowering, Strategy, int]:
    """Mostly in data parallel, so that there are sums; or anyhow."""
    problem, num_procs = draw(problems(exact, batch=draw(st.integers(2, 4)))), draw(st.integers(2, 4))
    optimizer = "sgd:momentum=0.5" if exact else draw(st.sampled_from(OPTIMIZERS))
    updates = Updates(optimizers.parse(optimizer), clip=None if exact else draw(st.sampled_from((None, 1.0))))
    lowering = Lowering(problem.graph, links(num_procs), updates)
    strategy = draw(strategies(problem.graph, num_procs, updates))
    if draw(st.integers(0, 3)):
        chosen = {n: regular(node, "first", range(num_procs)) for n, node in problem.graph.nodes.items()}
        if draw(st.booleans()):
            # updates that read sums in halves, which lie one after the other
            optional = lowering.names.optional.items()
            chosen |= {n: in_halves(node, num_procs) for n, node in optional if n.endswith("/update")}
        strategy = Strategy(chosen)
    return problem, lowering, strategy, draw(st.integers(1, num_procs))


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_put_together_leaves_the_same_numbers(exact: bool) -> None:
    num_examples, sums, updates = 0, 0, 0

    @DRAWN
    @given(plans(exact), st.sampled_from((2**20, 200)))
    def check(plan: tuple[Problem, Lowering, Strategy, int], most: int) -> None:
        nonlocal num_examples, sums, updates
        problem, lowering, strategy, size = plan
        before, after = both(lowering, strategy, most)
        fewer = num_sums(before) - num_sums(after)
        num_examples, sums = num_examples + 1, sums + (fewer > 0)
        updates += after.num_tasks < before.num_tasks - fewer
        if after is before:
            return
        expected, found = (run(problem, tasks, lowering.machine, exact, size) for tasks in (before, after))
        assert found.keys() == expected.keys()
        for name, wanted in expected.items():
            assert difference(found[name], wanted) <= (0 if exact else 1e-12), name

    check()
    assert min(sums, updates) > num_examples // 4, (
        f"of {num_examples} examples {sums} with sums, {updates} with updates"
    )


def test_every_buffer_and_task_is_there_once() -> None:
    """Bytes and flops stay, needs lead to tasks, buffers are used where they lie, and views lie in what they name."""
    lowering = data_parallel("gpt:layers=2,width=32,heads=2,seq=16,vocab=64", "local:procs=4")
    before, after = both(lowering, Strategy(seed("data_parallel", lowering)), SIZES[0])
    assert num_sums(after) < num_sums(before) and after.num_tasks < before.num_tasks
    assert totals(after) == totals(before)
    assert sorted(after.order.tolist()) == sorted(set(after.order.tolist()))
    for number in range(after.num_tasks):
        task = after.tasks[number]
        assert task.index == number and task.kind == after.kind[number]
        assert [lane // NUM_LANES for lane in after.lanes_of(number).tolist()] == list(dict.fromkeys(task.procs))
        comm = task.comm
        seen = (
            [*task.views, *(v for row in (comm.send, comm.receive, comm.scratch) for v in row if v)]
            if comm
            else task.views
        )
        assert {v.buffer for v in seen} == set(after.uses_of(number).tolist())
        for view in seen:
            held = after.buffers[view.buffer]
            assert contains(held.box, view.box) and held.proc == after.buffer_proc[view.buffer]
            assert view.shape is None or prod(view.shape) == view.box.volume


def totals(tasks: TaskGraph) -> tuple[int, int, int, int]:
    """Flops and bytes of kernels, bytes of transfers, and bytes of what outlives a step."""
    keys = [tasks.cost_keys[cost] for cost in tasks.cost.tolist()]
    flops, kernels = sum(k.flops for k in keys), sum(k.nbytes for k in keys if not k.link)
    lasting = int(tasks.buffer_bytes[tasks.buffer_first < 0].sum())
    return flops, kernels, sum(k.nbytes for k in keys if k.link), lasting


def data_parallel(model: str, on: str) -> Lowering:
    recipe = models.parse(model)
    return Lowering(recipe.graph(), machines.parse(on), Updates(optimizers.parse("adamw")))


@pytest.mark.parametrize("on", MACHINES)
def test_a_step_is_never_longer(on: str) -> None:
    shorter = 0
    for name in MODELS:
        graph = models.parse(scaled(name)).graph()
        lowering = Lowering(graph, machines.parse(on), Updates(optimizers.parse("adamw")))
        cost = CostModel(lowering.machine)
        for plan, strategy in seeds(lowering).items():
            before, after = (lowering.lower(strategy, prices) for prices in (None, cost))
            old, new = timed(before, lowering.machine), timed(after, lowering.machine)
            assert new.seconds <= old.seconds, (name, plan)
            assert (after.digest == before.digest) == (new.seconds == old.seconds), (name, plan)
            assert num_sums(after) <= num_sums(before) and moved_bytes(after) == moved_bytes(before), (name, plan)
            shorter += new.seconds < old.seconds
    assert shorter >= len(MODELS)


def test_gpt_in_data_parallel_sends_a_tenth_of_its_sums() -> None:
    """196 parameters on 8 GPUs, of which most are vectors of 768; at a time few of them are worth the way."""
    graph = models.parse("gpt:size=124m").graph(dtype="bfloat16")
    lowering = Lowering(graph, machines.parse("dgx-h100"), Updates(optimizers.parse("adamw")))
    strategy, cost = Strategy(seed("data_parallel", lowering)), CostModel(lowering.machine)
    before, after = (lowering.lower(strategy, prices) for prices in (None, cost))
    assert 10 * num_sums(after) < num_sums(before)
    assert timed(after, lowering.machine).seconds < 0.75 * timed(before, lowering.machine).seconds


def test_what_does_not_fit_is_left_as_it_is() -> None:
    """Gradients of a bucket live until the last of them is there."""
    lowering = data_parallel("gpt:layers=4,width=32,heads=2,seq=16,vocab=64", "local:procs=4")
    strategy = Strategy(seed("data_parallel", lowering))
    peak = int(timed(lowering.lower(strategy), lowering.machine).peak_bytes.max())
    small = [msgspec.structs.replace(p, memory_bytes=peak, reserved_bytes=0) for p in lowering.machine.processors]
    on = replace(lowering.machine, processors=tuple(small))
    found = lowering.lower(strategy, CostModel(on))
    assert timed(found, on).peak_bytes.max() <= peak
