"""Gradients that are handed on: what is said of an operator holds of each of its parts, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given

from castile.launch import models
from castile.planner import rewrite
from castile.planner.graph import Graph, Node
from castile.planner.lower import Lowering
from castile.planner.lowering.template import Templates
from castile.planner.op import Init, Op, Tensor, available, op
from castile.planner.step import handed
from castile.planner.step.dropped import Reads
from castile.planner.step.handed import HandedOn, handed_on
from castile.planner.step.passes import training
from castile.planner.step.program import GRADIENT
from castile.planner.strategy import Config, Strategy, parts
from castile.runtime import machine
from castile.runtime.region import contains, moved, slices
from castile.runtime.region import whole as whole_box
from tests.effort import examples
from tests.op_cases import cases_of
from tests.op_laws import Whole, cut, node_of, run, splits, targets
from tests.strategies import Problem, batches, beginnings, problems, strategies, whole_on
from tests.test_any_strategy import TOLERANCE, drawn
from tests.training import SGD, apart, difference, train

# Of which operators some case hands on the gradient of which operands, or a piece of it.
HANDS_ON = {"add": {0, 1}, "sub": {0}, "channel_bias": {0}, "concat": {0, 1, 2}, "pad": {0}, "expand": {0}}


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
        for i, (j, begin) in found.items():
            within = moved(whole_box(case.arrays[i].shape), begin)
            assert np.array_equal(whole.results["B"][numbers.index(i)], cut(whole.pulls[j], within)), f"{case}: {i}"
            for split in splits(whole.node):
                for part in parts(whole.node, split):
                    made = run(case, "B", part, *whole.local(part))[numbers.index(i)]
                    piece = moved(part.reads(i), begin)
                    if made is None:
                        assert not piece.volume, f"{case} {split}: {i}"
                    else:
                        assert contains(part.writes(j), piece), f"{case} {split}: {i}"
                        assert np.array_equal(made, cut(whole.pulls[j], piece)), f"{case} {split}: {i}"
    assert seen == HANDS_ON.get(name, seen if name == "fused" else set())


@pytest.mark.parametrize("name", available())
def test_first_parts_read_each_element_once(name: str) -> None:
    for case in cases_of(name):
        node = node_of(case)
        for i, array in enumerate(case.arrays):
            apart = node.op.apart(i, node.alignment)
            others = [axis for axis in node.alignment.axes if axis not in (*(apart or ()), *node.alignment.frozen)]
            for split in splits(node) if apart is not None else ():
                first = [part for part in parts(node, split) if all(map(part.first, others))]
                counts = np.zeros(array.shape, int)
                for part in first:
                    counts[slices(part.reads(i))] += 1
                assert (counts == 1).all(), f"{case} {split}: operand {i}"


def test_what_is_known_of_a_node_is_said_of_no_other() -> None:
    """Of all cases of all operators in one graph each reads and hands on what it would alone."""
    graph, nodes = Graph("all", "float64"), list[Node]()
    for case in (case for name in available() for case in cases_of(name) if case.op.has("B") or case.op.has("W")):
        whole, at = Whole(case), len(nodes)
        inputs, outputs = (tuple([f"{at}:{t}" for t in of]) for of in (whole.node.inputs, whole.node.outputs))
        nodes.append(Node(f"node{at}", case.op, inputs, outputs, whole.node.alignment))
        for t, a in zip((*inputs, *outputs), (*case.arrays, *whole.y), strict=True):
            graph.tensors[t] = Tensor(t, a.shape, a.dtype.name, tuple(map(str, range(a.ndim))))
    reads, hands_on = Reads(graph), HandedOn(graph.tensors)
    for node in nodes:
        assert hands_on.of(node) == handed_on(node, graph.tensors), node.op
        for which in filter(node.op.has, "BW"):
            assert reads.of(node, which) == Reads(graph).of(node, which), f"{node.op}: {which}"


def residual() -> Graph:
    """x goes round a layer, and what comes of both is added twice."""
    g = Graph("residual", "float64")
    x = g.linear("first", g.input("x", (8, 6), "b i"), features=6)
    y = g.add("sum", x, g.linear("round", g.relu("act", x), features=6))
    z = g.add("more", g.linear("left", y, features=3), g.linear("right", y, features=3))
    g.minimise(g.cross_entropy("loss", z, g.input("label", (8,), "b", "int64")))
    return g


def test_a_gradient_to_which_others_add_is_read_by_the_next_of_them() -> None:
    graph = residual()
    program = Lowering(graph, machine.local(1), SGD).program(whole_on(graph))
    made = {s.node.name: [p.region for p in s.outputs] for s in program.steps if s.which == "B"}
    read = {s.name: s.inputs[0].region for s in program.steps if s.which != "F"}
    onto = {s.name: p.region for s in program.steps for p in s.inputs if p.role == "onto"}
    # that of `first` is a sum of what comes round and what does not, which is that of `sum`
    assert "sum" not in made and "more" not in made
    assert made["act"] == ["first/grad"] and onto == {"act.B": "sum/grad"}
    assert {read[n] for n in ("left.B", "left.W", "right.B", "right.W")} == {"more/grad"}
    assert {read[n] for n in ("round.B", "round.W")} == {"sum/grad"} and read["first.W"] == "first/grad"
    assert not {"round/grad", "left/grad", "right/grad"} & {f.region for f in program.flows}


@op("... v! -> ... v!")
class Places(Op):
    """Where the largest of each row are, all of them: whole numbers, found from what is learned."""

    def forward(self, k, x):
        return k.top_k(x, count=x.shape[-1])[1]


def told_apart(rewrites: str, dtype: str = "float64") -> Graph:
    """Two in a row hand on x's gradient; parameters are terms of a chain; what a norm keeps is read, and places."""
    g = Graph("told apart", dtype)
    x = g.linear("first", g.input("x", (3, 5), "b i"), features=4)
    rounds = [g.linear(f"round{n}", x, features=4) for n in range(2)]
    sums = [g.add(f"sum{n}", x, one) for n, one in enumerate(rounds)]
    normed = g.layer_norm("norm", g.mul("both", *sums))
    found = g.add("found", g.sum("all", g.tanh("bent", normed)), g.sum("scales", g.tensors["norm:rstd"]))
    rows = g.embedding("rows", g.apply(Places(), "places", x), rows=4, features=2)
    found = g.add("with rows", found, g.sum("of rows", g.tanh("bent rows", rows)))
    for name in ("shift", "other"):
        found = g.add(f"{name}ed", found, g.param(name, (), (), Init("ones")))
    g.minimise(g.add("both ends", found, g.square("squared", g.param("end", (), (), Init("ones")))))
    return rewrite.apply(rewrites, g) if rewrites else g


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("rewrites", ["", "fuse"])
def test_every_gradient_is_made_and_read_as_numbers_of_its_tensors_kind(rewrites: str, dtype: str) -> None:
    graph = told_apart(rewrites, dtype)
    program = training(graph, SGD, frozenset())
    for flow in program.flows:
        is_of_loss = flow.region == graph.loss + GRADIENT
        assert not flow.region.endswith(GRADIENT) or ((flow.producers or is_of_loss) and flow.readers), flow.region
    for step in program.steps:
        for port in (*step.inputs, *step.outputs):
            of = graph.tensors.get((step.node.inputs if port.of_operand else step.node.outputs)[port.index])
            # Those of parameters are summed as these are kept.
            if port.role in ("dx", "dy", "onto") and of and not of.param:
                assert program.dtypes[port.region] == of.dtype, f"{step.name}: {of.name}"


