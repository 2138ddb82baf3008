"""Models that compute in 16 bits: what is kept, summed and scaled in more, under any plan, on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.kernels.table import definitions
from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.checkpoints.reader import open_checkpoint
from castile.launch.jobs.execution import prepare
from castile.launch.training.training import MOST_SKIPPED
from castile.launch.typed import optimizers
from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.folding import Folding, price_graph
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import Init
from castile.planner.ops.loss_scale import LEAST, MOST, LossScale
from castile.planner.ops.sgd import Sgd
from castile.planner.ops.unscale import Unscale
from castile.planner.search import search
from castile.planner.simulate import simulate
from castile.planner.simulation.incremental import Incremental
from castile.planner.step.beside import INITIAL_VALUES, SCALE, STREAK, TAKEN
from castile.planner.step.program import FETCHED, GRADIENT
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from castile.runtime.region import Box
from tests import device_ranks
from tests.effort import examples, rare
from tests.late import device
from tests.little import SEARCHES
from tests.strategies import Problem, batches, beginnings, configs, strategies, whole_on
from tests.test_any_strategy import Plan, drawn, plans
from tests.training import SGD, Trained, difference, train

NARROW = ("bfloat16", "float16")
GPT = "gpt:layers=1,width=16,heads=2,seq=8,vocab=16"
MOVING = ("sgd:momentum=0.5", "adamw:decay=0.1", "lion", "adafactor")


def same(one: Trained, other: Trained, but: Sequence[str] = ()) -> None:
    """Asserts that two trainings are alike to the last bit."""
    assert (one.losses == other.losses).all()
    assert one.carried.keys() - {*but} == other.carried.keys() - {*but}
    for name in one.carried.keys() - {*but}:
        assert np.array_equal(one.carried[name], other.carried[name]), name


@drawn(examples(20))
@given(plans(exact=True))
def test_masters_in_another_dtype_leave_the_same_bits_where_nothing_is_rounded(plan: Plan) -> None:
    graph, on = plan.problem.graph, plan.machine
    data, values = batches(plan.problem, 1, exact=True), beginnings(plan.problem, exact=True)
    one = train(graph, whole_on(graph), on, data, values)
    masters = Updates(SGD.optimizer, master="float32")
    same(train(graph, plan.strategy, on, data, values, size=plan.size, updates=masters), one)


@drawn(12)
@given(plans(exact=False), st.sampled_from(MOVING))
def test_scaling_by_powers_of_two_changes_no_bit(plan: Plan, text: str) -> None:
    graph, on, optimizer = plan.problem.graph, plan.machine, optimizers.parse(text)
    data, values = batches(plan.problem, 3, exact=False), beginnings(plan.problem, exact=False)
    known = Lowering(graph, on, Updates(optimizer)).names
    # Adafactor may not be cut as the plan would have it.
    free = {n: c for n, c in plan.strategy.configs.items() if n in known.nodes or text != "adafactor"}
    strategy = msgspec.structs.replace(plan.strategy, configs=free)
    plain, scaled = (
        train(graph, strategy, on, data, values, rate=2**-7, size=plan.size, updates=updates)
        for updates in (Updates(optimizer), Updates(optimizer, scaled=True, growth=2))
    )
    same(scaled, plain, (SCALE, STREAK, TAKEN))
    found = [float(scaled.carried[name]) for name in (SCALE, STREAK, TAKEN)]
    assert found == [2 * INITIAL_VALUES[SCALE], 1, 3]


def by_hand(values: dict[str, np.ndarray], data: Any, count: int, rate: float, optimizer: Any) -> dict[str, np.ndarray]:
    """Steps of `two` in plain NumPy: computed in float32, kept and summed over microbatches in float64."""
    kept = {name: value.astype("float64") for name, value in values.items()}
    states = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in kept.items()}
    for step, arrays in enumerate(data, start=1):
        up, bias, down = (kept[name].astype("float32") for name in ("up.weight", "up.bias", "down.weight"))
        sums = {name: np.zeros_like(value) for name, value in kept.items()}
        for x, t in zip(np.split(arrays["x"], count), np.split(arrays["t"], count), strict=True):
            x, t = x.astype("float32"), t.astype("float32")
            before = x @ up.T + bias
            h = np.maximum(before, 0)
            dy = np.float32(2 / arrays["t"].size) * (h @ down.T - t)
            dh = (dy @ down) * (before > 0)
            for name, slope in (("down.weight", dy.T @ h), ("up.weight", dh.T @ x), ("up.bias", dh.sum(axis=0))):
                sums[name] += slope
        for name in kept:
            m, v = states[name]
            m = optimizer.beta1 * m + (1 - optimizer.beta1) * sums[name]
            v = optimizer.beta2 * v + (1 - optimizer.beta2) * sums[name] ** 2
            states[name] = m, v
            size = np.sqrt(v / (1 - optimizer.beta2**step)) + optimizer.eps
            kept[name] = kept[name] - rate * m / (1 - optimizer.beta1**step) / size
    return kept


def two(dtype: str) -> Graph:
    g = Graph("two", dtype)
    x, t = g.input("x", (12, 6), "b i"), g.input("t", (12, 4), "b o")
    h = g.relu("act", g.linear("up", x, features=8))
    g.minimise(g.mse("loss", g.linear("down", h, features=4, bias=False), t))
    return g


@drawn(examples(20))
@given(strategies(two("float32"), 3), st.sampled_from((1, 2, 3)))
def test_training_is_mixed_as_by_hand(strategy: Strategy, count: int) -> None:
    """Each parameter moves by as much; rounding in the order of float32's sums shows in the sixth digit."""
    graph, on, adam = two("float32"), machine.local(3), optimizers.parse("adam:eps=0.1")
    strategy = msgspec.structs.replace(strategy, microbatches=count)
    if any(c.degree("b") * count > 12 for c in strategy.configs.values()):
        return
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(12, 6)), "t": rng.normal(size=(12, 4))} for _ in range(3)]
    values = {p.name: rng.normal(size=p.shape) for p in graph.params}
    wanted = by_hand(values, data, count, 0.125, adam)
    made = train(graph, strategy, on, data, values, rate=0.125, size=3, updates=Updates(adam, master="float64"))
    for name, value in wanted.items():
        assert difference(made.carried[name] - values[name], value - values[name]) < 1e-5, name


