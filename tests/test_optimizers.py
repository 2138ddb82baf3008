"""Optimizers take PyTorch's steps, or those of the paper, on one device and under random plans."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch.typed import optimizers
from castile.planner.families.updates import Guarded, Optimizer, Updates
from castile.planner.graph import Graph
from castile.planner.op import Init, Part, Tensor, available, find, op
from castile.planner.strategy import parts
from castile.runtime import machine
from tests.effort import examples, rare
from tests.op_cases import Case, cases_of
from tests.op_laws import cut, node_of, relative, run, splits
from tests.strategies import machines, strategies, whole_on
from tests.training import difference, train

STEPS, RATE = 50, 0.02
TOLERANCE = 1e-10
SHAPES = ((), (1,), (7,), (1, 1), (5, 3), (1, 9), (3, 2, 5), (2, 3, 1, 4))
# our settings; PyTorch's optimizer and its settings
TORCH = (
    ("sgd:momentum=0.9,decay=0.01", "SGD", {"momentum": 0.9, "weight_decay": 0.01}),
    ("adam", "Adam", {}),
    ("adam:beta1=0.7,beta2=0.9,eps=0.001,decay=0.1", "Adam", {"betas": (0.7, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    ("adamw", "AdamW", {}),
    ("adamw:beta1=0.7,beta2=0.9,eps=0.001,decay=0.1", "AdamW", {"betas": (0.7, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    ("adafactor", "Adafactor", {}),
    (
        "adafactor:beta2_decay=-0.5,eps1=0.001,eps2=0.01,clip=1.25,decay=0.1",
        "Adafactor",
        {"beta2_decay": -0.5, "eps": (1e-3, 1e-2), "d": 1.25, "weight_decay": 0.1},
    ),
)
ALL = ("sgd", "adamw:decay=0.1", "adafactor:decay=0.1", *rare("adam", "lion:decay=0.1"))


def slopes() -> Graph:
    """A model whose parameters' gradients are its inputs, summed over two samples."""
    g = Graph("slopes", "float64")
    total = None
    for n, shape in enumerate(SHAPES):
        axes = tuple(f"a{dim}" for dim in range(len(shape)))
        x = g.input(f"x{n}", (2, *shape), " ".join(("b", *axes)))
        moved = g.mul(f"moved{n}", x, g.param(f"w{n}", shape, axes, Init("ones")))
        loss = g.sum(f"loss{n}", moved)
        total = loss if total is None else g.add(f"total{n}", total, loss)
    assert total is not None
    g.minimise(total)
    return g


def inputs(graph: Graph, num: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{name: rng.normal(size=graph.tensors[name].shape) for name in graph.inputs} for _ in range(num)]


