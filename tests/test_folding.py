"""Folded equals whole exactly: times, ties, memory and arenas; and what a regular plan folds to does not grow."""

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner import lower
from castile.planner.cost import CostModel
from castile.planner.evaluation import evaluator as evaluating
from castile.planner.evaluation import roles
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.folding import Folding, _Assembly, _SmallTasks, expand, price_graph
from castile.planner.evaluation.roles import Block, Shape, Shapes, Union, refine
from castile.planner.evaluation.sizes import variants
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.pieces import in_pieces
from castile.planner.known.plans import data_parallel
from castile.planner.known.seeds import seed
from castile.planner.lower import Lowering
from castile.planner.lowering.catalogue import Catalogue
from castile.planner.lowering.compose import compose
from castile.planner.op import find
from castile.planner.simulate import simulate
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine as machines_by_name
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.memory import pack
from castile.runtime.task import NUM_LANES, Kind, Lane
from tests import named_plans
from tests.effort import examples, rare
from tests.graphs import Draft, engine_maps, nearly_symmetric, task_graphs, timings
from tests.little import two_layers
from tests.strategies import ENGINES, SGD, in_buckets, in_groups, in_microbatches, machines, problems

MOMENTUM = Updates(find("sgd")(momentum=0.9))
KNOWN = ("data_parallel", "fsdp", "megatron")


def census(graph, count):
    """How many tasks there are of each cost."""
    return dict(zip(graph.cost_keys, np.bincount(graph.cost, count, len(graph.cost_keys)).tolist()))


def check_exact(graph, folded, cost):
    """All that the simulation of the folded graph says, against that of the whole one."""
    engines = cost.machine.engines
    whole = simulate(*cost.by_kind(graph), engines)
    small_graph, durations = price_graph(folded, cost)
    small = simulate(small_graph, durations, engines)
    assert_same(folded, whole, small)
    assert folded.num_tasks == graph.num_tasks
    assert census(folded.graph, folded.count) == census(graph, np.ones(graph.num_tasks))
    packed, arenas = pack(folded.graph, small.timeline), pack(graph, whole.timeline)
    assert packed.peak_bytes[folded.proc_class].tolist() == arenas.peak_bytes.tolist()
    assert packed.live_bytes[folded.proc_class].tolist() == arenas.live_bytes.tolist()


def assert_same(folded, whole, small):
    result = expand(folded, small)
    assert result.seconds == whole.seconds
    assert result.peak_bytes.tolist() == whole.peak_bytes.tolist()
    assert result.persistent_bytes.tolist() == whole.persistent_bytes.tolist()
    assert result.busy_seconds.tolist() == whole.busy_seconds.tolist()
    assert small.timeline.start.tolist() == whole.timeline.start[folded.number].tolist()
    assert small.timeline.end.tolist() == whole.timeline.end[folded.number].tolist()


def check_plan(lowering, strategy):
    folded, whole = Folding(lowering).fold(strategy), lowering.contracted(strategy)
    check_exact(whole.graph, numbered(folded, whole), CostModel(lowering.machine))
    return folded


def numbered(folded, whole):
    """With the numbers that tasks have in the whole graph with its buckets."""
    return replace(folded, plain=whole.number[folded.plain])


def one_block(graph, engines):
    """Any task graph as the transfers of a single flow, folded."""
    owner = np.repeat(np.arange(graph.num_tasks), np.diff(graph.lane_ptr))
    user, follower = (np.repeat(np.arange(graph.num_tasks), np.diff(p)) for p in (graph.use_ptr, graph.need_ptr))
    nothing, every = np.zeros(graph.num_tasks, np.uint64), np.arange(graph.num_tasks)
    shape = Shape(
        None, 0, graph.num_tasks, 0 * every, every, graph.kind.astype(int), graph.cost, graph.private_bytes, nothing,
        nothing, owner, graph.lanes, Shapes(engines)._nth(owner, graph.lanes), (), graph.needs, follower,
        graph.buffer_proc, graph.buffer_bytes, graph.buffer_first, user, graph.uses,
    )  # fmt: skip
    union = Union([shape], engines, np.zeros(graph.num_procs, int))
    template = type("Template", (), {"num_tasks": graph.num_tasks, "num_buffers": graph.num_buffers})
    flow = SimpleNamespace(slot=0, template=template)
    small = _SmallTasks(union, refine(union))
    return _Assembly([], [flow], [Block(shape)], small, graph.cost_keys, Catalogue()).folded()


