"""Lowering: what a plan's tasks are called and where they run, where parameters live, and which plans are refused."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.lowering.instances import FlowInstance, StepInstance
from castile.planner.op import Init, Part, find
from castile.planner.ops.sgd import Sgd
from castile.planner.step.program import update_name
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from castile.runtime.garbage import is_frozen, set_aside
from castile.runtime.region import Box, contiguous, uncovered, whole
from castile.runtime.task import NUM_LANES, CostKey, Kind, Lane, TaskGraph
from tests.effort import examples
from tests.strategies import Problem, machines, problems, strategies, whole_on
from tests.test_models import small
from tests.training import SGD


def mlp() -> Graph:
    g = Graph("mlp", "float64")
    x, label = g.input("x", (8, 6), "b i"), g.input("label", (8,), "b", "int64")
    logits = g.linear("down", g.relu("act", g.linear("up", x, features=10)), features=5)
    g.minimise(g.cross_entropy("loss", logits, label))
    g.outputs = ["down"]
    return g


def lowered(**configs: Config):
    """One processor but for `configs`, whose names have _ for . and __ for /."""
    graph = mlp()
    named = {name.replace("__", "/").replace("_", "."): config for name, config in configs.items()}
    plan = {name: Config() for name in graph.nodes} | named
    lowering = Lowering(graph, machine.local(4), SGD)
    return lowering, lowering.lower(Strategy(plan))


def homes(tasks, region: str) -> set[tuple]:
    return {(b.proc, b.box.shape) for b in tasks.buffers if b.region == region and b.role == "carried"}


def test_a_step_on_one_processor_is_its_passes_in_order() -> None:
    _, tasks = lowered()
    assert [t.name for t in tasks.tasks] == [
        "up.F[0]", "act.F[0]", "down.F[0]", "loss.F[0]", "loss.B[0]", "down.B[0]", "down.W[0]", "act.B[0]", "up.W[0]",
        "up.weight/update.F[0]", "up.bias/update.F[0]", "down.weight/update.F[0]", "down.bias/update.F[0]",
    ]  # fmt: skip


UPDATES = {
    "plain": SGD,
    "clipped": Updates(find("adam")(), clip=1.0),
    "scaled": Updates(find("adafactor")(), scaled=True),
    "cast": Updates(find("sgd")(), master="float32"),
}


@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.parametrize("model", ["resnet", "moe", "lstm", "mlp"])
def test_who_decides_a_nodes_config_is_on_whose_processor_it_lies(model: str, updates: str) -> None:
    graph = models.parse(small(model)).graph(4, "float16" if updates == "cast" else "float32")
    lowering = Lowering(graph, machine.local(2), UPDATES[updates])
    names = list(graph.nodes)
    found = lowering.configs(Strategy({name: Config(procs=(number,)) for number, name in enumerate(names)}))
    assert lowering.deciders == {name: names[c.procs[0]] for name, c in found.items() if len(c.procs) == 1}
    alone = lowering.configs(Strategy(dict.fromkeys(names, Config(procs=(1,)))))
    assert all(config.procs == (1,) for config in alone.values()) and alone.keys() == found.keys()


def test_parameters_live_where_they_are_used() -> None:
    four = (0, 1, 2, 3)
    _, tasks = lowered(up=Config({"b": 4}, 1, four), down=Config({"o": 2}, 2, four))
    assert homes(tasks, "up.weight") == {(p, (10, 6)) for p in four}
    assert homes(tasks, "down.weight") == {(0, (3, 10)), (1, (3, 10)), (2, (2, 10)), (3, (2, 10))}
    assert homes(tasks, "down.weight/momentum") == homes(tasks, "down.weight")


@dataclass(frozen=True)
class ReadsWhole(Sgd):
    """Who has a piece of a parameter reads all of it."""

    def reads(self, operand: int, part: Part) -> Box:
        return whole(part.whole(operand))

    def forward(self, k, w, g, m, lr, *, at):
        own, made = at.writes(0), super().forward(k, w, g, m, lr)
        for dim, (start, stop) in enumerate(zip(own.lo, own.hi, strict=True)):
            made = [k.cut(x, dim=dim, start=start, stop=stop) for x in made]
        return tuple(made)


@pytest.mark.parametrize("first", ["conv", "turned"])
def test_parameters_of_one_shape_live_where_their_own_updates_write(first: str) -> None:
    """A convolution's channels are its weight's first dimension, a transposed one's the second."""
    g = Graph("convs", "float64")
    x, label = g.input("x", (2, 3, 6, 6), "b c h w"), g.input("label", (2,), "b", "int64")
    x = g.conv2d("stem", x, channels=4, kernel=1)
    layers = {"conv": g.conv2d, "turned": g.conv_transpose2d}
    for name in sorted(layers, key=lambda name: name != first):
        x = layers[name](name, x, channels=4, kernel=3, bias=False)
    g.minimise(g.cross_entropy("loss", g.reshape("flat", x, "b c h w -> b (c h w)"), label))
    pieces = Config({"o": 2}, 1, (0, 1))
    plan = dict.fromkeys(g.nodes, Config({}, 2, (0, 1))) | {f"{name}.weight/update": pieces for name in layers}
    tasks = Lowering(g, machine.local(2), Updates(ReadsWhole())).lower(Strategy(plan))
    assert homes(tasks, "conv.weight") == {(p, (2, 4, 3, 3)) for p in (0, 1)}
    assert homes(tasks, "turned.weight") == {(p, (4, 2, 3, 3)) for p in (0, 1)}