@pytest.mark.parametrize("rewrites", ["", "fuse"])
def test_what_is_handed_on_by_two_in_a_row_is_added(rewrites: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = told_apart(rewrites)
    problem = Problem(graph, {})
    given = (graph, whole_on(graph), machine.local(1), batches(problem, 2, False), beginnings(problem, False))
    one = train(*given)
    monkeypatch.setattr(handed, "handed_on", lambda node, tensors: {})
    copied = train(*given)
    for name in copied.carried:
        assert apart(one.carried, copied.carried, name) <= TOLERANCE, name


# Kernels may add up in another order what they read in strides, as pieces of what was put together are.
@pytest.mark.parametrize(("featured", "tolerance"), [("add", 0.0), ("concat", TOLERANCE)])
def test_a_graph_learns_the_same_as_where_nothing_is_handed_on(
    featured: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = []

    @drawn(12)
    @given(problems(featured=featured))
    def check(problem: Problem) -> None:
        given = (problem.graph, whole_on(problem.graph), machine.local(1), batches(problem, 1, False))
        one = train(*given, beginnings(problem, False))
        with monkeypatch.context() as patched:
            patched.setattr(handed, "handed_on", lambda node, tensors: {})
            copied = train(*given, beginnings(problem, False))
        assert difference(one.losses, copied.losses) <= tolerance
        for name in copied.carried:
            assert apart(one.carried, copied.carried, name) <= tolerance, name
        fewer.append(one.prepared.tasks.num_tasks < copied.prepared.tasks.num_tasks)

    check()
    assert sum(fewer) >= 5, f"of {len(fewer)} graphs {sum(fewer)} hand a gradient on"


# What goes round, of samples of eight features or of four channels.
ROUNDS: dict[str, Callable[[Graph, Tensor], Tensor]] = {
    "linear": lambda g, x: g.add("sum", x, g.linear("round", x, features=8)),
    "relu": lambda g, x: g.add("sum", g.linear("other", g.relu("round", x), features=8), x),
    "layer_norm": lambda g, x: g.add("sum", x, g.linear("other", g.layer_norm("round", x), features=8)),
    "rms_norm": lambda g, x: g.add("sum", x, g.linear("other", g.rms_norm("round", x), features=8)),
    "itself": lambda g, x: g.add("sum", x, x),
    "beside": lambda g, x: g.concat("sum", 1, g.linear("round", x, features=3), x),
    "conv2d": lambda g, x: g.add("sum", x, g.conv2d("round", x, channels=4, kernel=1)),
    "windows": lambda g, x: g.add("sum", x, g.conv_transpose2d("other", _apart(g, x), channels=4, kernel=2, stride=2)),
}


def _apart(g: Graph, x: Tensor) -> Tensor:
    """Windows that do not meet, and leave nothing out."""
    return g.conv2d("round", x, channels=3, kernel=2, stride=2)


@pytest.mark.parametrize("name", ROUNDS)
def test_what_goes_round_adds_once_under_any_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph(name, "float64")
    if name in ("conv2d", "windows"):
        x = g.conv2d("first", g.input("x", (3, 2, 4, 6), "b c h w"), channels=4, kernel=1)
    else:
        x = g.linear("first", g.input("x", (3, 5), "b i"), features=8)
    g.minimise(g.sum("loss", g.tanh("bent", ROUNDS[name](g, x))))
    problem = Problem(g, {})
    data, values = batches(problem, 2, False), beginnings(problem, False)
    with monkeypatch.context() as patched:
        patched.setattr(handed, "handed_on", lambda node, tensors: {})
        one = train(g, whole_on(g), machine.local(1), data, values)
    program = Lowering(g, machine.local(1), SGD).program(whole_on(g))
    assert [p.region for s in program.steps for p in s.inputs if p.role == "onto"] == ["sum/grad"]

    @drawn(examples(24) // 4)
    @given(strategies(g, 4))
    def check(strategy: Strategy) -> None:
        many = train(g, strategy, machine.local(4), data, values, size=2)
        for parameter, expected in one.carried.items():
            assert difference(many.carried[parameter], expected) < TOLERANCE, parameter

    check()


MODELS = ("gpt:layers=2,width=16,heads=2,seq=8", "resnet:depth=50,size=32", "inception:size=107")


@pytest.mark.parametrize("spec", MODELS)
def test_no_gradient_is_copied_or_cut_out(spec: str) -> None:
    graph = models.parse(spec).graph(2)
    program, templates = Lowering(graph, machine.local(1), SGD).program(whole_on(graph)), Templates()
    slopes = [step for step in program.steps if step.which == "B"]
    parts = [templates.get(step, {}, program.dtypes.__getitem__).parts[0] for step in slopes]
    calls = [call for part in parts for call in part.body((False,) * len(part.outputs)).calls]
    assert calls and not {call.kernel for call in calls} & {"copy", "cut"}


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
