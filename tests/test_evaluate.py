"""Evaluation: another graph over the parameters of training, under any plan, with running statistics and no dropout."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.arrays import defined
from castile.launch.jobs.execution import Execution, feed_from, prepare
from castile.launch.training import evaluate, run_report
from castile.launch.training.evaluate import adapted
from castile.launch.training.scoring import HeldOut, Scorer, auc, labels_of, losses_of, truths
from castile.planner.cost import CostModel
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.op import Tensor
from castile.planner.strategy import Strategy
from castile.runtime import machine
from castile.runtime.comm.local import LocalWorld
from tests.effort import examples
from tests.judged import judge
from tests.strategies import strategies, whole_on
from tests.training import SGD, difference

NUM_PROCS = 3


def build(training: bool) -> Graph:
    """Every kind of difference between training and evaluation."""
    g = Graph("both", "float64")
    x = g.input("x", (4, 3, 4, 4), "b c h w")
    label = g.input("label", (4,), "b", "int64")
    x = g.relu("relu", g.batch_norm("bn", g.conv2d("conv", x, 6, 3, padding=1), training=training))
    x = g.global_pool("pool", x)
    x = g.dropout("drop", x, rate=0.5) if training else x
    logits = g.linear("fc", x, features=5)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g


def evaluated(plan: Strategy, other: Strategy | None) -> np.ndarray:
    """What is said of samples after two steps under a plan, evaluated under it or under the Configs of another."""
    on, comm, rng = machine.local(NUM_PROCS), LocalWorld(1).communicators[0], np.random.default_rng(0)
    training, evaluation = build(True), build(False)
    lowering = Lowering(training, on, SGD)
    trained = prepare(lowering, plan, CostModel(on))
    execution = Execution(training, trained, comm, range(NUM_PROCS), seed=5, poison=True)
    execution.initialise(3)
    for step in range(2):
        execution.feed(feed_from(batch(rng)), 0.1, step)
        execution.runner.run()
    homes = adapted(plan, lowering, evaluation)
    configs = {**homes.configs, **({n: other.configs[n] for n in evaluation.nodes} if other else {})}
    forward = Lowering(evaluation, on, SGD, mode="forward")
    prepared = prepare(forward, Strategy(configs, num_procs=NUM_PROCS), CostModel(on))
    state, lent = {**execution.state}, execution.runner.arenas
    judged = Execution(evaluation, prepared, comm, range(NUM_PROCS), state, poison=True, lent=lent)
    assert judged.runner.nbytes <= evaluate.extra_bytes(trained, prepared).sum(), "it takes what it is said to, or less"
    judged.feed(feed_from(batch(rng)))
    judged.runner.run()
    scores = judged.output(evaluation.outputs[0])
    assert scores is not None
    return scores.copy()


def batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"x": rng.normal(size=(4, 3, 4, 4)), "label": rng.integers(0, 5, 4)}


@cache
def on_one_processor() -> np.ndarray:
    return evaluated(whole_on(build(True)), None)


@settings(max_examples=examples(60, 1 / 6), deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies(build(True), NUM_PROCS), st.one_of(st.none(), strategies(build(False), NUM_PROCS)))
def test_a_model_says_the_same_whatever_plan_trained_andjudged_it(plan: Strategy, other: Strategy | None) -> None:
    assert difference(evaluated(plan, other), on_one_processor()) < 1e-10


def test_the_graph_for_evaluation_has_running_statistics_and_no_dropout() -> None:
    names = {mode: [n.op.name for n in build(mode).nodes.values()] for mode in (True, False)}
    assert "dropout" in names[True] and "dropout" not in names[False]
    assert "batch_moments" in names[True] and "batch_moments" not in names[False]
    assert build(True).states == build(False).states and not build(False).updates


@pytest.mark.parametrize("name", models.available())
def test_every_model_evaluates_over_the_parameters_that_it_trains(name: str) -> None:
    model = models.parse(name)
    training, evaluation = model.graph(2), model.graph(2, training=False)
    assert {t.name: t.shape for t in training.params} == {t.name: t.shape for t in evaluation.params}
    assert training.states == evaluation.states and training.outputs == evaluation.outputs
    assert labels_of(evaluation) in evaluation.inputs


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("compared", ["label", "image", "nothing"])
def test_an_output_is_compared_with_what_stands_beside_it(compared: str, weighted: bool) -> None:
    """Not with weights of samples that come first, nor with none where an image is what should come out."""
    g = Graph("judged", "float64")
    weight = g.input("weight", (4, 3), "b i") if weighted else None
    image = g.input("image", (4, 3), "b i")
    truth = {"label": lambda: g.input("label", (4, 3), "b i"), "image": lambda: image}.get(compared)
    made = g.linear("fc", image, features=3)
    error = g.square("error", g.sub("gap", made, truth()) if truth else made)
    g.minimise(g.mean("loss", error if weight is None else g.mul("weighted", error, weight)))
    g.outputs = [made.name]
    assert labels_of(g) == (compared if truth else "weight" if weighted else None)


@pytest.mark.parametrize(
    ("shape", "dtype", "compared"),
    [
        ((4,), "int32", True),
        ((2,), "int32", False),
        ((4, 3), "float64", True),
        ((4, 2), "float64", False),
        ((4, 2), "int32", False),
    ],
)
def test_an_output_is_not_compared_with_what_another_is_taught(shape: tuple[int, ...], dtype: str, compared: bool):
    g = Graph("two", "float64")
    image, other = g.input("image", (4, 5), "b i"), g.input("other", shape, "b o" if len(shape) > 1 else "b", dtype)
    made = g.linear("fc", image, features=3)
    g.minimise(g.mean("loss", g.square("error", made)))
    g.outputs = [made.name]
    assert labels_of(g) is None
    g.reshape("read", other, "b -> (b)" if len(shape) == 1 else "b o -> (b o)")
    assert labels_of(g) == (other.name if compared else None)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_told(label: int) -> None:
    g = build(False)
    with pytest.raises(ValueError, match=rf"label {label} is none of the 3 classes that the output '{g.outputs[0]}'"):
        judge(g, [(np.zeros((2, 3)), np.array([0, label]))], 2)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_the_area_is_how_often_a_positive_scores_above_a_negative(drawn: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([s for s, _ in drawn], float), np.array([p for _, p in drawn])
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    assert auc(scores, positive) == (pytest.approx(np.mean(pairs)) if pairs else None)


def test_what_is_told_follows_from_what_the_model_says() -> None:
    classes, g = build(False), Graph("two", "float64")
    scores, truth = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), np.array([0, 1, 1])
    judged = judge(classes, [(scores, truth)], 3)
    assert judged.accuracy == pytest.approx(2 / 3) and judged.auc is None
    assert run_report.judged(run_report.quality(judged) | {"num_samples": 3}).startswith("66.67 % of 3 samples right")
    tokens = judge(classes, [(np.stack([scores, scores]), np.stack([truth, truth]))], 2)
    told = run_report.judged(run_report.quality(tokens) | {"num_samples": 2})
    assert told.startswith("66.67 % of 6 predictions in 2 samples right")
    x, y = g.input("x", (3, 1), "b i"), g.input("y", (3, 1), "b i")
    g.minimise(g.mse("loss", g.linear("fc", x, features=1), y))
    assert judge(g, [(np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [5.0]]))], 3) == HeldOut(4 / 3, 3)


@given(st.integers(1, 30), st.integers(2, 25), st.integers(0, 99))
def test_each_class_is_counted_by_itself(samples: int, num_classes: int, seed: int) -> None:
    rng, g = np.random.default_rng(seed), Graph("said", "float64")
    said = g.linear("fc", g.input("x", (samples, 3), "b i"), features=num_classes)
    g.minimise(g.cross_entropy("loss", said, g.input("y", (samples,), "b", "int32")))
    g.outputs = [said.name]
    scores, truth = rng.normal(size=(samples, num_classes)), rng.integers(0, num_classes, samples)
    pieces = [(scores[n : n + 7], truth[n : n + 7]) for n in range(0, samples, 7)]
    judged = judge(g, pieces, samples)
    found = run_report.classes(judged)
    for c, told in enumerate(found):
        of_class, said_so = truth == c, scores.argmax(-1) == c
        assert (told["class"], told["num_labels"], told["num_said"]) == (c, of_class.sum(), said_so.sum())
        hits = (of_class & said_so).sum()
        assert told["recall"] == (pytest.approx(hits / of_class.sum()) if of_class.any() else None)
        assert told["precision"] == (pytest.approx(hits / said_so.sum()) if said_so.any() else None)
    lines = run_report.class_lines(found)
    assert len(lines) == 1 + min(num_classes, run_report.MOST_LINES) + (num_classes > run_report.MOST_LINES)
    assert len({len(line) for line in lines[: 1 + min(num_classes, run_report.MOST_LINES)]}) == 1


def test_two_classes_of_one_number_are_counted_and_many_are_not() -> None:
    g = Graph("clicked", "float64")
    said = g.linear("fc", g.input("x", (4, 3), "b i"), features=1)
    g.minimise(g.bce("loss", said, g.input("y", (4, 1), "b o")))
    g.outputs = [said.name]
    judged = judge(g, [(np.array([[1.0], [-1.0], [2.0], [np.nan]]), np.array([[1.0], [1.0], [0.0], [0.0]]))], 4)
    assert judged.confusion == ((0, 1), (1, 1))
    many = judge(build(False), [(np.zeros((2, 101)), np.array([0, 100]))], 2)
    assert many.confusion is None and run_report.class_lines(run_report.classes(many)) == []


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 9))
def test_the_loss_of_each_prediction_is_told(samples: int, seq: int, classes: int, seed: int) -> None:
    """By definition, in the shape of labels of classes or else of outputs; of sequences e to their mean is told."""
    rng, g = np.random.default_rng(seed), Graph("said", "float64")
    said = g.linear("fc", g.input("x", (samples, seq, 3), "b s i"), features=classes)
    g.minimise(g.cross_entropy("loss", said, g.input("y", (samples, seq), "b s", "int32")))
    g.outputs = [said.name]
    scores, truth = rng.normal(size=(samples, seq, classes)), rng.integers(0, classes, (samples, seq))
    judging, pieces = Scorer(g, "fc", "y"), [(scores[:1], truth[:1]), (scores[1:], truth[1:])][: 1 + (samples > 1)]
    told = [judging.add(*piece) for piece in pieces]
    judged = judging.figures(samples)
    wanted = np.log(np.exp(scores).sum(-1)) - np.take_along_axis(scores, truth[..., None], -1)[..., 0]
    np.testing.assert_allclose(np.concatenate(told), wanted, rtol=1e-12, atol=1e-14)
    in_a_row = Scorer(g, "fc", "y").add(scores, truth.ravel())
    np.testing.assert_allclose(in_a_row, wanted.ravel(), rtol=1e-12, atol=1e-14)
    assert losses_of(g, "y") == (seq,) and judged is not None
    assert judged.perplexity == pytest.approx(np.exp(wanted.mean()))
    words = run_report.judged(run_report.quality(judged) | {"num_samples": samples})
    assert words.endswith(f"loss {judged.loss:.4f}, perplexity {judged.perplexity:.2f}")
    two, wide = Graph("numbers", "float64"), rng.normal(size=(2, samples, seq))
    made = two.linear("fc", two.input("x", (samples, 3), "b i"), features=seq)
    two.minimise(two.mse("loss", made, two.input("y", (samples, seq), "b i")))
    two.outputs = [made.name]
    judging = Scorer(two, "fc", "y")
    np.testing.assert_allclose(judging.add(*wide), np.square(wide[0] - wide[1]))
    np.testing.assert_allclose(Scorer(two, "fc", "y").add(wide[0], truth), np.square(wide[0] - truth))
    judged = judging.figures(samples)
    assert losses_of(two, "y") == (seq,) and judged is not None and judged.perplexity is None


def test_each_output_is_judged_by_labels_of_its_own() -> None:
    """Where a loss compares them; what no loss reads beside labels is not, and a loss of one says nothing of others."""
    g = Graph("three", "float64")
    x = g.input("x", (4, 3), "b i")
    years, kinds, dead, said = (g.linear(n, x, features=f) for n, f in (("a", 1), ("k", 5), ("d", 1), ("s", 5)))
    age, kind, died = g.input("age", (4, 1), "b o"), g.input("kind", (4,), "b", "int32"), g.input("died", (4, 1), "b o")
    losses = [g.mse("mse", years, age), g.cross_entropy("ce", kinds, kind), g.bce("bce", dead, died)]
    g.minimise(g.add("loss", losses[0], g.add("both", losses[1], g.scale("half", losses[2], 0.5))))
    g.outputs = [one.name for one in (years, kinds, said, dead)]
    labels = truths(g, ["x", "age", "kind", "died"])
    assert labels == {"a": "age", "k": "kind", "d": "died"} and truths(g, ["age", "died"]) == {"a": "age", "d": "died"}
    assert truths(g, ["kind", "died"]) == {}
    rng = np.random.default_rng(0)
    outputs = {name: rng.normal(size=g.tensors[name].shape) for name in g.outputs}
    given = {"age": rng.normal(size=(4, 1)), "kind": rng.integers(0, 5, 4), "died": rng.integers(0, 2, (4, 1)) * 1.0}
    judged, told = evaluate.judge(g, labels, [(outputs, given)], 4, lambda losses: None), outputs
    assert judged is not None and judged.loss == pytest.approx(np.square(told["a"] - given["age"]).mean())
    assert judged.accuracy is None and judged.auc is None and list(judged.others) == ["k", "d"]
    right = (told["k"].argmax(1) == given["kind"]).mean()
    assert judged.others["k"].accuracy == pytest.approx(right) and judged.others["k"].auc is None
    assert judged.others["d"].auc is not None and judged.others["d"].accuracy is not None
    facts = run_report.quality(judged)
    words = run_report.judged(facts | {"num_samples": 4})
    assert words.startswith(f"loss {judged.loss:.4f}; k: {100 * right:.2f} % of 4 samples right, loss ")
    assert "; d: " in words and json.loads(json.dumps(facts)) == facts


@pytest.mark.parametrize("orders", list(itertools.permutations(range(3)))[1:])
def test_labels_are_found_through_what_a_loss_makes_of_them(orders: tuple[int, ...]) -> None:
    """Of labels that fit alike each output has that of its own loss, in whatever order inputs stand: classes that are
    weighed, labels in a row, differences that are written out. What mixes two outputs, or has parameters of its own,
    says nothing of either."""
    g = Graph("weighed", "float64")
    x, labels = g.input("x", (4, 2, 3), "b s i"), dict[int, Tensor]()
    for n in orders:
        labels[n] = g.input(f"y{n}", (4, 2), "b s", "int32")
    numbers, other = g.input("n", (4, 2), "b s"), g.input("o", (4, 2), "b s", "int32")
    said = [g.linear(f"s{n}", x, features=5) for n in range(5)]
    made = [g.weighted_cross_entropy("l0", said[0], labels[0], (1.0, 2.0, 1.0, 3.0, 0.5))]
    rows = g.reshape("rows", said[1], "b s f -> (b s) f")
    made.append(g.cross_entropy("l1", rows, g.reshape("row", labels[1], "b s -> (b s)")))
    made.append(g.weighted_cross_entropy("l2", g.scale("cooler", said[2], 0.5), labels[2], (1.0,) * 5))
    one = g.reshape("one", g.linear("head", x, features=1), "b s (f k) -> b s (f k)", f=1, k=1)
    flat = g.reshape("flat", one, "b s k -> b (s k)")
    off = g.add("off", flat, g.neg("minus", numbers))
    made.append(g.mean("squares", g.mul("square", off, off)))
    made.append(g.cross_entropy("mixed", g.add("sum", said[3], said[4]), other))
    made.append(g.cross_entropy("l5", g.linear("probe", said[3], features=7), other))
    square = g.linear("square_one", x, features=2)
    turned = g.scale("turned", g.transpose("across", square, "b s f -> b f s"), 0.5)
    made.append(g.cross_entropy("l6", turned, g.input("p", (4, 2), "b s", "int32")))
    total = made[0]
    for n, loss in enumerate(made[1:]):
        total = g.add(f"t{n}", total, loss)
    g.minimise(total)
    g.outputs = [said[0].name, said[1].name, one.name, said[2].name, said[3].name, square.name]
    assert truths(g, g.inputs) == {"s0": "y0", "s1": "y1", "one": "n", "s2": "y2"}


@pytest.mark.parametrize("orders", list(itertools.permutations(range(3))))
def test_shares_have_the_labels_of_the_scores_that_they_are_made_of(orders: tuple[int, ...]) -> None:
    """A loss takes these, and of inputs that fit alike only one is compared with them, in whatever order they stand."""
    g = Graph("shares", "float64")
    x = g.input("x", (4, 3), "b i")
    labels = {n: g.input(f"y{n}", (4,), "b", "int32") for n in orders}
    scores = {n: g.linear(f"s{n}", x, features=2 + n) for n in range(3)}
    losses = [g.cross_entropy(f"l{n}", scores[n], labels[n]) for n in range(3)]
    g.minimise(g.add("loss", losses[0], g.add("rest", losses[1], losses[2])))
    ends = [g.softmax("p0", scores[0]), g.reshape("p1", g.softmax("q1", scores[1]), "b c -> b (c k)", k=1), scores[2]]
    g.outputs = [end.name for end in ends]
    assert truths(g, g.inputs) == {"p0": "y0", "p1": "y1", "s2": "y2"}


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("form", ["slice", "pad", "mean"])
def test_what_is_compared_elsewhere_is_no_label(form: str, is_own: bool) -> None:
    """As where a sequence is its own label, a place further on: at its own place it is what was seen. No other is."""
    g = Graph("moved", "float64")
    x, z, y = (g.input(n, (4, 6), "b s", "int32") for n in ("x", "z", "y"))
    said, other = (g.linear(n, g.embedding(f"e{n}", x, rows=3, features=3), features=3) for n in ("said", "other"))
    label = x if is_own else z
    real = g.real("real", label)
    if form == "slice":
        loss = g.cross_entropy("loss", g.slice("behind", said, 1, 0, 5), g.slice("ahead", label, 1, 1, 6))
    elif form == "pad":
        loss = g.mse("loss", g.pad("early", g.sum("sums", said, dims=(2,)), 1, 3, 0), g.pad("late", real, 1, 0, 3))
    else:
        loss = g.mse("loss", g.mean("of_said", said, dims=(1, 2)), g.mean("of_label", real, dims=(1,)))
    g.minimise(g.add("total", loss, g.cross_entropy("beside", other, y)))
    g.outputs = ["other", "said"]
    assert truths(g, g.inputs) == {"other": "y"}
    g.outputs = ["said"]
    assert truths(g, g.inputs) == {}


MADE = {
    "x": lambda g, name, x: x,
    "log(x)": lambda g, name, x: g.log(name, x),
    "exp(x)": lambda g, name, x: g.exp(name, x),
    "(x - 3) / 4": lambda g, name, x: g.scale(name, g.shift(f"{name}.off", x, -3.0), 0.25),
    "1 / (1 + exp(-x))": lambda g, name, x: g.sigmoid(name, x),
}


@pytest.mark.parametrize("compare", ["mse", "sub", "add"])
@pytest.mark.parametrize("of_truth", MADE)
@pytest.mark.parametrize("of_said", MADE)
def test_numbers_are_judged_as_the_loss_compares_them(of_said: str, of_truth: str, compare: str) -> None:
    """Whatever it makes of each of them first: what is told is the mean of the squares that training makes small."""
    g = Graph("made", "float64")
    x, y = g.input("x", (6, 2), "b o"), g.input("y", (6, 2), "b o")
    said = g.shift("said", x, 0.0)
    ours = MADE[of_said](g, "ours", g.reshape("flat", said, "b o -> (b o)"))
    theirs = MADE[of_truth](g, "theirs", g.reshape("truth", y, "b o -> (b o)"))
    if compare == "mse":
        g.minimise(g.mse("loss", ours, theirs))
    else:
        off = g.sub("off", theirs, ours) if compare == "sub" else g.add("off", g.neg("minus", theirs), ours)
        g.minimise(g.mean("loss", g.square("squares", off)))
    g.outputs = ["said"]
    assert truths(g, g.inputs) == {"said": "y"}
    arrays = {name: np.random.default_rng(n).uniform(0.5, 2, (6, 2)) for n, name in enumerate("xy")}
    judged = evaluate.judge(g, {"said": "y"}, [({"said": arrays["x"]}, arrays)], 6)
    is_same = of_said == of_truth
    wanted = np.square(arrays["x"] - arrays["y"]).mean() if is_same else defined.made(g, arrays)[g.loss]
    assert judged is not None and judged.loss == pytest.approx(float(wanted))


def test_what_is_not_done_number_by_number_is_not_judged() -> None:
    """As where labels lose the mean of their batch first; but for labels of classes, which have a loss of their own."""
    for has_classes in (False, True):
        g = Graph("less", "float64")
        x, y = g.input("x", (6, 3), "b o"), g.input("y", (6, 3), "b o")
        said = g.linear("said", x, features=3)
        loss = g.mse("loss", said, g.sub("less_mean", y, g.mean("of_batch", y, dims=(0,))))
        if has_classes:
            loss = g.add("both", loss, g.cross_entropy("ce", said, g.input("kind", (6,), "b", "int32")))
        g.minimise(loss)
        g.outputs = ["said"]
        assert truths(g, g.inputs) == ({"said": "kind"} if has_classes else {})


@pytest.mark.parametrize("output", ["scores", "logarithms", "shares"])
def test_scores_are_not_held_against_shares(output: str) -> None:
    """Where a loss weighs the logarithms of shares by labels, these are shares: so may be what the network says."""
    g = Graph("soft", "float64")
    x, y = g.input("x", (6, 3), "b o"), g.input("y", (6, 3), "b o")
    scores = g.linear("scores", x, features=3)
    logarithms = g.log_softmax("logarithms", g.scale("cooler", scores, 0.5))
    g.softmax("shares", scores)
    g.minimise(g.neg("loss", g.mean("mean", g.mul("each", y, logarithms))))
    g.outputs = [output]
    assert truths(g, g.inputs) == ({"shares": "y"} if output == "shares" else {})


@pytest.mark.parametrize("shares", ["sigmoid", "softmax"])
def test_shares_that_are_compared_as_numbers_are_judged_as_such(shares: str) -> None:
    g = Graph("shares", "float64")
    x, y = g.input("x", (6, 3), "b o"), g.input("y", (6, 3), "b o")
    said = getattr(g, shares)("said", x)
    g.minimise(g.mse("loss", said, y))
    g.outputs = ["said"]
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(6, 3)), "y": rng.random((6, 3))}
    found = defined.made(g, arrays)
    judged = evaluate.judge(g, truths(g, g.inputs), [({"said": found["said"]}, arrays)], 6)
    assert judged is not None and judged.loss == pytest.approx(float(found[g.loss])) and judged.accuracy is None


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("form", ["mul", "masked", "told apart", "weighed", "twice"])
def test_a_mask_is_no_label(form: str, is_first: bool) -> None:
    """Of inputs of one shape the label is what an output is compared with, not what both are masked or weighed by."""
    g = Graph("masked", "float64")
    x, mask, more, y = (g.input(n, (4, 3), "b o") for n in ("x", "mask", "more", "y"))
    said, other = g.linear("said", x, features=3), g.linear("other", x, features=3)
    if form == "told apart":
        off = g.mul("masked_off", g.mul("off", g.add("apart", said, g.neg("minus", y)), mask), more)
        loss = g.mean("loss", g.mul("square", off, off))
    elif form == "weighed":
        loss = g.neg("loss", g.mean("mean", g.mul("terms", g.mul("weights", mask, more), g.mul("each", said, y))))
    else:
        masks = (mask, more) if form == "twice" else (mask,)
        ours, theirs = said, y
        for one in masks:
            layer = g.masked if form == "masked" else g.mul
            ours, theirs = layer(f"ours_{one.name}", ours, one), layer(f"theirs_{one.name}", theirs, one)
        loss = g.mse("loss", ours, theirs)
    beside = g.mse("beside", other, g.input("z", (4, 3), "b o"))
    g.minimise(g.add("total", loss, beside))
    g.outputs = ["said", "other"] if is_first else ["other", "said"]
    assert truths(g, g.inputs) == {"said": "y", "other": "z"}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 9))
def test_batches_are_judged_as_all_of_their_samples_together(sizes: list[int], seed: int) -> None:
    rng, two, ends = np.random.default_rng(seed), Graph("two", "float64"), np.cumsum(sizes)
    x, y = two.input("x", (3, 1), "b i"), two.input("y", (3, 1), "b i")
    two.minimise(two.bce("loss", two.linear("fc", x, features=1), y))
    many = rng.normal(size=(ends[-1], 5)), rng.integers(0, 5, ends[-1])
    one = rng.normal(size=(ends[-1], 1)), rng.integers(0, 2, (ends[-1], 1))
    for graph, (scores, truth) in ((build(False), many), (two, one)):
        pieces = zip(np.split(scores, ends[:-1]), np.split(truth, ends[:-1]), strict=True)
        found, whole = judge(graph, pieces, ends[-1]), judge(graph, [(scores, truth)], ends[-1])
        assert found is not None and whole is not None
        assert found.loss == pytest.approx(whole.loss, rel=1e-12) and (found.accuracy, found.auc) == (
            whole.accuracy,
            whole.auc,
        )


@given(st.lists(st.sampled_from([1.0, -1.0, np.nan, np.inf]), min_size=1, max_size=9), st.integers(0, 4), st.booleans())
def test_what_is_no_number_is_never_right(drawn: list[float], label: int, is_masked: bool) -> None:
    """A class that is masked by an infinitely low score is."""
    two, unreal = Graph("two", "float64"), sum(not np.isfinite(score) for score in drawn)
    x, y = two.input("x", (1, 1), "b i"), two.input("y", (1, 1), "b i")
    two.minimise(two.bce("loss", two.linear("fc", x, features=1), y))
    classes = np.zeros((len(drawn), 5))
    classes[:, label], classes[:, label - 1] = np.abs(drawn), -np.inf if is_masked else -1
    binary = np.array(drawn)[:, None], np.isnan(drawn)[:, None] | (np.array(drawn) > 0)[:, None]
    for graph, scores, truth in (
        (build(False), classes, np.full(len(drawn), label)),
        (two, binary[0], binary[1].astype(float)),
    ):
        judged = judge(graph, [(scores, truth)], len(drawn))
        assert judged is not None and judged.num_not_finite == unreal
        assert judged.accuracy == pytest.approx(1 - unreal / len(drawn))
        facts = run_report.quality(judged)
        json.dumps(facts, allow_nan=False)
        assert ("without a finite loss" in run_report.judged(facts | {"num_samples": len(drawn)})) == bool(unreal)


def test_a_probability_that_came_out_as_one_has_a_loss() -> None:
    g = Graph("ends in a sigmoid", "float64")
    x, y = g.input("x", (2, 1), "b i"), g.input("y", (2, 1), "b i")
    made = g.sigmoid("p", g.linear("fc", x, features=1))
    g.minimise(g.mse("loss", made, y))
    g.outputs = [made.name]
    judged = judge(g, [(np.array([[1.0], [0.0]]), np.array([[1.0], [0.0]]))], 2)
    assert judged is not None and judged.num_not_finite == 0 and np.isfinite(judged.loss)


def test_scores_of_one_batch_at_a_time_are_held() -> None:
    """Of a language model those of all samples are more than a memory holds."""
    batch = np.zeros((64, 1000)), np.zeros(64, np.int32)
    tracemalloc.start()
    judge(build(False), ((scores.copy(), truth) for scores, truth in [batch] * 50), 3200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * batch[0].nbytes


def test_scores_of_a_vocabulary_are_judged_in_blocks() -> None:
    """All at once they would take several times the memory of a step that fills a processor's."""
    rng = np.random.default_rng(0)
    scores, truth = rng.normal(size=(3, 7, 50_000)).astype(np.float32), rng.integers(0, 50_000, (3, 7))
    tracemalloc.start()
    judged = judge(build(False), [(scores, truth)], 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    wide = scores.astype(np.float64)
    losses = np.log(np.exp(wide).sum(axis=-1)) - np.take_along_axis(wide, truth[..., None], axis=-1)[..., 0]
    assert judged is not None and peak < 4 * scores.nbytes
    assert (judged.loss, judged.num_predictions) == (pytest.approx(losses.mean(), rel=1e-12), 21)