@pytest.mark.parametrize("dtype", NARROW)
def test_steps_too_small_for_16_bits_add_up(dtype: str) -> None:
    g = Graph("slope", dtype)
    x = g.input("x", (4, 3), "b i")
    g.minimise(g.sum("loss", g.mul("moved", x, g.param("w", (3,), ("i",), Init("ones")))))
    data = [{"x": np.ones((4, 3))}] * 64
    made = train(g, whole_on(g), machine.local(1), data, {}, rate=2**-14, updates=Updates(Sgd(), scaled=False))
    assert (made.carried["w"] == 1 - 64 * 4 * 2**-14).all()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*zip(("data_parallel", "fsdp"), NARROW, strict=True), *rare(*zip(("fsdp", "data_parallel"), NARROW, strict=True))],
)
def test_a_little_gpt_learns_as_in_float32(dtype: str, name: str) -> None:
    on, updates = machine.local(2), Updates(optimizers.parse("adamw"), clip=1.0)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 16, (4, 9))
    data = [{"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}] * 30

    def losses(dtype: str) -> np.ndarray:
        graph = models.parse(GPT).graph(4, dtype)
        plan = seeds(Lowering(graph, on, updates))[name]
        return train(graph, plan, on, data, {}, rate=0.01, size=2, updates=updates).losses

    wide, narrow = losses("float32"), losses(dtype)
    assert wide[-1] < 0.6 * wide[0]
    assert difference(narrow, wide) < 0.02


@pytest.mark.parametrize("name", models.available())
def test_losses_and_statistics_are_wide(name: str) -> None:
    graph = models.parse(name).graph(dtype="bfloat16")
    tensors = graph.tensors
    labels = ("mean", "rstd", "lse", "moments", "factors")
    statistics = [t for t in tensors.values() if t.name.replace(":", ".").rpartition(".")[2] in labels]
    assert all(t.dtype in ("float32", "float64") for t in (tensors[graph.loss], *statistics))
    assert {t.dtype for t in graph.params} == {"bfloat16"}
    assert all(tensors[state].dtype == "float32" for state in graph.states)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_plan_counts_masters_and_their_copies(dtype: str) -> None:
    on, updates = machine.local(1), Updates(optimizers.parse("adam"))
    graph = models.parse(GPT).graph(4, dtype)
    tasks = prepare(Lowering(graph, on, updates), whole_on(graph), CostModel(on)).tasks
    held = {b.region: (b.dtype, b.box.volume, int(n)) for b, n in zip(tasks.buffers, tasks.buffer_bytes, strict=True)}
    for param in graph.params:
        size = int(np.prod(param.shape))
        for region in (param.name, f"{param.name}/mean", f"{param.name}/square", param.name + GRADIENT):
            assert held[region][:2] == ("float32", size) and held[region][2] >= 4 * size
        assert held[param.name + FETCHED][:2] == (dtype, size) and held[param.name + FETCHED][2] >= 2 * size


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_scale_of_another_dtype_than_masters_is_refused(dtype: str) -> None:
    graph, updates = two(dtype), Updates(Sgd(), master="float64", scaled=True)
    with pytest.raises(ValueError, match=r"'loss' is of float32, and so is its scale: .* kept in float64"):
        Lowering(graph, machine.local(1), updates).lower(whole_on(graph))


@pytest.mark.parametrize("growth", [1, 2, 3])
@pytest.mark.parametrize("scale", [LEAST, 2 * LEAST, MOST / 2, MOST])
@settings(max_examples=15)
@given(st.sampled_from([0.5, 1e30, inf]), st.lists(st.sampled_from([0.0, 0.04, 1e20, inf, nan]), max_size=12))
def test_the_scale_follows_good_steps_and_bad_ones_between_its_bounds(scale, growth, most, squares) -> None:
    """What is added is the sum of squares of all gradients, each of them times the scale."""
    k, kept = SimpleNamespace(**definitions()), np.array([scale, 0.0, 0.0])
    for number in squares:
        factor, norm, taken = Unscale(most).forward(k, np.array(number), kept[0], kept[2])
        found = np.array([float(one) for one in LossScale(growth).forward(k, *kept, factor)])
        (scale, streak, steps), is_good = kept, np.isfinite(number)
        root = np.sqrt(number) / scale
        assert taken == steps + 1
        if is_good:
            assert norm == root and factor * scale == pytest.approx(min(1, most / (root + 1e-6)))
            grown = streak + 1 == growth
            expected = [min(2 * scale, MOST) if grown else scale, 0 if grown else streak + 1, steps + 1]
        else:
            assert factor == 0
            expected = [max(scale / 2, LEAST), 0, steps]
        assert found.tolist() == expected
        kept = found


def test_a_step_that_overflows_anywhere_is_skipped_everywhere() -> None:
    g = Graph("slope", "float16")
    x, k = g.input("x", (4, 3), "b i"), g.input("k", (4, 3), "b i")
    moved = g.mul("moved", x, g.param("w", (3,), ("i",), Init("ones")))
    g.minimise(g.sum("loss", g.mul("times", moved, k)))
    both = Config({"b": 2}, 1, (0, 1))
    plan = Strategy({name: both for name in g.nodes}, num_procs=2)
    ones, large = np.ones((4, 3)), np.ones((4, 3))
    # 2^16 is more than float16 holds; of what is less only the second rank's samples make too much
    large[3, 1] = 3.0
    data = [{"x": ones, "k": k} for k in (ones, large, large, ones, ones)]
    adam = optimizers.parse("adam")
    made = train(g, plan, machine.local(2), data, {}, rate=0.125, size=2, updates=Updates(adam, growth=3))
    # two steps are skipped, and after three good ones the scale grows
    found = [float(made.carried[name]) for name in (SCALE, STREAK, TAKEN)]
    assert found == [INITIAL_VALUES[SCALE] / 4 * 2, 0, 3]
    alone = train(g, plan, machine.local(2), data[2:], {}, rate=0.125, size=2, updates=Updates(adam, scaled=False))
    for name, value in alone.carried.items():
        assert np.array_equal(made.carried[name], value), name


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


STEEP = """
def build(batch=None, dtype="float32"):
    from castile.planner.graph import Graph
    from castile.planner.op import Init
    g = Graph("steep", dtype)
    x, k = (g.input(name, (batch or 4, 3), "b i") for name in "xk")
    moved = g.mul("moved", x, g.param("w", (3,), ("i",), Init("ones")))
    g.minimise(g.sum("loss", g.mul("steeper", g.mul("times", moved, k), k)))
    return g
"""


@pytest.mark.parametrize(
    ("dtype", "root", "num_skipped"),
    [("float16", 1.0, 1), ("float16", 2.0**2, 5), ("float16", 2.0**10, MOST_SKIPPED), ("bfloat16", 2.0**10, 0)],
)
def test_steps_that_are_skipped_are_told(
    dtype: str, root: float, num_skipped: int, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the beginning, until the scale fits; where none does that ends the run."""
    Path("steep.py").write_text(STEEP)
    np.savez("steep.npz", x=np.full((400, 3), 2.0**-12, "float32"), k=np.full((400, 3), root, "float32"))
    line = "train steep.py --data numpy:file=steep.npz --batch 4 --lr 1e-9 --search data_parallel --steps 60"
    line += f" --dtype {dtype} --metrics a.jsonl"
    status = main(line.split())
    out, err = capsys.readouterr()
    end = json.loads(Path("a.jsonl").read_text().splitlines()[-1])
    if num_skipped == MOST_SKIPPED:
        assert status == 2 and end["step"] == MOST_SKIPPED and end["reason"] == "gradients are too large for float16"
        assert f"step {MOST_SKIPPED}: {MOST_SKIPPED} steps in a row were skipped" in err and "--dtype bfloat16" in err
        return
    assert (status, end.get("num_skipped", 0), end["step"]) == (0, num_skipped, 60)
    assert (f"{num_skipped} of 60 steps skipped, whose gradients were too large" in out) == (num_skipped > 0)
    assert told(capsys, *line.split())["num_skipped"] == num_skipped


def test_training_goes_on_in_other_numbers(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a checkpoint of float32 in 16 bits, in the other 16 bits, and back: parameters are float32 in all of them."""
    line = ("train", "mlp:width=32", "--search", "data_parallel", "--optimizer", "adam", "--lr", "0.01")
    saved, runs = (*line, "--checkpoint", "saved"), []
    for steps, dtype in ((3, "float32"), (6, "float16"), (9, "bfloat16"), (12, "float32")):
        runs.append(told(capsys, *saved, "--steps", str(steps), "--resume", "--dtype", dtype))
    apart = told(capsys, *line, "--steps", "12")["losses"]
    assert [one["first_step"] for one in runs] == [0, 3, 6, 9]
    assert runs[0]["losses"] == apart[:3]
    found = np.array([loss for one in runs[1:] for loss in one["losses"]])
    assert 0 < difference(found, np.array(apart[3:])) < 0.01


def test_what_guards_16_bits_begins_anew_and_is_kept_from_then_on(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("train", "mlp:width=32", "--search", "data_parallel", "--checkpoint", "saved", "--resume")
    carried = []
    for steps, dtype in ((3, "bfloat16"), (7, "float16"), (9, "float16"), (10, "float32")):
        told(capsys, *line, "--steps", str(steps), "--dtype", dtype)
        reader = open_checkpoint(f"saved/step-{steps:08}")
        assert not {SCALE, STREAK, TAKEN} & {*reader.parameters}
        carried.append([float(reader.read(name, Box((), ()))) for name in (SCALE, STREAK, TAKEN)])
    scale = INITIAL_VALUES[SCALE]
    # steps in other numbers were all taken, and none of them made the scale grow
    assert carried == [[scale, 0, 3], [scale, 4, 7], [scale, 6, 9], [scale, 0, 10]]


def test_plans_in_16_bits_are_priced_so(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of a plan need not say what it computes with."""
    on = ("--machine", "dgx-h100:nodes=1", "--batch", "65536")
    line = ("plan", "mlp:layers=2,width=2048", *on, "--search", "data_parallel")
    wide = told(capsys, *line, "--out", "wide.json")
    narrow = told(capsys, *line, "--out", "narrow.json", "--dtype", "bfloat16")
    assert narrow["found"]["step_seconds"] < wide["found"]["step_seconds"]
    for name, facts in (("wide", wide), ("narrow", narrow)):
        simulated = told(capsys, "simulate", f"{name}.json", *on)
        assert simulated["step_seconds"] == pytest.approx(facts["found"]["step_seconds"])


def test_numbers_of_another_kind_are_refused(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "plan"):
        assert main([command, "mlp", "--dtype", "float8"]) == 2
        assert "--dtype float8: give one of float32, float64, bfloat16, float16" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in SEARCHES if name != "exhaustive"])
def test_searches_find_plans_whose_loss_is_scaled(name: str) -> None:
    """By every estimate there is, from known plans, sketches and folded tasks to single moves."""
    on, graph = machine.local(3), two("float16")
    lowering = Lowering(graph, on, Updates(optimizers.parse("adam"), clip=1.0))
    evaluator = Evaluator(lowering, CostModel(on))
    found = search(name, evaluator, "20", 0)
    folded = price_graph(Folding(lowering).fold(found.strategy), evaluator.cost)
    assert found.evaluated.seconds == simulate(*folded, on.engines).seconds
    assert lower_bound(evaluator, 8).seconds <= found.evaluated.seconds


@drawn(examples(20))
@given(st.data(), st.sampled_from(NARROW))
def test_plans_are_timed_step_by_step_as_from_nothing(data: st.DataObject, dtype: str) -> None:
    on, graph = machine.local(3), two(dtype)
    lowering, cost = Lowering(graph, on, Updates(Sgd())), CostModel(on)
    one = Incremental(lowering, cost, data.draw(strategies(graph, 3)))
    for _ in range(3):
        node = data.draw(st.sampled_from(sorted(graph.nodes)))
        plan = Strategy({**one.strategy.configs, node: data.draw(configs(graph.nodes[node], 3))})
        tasks, durations = cost.by_kind(lowering.lower(plan))
        assert one.propose(plan) == simulate(tasks, durations, on.engines).seconds
        one.accept()


@pytest.mark.parametrize("dtype", NARROW)
def test_a_captured_step_goes_on_being_right(dtype: str) -> None:
    """On a stand-in of a GPU: the scale and the count of steps are carried, so nothing of a replayed step is old."""
    problem = Problem(two(dtype), {})
    plan = device_ranks.Plan(problem, whole_on(problem.graph), device_ranks.ONE, 1)
    host = device_ranks.on_host(plan, 5)
    with device(3):
        found = device_ranks.Ranks(plan, "cuda").train(5)
    device_ranks.same(found, host)
    assert [(worker.uncaptured, worker._graph is None) for worker in found.workers] == [("", False)]
