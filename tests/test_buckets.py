"""Small sums and updates put together: the same numbers, fewer tasks."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from math import prod

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.jobs.execution import Execution, feed_from, prepare
from castile.launch.typed import optimizers
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import SIZES
from castile.planner.evaluation.traffic import moved_bytes
from castile.planner.families.updates import Updates
from castile.planner.graph import Node
from castile.planner.known.pieces import in_pieces
from castile.planner.known.seeds import seed, seeds
from castile.planner.lower import Lowering
from castile.planner.lowering.instances import FlowInstance, StepInstance
from castile.planner.lowering.transfer_groups import END_TO_END, Joinable, groups_of, joinable
from castile.planner.searching.refinement import with_best_buckets
from castile.planner.step.recompute import large
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine as machines
from castile.runtime.comm.local import LocalWorld
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.region import contains
from castile.runtime.runner import run_local
from castile.runtime.task import NUM_LANES, Kind, TaskGraph
from tests import named_plans
from tests.effort import examples, rare
from tests.strategies import Problem, batches, beginnings, problems, regular, strategies
from tests.training import difference, gather, start

UPDATED = ("whole", "halves", "pieces")
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
    """A plan's graph as it is, and with buckets of that size."""
    return lowering.lower(strategy), lowering.lower(msgspec.structs.replace(strategy, bucket_bytes=size))


def num_collectives(tasks: TaskGraph) -> Counter[str]:
    """How many tasks of each form there are."""
    return Counter(tasks.cost_keys[cost].name for cost in tasks.cost[tasks.kind == Kind.COLLECTIVE].tolist())


def begun(problem: Problem, lowering: Lowering, strategy: Strategy, size: int, exact: bool) -> list[Execution]:
    """The plan on poisoned memory of that many ranks."""
    prepared = prepare(lowering, strategy, CostModel(lowering.machine))
    values = beginnings(problem, exact)
    return [start(problem.graph, prepared, comm, values) for comm in LocalWorld(size).communicators]


def run(problem: Problem, executions: Sequence[Execution], exact: bool, steps: Iterable[int]) -> list[float]:
    """The losses of these steps."""
    losses = []
    data = batches(problem, 4, exact)
    for step in steps:
        for execution in executions:
            execution.feed(feed_from(data[step]), 0.125, step)
        run_local([execution.runner for execution in executions])
        losses += [float(found) for e in executions if (found := e.output(problem.graph.loss)) is not None]
    return losses


def left(problem: Problem, executions: Sequence[Execution], losses: Sequence[float]) -> dict[str, np.ndarray]:
    return {**gather(problem.graph, executions), "losses": np.array(losses)}


def check_same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], exact: bool) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert difference(found[name], wanted) <= (0 if exact else 1e-12), name


def in_halves(node: Node, num_procs: int) -> Config:
    first = node.alignment.axes[0] if node.alignment.axes else ""
    is_cut = first and node.alignment.extents[first] > 1 and first not in node.alignment.frozen
    return Config({first: 2} if is_cut else {}, num_procs, tuple(range(num_procs)) * (2 if is_cut else 1))


@st.composite
def plans(draw: st.DrawFn, exact: bool, updated: str = "") -> tuple[Problem, Lowering, Strategy, int]:
    """In data parallel, so that there are sums, with updates as is said, or any of these plans; or anyhow."""
    problem, num_procs = draw(problems(exact, batch=draw(st.integers(2, 4)))), draw(st.integers(2, 4))
    # what is alone has none to be put together with
    assume(updated != "pieces" or len(large(problem.graph)) > 1)
    optimizer = "sgd:momentum=0.5" if exact else draw(st.sampled_from(OPTIMIZERS))
    updates = Updates(optimizers.parse(optimizer), clip=None if exact else draw(st.sampled_from((None, 1.0))))
    lowering = Lowering(problem.graph, links(num_procs), updates)
    strategy = draw(strategies(problem.graph, num_procs, updates))
    if updated or draw(st.integers(0, 3)):
        chosen = {n: regular(node, "first", range(num_procs)) for n, node in problem.graph.nodes.items()}
        updated = updated or draw(st.sampled_from(UPDATED))
        if updated == "halves":
            # updates that read sums in halves, which lie one after the other
            optional = lowering.names.optional.items()
            chosen |= {n: in_halves(node, num_procs) for n, node in optional if n.endswith("/update")}
        strategy = Strategy(in_pieces(lowering, chosen) if updated == "pieces" else chosen)
    return problem, lowering, strategy, draw(st.integers(1, num_procs))