def test_a_fetch_and_an_accumulator_are_tasks_of_their_own() -> None:
    apart = {"up_weight__fetch": Config({}, 2, (0, 1)), "up_weight__accumulate": Config({"o": 2}, 1, (2, 3))}
    _, tasks = lowered(**apart, up_weight__update=Config({}, 1, (3,)))
    where = {t.name: t.procs for t in tasks.tasks}
    assert where["up.weight/fetch.F[0~1]"] == (1,) and where["up.weight/accumulate.sum[1]"] == (3,)
    assert homes(tasks, "up.weight") == {(3, (10, 6))}


def test_a_sum_over_processors_is_one_collective() -> None:
    _, tasks = lowered(up=Config({"b": 4}, 1, (0, 1, 2, 3)))
    keys = {key.name for key in tasks.cost_keys}
    assert keys & {"all_reduce", "move"}
    split = lowered(up=Config({"b": 4}, 1, (0, 1, 2, 3)), up_weight__update=Config({"o": 2}, 1, (0, 1)))[1]
    assert homes(split, "up.weight") == {(0, (5, 6)), (1, (5, 6))}


REFUSED = {
    "no axis 'c' to split": {"up": Config({"c": 2}, 1, (0, 1))},
    "may not be split": {"loss": Config({"v": 2}, 1, (0, 1))},
    "too few for 9 parts": {"up": Config({"b": 9}, 1, (0,) * 9)},
    "processor 4 is out of range": {"up": Config({}, 1, (4,))},
    "replicated twice on one processor": {"up": Config({}, 2, (1, 1))},
    "2 parts x 1 replicas need 2 processors, 1 are named": {"up": Config({"b": 2}, 1, (0,))},
    "names a node 'op' that mlp does not have": {"op": Config()},
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_plan_that_cannot_be_is_refused_in_words(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lowered(**REFUSED[words])


def test_a_parameter_without_influence_is_refused() -> None:
    g = Graph("idle", "float64")
    x = g.input("x", (2, 2), "b i")
    g.add("aside", x, g.param("table", (2,), ("i",), Init("zeros")))
    g.minimise(g.sum("loss", g.linear("used", x, features=2)))
    with pytest.raises(ValueError, match="parameter 'table' has no influence on the loss 'loss'"):
        Lowering(g, machine.local(1)).lower(whole_on(g))


def test_evaluation_runs_over_the_parameters_that_training_keeps() -> None:
    graph, on = mlp(), machine.local(4)
    cut = Strategy({n: Config({"b": 4}, 1, (0, 1, 2, 3)) for n in graph.nodes})
    train, evaluate = (Lowering(graph, on, SGD, mode).lower(cut) for mode in ("train", "forward"))
    kept = {(b.region, b.box, b.proc) for b in train.buffers if b.role == "carried"}
    read = {(b.region, b.box, b.proc) for b in evaluate.buffers if b.role == "carried"}
    assert read == {each for each in kept if "momentum" not in each[0]}
    assert {b.region for b in evaluate.buffers if b.role == "output"} == {"down"}
    assert not [t for t in evaluate.tasks if ".B[" in t.name or ".W[" in t.name]


@pytest.mark.parametrize("aside", [True, False])
@pytest.mark.parametrize("collects", [True, False])
def test_lowering_leaves_the_garbage_collector_as_it_was(collects: bool, aside: bool) -> None:
    was = gc.isenabled()
    try:
        gc.enable() if collects else gc.disable()
        with set_aside() if aside else nullcontext():
            lowered()
            assert gc.isenabled() == collects and is_frozen() == aside
    finally:
        gc.enable() if was else gc.disable()


@st.composite
def plans(draw: st.DrawFn):
    problem, on = draw(problems()), draw(machines())
    return problem, on, draw(strategies(problem.graph, on.num_procs))


@settings(max_examples=examples(150, 1 / 8))
@given(plans())
def test_flat_arrays_and_tasks_written_out_say_the_same(plan) -> None:
    problem, on, strategy = plan
    lowering = Lowering(problem.graph, on, SGD)
    tasks = lowering.lower(strategy)
    configs = lowering.configs(strategy)
    for task in tasks.tasks:
        lanes = {(lane // NUM_LANES, Lane(lane % NUM_LANES)) for lane in tasks.lanes_of(task.index).tolist()}
        assert {proc for proc, _ in lanes} == set(task.procs) and int(task.kind) == tasks.kind[task.index]
        assert tasks.private_bytes[task.index] == task.body.private_bytes
        if task.kind == Kind.COMPUTE:
            assert task.procs[0] in configs[task.name.rpartition(".")[0]].procs
        for view in task.views:
            assert tasks.buffers[view.buffer].proc in task.procs
    assert len(set(tasks.order.tolist())) == tasks.num_tasks
    check_persistent(problem, tasks)
    check_instances(*lowering.instances(strategy), tasks)


def check_instances(steps: Sequence[StepInstance], flows: Sequence[FlowInstance], tasks: TaskGraph) -> None:
    """A task costs what its part does, in strides where what it reads is no run, and prices come as they are met; tasks
    come by their place in the program, and buffers live from the first who touches them.
    """
    plain: list[CostKey] = []
    priced: list[CostKey] = []
    places: list[tuple[int, ...]] = []
    for slot, step in enumerate(steps):
        for local in range(step.num_tasks):
            part, task = step.template.part(local // step.config.replicas), tasks.tasks[len(places)]
            held = [(view.box, tasks.buffers[view.buffer].box) for view in task.views]
            reads = held[: sum(box is not None for box in part.inputs)]
            apart = {n: frame.shape for n, (box, frame) in enumerate(reads) if not contiguous(box, frame)}
            plain.append(part.key)
            priced.append(part.key.strided(apart) if apart else part.key)
            places.append((slot, 0, 0, local))
    for number, flow in enumerate(flows):
        plain += flow.keys
        priced += flow.keys
        places += [(flow.slot, 1, number, local) for local in range(flow.num_tasks)]
    assert [tasks.cost_keys[cost] for cost in tasks.cost.tolist()] == priced
    first = list(dict.fromkeys(plain))
    assert list(tasks.cost_keys[: len(first)]) == first and {*tasks.cost_keys} == {*plain, *priced}
    assert sorted(range(tasks.num_tasks), key=tasks.order.__getitem__) == sorted(
        range(len(places)), key=places.__getitem__
    )
    order, users = tasks.order.tolist(), dict[int, list[int]]()
    for task in range(tasks.num_tasks):
        for buffer in tasks.uses_of(task).tolist():
            users.setdefault(buffer, []).append(task)
    for number, buffer in enumerate(tasks.buffers):
        nbytes = buffer.box.volume * np.dtype(buffer.dtype).itemsize
        assert (tasks.buffer_proc[number], tasks.buffer_bytes[number]) == (buffer.proc, -(-nbytes // 64) * 64)
        if not buffer.role:
            assert tasks.buffer_first[number] == min(users[number], key=order.__getitem__)


def check_persistent(problem: Problem, tasks) -> None:
    """Parameters lie whole, each input lies where it is read, the loss is an output."""
    carried: dict[str, list] = {}
    for number, buffer in enumerate(tasks.buffers):
        assert (tasks.buffer_first[number] < 0) == bool(buffer.role)
        if buffer.role == "carried":
            carried.setdefault(buffer.region, []).append(buffer.box)
    for param in problem.graph.params:
        for region in (param.name, f"{param.name}/momentum"):
            assert not uncovered(whole(param.shape), carried[region])
    assert [b.region for b in tasks.buffers if b.role == "output"] == [problem.graph.loss]


@pytest.mark.parametrize("last", list(permutations(range(3))))
def test_what_adds_through_some_of_its_results_has_the_memory_that_this_takes(last: tuple[int, ...]) -> None:
    """Parts of two sizes, on the way back of heads that take the same arrays as queries, keys and values in turn."""
    g = Graph("heads", "float64")
    x = g.input("x", (3, 4, 6), "b s i")
    made = [g.linear(name, x, features=6) for name in ("one", "two", "three")]
    # What comes last goes back first, and what the second takes alone the first adds nothing to.
    heads = [g.attention("first", *made, heads=2)]
    others = [made[0], g.linear("own", x, features=6), made[2]]
    heads.append(g.attention("second", *[others[n] for n in last], heads=2))
    g.minimise(g.mean("loss", g.add("sum", *heads)))
    cut = {n: Config({"b": 2}, 1, (1, 0)) for n, node in g.nodes.items() if node.alignment.extents.get("b") == 3}
    tasks = Lowering(g, machine.local(2), SGD).lower(Strategy({n: cut.get(n, Config()) for n in g.nodes}))
    adding = set()
    for task in tasks.tasks:
        assert tasks.private_bytes[task.index] == task.body.private_bytes, task.name
        for call in task.body.calls if task.kind == Kind.COMPUTE else ():
            for out in (task.views[out.index].buffer for out in call.outs if out.space == "view"):
                # what another began was made before
                assert call.accumulate == (tasks.buffer_first[out] not in (task.index, -1)), task.name
            adding |= {task.name} if call.accumulate else set()
    assert {"first.B[0]", "first.B[1]"} <= adding


@st.composite
def shared(draw: st.DrawFn):
    """Layers of which several share their weights, and a plan that cuts each, and each update, along one axis."""
    g = Graph("shared", "float64")
    h = g.input("x", (4, 6), "b i")
    weights = [g.param(name, (6, 6), ("o", "i"), Init("uniform", 0.5)) for name in ("u", "v", "w")]
    for number, weight in enumerate(draw(st.permutations([*weights, *weights]))):
        h = g.apply(find("linear")(), f"layer{number}", h, weight)
    g.minimise(g.mean("loss", h))
    g.outputs = [h.name]

    def cut(*axes: str) -> Config:
        return Config({draw(st.sampled_from(axes)): 2}, procs=(0, 1))

    configs = {name: cut("b", "i", "o") for name in g.nodes if name != "loss"} | {"loss": cut("b")}
    updates = {update_name(weight.name): cut("i", "o") for weight in weights}
    return Problem(g, {}), machine.local(2), Strategy(configs | updates)


def test_ports_lie_where_their_config_says_however_many_configs_came_and_went() -> None:
    """A Config may take the place in memory of another, and with it the identity by which ports are known."""
    lowering, split = Lowering(mlp(), machine.local(4), SGD), {"b": 2}
    step = lowering.program(lowering.plan({})).steps[0]
    template = lowering.templates.get(step, split, lambda _: "float64")
    for procs in [*permutations(range(4), 2)] * 2:
        assert lowering.placed(StepInstance(step, template, Config(split, 1, procs)), 0, True).config.procs == procs


@settings(max_examples=examples(150, 1 / 8))
@given(shared())
def test_what_waits_for_no_step_is_sent_in_the_order_in_which_steps_wait_for_it(plan) -> None:
    problem, on, strategy = plan
    lowering = Lowering(problem.graph, on, SGD)
    tasks, flows = lowering.lower(strategy), lowering.instances(strategy)[1]
    begin = tasks.num_tasks - sum(flow.num_tasks for flow in flows)
    needed: dict[int, int] = {}
    followers = _followers(tasks)
    for flow in flows:
        mine = range(begin, begin + flow.num_tasks)
        begin += flow.num_tasks
        steps = [t for task in mine for t in followers[task] if tasks.kind[t] == Kind.COMPUTE]
        if steps and not flow.flow.producers:
            needed[min(tasks.order[list(mine)].tolist())] = min(tasks.order[steps].tolist()) >> 40
    assert [needed[order] for order in sorted(needed)] == sorted(needed.values())


def _followers(tasks: TaskGraph) -> list[list[int]]:
    """The tasks that need each task."""
    found: list[list[int]] = [[] for _ in range(tasks.num_tasks)]
    for task in range(tasks.num_tasks):
        for before in tasks.needs_of(task).tolist():
            found[before].append(task)
    return found
