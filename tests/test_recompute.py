"""Recomputation: what is dropped and computed again changes memory and time, and no number of the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import combinations
from math import prod

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.graph import Graph
from castile.planner.known.plans import one_processor
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.searching.fronts import search_front
from castile.planner.sketch.sketch import Sketch
from castile.planner.step.fetching import AHEAD as LITTLE_AHEAD
from castile.planner.step.passes import training
from castile.planner.step.program import AGAIN, FETCHED, Program, Step, fetch_name
from castile.planner.step.recompute import (
    FULL,
    LITTLE_PARAMS,
    MANY_ELEMENTS,
    NOTHING,
    SELECTIVE,
    WAYS,
    Recomputation,
    stretches,
)
from castile.planner.strategy import Strategy
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.machine import parse as machine_of
from castile.runtime.task import NUM_LANES, Lane
from tests.cut_batches import assert_trains_as_the_whole_batch, can_be_cut, one_of
from tests.effort import examples, rare, some
from tests.strategies import in_buckets, in_microbatches, machines, problems, recomputed, staged, whole_on
from tests.test_models import small
from tests.training import SGD

EXAMPLES = examples(80)
MODELS = [small(name) for name in models.available()]


def drawn(most: int = EXAMPLES):
    return settings(max_examples=most, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("model", ["moe:size=8x7b", "gpt:size=124m", "mlp"])
def test_no_large_matrix_stays_whole_however_much_experts_hold(model: str) -> None:
    """Of a mixture of experts all other matrices together are little: 13 GB a processor of Mixtral 8x22B."""
    graph = models.parse(model).graph(8)
    gathered = set(Recomputation(graph, SGD).named("parameters"))
    sizes = {param.name: prod(param.shape) for param in graph.params}
    assert all(fetch_name(name) in gathered for name, size in sizes.items() if size >= MANY_ELEMENTS)
    kept = [size for name, size in sizes.items() if fetch_name(name) not in gathered]
    assert kept and sum(kept) <= LITTLE_PARAMS * sum(sizes.values())


def read_later(graph: Graph, dropped: tuple[str, ...]) -> tuple[set[str], tuple[Step, ...]]:
    """What passes after the forward ones read, and all passes."""
    steps = training(graph, SGD, frozenset(), recompute=frozenset(dropped)).steps
    lowering = Lowering(graph, ON, SGD, recompute=dropped)
    dtypes = lowering.program(lowering.plan({})).dtypes.__getitem__
    read = set[str]()
    for step in steps:
        if step.which != "F" or step.again:
            work = lowering.templates.get(step, {}, dtypes).does.of(0)
            read |= {port.region for port, touched in zip(step.inputs, work.inputs) if touched}
    return read, steps


def kept(graph: Graph, dropped: tuple[str, ...]) -> set[str]:
    """The results that passes after the forward ones read as these made them."""
    return read_later(graph, dropped)[0] & {t for node in graph.nodes.values() for t in node.outputs}


def made_by(graph: Graph, name: str) -> tuple[str, ...]:
    """The regions that a node of the graph, or the fetch of a parameter, makes."""
    return graph.nodes[name].outputs if name in graph.nodes else (name.rpartition("/")[0] + FETCHED,)


def nbytes(graph: Graph, tensors: set[str]) -> int:
    return sum(prod(graph.tensors[t].shape) * np.dtype(graph.tensors[t].dtype).itemsize for t in tensors)


ON = Machine("one", (Processor("p", 1e12, 1e12, 1 << 40),), ())


def test_what_is_computed_again_changes_no_number(tell: Callable[[str], None]) -> None:
    """In microbatches and in stages, too; for whole batches `test_any_strategy` draws such plans."""
    seen: Counter[str] = Counter()

    @drawn()
    @given(st.data())
    def check(data: st.DataObject) -> None:
        count, machine = data.draw(st.integers(2, 4)), data.draw(machines())
        problem = data.draw(problems(batch=count * data.draw(st.integers(1, 2))))
        shape = staged if machine.num_procs > 1 and data.draw(st.booleans()) else in_buckets
        plan = data.draw(shape(one_of(problem.graph, count), machine.num_procs))
        # Nothing is what is drawn most.
        again = plan.recompute or data.draw(recomputed(problem.graph)) or tuple(problem.graph.nodes)
        plan = data.draw(in_microbatches(msgspec.structs.replace(plan, recompute=again), count))
        lowering = Lowering(problem.graph, machine, SGD)
        if not can_be_cut(lowering, plan):
            reject()
        assert_trains_as_the_whole_batch(problem, machine, plan, data.draw(st.integers(1, machine.num_procs)))
        seen["plans"] += 1
        seen["that compute again"] += any(step.again for step in lowering.program(plan).steps)

    check()
    tell(f"recomputation: {', '.join(f'{count} {what}' for what, count in seen.items())}")
    assert seen["that compute again"] > EXAMPLES // 2


@drawn()
@given(st.data())
def test_nothing_is_computed_again_before_its_processor_has_done_what_comes_before(data: st.DataObject) -> None:
    machine, problem = data.draw(machines()), data.draw(problems())
    plan, lowering = data.draw(in_buckets(problem.graph, machine.num_procs)), Lowering(problem.graph, machine, SGD)
    plan = msgspec.structs.replace(plan, recompute=(*problem.graph.nodes, *lowering.names.fetches))
    tasks, found = Evaluator(lowering, CostModel(machine)).simulate(plan)
    slot = (tasks.order >> 40) - 1
    steps, proc = lowering.program(plan).steps, tasks.lanes[tasks.lane_ptr[:-1]] // NUM_LANES
    lane = tasks.lanes[tasks.lane_ptr[:-1]] % NUM_LANES
    start, end = np.zeros((2, tasks.num_tasks), np.int64)
    start[found.timeline.task], end[found.timeline.task] = found.timeline.start, found.timeline.end
    passes = np.flatnonzero((lane == Lane.COMPUTE) & (tasks.order & (1 << 40) - 1 < 1 << 20))
    for task in [t for t in passes if steps[slot[t]].is_late]:
        before = [t for t in passes if proc[t] == proc[task] and slot[t] < slot[task]]
        for form in ("F", "B"):
            of_kind = [t for t in before if steps[slot[t]].form == form]
            assert not of_kind or end[max(of_kind, key=lambda t: tasks.order[t])] <= start[task]


@drawn(8)
@given(st.data())
def test_nothing_that_is_dropped_is_kept_and_nothing_is_computed_again_for_nobody(data: st.DataObject) -> None:
    graph = data.draw(problems()).graph
    for dropped in (data.draw(recomputed(graph)), *((name,) for name in graph.nodes)):
        read, steps = read_later(graph, dropped)
        assert not read & {t for name in dropped for t in made_by(graph, name)}
        for step in steps:
            assert not step.again or read & {port.region for port in step.outputs}, step.name


@drawn()
@given(st.data())
def test_passes_come_after_all_that_make_what_they_read_and_flows_name_each_port_once(data: st.DataObject) -> None:
    graph = data.draw(problems()).graph
    program = training(graph, SGD, frozenset(), recompute=frozenset(data.draw(recomputed(graph))))
    steps, every = program.steps, dict[str, list[tuple[int, int]]](inputs=[], outputs=[])
    for flow in program.flows:
        for side, ports in (("inputs", flow.readers), ("outputs", (*flow.producers, *flow.overwriters))):
            assert {getattr(steps[slot], side)[n].region for slot, n in ports} <= {flow.region}
            every[side] += ports
        read, made, renewed = ([slot for slot, _ in of] for of in (flow.readers, flow.producers, flow.overwriters))
        assert max(made, default=-1) < min(read, default=len(steps)), flow.region
        assert max(read, default=-1) <= min(renewed, default=len(steps)), flow.region
    for side, ports in every.items():
        assert sorted(ports) == [(step.slot, n) for step in steps for n in range(len(getattr(step, side)))]


@pytest.mark.parametrize("model", some(MODELS))
def test_what_is_kept_is_less_the_more_is_dropped(model: str) -> None:
    graph = models.parse(model).graph(8)
    every = {way: kept(graph, Recomputation(graph, SGD).named(way)) for way in (NOTHING, SELECTIVE, FULL)}
    assert Recomputation(graph, SGD).named(NOTHING) == ()
    assert every[SELECTIVE] <= every[NOTHING]
    assert nbytes(graph, every[FULL]) <= nbytes(graph, every[NOTHING])


@pytest.mark.parametrize("model", some(MODELS))
def test_the_less_is_to_be_kept_the_more_is_computed_again(model: str) -> None:
    """Until nothing is left but what lies between stretches, as `full` keeps it."""
    graph = models.parse(model).graph(8)
    again = Recomputation(graph, SGD)
    whole = kept(graph, ())
    everything, last = nbytes(graph, whole), {*again.selective}
    ends = whole - {t for name in again.full for t in graph.nodes[name].outputs}
    for percent in range(99, 0, -7):
        dropped = {*again.named(f"{percent}%")}
        assert last <= dropped <= {*again.selective, *again.full}
        left = whole - {t for name in dropped for t in graph.nodes[name].outputs}
        assert nbytes(graph, left) <= percent / 100 * everything or left <= ends
        last = dropped
    first, *between, end = again.rising()
    assert (first, end) == (SELECTIVE, FULL) and between == sorted(between, key=lambda word: -int(word[:-1]))


@pytest.mark.parametrize("model", ["gpt", "llama:layers=4", *rare("resnet:depth=50")])
def test_less_memory_takes_more_time_and_less_than_to_compute_all_again(model: str) -> None:
    graph = models.parse(model).graph(64)
    again, found = Recomputation(graph, SGD), []
    for way in (NOTHING, *again.rising()):
        lowering = Lowering(graph, ON, SGD, recompute=again.named(way))
        found.append(Evaluator(lowering, CostModel(ON)).evaluate(lowering.plan(one_processor(graph))))
    seconds, peaks = [one.seconds for one in found], [one.peak_bytes[0] for one in found]
    assert seconds == sorted(seconds) and len(found) == 6
    assert peaks[0] > peaks[1] > max(peaks[2:]) and peaks[2] > peaks[4], peaks


@drawn(8)
@given(st.data())
def test_what_is_fetched_anew_is_fetched_for_each_microbatch_and_again_for_its_gradients(data: st.DataObject) -> None:
    """Once each, before all that read it, and little is there that was not read yet."""
    count, problem = data.draw(st.integers(1, 3)), data.draw(problems(batch=6))
    graph, lowering = problem.graph, Lowering(problem.graph, ON, SGD)
    plan = msgspec.structs.replace(whole_on(graph), microbatches=count, recompute=tuple(lowering.names.fetches))
    if not can_be_cut(lowering, plan):
        reject()
    program = lowering.program(plan)
    made = Counter(port.region for step in program.steps for port in step.outputs)
    sizes = {param.name: prod(param.shape) for param in graph.params}
    for step in program.steps:
        for param in sizes.keys() & {*step.node.inputs} if step.node.name in graph.nodes else ():
            operand = step.node.inputs.index(param)
            ports = [port.region for port in step.inputs if (port.role, port.index) == ("x", operand)]
            is_read = lowering.templates.get(step, {}, program.dtypes.__getitem__).does.of(0).inputs
            for region, touched in zip([p.region for p in step.inputs], is_read):
                if region in ports and touched:
                    assert made[region] == 1 and (AGAIN in region) == (step.form != "F")
                    assert count == 1 or step.axis == "" or f"@{step.micro.number}:" in region
    unread = dict[str, int]()
    for step in program.steps:
        for port in step.inputs:
            unread.pop(port.region, None)
        if step.is_late:
            unread |= {port.region: prod(program_shape(program, port.region)) for port in step.outputs}
            assert sum(unread.values()) <= sum(sizes.values()) * LITTLE_AHEAD + 2 * max(sizes.values()) + 2


def program_shape(program: Program, region: str) -> tuple[int, ...]:
    return next(flow.shape for flow in program.flows if flow.region == region)


@pytest.mark.parametrize("model", ["gpt", "bert:size=large,layers=4,width=64,heads=4,seq=64,vocab=100", "resnet"])
def test_networks_of_blocks_need_half_the_memory(model: str) -> None:
    """What is computed again is all that takes longer: at most the forward passes once more, a third of a step."""
    graph, found = models.parse(model).graph(64), {}
    for way in (NOTHING, SELECTIVE, FULL):
        lowering = Lowering(graph, ON, SGD, recompute=Recomputation(graph, SGD).named(way))
        found[way] = Evaluator(lowering, CostModel(ON)).evaluate(lowering.plan(one_processor(graph)))
    seconds, peak = [[one.seconds for one in found.values()], [one.peak_bytes[0] for one in found.values()]]
    assert peak[0] > 1.1 * peak[1] and peak[0] > 1.4 * peak[2], peak
    assert seconds[0] < seconds[1] < 1.15 * seconds[0] and seconds[1] < seconds[2] < 1.4 * seconds[0], seconds


@drawn(100)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=9))
def test_stretches_are_nearly_as_good_as_the_best_of_all(rows: list[tuple[int, int]]) -> None:
    """The longest is looked for in steps of a tenth."""
    upto, across = np.cumsum([0, *(inside for inside, _ in rows)]), np.array([0, *(between for _, between in rows)])
    count = len(rows)

    def parts(ends: tuple[int, ...]) -> tuple[int, int]:
        return int(across[list(ends[:-1])].sum()), int(np.diff(upto[[0, *ends]]).max())

    every = [(*ends, count) for k in range(count) for ends in combinations(range(1, count), k)]
    assert every
    best = min(every, key=lambda ends: sum(parts(ends)))
    found = tuple(stretches(upto, across))
    assert found[-1] == count and list(found) == sorted({*found})
    between, longest = parts(best)
    assert sum(parts(found)) <= between + longest / 0.9 + 1


def test_a_run_of_equal_layers_is_cut_into_as_many_stretches_as_its_root() -> None:
    """Chen et al.: n layers that hold as much as what goes from one to the next take twice the root of n."""
    for n in (16, 64, 144):
        upto, across = np.arange(n + 1), np.ones(n + 1, np.int64)
        ends = stretches(upto, across)
        assert across[ends[:-1]].sum() + np.diff([0, *ends]).max() <= 2 * np.sqrt(n) * 1.1


def test_names_patterns_and_ways() -> None:
    graph = models.parse("mlp:layers=3").graph()
    assert Recomputation(graph, SGD).named("relu*") == tuple(name for name in graph.nodes if name.startswith("relu"))
    assert set(Recomputation(graph, SGD).named("fc1, fc2")) == {"fc1", "fc2"}
    assert Recomputation(graph, SGD).named("none,parameters") == Recomputation(graph, SGD).named("parameters")
    with pytest.raises(ValueError, match=r"'selectiv' is no node of .*selective.* a share as 40%, or names of nodes"):
        Recomputation(graph, SGD).named("selectiv")
    with pytest.raises(ValueError, match="'full, none' asks for 'none' and for more"):
        Recomputation(graph, SGD).named("full, none")


@pytest.mark.parametrize("word", ["*", "fc*", "fc1*"])
def test_a_pattern_of_nodes_means_no_fetches_and_one_of_fetches_no_nodes(word: str) -> None:
    """Of a layer that is computed again parameters stay where they are, unless their fetches are named."""
    graph = models.parse("mlp:layers=3").graph()
    nodes, fetches = (set(Recomputation(graph, SGD).named(some)) for some in (word, f"{word}/fetch"))
    assert nodes == {name for name in graph.nodes if fnmatchcase(name, word)}
    assert fetches == {fetch_name(param.name) for param in graph.params if fnmatchcase(param.name, word)}
    assert set(Recomputation(graph, SGD).named(f"{word},{word}/fetch")) == nodes | fetches and nodes and fetches


def test_a_plan_says_what_it_computes_again() -> None:
    graph = models.parse("mlp").graph()
    lowering = Lowering(graph, ON, SGD)
    plan = Strategy(one_processor(graph), recompute=("relu1", "nothing"))
    with pytest.raises(ValueError, match=r"computes 'nothing' again, and mlp.* has no such node"):
        lowering.lower(plan)


def test_computing_again_takes_part_in_sums_and_transfers_as_before() -> None:
    """Matrices cut by what they contract: the sum over processors is made once more."""
    graph = Graph("two", "float64")
    x = graph.input("x", (8, 16), "b i")
    for n in range(3):
        x = graph.tanh(f"tanh{n}", graph.linear(f"fc{n}", x, features=16, bias=False))
    graph.minimise(graph.cross_entropy("loss", x, graph.input("label", (8,), "b", "int64")))
    on = Machine("two", (Processor("p", 1e12, 1e12, 1 << 40),) * 2, (Level("link", 2, 1e-6, 1e9),))
    lowering = Lowering(graph, on, SGD)
    split = {"fc0": {"o": 2}, "fc1": {"i": 2}, "tanh0": {"o": 2}}
    configs = {
        name: {"split": split.get(name, {}), "replicas": 1 if name in split else 2, "procs": (0, 1)}
        for name in graph.nodes
    }
    plan = msgspec.convert({"configs": configs}, Strategy)
    evaluator = Evaluator(lowering, CostModel(on))
    plain, again = (
        evaluator.evaluate(msgspec.structs.replace(plan, recompute=names)) for names in ((), ("fc1", "tanh1"))
    )
    assert again.moved_bytes > plain.moved_bytes


def test_what_was_gathered_of_what_is_dropped_is_gathered_again_and_does_not_stay() -> None:
    """As Megatron-LM's sequence parallelism gathers what a normalisation gives for the forward pass, and once more for
    the gradients of the matrices behind it (Korthikanti et al., 2022): to compute it again takes next to nothing.
    """
    layers, width, places = 4, 512, 2048
    on, stream = machine_of("dgx-h100"), 4 * width * places
    graph = models.parse(f"gpt:layers={layers},width={width},heads=8,seq={places},vocab=512").graph(1)
    evaluator = Evaluator(Lowering(graph, on, SGD), CostModel(on))
    plan = seeds(evaluator.lowering, ["megatron"])["megatron"]
    gathered, peaks = [], []
    for again in ((), Recomputation(graph, SGD).named("block*.norm?")):
        tasks, simulated = evaluator.simulate(msgspec.structs.replace(plan, recompute=again))
        keys = [tasks.cost_keys[cost] for cost in tasks.cost]
        gathered.append(sum((key.name, key.nbytes) == ("all_gather", stream) for key in keys))
        peaks.append(int(simulated.peak_bytes.max()))
    assert gathered[1] - gathered[0] == 2 * layers
    assert peaks[0] - peaks[1] >= 2 * layers * stream


@pytest.mark.parametrize("model", ["gpt:layers=8,width=512,vocab=1000,seq=256", *rare("resnet:depth=50")])
def test_sketches_know_what_is_computed_again(model: str) -> None:
    on, graph = machine_of("flexflow-p100:nodes=1"), models.parse(model).graph(32)
    for way in WAYS:
        lowering = Lowering(graph, on, SGD, recompute=Recomputation(graph, SGD).named(way))
        evaluator = Evaluator(lowering, CostModel(on))
        plan = seeds(lowering)["data_parallel"]
        sketch = Sketch(lowering, evaluator.cost, Spaces(lowering, evaluator.cost), [plan.configs])
        found, worth = sketch.seconds(plan.configs), evaluator.evaluate(plan)
        assert 0.95 < found / worth.seconds < 1.05, way
        assert 0.95 < sketch.held.max() / max(worth.peak_bytes) < 1.5, way


def test_a_front_goes_on_where_results_are_dropped() -> None:
    on, graph = machine_of("flexflow-p100:nodes=1"), models.parse("gpt:layers=4,width=64,seq=64").graph(16)
    evaluator = Evaluator(Lowering(graph, on, SGD), CostModel(on))
    more = [Recomputation(graph, SGD).named(way) for way in (SELECTIVE, FULL)]
    ends = [search_front("mcmc", evaluator, "70", 1, dropping=dropping)[1][-1] for dropping in ((), more)]
    assert ends[0].strategy.recompute == () and ends[1].strategy.recompute == more[1]
    assert max(ends[1].arena_bytes) < 0.8 * max(ends[0].arena_bytes)