@pytest.mark.parametrize(
    ("exact", "updated"),
    [(False, ""), *product([True], UPDATED), *rare((True, ""), *product([False], UPDATED))],
)
def test_what_is_put_together_leaves_the_same_numbers(exact: bool, updated: str) -> None:
    num_examples, updates, forms = 0, 0, Counter[str]()

    @settings(DRAWN, max_examples=examples(32))
    @given(plans(exact, updated), st.sampled_from((2**20, 200)))
    def check(plan: tuple[Problem, Lowering, Strategy, int], most: int) -> None:
        nonlocal num_examples, updates
        problem, lowering, strategy, size = plan
        before, after = both(lowering, strategy, most)
        fewer = num_collectives(before) - num_collectives(after)
        num_examples += 1
        forms.update(dict.fromkeys(fewer, 1))
        updates += after.num_tasks < before.num_tasks - fewer.total()
        if after.digest == before.digest:
            return
        plans = (msgspec.structs.replace(strategy, bucket_bytes=most) for most in (0, most))
        results = []
        for one in plans:
            executions = begun(problem, lowering, one, size, exact)
            results.append(left(problem, executions, run(problem, executions, exact, range(2))))
        check_same(results[1], results[0], exact)

    check()
    wanted = {"whole": ("all_reduce",), "pieces": ("reduce_scatter", "all_gather")}.get(updated, ())
    assert all(4 * forms[form] >= num_examples for form in wanted), (num_examples, forms)
    assert 4 * updates >= num_examples or updated in ("", "halves"), (num_examples, updates)


@pytest.mark.parametrize("first", [0, 2**20])
def test_what_one_left_the_other_goes_on_from(first: int) -> None:
    """All that is carried is kept alike, so that a checkpoint of one is a checkpoint of the other."""
    problem = named_plans.network()
    lowering = Lowering(problem.graph, named_plans.links(3), Updates(optimizers.parse("adamw"), clip=1.0))
    configs = {name: regular(node, "first", range(3)) for name, node in problem.graph.nodes.items()}
    one, other = (Strategy(configs, bucket_bytes=size) for size in (first, 2**20 - first))
    unbroken = begun(problem, lowering, one, 2, False)
    losses = run(problem, unbroken, False, range(4))
    early = begun(problem, lowering, one, 2, False)
    saved = run(problem, early, False, range(2))
    arrays = {(region, box): array for e in early for (region, box, _), array in e.saved().items()}
    late = begun(problem, lowering, other, 2, False)
    for execution in late:
        execution.restore(lambda region, box: arrays[region, box])
    saved += run(problem, late, False, range(2, 4))
    assert late[0].prepared.tasks.num_tasks != early[0].prepared.tasks.num_tasks
    check_same(left(problem, late, saved), left(problem, unbroken, losses), False)


@DRAWN
@given(plans(True), st.integers(1, 2000))
def test_groups_stand_between_those_who_contribute_and_those_who_read(
    plan: tuple[Problem, Lowering, Strategy, int], most: int
) -> None:
    _, lowering, strategy, _ = plan
    steps, flows = lowering.instances(strategy)
    ones = joinable(steps, flows)
    check_joinable(ones, steps, flows)
    found = groups_of(ones, most)
    tasks = [one.task for group in found for one in group]
    assert len(set(tasks)) == len(tasks) and set(tasks) <= {one.task for one in ones}
    for group in found:
        assert len(group) > 1 and sum(one.pattern.key.nbytes for one in group) <= most
        assert len({(one.pattern.name, one.procs, one.pattern.key.dtype, one.micro) for one in group}) == 1
        assert max(one.made for one in group) < min(one.read for one in group)


def check_joinable(ones: Sequence[Joinable], steps: Sequence[StepInstance], flows: Sequence[FlowInstance]) -> None:
    """In the order of the program, with the slots of those who contribute and of those who read."""
    base, buffers = sum(step.num_tasks for step in steps), 0
    owner = []
    for flow in flows:
        owner += [(flow, buffers)] * flow.num_tasks
        buffers += flow.num_buffers
    assert [(one.at, one.task) for one in ones] == sorted((one.at, one.task) for one in ones)
    for one in ones:
        flow, first = owner[one.task - base]
        assert one.made == max([slot for slot, _ in flow.flow.producers], default=-1) and one.at == flow.slot
        assert one.read == min(slot for slot, _ in flow.flow.readers) and one.first_buffer == first
        assert one.procs == tuple(flow.procs[slot] for slot in one.pattern.procs)
        # nothing of a bucket outlives the step, and nobody sees it in strides
        assert one.pattern.name != END_TO_END or not (flow.flow.role or flow.version.is_strided)


