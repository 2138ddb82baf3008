"""Gradients that are handed on: what is said of an operator holds of each of its parts, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from castile.planner import passes
from castile.planner.graph import Graph
from castile.planner.handed import handed_on
from castile.planner.lower import Lowering
from castile.planner.op import Tensor, available
from castile.planner.strategy import Config, Strategy, parts
from castile.runtime import machine
from tests.op_cases import cases_of
from tests.op_laws import Whole, recorded, splits, targets
from tests.strategies import Problem, batches, beginnings, problems, whole_on
from tests.test_any_strategy import TOLERANCE, drawn
from tests.training import SGD, difference, train

# Of which operators some case hands on the gradient of which operands.
HANDS_ON = {"add": {0, 1}, "sub": {0}, "channel_bias": {0}}


@pytest.mark.parametrize("name", [n for n in available() if hasattr(cases_of(n)[0].op, "grad_inputs")])
def test_what_is_handed_on_is_the_gradient_of_every_part(name: str) -> None:
    seen: set[int] = set()
    for case in cases_of(name):
        whole = Whole(case)
        arrays = dict(zip((*whole.node.inputs, *whole.node.outputs), (*case.arrays, *whole.y), strict=True))
        tensors = {t: Tensor(t, a.shape, a.dtype.name, tuple(map(str, range(a.ndim)))) for t, a in arrays.items()}
        found = handed_on(whole.node, tensors)
        seen |= {*found}
        numbers = targets(case, "B")
        for i, j in found.items():
            assert np.array_equal(whole.results["B"][numbers.index(i)], whole.pulls[j]), f"{case}: {i}"
            for split in splits(whole.node):
                for part in parts(whole.node, split):
                    recording, _ = recorded(case, "B", part, *whole.local(part))
                    assert recording.outputs[numbers.index(i)] is recording.inputs[j], f"{case} {split}: {i}"
                    assert part.reads(i) == part.writes(j), f"{case} {split}: {i}"
    assert seen == HANDS_ON.get(name, seen if name == "fused" else set())


def residual() -> Graph:
    """x goes round a layer, and what comes of both is added twice."""
    g = Graph("residual", "float64")
    x = g.linear("first", g.input("x", (8, 6), "b i"), features=6)
    y = g.add("sum", x, g.linear("round", g.relu("act", x), features=6))
    z = g.add("more", g.linear("left", y, features=3), g.linear("right", y, features=3))
    g.minimise(g.cross_entropy("loss", z, g.input("label", (8,), "b", "int64")))
    return g


def test_only_a_gradient_to_which_nobody_adds_is_handed_on() -> None:
    graph = residual()
    program = Lowering(graph, machine.local(1), SGD).program(whole_on(graph))
    made = {s.node.name: [p.region for p in s.outputs] for s in program.steps if s.which == "B"}
    read = {s.name: s.inputs[0].region for s in program.steps if s.which != "F"}
    # that of `first` is a sum of what comes round and what does not: it has a place of its own
    assert made["sum"] == ["first/grad"] and "more" not in made
    assert {read[n] for n in ("left.B", "left.W", "right.B", "right.W")} == {"more/grad"}
    assert {read[n] for n in ("round.B", "round.W")} == {"sum/grad"} and read["first.W"] == "first/grad"
    assert not {"round/grad", "left/grad", "right/grad"} & {f.region for f in program.flows}


def test_a_graph_learns_the_same_bits_as_where_nothing_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = []

    @drawn(30)
    @given(problems(featured="add"))
    def check(problem: Problem) -> None:
        given = (problem.graph, whole_on(problem.graph), machine.local(1), batches(problem, 1, False))
        one = train(*given, beginnings(problem, False))
        with monkeypatch.context() as patched:
            patched.setattr(passes, "handed_on", lambda node, tensors: {})
            copied = train(*given, beginnings(problem, False))
        assert np.array_equal(one.losses, copied.losses)
        for name, expected in copied.carried.items():
            assert np.array_equal(one.carried[name], expected), name
        fewer.append(one.prepared.tasks.num_tasks < copied.prepared.tasks.num_tasks)

    check()
    assert sum(fewer) >= 5, f"of {len(fewer)} graphs {sum(fewer)} hand a gradient on"


@pytest.mark.parametrize("count", [2, 4])
def test_each_microbatch_hands_on_its_own(count: int) -> None:
    graph = residual()
    rng = np.random.default_rng(count)
    data = [{"x": rng.normal(size=(8, 6)), "label": rng.integers(0, 3, 8)} for _ in range(2)]
    values = {p.name: rng.normal(size=p.shape) for p in graph.params}
    on = machine.local(2)
    cut = {name: Config({"b": 2}, 1, (0, 1)) for name in graph.nodes}
    one = train(graph, whole_on(graph), on, data, values)
    many = train(graph, Strategy(cut, microbatches=count), on, data, values, size=2)
    for name, expected in one.carried.items():
        assert difference(many.carried[name], expected) < TOLERANCE, name
