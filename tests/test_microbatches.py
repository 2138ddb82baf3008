"""Microbatches are a split of the sample axis in time: they train as the whole batch does, under any plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.families.elementwise import Unary
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import Init, Tensor, available, find
from castile.planner.ops.sgd import Sgd
from castile.planner.search import Evaluator, search
from castile.planner.simulate import simulate
from castile.runtime import machine
from tests import little
from tests.cut_batches import TOLERANCE, assert_trains_as_the_whole_batch, one_of
from tests.effort import examples
from tests.strategies import batches, beginnings, in_microbatches, machines, problems, strategies, whole_on
from tests.training import SGD, difference, train

EXAMPLES = examples(300)


def test_microbatches_train_as_the_whole_batch(tell: Callable[[str], None]) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        count = data.draw(st.integers(2, 3))
        problem = data.draw(problems(batch=count * data.draw(st.integers(1, 2))))
        on = data.draw(machines())
        whole = data.draw(strategies(one_of(problem.graph, count), on.num_procs))
        cut = data.draw(in_microbatches(whole, count))
        assert_trains_as_the_whole_batch(problem, on, cut, data.draw(st.integers(1, on.num_procs)))
        seen["trained"] += 1
        seen.update({node.op.name for node in problem.graph.nodes.values()})

    check()
    tell(f"microbatches train as the whole batch: {', '.join(f'{k} {n}' for k, n in seen.most_common())}")
    assert seen["trained"] >= EXAMPLES


def test_a_plan_with_more_parts_than_a_microbatch_has_samples_is_refused() -> None:
    graph, on = models.parse("mlp").graph(8), machine.local(4)
    plan = msgspec.structs.replace(seeds(Lowering(graph, on, SGD))["data_parallel"], microbatches=4)
    words = "one of 4 microbatches has fewer samples than axis 'b' is to have parts, 4: use fewer microbatches"
    with pytest.raises(ValueError, match=words):
        Lowering(graph, on, SGD).lower(plan)


def test_a_processor_holds_the_activations_of_one_microbatch_at_a_time() -> None:
    graph, on = models.parse("gpt:layers=2,width=32,seq=32").graph(8), machine.local(2)
    lowering = Lowering(graph, on, SGD)
    plan = seeds(lowering)["data_parallel"]

    def peak(count: int) -> int:
        tasks = lowering.lower(msgspec.structs.replace(plan, microbatches=count))
        return int(simulate(tasks, CostModel(on).picoseconds(tasks.cost_keys), on.engines).peak_bytes.max())

    fixed = 2 * 4 * sum(int(np.prod(t.shape)) for t in graph.params)
    assert peak(4) - fixed < 0.6 * (peak(1) - fixed)


@pytest.mark.parametrize("name", ["data_parallel", "mcmc"])
def test_searches_find_plans_for_microbatches(name: str) -> None:
    on = machine.local(4)
    lowering = Lowering(models.parse("mlp").graph(8), on, SGD, microbatches=4)
    found = search(name, Evaluator(lowering, CostModel(on)), "60", 0)
    assert found.strategy.microbatches == 4
    # two samples at a time cannot be spread over more processors than two
    assert found.strategy.configs["fc1"].degree("b") <= 2


def test_gradients_are_summed_before_they_are_sent() -> None:
    graph, on = models.parse("mlp").graph(8), little.machine(2)
    lowering = Lowering(graph, on, SGD)
    plan = seeds(lowering)["data_parallel"]

    def transfers(count: int) -> int:
        tasks = lowering.lower(msgspec.structs.replace(plan, microbatches=count)).tasks
        return sum(t.name.startswith("fc1.weight/grad:all_reduce") for t in tasks)

    assert transfers(1) == transfers(4) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g, x: g.sum("loss", g.linear("fc", x, 3)), "8 along the sample axis do not make 3 equal"),
        (lambda g, x: g.sum("loss", g.linear("fc", g.linear("in", x, 8), 3)), "do not make 3 equal"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_words(make, words) -> None:
    g = Graph("small", "float64")
    g.minimise(make(g, g.input("x", (8, 4), "b i")))
    plan = msgspec.structs.replace(whole_on(g), microbatches=3)
    with pytest.raises(ValueError, match=words):
        Lowering(g, machine.local(1), SGD).lower(plan)


def test_what_is_made_for_each_sample_alike_is_made_for_each_microbatch() -> None:
    g = Graph("token", "float64")
    x, token = g.input("x", (4, 2, 3), "b s i"), g.param("token", (1, 1, 3), ("n", "s", "i"), Init("normal", 1.0))
    # between what is repeated and where it meets samples there are others
    first = g.scale("scaled", g.expand("each", token, (4, 1, 3)), factor=2.0)
    g.minimise(g.sum("loss", g.square("square", g.linear("fc", g.concat("tokens", 1, first, x), 3))))
    rng = np.random.default_rng(0)
    values = {t.name: rng.normal(size=t.shape) for t in g.params}
    data = [{"x": rng.normal(size=x.shape)} for _ in range(2)]
    whole = train(g, whole_on(g), machine.local(1), data, values, rate=2**-7)
    cut = train(g, msgspec.structs.replace(whole_on(g), microbatches=2), machine.local(1), data, values, rate=2**-7)
    assert all(difference(cut.carried[n], whole.carried[n], 1.0) < TOLERANCE for n in whole.carried)


def seen_whole(g: Graph, x: Tensor) -> Tensor:
    return g.sum("loss", g.mul("weighed", g.linear("fc", x, 3), g.sum("all", x)))


def begun_whole(g: Graph, x: Tensor) -> Tensor:
    return g.square("loss", g.sum("all", g.linear("fc", x, 3)))


def held_whole(g: Graph, x: Tensor) -> Tensor:
    return g.sum("loss", g.add("added", g.linear("fc", x, 3), g.state("held", (8, 3), ("b", "o"), Init("zeros"))))


def kept_whole(g: Graph, x: Tensor) -> Tensor:
    g.state("kept", (8, 4), ("b", "i"), Init("zeros"), find("add")(), x)
    return g.sum("loss", g.linear("fc", x, 3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g, x: g.sum("loss", g.slice("half", g.linear("fc", x, 3), 0, 0, 4)), "half .slice. takes the batch"),
        (seen_whole, "weighed: needs 'all', which all computes over the whole batch, for each microbatch"),
        (begun_whole, "loss .square. needs what is computed over the whole batch to begin its gradients"),
        (held_whole, "added .add. lets samples meet"),
        (kept_whole, "'kept' is renewed from single samples"),
    ],
)
def test_what_needs_the_whole_batch_is_refused_in_words_and_trains_in_one(make, words) -> None:
    g = Graph("small", "float64")
    g.minimise(make(g, g.input("x", (8, 4), "b i")))
    for count in (1, 2):
        plan = msgspec.structs.replace(whole_on(g), microbatches=count)
        with nullcontext() if count == 1 else pytest.raises(ValueError, match=words):
            Lowering(g, machine.local(1), SGD).lower(plan)


@pytest.mark.parametrize("name", [n for n in available() if issubclass(find(n), Unary)])
def test_what_is_told_of_a_loss_and_not_learned_from_hinders_nothing(name: str) -> None:
    """Its gradient would need the loss of the whole batch, and nobody wants it."""
    g = Graph("told", "float64")
    loss = g.mean("loss", g.square("apart", g.linear("fc", g.input("x", (4, 3), "b i"), features=2)))
    g.minimise(loss)
    getattr(g, name)("told", g.add("shifted", loss, g.param("shift", (), (), Init("ones"))))
    g.minimise(g.add("whole", loss, g.tensors["shift"]))
    data = [{"x": np.arange(12.0).reshape(4, 3)}] * 2
    values = {"fc.weight": np.ones((2, 3)), "fc.bias": np.ones(2), "shift": np.ones(())}
    whole, cut = (
        train(g, msgspec.structs.replace(whole_on(g), microbatches=n), machine.local(1), data, values, rate=2**-9)
        for n in (1, 2)
    )
    assert difference(cut.losses, whole.losses) < TOLERANCE
    assert all(difference(cut.carried[region], whole.carried[region]) < TOLERANCE for region in whole.carried)


def test_clipping_is_by_the_norm_of_all_gradients(tell: Callable[[str], None]) -> None:
    """Under any plan the step is the one that gradients scaled to the norm would make."""
    lengths: list[float] = []

    @settings(max_examples=examples(60), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        problem, on = data.draw(problems()), data.draw(machines())
        most = data.draw(st.sampled_from((1e-3, 1.0, 1e6)))
        clipped = Updates(Sgd(), clip=most)
        plan = data.draw(strategies(problem.graph, on.num_procs, clipped))
        steps, values = batches(problem, 1, exact=False), beginnings(problem, exact=False)
        free = train(problem.graph, whole_on(problem.graph), on, steps, values, rate=1.0, updates=Updates(Sgd()))
        held = train(problem.graph, plan, on, steps, values, rate=1.0, updates=clipped)
        gradients = {n: values[n] - free.carried[n] for n in values}
        norm = np.sqrt(sum(float((g * g).sum()) for g in gradients.values()))
        lengths.append(norm / most)
        for name, gradient in gradients.items():
            expected = values[name] - gradient * min(1.0, most / (norm + 1e-6))
            assert difference(held.carried[name], expected, np.abs(values[name]).max()) < TOLERANCE, name

    check()
    assert min(lengths) < 1 < max(lengths)
    tell(f"clipping: {sum(n > 1 for n in lengths)} of {len(lengths)} draws were clipped")


def test_decay_spares_the_parameters_that_are_named() -> None:
    g = Graph("small", "float64")
    x = g.input("x", (2, 3), "b i")
    g.minimise(g.sum("loss", g.linear("fc", x, features=2)))
    updates = Updates(Sgd(decay=0.5), undecayed=("*.bias",))
    data, values = [{"x": np.zeros((2, 3))}], {"fc.weight": np.ones((2, 3)), "fc.bias": np.ones(2)}
    done = train(g, whole_on(g), machine.local(1), data, values, rate=1.0, updates=updates)
    assert (done.carried["fc.weight"] == 0.5).all()
    assert (done.carried["fc.bias"] == values["fc.bias"] - 2).all()


def test_a_state_is_renewed_once_a_step_and_read_as_it_was() -> None:
    g = Graph("counting", "float64")
    x = g.input("x", (4, 3), "b i")
    y = g.linear("fc", x, features=3, bias=False)
    total = g.state("total", (3,), ("i",), Init("zeros"), find("add")(), g.param("step", (3,), ("i",), Init("ones")))
    g.minimise(g.sum("loss", g.add("seen", g.add("moved", y, g.tensors["step"]), total)))
    data = [{"x": np.zeros((4, 3))} for _ in range(3)]
    values = {"fc.weight": np.zeros((3, 3)), "step": np.ones(3), "total": np.zeros(3)}
    done = train(g, whole_on(g), machine.local(1), data, values, rate=0.0)
    assert done.carried["total"].tolist() == [3.0] * 3
    assert done.losses.tolist() == [12.0, 24.0, 36.0]