def test_sums_of_a_pipeline_wait_for_none_that_they_are_read_for() -> None:
    """Gradients of parameters come before those of activations in a program, and wait for them in a pipeline: in one
    sum with an activation's, as where they are clipped, both waited for each other."""
    graph, machine = models.parse("lstm:seq=4,layers=1,width=8").graph(2), machines.parse("flexflow-k80:nodes=1")
    lowering = Lowering(graph, machine, Updates(optimizers.parse("sgd"), clip=1.0))
    evaluator = Evaluator(lowering, CostModel(machine))
    for begins in combinations(range(1, len(graph.nodes)), 3):
        configs = {name: Config(procs=(bisect(begins, n),)) for n, name in enumerate(graph.nodes)}
        plain = Strategy(configs, microbatches=2)
        alone, found = (evaluator.simulate(msgspec.structs.replace(plain, bucket_bytes=n))[0] for n in (0, 2**20))
        assert moved_bytes(found) == moved_bytes(alone) and found.num_tasks <= alone.num_tasks


@pytest.mark.parametrize("known", ["data_parallel", "fsdp"])
def test_every_buffer_and_task_is_there_once(known: str) -> None:
    """Bytes and flops stay, needs lead to tasks, buffers are used where they lie, and views lie in what they name."""
    lowering = of_model("gpt:layers=2,width=128,heads=2,seq=16,vocab=64", "dgx-h100")
    before, after = both(lowering, Strategy(seed(known, lowering)), SIZES[0])
    fewer = num_collectives(before) - num_collectives(after)
    assert fewer.keys() == num_collectives(before).keys() and after.num_tasks < before.num_tasks
    assert totals(after) == totals(before)
    assert sorted(after.order.tolist()) == sorted(set(after.order.tolist()))
    for number in range(after.num_tasks):
        task = after.tasks[number]
        assert task.index == number and task.kind == after.kind[number]
        assert [lane // NUM_LANES for lane in after.lanes_of(number).tolist()] == list(dict.fromkeys(task.procs))
        for comm in task.comms:
            if comm.form == "all_reduce" and " more" in task.name:
                scratch = [view.buffer for view in comm.scratch if view is not None]
                assert len(set(after.buffer_bytes[scratch].tolist())) == 1 and len(scratch) == len(comm.group)
        sent = [v for comm in task.comms for row in (comm.send, comm.receive, comm.scratch) for v in row if v]
        seen = [*task.views, *sent]
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


def of_model(model: str, on: str, dtype: str = "float32") -> Lowering:
    recipe = models.parse(model)
    return Lowering(recipe.graph(dtype=dtype), machines.parse(on), Updates(optimizers.parse("adamw")))


def test_gpt_in_data_parallel_sends_a_tenth_of_its_sums() -> None:
    """196 parameters on 8 GPUs, of which most are vectors of 768; at a time few of them are worth the way."""
    graph = models.parse("gpt:size=124m").graph(dtype="bfloat16")
    lowering = Lowering(graph, machines.parse("dgx-h100"), Updates(optimizers.parse("adamw")))
    evaluator = Evaluator(lowering, CostModel(lowering.machine))
    strategy = seeds(lowering, ["data_parallel"])["data_parallel"]
    plain, found = (evaluator.simulate(plan) for plan in (strategy, with_best_buckets(evaluator, strategy)))
    sums = [num_collectives(tasks).total() for tasks in (found[0], plain[0])]
    assert 10 * sums[0] < sums[1] and moved_bytes(found[0]) == moved_bytes(plain[0])
    assert found[1].seconds < 0.75 * plain[1].seconds


def test_gpt_in_pieces_gathers_several_parameters_at_once_in_as_much_memory() -> None:
    """What is sent is the same; a group has its latency once, and no more is gathered early than a group."""
    evaluator = Evaluator(lowering := of_model("gpt:size=124m", "dgx-h100", "bfloat16"), CostModel(lowering.machine))
    strategy = seeds(lowering, ["fsdp"])["fsdp"]
    best = with_best_buckets(evaluator, strategy)
    plain, found = (evaluator.simulate(plan) for plan in (strategy, best))
    fewer, there = num_collectives(found[0]), num_collectives(plain[0])
    assert there.keys() == {"all_reduce", "all_gather", "reduce_scatter"}
    assert all(2 * fewer[form] < there[form] for form in there), (fewer, there)
    assert moved_bytes(found[0]) == moved_bytes(plain[0])
    assert found[1].seconds < 0.75 * plain[1].seconds
    assert found[1].peak_bytes.max() <= plain[1].peak_bytes.max() + best.bucket_bytes
