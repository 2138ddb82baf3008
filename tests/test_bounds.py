"""Lower bounds: none is above what a plan takes, on any graph, machine and prices; and they are not idle."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.bounds import lower_bound as bounds
from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Environment, Measured, snapshot_of
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.plans import one_processor
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.lowering.task_merging import mergeable_calls, only_call, only_calls, tasks_of_passes
from castile.planner.op import find
from castile.planner.search import Evaluator
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine as machines
from castile.runtime.machine import Level, Machine, Processor
from tests import strategies as drawing
from tests.effort import examples, rare
from tests.little import drawn
from tests.test_models import small

# A pass of a plan that is drawn may have so many parts, of which some lie on one processor.
MOST_PARTS = drawing.MOST_PARTS
# Prices are whole picoseconds.
EPSILON = 1e-12


def chain(batch: int = 64, width: int = 96, layers: int = 3) -> Graph:
    g = Graph("chain", "float32")
    x, y = g.input("x", (batch, width), "b i"), g.input("label", (batch,), "b", "int32")
    for n in range(layers):
        x = g.relu(f"act{n}", g.linear(f"fc{n}", x, features=width))
    g.minimise(g.cross_entropy("loss", g.linear("head", x, features=10), y))
    g.outputs = ["head"]
    return g


def machine(procs: int, overhead: float = 0.0, latency: float = 0.0) -> Machine:
    levels = (Level("link", procs, latency, 1e15),) if procs > 1 else ()
    return Machine("test", (Processor("p", 1e9, 1e12, 2**34, 0, overhead),) * procs, levels)


def evaluator(graph: Graph, on: Machine, mode: str = "train", updates: str = "sgd", microbatches: int = 1) -> Evaluator:
    lowering = Lowering(graph, on, Updates(find(updates)()), mode, microbatches)
    return Evaluator(lowering, CostModel(on))


@settings(max_examples=examples(150, 1 / 8))
@given(st.data(), st.booleans(), st.sampled_from(("train", "train", "forward")))
def test_no_plan_beats_the_bound(data, exact, mode):
    problem, on = data.draw(drawing.problems(exact)), data.draw(drawing.machines())
    same = evaluator(problem.graph, on, mode)
    plan = data.draw(drawing.in_buckets(problem.graph, on.num_procs))
    found = lower_bound(same, MOST_PARTS)
    assert found is not None and found.seconds > 0
    assert found.seconds <= same.evaluate(plan).seconds + EPSILON


@settings(max_examples=examples(30))
@given(st.data(), st.floats(0.01, 100), st.integers(0, 10**6))
def test_no_plan_beats_the_bound_where_prices_were_measured(data, factor, seed):
    problem, on = data.draw(drawing.problems(most_layers=3)), data.draw(drawing.machines(3))
    rng = random.Random(seed)
    plan = data.draw(drawing.in_buckets(problem.graph, on.num_procs))
    keys = [key for key in evaluator(problem.graph, on).simulate(plan)[0].cost_keys if not key.dense and not key.link]
    rows = [Measured(key, factor * 1e-6 * rng.lognormvariate(0, 1)) for key in rng.sample(keys, (len(keys) + 1) // 2)]
    snapshot = snapshot_of(Environment("p"), rows)
    same = Evaluator(Lowering(problem.graph, on), CostModel(on, snapshot), snapshot)
    found = lower_bound(same, MOST_PARTS)
    assert found is not None
    assert found.seconds <= same.evaluate(plan).seconds + EPSILON


@settings(max_examples=examples(30))
@given(st.integers(1, 8), st.integers(0, 10**6), st.sampled_from([0.0, 1e-5]), st.integers(3, 40))
def test_no_plan_of_the_space_beats_the_bound(num_procs, seed, overhead, batch):
    same = evaluator(chain(batch, 24, 2), machine(num_procs, overhead))
    configs = drawn(same.lowering.graph, num_procs, random.Random(seed))
    for size in (0, 2**30):
        plan = Strategy(configs, bucket_bytes=size)
        assert lower_bound(same).seconds <= same.evaluate(plan).seconds + EPSILON


@pytest.mark.parametrize("updates", ["sgd", "adam", "adafactor"])
@pytest.mark.parametrize("overhead", [0.0, 1e-4])
def test_one_processor_has_no_choice(updates, overhead):
    same = evaluator(chain(), machine(1, overhead), updates=updates)
    plan = Strategy(one_processor(same.lowering.graph))
    # Updates of several parameters may have their overhead once.
    steps, flows = same.lowering.instances(plan)
    shared = overhead * len(mergeable_calls(steps, flows, tasks_of_passes(steps), only_calls(steps)))
    least = same.evaluate(plan).seconds - shared
    found = lower_bound(same)
    assert found.seconds == found.work_seconds == pytest.approx(least, rel=1e-6)
    assert found.gap(least) == pytest.approx(0, abs=1e-6)


# By operations, by bytes, and each better than the other at something.
CALCULATES, COPIES = Processor("calculates", 1e6, 1e12, 2**34, overlaps=False), Processor("copies", 1e12, 1e6, 2**34)
HALVES = Processor("halves", 1e6, 1e12, 2**34, 0, 2e-6, 4e6, 1e6, bfloat16_flops_per_second=8e6)
DOUBLES = Processor("doubles", 2e6, 1e12, 2**34, 0, 1e-6, 2e6, 3e6, bfloat16_flops_per_second=2e6)


KINDS = ((CALCULATES,) * 3, (COPIES,) * 3, (CALCULATES, COPIES), (HALVES, DOUBLES, DOUBLES))
MODELS = (("gpt", "bfloat16"), ("moe", "float16"), ("dlrm", "float32"), ("lstm", "float64"))


@pytest.mark.parametrize(
    ("name", "dtype", "procs"),
    # Every model, and all kinds of processors, by default once.
    [(*model, procs) for n, model in enumerate(MODELS) for m, procs in enumerate(KINDS) if n == m or rare(m)],
)
def test_figures_say_of_no_pass_that_it_takes_more_than_any_split_of_it(name, dtype, procs):
    """Of causal attention, of what is looked up, and of all else: of all parts together, and of each."""
    on = Machine("few", procs, (Level("link", len(procs), 1e-6, 1e9),))
    lowering = evaluator(models.parse(small(name)).graph(4, dtype), on, updates="adam").lowering
    program = lowering.program(lowering.plan({}))
    figures, splits = (of(lowering, program, CostModel(on), len(procs)) for of in (bounds._ByFigures, bounds._BySplits))
    for step in program.steps:
        # What is one of several in a task has no price of its own.
        if only_call(splits.template(step, {}).part(0).work) is None:
            few, least = figures.of(step), splits.of(step)
            assert 0 < few.total <= least.total and 0 < few.part <= least.part, (step.node.name, step.which)


@pytest.mark.parametrize("overhead", [0.0, 1e-3])
def test_of_half_the_processors_a_bound_says_what_it_would_of_no_others(overhead):
    eight, four = (lower_bound(evaluator(chain(), machine(n, overhead))) for n in (8, 4))
    assert 0.9 * four.seconds < eight.on(0.5) <= four.seconds


def test_what_a_part_does_not_read_it_does_not_wait_for():
    """Of what is put together one processor needs the one half, and goes on with it before the other half is there."""
    g = Graph("halves", "float32")
    x = g.input("x", (8, 6), "b i")
    slow, fast = x, g.relu("fast", x)
    for n in range(3):
        slow = g.linear(f"slow{n}", slow, features=6)
    after = g.slice("half", g.concat("both", 1, slow, fast), dim=1, start=6, stop=12)
    for n in range(3):
        after = g.linear(f"after{n}", after, features=6)
    g.outputs = [after.name]
    same = evaluator(g, machine(2, overhead=1e-3), "forward")
    [axis] = {*g.nodes["both"].alignment.axes} - {"b"} - {*g.nodes["both"].alignment.frozen}
    configs = {name: Config(procs=(int(not name.startswith("slow")),)) for name in g.nodes}
    taken = same.evaluate(Strategy({**configs, "both": Config({axis: 2}, 1, (0, 1))})).seconds
    found = lower_bound(same)
    assert found.seconds <= taken < 2 * found.seconds


def test_one_processor_has_no_choice_where_prices_were_measured():
    graph, on = chain(), machine(1)
    plain = evaluator(graph, on)
    plan = Strategy(one_processor(graph))
    keys = [key for key in plain.simulate(plan)[0].cost_keys if not key.dense]
    snapshot = snapshot_of(Environment("p"), [Measured(key, 1e-3 * (n + 1)) for n, key in enumerate(keys)])
    same = Evaluator(plain.lowering, CostModel(on, snapshot), snapshot)
    # What an update takes as one of several in a task was not measured.
    tasks = same.simulate(plan)[0]
    run = [tasks.cost_keys[number] for number in tasks.cost.tolist()]
    least = sum(same.cost.seconds(key).seconds for key in run if key.name != "sgd.F")
    assert lower_bound(same).seconds == pytest.approx(least, rel=1e-6)


def test_with_free_links_known_plans_come_near_both():
    same = evaluator(chain(), machine(8))
    # Updates in pieces, too: nothing is done twice.
    sharded = same.evaluate(seeds(same.lowering)["fsdp"])
    found = lower_bound(same)
    assert found.work_seconds <= sharded.seconds <= 1.001 * found.work_seconds
    assert found.chain_seconds > 0.5 * sharded.seconds
    # Where each pass has a price of its own, however small its parts, the chain of passes counts.
    slow = evaluator(chain(), machine(8, overhead=1e-3))
    found = lower_bound(slow)
    assert found.chain_seconds > 3 * found.work_seconds
    assert found.gap(slow.evaluate(seeds(slow.lowering)["data_parallel"]).seconds) < 1


def test_the_bound_falls_with_more_processors_and_grows_with_work():
    known = [lower_bound(evaluator(chain(), machine(n))).seconds for n in (1, 2, 4, 8, 16)]
    assert known == sorted(known, reverse=True) and known[0] > 10 * known[-1]
    assert lower_bound(evaluator(chain(layers=6), machine(4))).seconds > 1.5 * known[2]
    assert lower_bound(evaluator(chain(), machine(4), "forward")).seconds < 0.5 * known[2]


def test_two_microbatches_say_the_bound_of_all(monkeypatch):
    for graph in (chain(), models.parse("gpt:layers=1,width=32,heads=2,seq=16,vocab=32").graph(16)):
        few = lower_bound(evaluator(graph, machine(4, 1e-4), microbatches=8))
        with monkeypatch.context() as patch:
            patch.setattr(bounds, "FEWEST", 8)
            assert lower_bound(evaluator(graph, machine(4, 1e-4), microbatches=8)) == few


def test_microbatches_do_the_same_work_and_more_passes():
    whole, pieces = (lower_bound(evaluator(chain(), machine(4, 1e-4), microbatches=n)) for n in (1, 4))
    assert pieces.work_seconds > whole.work_seconds
    same = evaluator(chain(), machine(4, 1e-4), microbatches=4)
    assert pieces.seconds <= same.evaluate(seeds(same.lowering)["data_parallel"]).seconds


def test_unlike_processors_are_bounded_by_the_best_of_each():
    slow, fast = Processor("slow", 1e9, 1e13, 2**34), Processor("fast", 4e9, 1e12, 2**34)
    mixed = Machine("mixed", (slow, fast), (Level("link", 2, 0.0, 1e15),))
    alike = [lower_bound(evaluator(chain(), replace(mixed, processors=(p, p)))).seconds for p in (slow, fast)]
    same = evaluator(chain(), mixed)
    assert lower_bound(same).seconds <= min(alike)
    assert all(lower_bound(same).seconds <= same.evaluate(plan).seconds for plan in seeds(same.lowering).values())


def test_what_is_computed_in_bfloat16_is_bounded_by_the_rate_of_bfloat16():
    """A V100 computes it as it does float32: kernels of many operations take as long, not an eighth of that."""
    on, model = machines.parse("p3.16xlarge"), models.parse("mlp:width=4096")
    alike, slow, fast = (evaluator(model.graph(8192, dtype), on) for dtype in ("float32", "bfloat16", "float16"))
    bounds_of = [lower_bound(same).seconds for same in (alike, slow, fast)]
    plans = [same.evaluate(seeds(same.lowering)["data_parallel"]).seconds for same in (alike, slow, fast)]
    assert all(bound <= plan for bound, plan in zip(bounds_of, plans, strict=True))
    assert bounds_of[1] == pytest.approx(bounds_of[0], rel=0.1) and bounds_of[2] < bounds_of[1] / 3


def test_measured_splits_may_be_too_many(monkeypatch):
    graph, on = chain(), machine(4)
    plan = Strategy(one_processor(graph))
    keys = evaluator(graph, on).simulate(plan)[0].cost_keys
    snapshot = snapshot_of(Environment("p"), [Measured(keys[0], 1e-3)])
    same = Evaluator(Lowering(graph, on), CostModel(on, snapshot), snapshot)
    assert lower_bound(same).seconds > 0
    monkeypatch.setattr(bounds, "MOST_PARTS", 10)
    assert lower_bound(same) is None


@given(st.lists(st.integers(1, 9), max_size=3), st.integers(1, 12))
def test_the_smallest_share_is_that_of_the_smallest_block(extents, most_parts):
    def shares(rest, room):
        if not rest:
            yield 1.0
            return
        for degree in range(1, min(rest[0], room) + 1):
            yield from (rest[0] // degree / rest[0] * share for share in shares(rest[1:], room // degree))

    wanted = min(shares(extents, most_parts))
    assert bounds._smallest_share(tuple(extents), most_parts) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "model", ["convnet", "moe:layers=1,width=32,seq=16", *rare("gpt:layers=1,width=32,seq=16", "dlrm")]
)
def test_models_have_a_bound(model):
    on = machines.parse("dgx-h100:nodes=1")
    same = evaluator(models.parse(model).graph(16), on)
    worth = [same.evaluate(plan).seconds for plan in seeds(same.lowering).values()]
    assert 0 < lower_bound(same).seconds <= min(worth)


def test_who_has_a_figure_that_cannot_be_is_told_which_machine_it_is():
    on = Machine("slow", (Processor("p", 1.0, 1e12, 2**34),), ())
    with pytest.raises(ValueError, match=r"on machine 'slow', .* look at its figures"):
        lower_bound(evaluator(chain(batch=4096), on))