def beginnings(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {t.name: rng.normal(size=t.shape) for t in graph.params}


@pytest.mark.parametrize(("text", "theirs", "words"), TORCH)
def test_fifty_steps_are_those_of_torch(text: str, theirs: str, words: dict) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    graph, on = slopes(), machine.local(1)
    data, values = inputs(graph, STEPS), beginnings(graph)
    done = train(graph, whole_on(graph), on, data, values, rate=RATE, updates=Updates(optimizers.parse(text)))
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    optimizer = getattr(torch.optim, theirs)(list(weights.values()), lr=RATE, **words)
    for arrays in data:
        for n, weight in enumerate(weights.values()):
            weight.grad = torch.tensor(arrays[f"x{n}"].sum(axis=0))
        optimizer.step()
    for name, weight in weights.items():
        assert relative(done.carried[name], weight.detach().numpy()) < TOLERANCE, name
        assert relative(done.carried[name], values[name]) > 1e-6, f"{name} did not move"


def test_fifty_steps_of_lion_are_those_of_the_paper() -> None:
    graph, decay = slopes(), 0.3
    data, values = inputs(graph, STEPS), beginnings(graph)
    updates = Updates(optimizers.parse(f"lion:beta1=0.8,beta2=0.95,decay={decay}"))
    done = train(graph, whole_on(graph), machine.local(1), data, values, rate=RATE, updates=updates)
    for n, (name, w) in enumerate(values.items()):
        m = np.zeros_like(w)
        for arrays in data:
            g = arrays[f"x{n}"].sum(axis=0)
            w = w - RATE * (np.sign(0.8 * m + 0.2 * g) + decay * w)
            m = 0.95 * m + 0.05 * g
        assert relative(done.carried[name], w) < TOLERANCE
        assert relative(done.carried[f"{name}/mean"], m) < TOLERANCE


@pytest.mark.parametrize("text", ALL)
def test_steps_are_the_same_under_any_plan(text: str) -> None:
    graph, updates = slopes(), Updates(optimizers.parse(text))
    data, values = inputs(graph, 3), beginnings(graph)
    one = train(graph, whole_on(graph), machine.local(1), data, values, rate=RATE, updates=updates)
    cut = set()

    @settings(max_examples=examples(25), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(draw: st.DataObject) -> None:
        on = draw.draw(machines())
        plan = draw.draw(strategies(graph, on.num_procs, updates))
        size = draw.draw(st.integers(1, on.num_procs))
        many = train(graph, plan, on, data, values, rate=RATE, size=size, updates=updates)
        assert difference(many.losses, one.losses) < TOLERANCE
        for name, expected in one.carried.items():
            moved = np.abs(one.carried[name.rpartition("/")[0] or name]).max()
            assert difference(many.carried[name], expected, moved) < TOLERANCE, name
        cut.update(n for n, c in plan.configs.items() if n.endswith("/update") and c.num_parts > 1)

    check()
    assert cut, "no update was cut"


@op("..., ..., -> ...")
class Undecaying(Optimizer):
    """parameter, gradient [...], rate () -> parameter; it knows no decay."""

    def forward(self, k, w, g, lr):
        return k.pointwise("w, g, r -> w - r * g", w, g, lr)


def test_decay_is_spared_by_any_of_the_patterns_where_there_is_any() -> None:
    patterns = ("*.bias", "norm.*")
    updates = Updates(optimizers.parse("adamw:decay=0.1"), undecayed=patterns)
    names = ("fc.weight", "fc.bias", "norm.scale", "norm.bias")
    assert [dict(updates.of(name).settings)["decay"] for name in names] == [0.1, 0.0, 0.0, 0.0]
    assert Updates(Undecaying(), undecayed=patterns).of("fc.bias") == Undecaying()


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_a_norm_that_leaves_no_gradient_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="should be more than 0"):
        Updates(optimizers.parse("sgd"), clip=clip)


def guarded(case: Case, guard: float) -> Case:
    tensors = (*case.tensors, Tensor("guard", (), case.tensors[0].dtype, ()))
    return Case(Guarded(case.op), tensors, (*case.arrays, np.array(guard)))


def stepped(case: Case, part: Part) -> list[np.ndarray | None]:
    return run(case, "F", part, [cut(array, part.reads(n)) for n, array in enumerate(case.arrays)], None, None)


@pytest.mark.parametrize("name", [n for n in available() if issubclass(find(n), Optimizer)])
def test_what_is_guarded_does_as_its_optimizer_or_leaves_all_as_it_was(name: str) -> None:
    for case in cases_of(name):
        taken, skipped, last = guarded(case, 0.5), guarded(case, 0.0), len(case.tensors)
        operands, carried = range(last), [0, *range(2, last - len(case.op.scalars))]
        assert [taken.op.follows(n) for n in operands] == [case.op.follows(n) for n in operands]
        assert (taken.op.name, taken.op.place_in_literals) == (case.op.name, case.op.place_in_literals)
        for split in splits(node_of(case)):
            for mine, theirs in zip(*(parts(node_of(one), split) for one in (taken, case)), strict=True):
                assert [mine.reads(n) for n in operands] == [theirs.reads(n) for n in operands]
                assert mine.reads(last).shape == () and mine.op.flops("F", mine) == theirs.op.flops("F", theirs)
                for j, (made, expected) in enumerate(zip(stepped(taken, mine), stepped(case, theirs), strict=True)):
                    assert np.array_equal(made, expected), f"{case} {split}: {j}"
                for j, (made, n) in enumerate(zip(stepped(skipped, mine), carried, strict=True)):
                    assert np.array_equal(made, cut(case.arrays[n], mine.writes(j))), f"{case} {split}: {j}"


def test_optimizers_of_other_settings_are_told_apart_guarded_or_not() -> None:
    every = {case.op for name in available() if issubclass(find(name), Optimizer) for case in cases_of(name)}
    told = [(op.name, settings) for op in (*every, *map(Guarded, every)) for settings in (op.cost_settings,)]
    assert len({*told}) == len(told) == 2 * len(every)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adam:beta1=1.0", "adam: beta1 should be at least 0 and below 1, got 1.0"),
        ("adamw:beta2=-0.1", "adamw: beta2 should be at least 0 and below 1"),
        ("adam:decay=-1", "adam: eps and decay should be at least 0"),
        ("adamw:eps=0", "adamw: eps should be more than 0"),
        ("lion:beta2=1", "lion: beta2 should be"),
        ("lion:decay=-1", "lion: weight decay should be at least 0"),
        ("adafactor:beta2_decay=0.8", "adafactor: beta2_decay should be at most 0"),
        ("adafactor:clip=0", "adafactor: clip should be more than 0"),
        ("adafactor:eps2=-1", "adafactor: eps1, eps2 and decay"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        optimizers.parse(text)


@pytest.mark.parametrize("name", optimizers.available())
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_settings_are_finite_numbers(name: str, value: str) -> None:
    for field in fields(find(name)):
        if isinstance(field.default, float):
            told = f"optimizer {name}: setting '{field.name}' should be a finite number, got '{value}'"
            with pytest.raises(ValueError, match=told):
                optimizers.parse(f"{name}:{field.name}={value}")