@st.composite
def marred(draw):
    """Tasks alike on all processors but for the memory of a few, or any tasks."""
    graph = draw(st.one_of(task_graphs(), nearly_symmetric()))
    owner = np.repeat(np.arange(graph.num_tasks), np.diff(graph.lane_ptr))
    home = np.zeros(graph.num_tasks, int)
    home[owner] = graph.lanes // NUM_LANES
    spans = np.isin(np.arange(graph.num_tasks), owner[home[owner] != graph.lanes // NUM_LANES])
    private = np.where(spans, 0, graph.private_bytes)
    uses = set(zip(np.repeat(np.arange(graph.num_tasks), np.diff(graph.use_ptr)).tolist(), graph.uses.tolist()))
    for _ in range(draw(st.integers(0, 2)) if graph.num_tasks else 0):
        task = draw(st.integers(0, graph.num_tasks - 1))
        near = np.flatnonzero((graph.buffer_proc == home[task]) & (graph.buffer_first >= 0)).tolist()
        if near and draw(st.booleans()):
            uses.add((task, draw(st.sampled_from(near))))
        elif not spans[task]:
            private[task] += draw(st.integers(0, 100))
    user, buffer = np.array(sorted(uses), int).reshape(-1, 2).T
    use_ptr = np.searchsorted(user, np.arange(graph.num_tasks + 1))
    graph = replace(graph, order=np.arange(graph.num_tasks), private_bytes=private, use_ptr=use_ptr, uses=buffer)
    return renumbered(graph, np.argsort(home, kind="stable")) if draw(st.booleans()) else graph


def renumbered(graph, sequence):
    """The same tasks where task number n is what was number sequence[n]."""

    def rows(ptr, values):
        found = [values[ptr[t] : ptr[t + 1]] for t in sequence]
        return np.cumsum([0, *map(len, found)]), np.concatenate([values[:0], *found])

    number = np.append(np.argsort(sequence), -1)
    (lane_ptr, lanes), (need_ptr, needs) = rows(graph.lane_ptr, graph.lanes), rows(graph.need_ptr, graph.needs)
    use_ptr, uses = rows(graph.use_ptr, graph.uses)
    return replace(
        graph, kind=graph.kind[sequence], cost=graph.cost[sequence], private_bytes=graph.private_bytes[sequence],
        lane_ptr=lane_ptr, lanes=lanes, need_ptr=need_ptr, needs=number[needs], use_ptr=use_ptr, uses=uses,
        buffer_first=number[graph.buffer_first],
    )  # fmt: skip


@settings(max_examples=examples(200))
@given(st.data())
def test_any_block_of_tasks_folds_exactly(data):
    """All that tells processors apart, each by itself: costs, kinds, ties, private memory, buffers and their users."""
    graph = data.draw(marred())
    engines, durations = data.draw(engine_maps), data.draw(timings(graph))
    folded = one_block(graph, engines)
    names = {key: n for n, key in enumerate(graph.cost_keys)}
    lasts = durations[[names[key] for key in folded.graph.cost_keys]]
    whole, small = simulate(graph, durations, engines), simulate(folded.graph, lasts, engines)
    assert_same(folded, whole, small)


def test_sequence_on_an_engine_is_kept_where_memory_differs():
    """A sum of the one class of pairs comes before the kernels of the other, but behind those of its own."""
    draft = Draft(4)
    for pair in ((2, 3), (0, 1)):
        for p in pair:
            draft.buffer(p, 100 * (1 + pair[0]), draft.task([(p, Lane.COMPUTE)], cost=1))
        draft.task([(p, Lane.COLLECTIVE) for p in pair], cost=2, kind=Kind.COLLECTIVE)
    graph, engines = draft.graph(), (0,) * NUM_LANES
    folded = one_block(graph, engines)
    assert folded.proc_class.tolist() == [0, 0, 1, 1]
    assert folded.graph.num_tasks == 3
    assert_same(folded, *(simulate(g, np.array([3, 5]), engines) for g in (graph, folded.graph)))


def test_a_later_user_of_memory_is_kept_apart():
    draft = Draft(3)
    for p in range(3):
        first, last = (draft.task([(p, Lane.COMPUTE)], cost=1) for _ in range(2))
        early, _ = draft.buffer(p, 100, first), draft.buffer(p, 1000, last)
        if p == 1:
            draft.uses[last].append(early)
    graph = draft.graph()
    folded = one_block(graph, ENGINES[0])
    assert folded.proc_class.tolist() == [0, 1, 0]
    times = (simulate(g, np.array([5]), ENGINES[0]) for g in (graph, folded.graph))
    assert_same(folded, *times)


@pytest.mark.parametrize("kept", [roles.KEPT, 5])
@settings(max_examples=examples(30))
@given(st.data())
def test_any_plan_folds_exactly(kept, data):
    """Also where next to nothing is kept of one plan for the next."""
    count = data.draw(st.sampled_from([1, 1, 1, 2]))
    problem, on = data.draw(problems(batch=4)), data.draw(machines(most=8))
    if data.draw(st.booleans()):
        slow = msgspec.structs.replace(on.processors[0], kind="slow", flops_per_second=1e8)
        on = replace(on, processors=tuple(data.draw(st.sampled_from([p, slow])) for p in on.processors))
    lowering, cost = Lowering(problem.graph, on, SGD), CostModel(on)
    folding = Folding(lowering)
    with pytest.MonkeyPatch.context() as patch:
        for module in (lower, roles):
            patch.setattr(module, "KEPT", kept)
        for _ in range(3):
            plan = data.draw(in_microbatches(data.draw(in_buckets(problem.graph, on.num_procs)), count))
            try:
                whole = lowering.contracted(plan)
            except ValueError as error:
                assert "microbatches" in str(error), error
                continue
            check_exact(whole.graph, numbered(folding.fold(plan), whole), cost)


@settings(max_examples=examples(30))
@given(st.data())
def test_buckets_of_many_sums_fold_exactly(data):
    """Data parallel over all or groups, where whatever can be put together is: few roles, few sums; or in pieces."""
    problem, num_procs = data.draw(problems(batch=8)), data.draw(st.sampled_from((2, 4, 8)))
    lowering = Lowering(problem.graph, named_plans.links(num_procs), MOMENTUM)
    configs = data.draw(in_groups(problem.graph, num_procs))
    configs = in_pieces(lowering, configs) if data.draw(st.booleans()) else configs
    check_plan(lowering, Strategy(configs, bucket_bytes=data.draw(st.sampled_from((2**20, 300)))))


def test_processors_that_buckets_tell_apart_stand_for_themselves(monkeypatch):
    """Of two layers' sums over pairs of eight processors half are over the same pairs, the others over crossed ones."""
    graph, total = Graph("pairs", "float64"), None
    configs, pairs = {}, {"one": ((0, 1), (2, 3), (4, 5), (6, 7)), "two": ((0, 2), (1, 3), (4, 5), (6, 7))}
    for name, of in pairs.items():
        layer = graph.linear(name, graph.input(f"{name}.x", (4, 8), "b i"), features=8)
        loss = graph.sum(f"{name}.sum", layer)
        total = loss if total is None else graph.add("total", total, loss)
        procs = tuple(pair[half] for half in range(2) for pair in of)
        configs[name] = configs[f"{name}.sum"] = Config({"b": 2, "o": 4}, 1, procs)
    graph.minimise(total)
    configs["total"] = Config({}, 8, tuple(range(8)))
    lowering = Lowering(graph, named_plans.links(8), SGD)
    assert check_plan(lowering, Strategy(configs)).proc_class.max() < 7
    assert check_plan(lowering, Strategy(configs, bucket_bytes=2**20)).proc_class.tolist() == list(range(8))
    # of large machines such sizes are not tried: all tasks would be written out
    evaluator = Evaluator(lowering, CostModel(lowering.machine))
    assert len(variants(evaluator, Strategy(configs), (2**20,))) == 2
    monkeypatch.setattr(evaluating, "LARGE", 8)
    assert [one.strategy.bucket_bytes for one in variants(evaluator, Strategy(configs), (2**20,))] == [0]


@pytest.mark.parametrize("num_procs", [1, 2, 4])
def test_named_plans_fold_exactly(num_procs):
    """Every transfer form and every way of keeping parameters, shapes shared from plan to plan."""
    problem = named_plans.network()
    lowering = Lowering(problem.graph, named_plans.links(num_procs), MOMENTUM)
    folding, cost = Folding(lowering), CostModel(lowering.machine)
    for plan in named_plans.plans(problem, num_procs).values():
        whole = lowering.contracted(plan)
        check_exact(whole.graph, numbered(folding.fold(plan), whole), cost)


@pytest.mark.parametrize(
    ("model", "num_procs", "latency"),
    [("mlp", 16, 0.0), ("mlp", 16, 1e-5), ("rnntc", 8, 0.0), ("gpt:layers=1,width=16,heads=4,seq=8,vocab=32", 8, 1e-5)],
)
def test_known_plans_fold_exactly(model, num_procs, latency):
    """Partial losses come to processor 0 one after another, and with latency other sums of a few too."""
    lowering = Lowering(models.parse(model).graph(16), cluster(num_procs, latency=latency), MOMENTUM)
    for name in KNOWN:
        check_plan(lowering, Strategy(seed(name, lowering)))


def cluster(num_procs, engines=ENGINES[0], latency=0.0):
    """Nodes of four; without latency sums are all-reduces, in which all take part alike."""
    processor = Processor("p", 1e12, 1e12, 2**40, 0, 1e-6)
    near = Level("near", 4, latency, 1e11)
    return Machine("cluster", (processor,) * num_procs, (near, Level("far", num_procs, latency, 1e10)), engines)


GPT = "gpt:width=64,heads=4,seq=64,vocab=64,bias=False,layers="


def groups(graph, num_procs, stages=4):
    """Layers in turn on groups of processors, samples cut within each."""
    size, names = num_procs // stages, list(graph.nodes)
    return {
        name: Config({"b": size}, 1, tuple(range(at * size, (at + 1) * size)))
        for n, name in enumerate(names)
        for at in [n * stages // len(names)]
    }


def without_host(lowering, configs):
    """The graphs of a plan, whole and folded, but for the way of the loss to the host.

    Partial losses come to processor 0 one after another, each at its own time.
    """
    folding = Folding(lowering)
    steps, flows = folding.instances(Strategy(configs))
    flows = [f for f in flows if f.flow.role != "output"]
    return compose(steps, flows, lowering.machine.num_procs, Catalogue()), folding.fold_instances(steps, flows)


@pytest.mark.parametrize("engines", ENGINES)
@pytest.mark.parametrize("plan", ["data_parallel", "fsdp", "megatron", "groups"])
def test_what_a_regular_plan_folds_to_does_not_grow(plan, engines):
    sizes, wholes = [], []
    for num_procs in (8, 32):
        on = cluster(num_procs, engines)
        model = models.parse("mlp" if plan == "groups" else f"{GPT}2")
        lowering = Lowering(model.graph(64), on, MOMENTUM)
        configs = groups(lowering.graph, num_procs) if plan == "groups" else seed(plan, lowering)
        whole, folded = without_host(lowering, configs)
        check_exact(whole, folded, CostModel(on))
        sizes.append((folded.graph.num_procs, folded.graph.num_tasks))
        wholes.append(whole.num_tasks)
    assert len(set(sizes)) == 1, sizes
    assert wholes[1] > 2 * wholes[0] and sizes[0][1] < wholes[0]


@pytest.mark.parametrize("pieces", [False, True], ids=["", "in pieces"])
@pytest.mark.parametrize(
    "name",
    ["pipeline_2_megatron_8", *rare("pipeline_2", "pipeline_4", "pipeline_2_interleaved", "pipeline_4_megatron_8")],
)
def test_processors_of_a_stage_are_alike_but_for_few(name, pieces):
    """However many there are: those that add biases, or have the host's, are not as others."""
    for nodes in (4, 8):
        on = machines_by_name.parse(f"dgx-h100:nodes={nodes}")
        graph = models.parse("gpt:layers=4,width=1024,heads=16,seq=512,vocab=8192").graph(64 * nodes)
        lowering = Lowering(graph, on, MOMENTUM, microbatches=4)
        configs = seed(name, lowering)
        folded = Folding(lowering).fold(lowering.plan(in_pieces(lowering, configs) if pieces else configs))
        assert folded.graph.num_procs <= 5 * int(name.split("_")[1]), folded.graph.num_procs


def test_repeated_layers_are_looked_at_once():
    shapes = []
    for layers in (3, 9):
        lowering = Lowering(models.parse(f"{GPT}{layers}").graph(32), cluster(8), MOMENTUM)
        folding = Folding(lowering)
        folding.fold(Strategy(data_parallel(lowering.graph, 8)))
        shapes.append(len(folding._shapes._shapes))
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("size", [0, 2**20])
def test_tasks_are_written_out_as_the_whole_graph_writes_them(size):
    lowering = Lowering(models.parse("mlp").graph(16), named_plans.links(8), MOMENTUM)
    plan = Strategy(seed("data_parallel", lowering))
    whole, folded = lowering.lower(plan), Folding(lowering).fold(msgspec.structs.replace(plan, bucket_bytes=size))
    assert (folded.num_tasks < whole.num_tasks) == (size > 0)
    for n, number in enumerate(folded.number.tolist()):
        assert folded.graph.tasks[n] == whole.tasks[number]
    assert {folded.representative[p] for p in folded.graph.buffer_proc} == {b.proc for b in folded.graph.buffers}
    sizes = [np.prod(b.box.shape) * np.dtype(b.dtype).itemsize for b in folded.graph.buffers]
    assert (folded.graph.buffer_bytes >= sizes).all()


def test_straggler_is_kept_apart():
    on = cluster(8)
    slow = msgspec.structs.replace(on.processors[0], kind="slow", flops_per_second=1e11)
    on = replace(on, processors=(*on.processors[:5], slow, *on.processors[6:]))
    lowering = Lowering(models.parse("mlp").graph(64), on, MOMENTUM)
    whole, folded = without_host(lowering, data_parallel(lowering.graph, 8))
    check_exact(whole, folded, CostModel(on))
    assert np.flatnonzero(folded.proc_class == folded.proc_class[5]).tolist() == [5]
    assert folded.graph.num_procs < 8


def test_uneven_work_is_kept_apart_where_memory_is_alike():
    """Three samples on two processors: arrays of one and of two take as many bytes, sizes being rounded up."""
    lowering = Lowering(two_layers(3, 2), named_plans.links(2), SGD)
    whole, folded = without_host(lowering, data_parallel(lowering.graph, 2))
    check_exact(whole, folded, CostModel(lowering.machine))
    assert folded.graph.num_procs == 2


def test_plan_that_does_not_fit_is_refused_in_a_sentence():
    lowering = Lowering(models.parse("mlp").graph(16), cluster(8), MOMENTUM)
    with pytest.raises(ValueError, match="no entry for node"):
        Folding(lowering).fold(Strategy({}))
