"""Rewritten graphs compute what they were made of, in fewer calls that move fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.kernels import reference
from castile.launch import models
from castile.launch.jobs.execution import feed_from, prepare
from castile.planner import rewrite
from castile.planner.bodies import fusing
from castile.planner.bodies.trace import Recorder, record
from castile.planner.bodies.vocabulary import Spec
from castile.planner.cost import CostModel
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.lowering.template import Templates
from castile.planner.step.passes import training
from castile.planner.strategy import Strategy
from castile.runtime import machine
from castile.runtime.comm.local import LocalWorld
from castile.runtime.region import intersect, whole
from castile.runtime.task import Body
from tests.effort import examples, rare, some
from tests.kernel_cases import cases
from tests.op_laws import execute
from tests.strategies import regular, whole_on
from tests.test_models import small, values
from tests.training import SGD, Trained, difference, start, train

EXACT = 1e-12
RATE = 2**-5
MODELS = [small(name) for name in models.available()]
every_rewrite = pytest.mark.parametrize("name", rewrite.available())
every_model = pytest.mark.parametrize("text", MODELS)
# What is learned and said: of all rewrites together, and of each alone where all is tried.
all_or_each = pytest.mark.parametrize("name", ["+".join(rewrite.available()), *rare(*rewrite.available())])


@cache
def original(text: str, batch: int = 2, dtype: str = "float32", training: bool = True) -> Graph:
    """A model before it is rewritten, which changes nothing of it."""
    return models.parse(text).graph(batch, dtype, training=training)


def trained(graph: Graph, known: dict[str, np.ndarray]) -> Trained:
    """A graph after a step on one processor, from known parameters."""
    data = [{n: known[n] for n in graph.inputs}]
    begins = {t.name: known[t.name] for t in graph.params}
    return train(graph, whole_on(graph), machine.local(1), data, begins, rate=RATE)


@cache
def trained_originally(text: str) -> Trained:
    graph = original(text, dtype="float64")
    return trained(graph, values(graph))


def forward(graph: Graph, plan: Strategy) -> np.ndarray:
    """What a graph gives to the host from two processors at most."""
    known, on = values(graph), machine.local(2)
    prepared = prepare(Lowering(graph, on, SGD, "forward"), plan, CostModel(on))
    execution = start(graph, prepared, LocalWorld(1).communicators[0], known)
    execution.feed(feed_from(known))
    execution.run()
    found = execution.output(graph.outputs[0])
    assert found is not None
    return found


@cache
def given_originally(text: str) -> np.ndarray:
    graph = original(text, dtype="float64", training=False)
    return forward(graph, whole_on(graph))


def apart(one: Trained, other: Trained, rate: float) -> float:
    """How far losses are from each other, and parameters and what is kept beside them, relative to their sizes.

    What begins at zero and has no slope, as between two norms, is what rounding makes of it: at least a rate counts.
    """
    assert one.carried.keys() == other.carried.keys()
    sizes = {r: max(rate, np.abs(one.carried[r.rpartition("/")[0] or r]).max()) for r in one.carried}
    of_regions = [difference(other.carried[region], one.carried[region], size) for region, size in sizes.items()]
    return max(difference(other.losses, one.losses), *of_regions)


@every_model
@all_or_each
def test_a_rewritten_model_trains_alike(name: str, text: str) -> None:
    graph = original(text, dtype="float64")
    made = rewrite.apply(name, graph)
    if made.fingerprint == graph.fingerprint:
        return
    known, one = values(graph), trained_originally(text)
    far = apart(one, trained(made, known), RATE)
    if far >= EXACT:
        # norms over few places, one after the other, make much of what rounding does
        params = {t.name for t in graph.params}
        shaken = {n: x * (1 + np.finfo(x.dtype).eps) if n in params else x for n, x in known.items()}
        assert far < 16 * apart(one, trained(graph, shaken), RATE)


@every_model
@every_rewrite
def test_a_rewritten_model_keeps_what_users_see(name: str, text: str) -> None:
    graph = original(text)
    before = graph.fingerprint
    made = rewrite.apply(name, graph)
    assert graph.fingerprint == before
    assert made.params == graph.params and made.outputs == graph.outputs and made.loss == graph.loss
    assert (made.inputs, made.scalars, made.states) == (graph.inputs, graph.scalars, graph.states)
    assert set(made.nodes) <= set(graph.nodes) and list(made.updates) == list(graph.updates)
    known = {*made.inputs, *made.scalars, *made.states, *(t.name for t in made.params)}
    for node in made.nodes.values():
        assert known >= set(node.inputs)
        known.update(node.outputs)
    assert rewrite.apply(name, made).fingerprint == made.fingerprint


@st.composite
def webs(draw: st.DrawFn) -> Graph:
    """Operators on each element, each of what any before it gave: some give several others the same."""
    g = Graph("web", "float64")
    x, label = g.input("x", (4, 6), "b i"), g.input("label", (4,), "b", "int64")
    known, number = [x, g.linear("fc", x, features=6)], st.integers(0, 99)
    for n in range(draw(st.integers(2, 9))):
        one, other = (known[-1 - draw(number) % min(len(known), 4)] for _ in range(2))
        joined = draw(st.sampled_from(("tanh", "sigmoid", "add", "mul")))
        made = getattr(g, joined)
        known.append(made(f"n{n}", one, other) if joined in ("add", "mul") else made(f"n{n}", one))
    end, *more = (t for t in known[1:] if not any(t.name in node.inputs for node in g.nodes.values()))
    g.outputs = [end.name] if draw(st.booleans()) else []
    for n, other in enumerate(more):
        end = g.add(f"sum{n}", end, other)
    g.minimise(g.cross_entropy("loss", end, label))
    return g


@settings(max_examples=examples(80, 1 / 8), derandomize=True, deadline=None)
@given(webs())
def test_of_what_works_on_each_element_as_much_is_one_node_as_can_be(graph: Graph) -> None:
    """A node is left whose result more than one other reads, or that is an output; and the network learns the same."""
    made = rewrite.apply("fuse", graph)
    assert rewrite.apply("fuse", made).fingerprint == made.fingerprint
    assert {*made.outputs} == {*graph.outputs} <= {*made.tensors}
    readers = {name: [n.op.name for n in made.nodes.values() if name in n.inputs] for name in made.nodes}
    apart_from = {name for name in made.nodes if name not in made.outputs} - {"fc", "loss"}
    assert all(len(readers[name]) != 1 or readers[name] == ["cross_entropy"] for name in apart_from)
    known = values(graph)
    assert apart(trained(graph, known), trained(made, known), RATE) < EXACT


@every_model
def test_no_chain_has_a_partial_sum_within(text: str) -> None:
    for node in rewrite.apply("fuse", original(text)).nodes.values():
        if node.op.name == "fused":
            a = node.alignment
            assert set(a.axes) - a.frozen <= set(a.results[0].axes), node.name


@every_model
@every_rewrite
def test_what_microbatches_refuse_they_go_on_refusing(name: str, text: str) -> None:
    graph = original(text, 4)

    def refuses(g: Graph) -> bool:
        try:
            training(g, SGD, frozenset(), 2)
        except ValueError as error:
            assert "microbatches" in str(error)
            return True
        return False

    assert refuses(rewrite.apply(name, graph)) == refuses(graph)


@every_model
@all_or_each
def test_a_rewritten_model_gives_what_it_gave(name: str, text: str) -> None:
    """To the host, from one processor and from two."""
    made = rewrite.apply(name, original(text, dtype="float64", training=False))
    cut = Strategy({node.name: regular(node, "last", (0, 1)) for node in made.nodes.values()})
    one, other = given_originally(text), forward(made, cut)
    assert other.shape == made.tensors[made.outputs[0]].shape and difference(other, one) < EXACT


@every_model
@every_rewrite
def test_what_is_made_of_a_region_lies_within_it(name: str, text: str) -> None:
    program = training(rewrite.apply(name, original(text)), SGD, frozenset())
    templates, held = Templates(), program.dtypes
    for flow in program.flows:
        for slot, port in flow.producers:
            box = templates.get(program.steps[slot], {}, held.__getitem__).parts[0].outputs[port]
            assert box is None or intersect(box, whole(flow.shape)) == box, flow.region


# What a step asks of memory.


def bodies(graph: Graph) -> list[tuple[Body, list[Spec]]]:
    """The body of each pass on one processor, and what its views are."""
    program, templates = training(graph, SGD, frozenset()), Templates()
    held = program.dtypes
    found = []
    for step in program.steps:
        part = templates.get(step, {}, held.__getitem__).parts[0]
        ports = zip((*part.inputs, *part.outputs), (*step.inputs, *step.outputs), strict=True)
        views = [Spec(box.shape, held[port.region]) for box, port in ports if box is not None]
        found.append((part.body((False,) * len(step.outputs)), views))
    return found


def moved(graph: Graph) -> tuple[int, int]:
    """Kernel calls of a step, and the bytes that they read and write."""
    calls = nbytes = 0
    for body, views in bodies(graph):
        held = {"view": [v.nbytes for v in views], "temp": [Spec(t.shape, t.dtype).nbytes for t in body.temps]}
        for call in body.calls:
            calls += 1
            nbytes += sum(held[a.space][a.index] for a in (*call.args, *call.outs) if hasattr(a, "space"))
    return calls, nbytes


@every_model
def test_fusing_never_adds_calls_or_bytes(text: str) -> None:
    graph = original(text, 8)
    (calls, nbytes), (fewer, less) = moved(graph), moved(rewrite.apply("fuse", graph))
    assert fewer <= calls and less <= nbytes


@pytest.mark.parametrize(
    "text,calls,nbytes",
    [("resnet:depth=50", 0.915, 0.84), ("vgg:hidden=64", 0.94, 0.90)],
)
def test_fusing_saves_large_models(text: str, calls: float, nbytes: float) -> None:
    graph = models.parse(text).graph(8, "bfloat16")
    before, after = moved(graph), moved(rewrite.apply("fuse", graph))
    assert after[0] <= calls * before[0] and after[1] <= nbytes * before[1]


# Chains of calls.


@pytest.mark.parametrize("kernel", sorted(fusing.LINES))
def test_a_line_is_what_its_kernel_does(kernel: str) -> None:
    tables = fusing.TABLES.get(kernel, 0)
    taken = 0
    for args, params in cases(kernel, "float64"):
        k = Recorder()
        getattr(k, kernel)(*(Spec(a.shape, a.dtype.name) for a in args), **params)
        if not fusing.is_line(k.steps[0]):
            continue
        line, constants = fusing.LINES[kernel], dict(fusing.said(k.steps[0])[2])
        found = (
            reference.channelwise(line, *args, tables=tables, **constants)
            if tables
            else reference.pointwise(line, *args, **constants)
        )
        assert difference(found, getattr(reference, kernel)(*args, **params)) < EXACT
        taken += 1
    assert taken


CALLS: tuple[Callable, ...] = (
    lambda k, x, y, more: k.relu(x),
    lambda k, x, y, more: k.gelu(x, approximate="tanh"),
    lambda k, x, y, more: k.norm(x, more[1]),
    lambda k, x, y, more: k.add(x, y),
    lambda k, x, y, more: k.pointwise("a, b -> a * b - c", x, y, c=0.3),
    lambda k, x, y, more: k.relu_grad(x, more[0]),
    lambda k, x, y, more: k.pointwise("x -> x / (1 + abs(x)) + c", x, c=-0.1),
    lambda k, x, y, more: k.contract("...d,ed->...e", x, more[2]),
)


@settings(max_examples=examples(60), derandomize=True, deadline=None)
@given(st.data())
def test_chains_compute_what_their_calls_did(data: st.DataObject) -> None:
    rng = np.random.default_rng(0)
    shape = data.draw(st.sampled_from(((2, 3), (2, 3, 4), (2, 3, 2, 2))))
    arrays = [rng.normal(size=s) for s in (shape, shape, shape[-1:], (), (3, shape[1]), (shape[-1], shape[-1]))]
    number = st.integers(0, 99)
    plan = data.draw(st.lists(st.tuples(st.sampled_from(CALLS), number, number), min_size=2, max_size=9))

    def body(k, *xs):
        plain, more, found = xs[:4], (xs[1], *xs[4:]), [xs[0]]
        for call, first, second in plan:
            known = [*plain, *found]
            found.append(call(k, found[-1 - first % min(2, len(found))], known[second % len(known)], more))
        return found[-1], k.sum_over(found[-1], dims=(0,)), found[-2]

    recording = record(body, [Spec(a.shape, a.dtype.name) for a in arrays])
    # by compiled loops one in ten, since each line is compiled
    form = "numpy" if data.draw(st.integers(0, 9)) == 9 else "reference"
    for one, other in zip(execute(recording, arrays, form, False), body(reference, *arrays), strict=True):
        assert difference(one, other) < EXACT


def product(k, x, w, b):
    return k.contract("...i,oi->...o", x, w)


@pytest.mark.parametrize(
    "then,kernels",
    [
        (lambda k, y, x, w, b: k.add(y, b), ["contract_pointwise"]),
        (lambda k, y, x, w, b: k.add(x, k.gelu(k.add(y, b), approximate="tanh")), ["contract_pointwise"]),
        (lambda k, y, x, w, b: k.add(y, y), ["contract_pointwise"]),
        # of two products the second is there when the first is made, with the line
        (lambda k, y, x, w, b: k.add(y, product(k, x, w, b)), ["contract", "contract_pointwise"]),
        (lambda k, y, x, w, b: k.sum_over(k.add(y, b), dims=(0,)), ["contract", "sum_pointwise"]),
        # a result, read twice, numbers of channels that are not the last dim's, a line of more elements, three operands
        (lambda k, y, x, w, b: (y, k.relu(y)), ["contract", "relu"]),
        (lambda k, y, x, w, b: (k.relu(y), k.gelu(y, approximate="tanh")), ["contract", "relu", "gelu"]),
        (lambda k, y, x, w, b: k.add_bias(y, b, dim=1), ["contract", "add_bias"]),
        (lambda k, y, x, w, b: k.pointwise("x, y -> x + y", x, k.contract("i,oi->o", b, w)), ["contract", "pointwise"]),
        (lambda k, y, x, w, b: k.relu(k.contract("...i,oi,o->...o", x, w, b)), ["contract", "relu"]),
    ],
)
def test_a_line_follows_the_product_that_it_alone_reads(then: Callable, kernels: list[str]) -> None:
    def body(k, x, w, b):
        return then(k, product(k, x, w, b), x, w, b)

    made = record(body, [Spec(shape, "float32") for shape in ((2, 4, 4), (4, 4), (4,))])
    assert [step.kernel for step in made.steps] == kernels
    known = {id(one) for one in (*made.inputs, *(out for step in made.steps for out in step.outs))}
    assert all(id(one) in known for step in made.steps for one in step.symbols)


@every_model
def test_lines_after_products_never_add_calls_or_bytes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = original(text, 8)
    fewer, less = moved(graph)
    monkeypatch.setattr(fusing, "_after_products", lambda steps, kept: list(steps))
    calls, nbytes = moved(graph)
    linear = sum(node.op.name == "linear" and len(node.inputs) == 3 for node in graph.nodes.values())
    assert fewer <= calls - linear and less <= nbytes - linear


@pytest.mark.parametrize(
    "slope,kernels",
    [
        (lambda k, d, y: k.relu_grad(d, y), ["norm_grad_pointwise"]),
        (lambda k, d, y: k.pointwise("d, y -> d * c - y", k.relu_grad(d, y), y, c=0.3), ["norm_grad_pointwise"]),
        (lambda k, d, y: d, ["norm_grad"]),
        # what is no array of x's shape
        (lambda k, d, y: k.add_bias(d, k.sum_over(y, dims=(0, 2)), dim=1), ["sum_over", "add_bias", "norm_grad"]),
    ],
)
def test_a_norms_gradient_takes_the_line_that_makes_its_operand(slope: Callable, kernels: list[str]) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape) for shape in ((3, 4, 5), (3, 4, 5), (3, 4, 5), (3, 4))]

    def body(k, d, y, x, factors):
        return k.norm_grad(slope(k, d, y), x, factors)

    def kept(k, d, y, x, factors):
        made = slope(k, d, y)
        return made, *k.norm_grad(made, x, factors)

    def again(k, d, y, x, factors):
        made = slope(k, d, y)
        return *k.norm_grad(made, x, factors), *k.norm_grad(made, y, factors)

    for of, wanted in ((body, kernels), (kept, kernels), (again, [*kernels, "norm_grad"])):
        made = record(of, [Spec(a.shape, a.dtype.name) for a in arrays])
        assert [step.kernel for step in made.steps] == wanted
        for one, other in zip(execute(made, arrays, "numpy", False), of(reference, *arrays), strict=True):
            assert difference(one, other) < EXACT


def test_a_norms_gradient_takes_no_line_that_others_read_before() -> None:
    def body(k, d, y, x, factors):
        made = k.relu_grad(d, y)
        total = k.sum_over(made, dims=(0,))
        return total, made, *k.norm_grad(made, x, factors)

    made = record(body, [Spec(shape, "float32") for shape in ((3, 4, 5), (3, 4, 5), (3, 4, 5), (3, 4))])
    assert [step.kernel for step in made.steps] == ["relu_grad", "sum_over", "norm_grad"]


def test_what_others_read_stays() -> None:
    def body(k, x):
        y = k.relu(x)
        z = k.pointwise("x -> x + 1", y)
        return k.pointwise("x, y -> x * y", y, z), z

    kernels = [step.args[0] for step in record(body, [Spec((4, 5), "float32")]).steps]
    # y has two readers and z is a result: nothing may go
    assert len(kernels) == 3


PAIRS = [*map("+".join, combinations(rewrite.available(), 2))]
# By fingerprint: rewrites in another order, and those that find nothing to do, make the same graph again.
lowered: set[str] = set()


@pytest.mark.parametrize(("text", "names"), some([(text, names) for text in MODELS for names in PAIRS]))
def test_rewrites_follow_each_other_in_any_order(names: str, text: str) -> None:
    graph = original(text)
    one = rewrite.apply(names, graph)
    assert one.fingerprint == rewrite.apply("+".join(reversed(names.split("+"))), graph).fingerprint
    for name in names.split("+"):
        assert rewrite.apply(name, one).fingerprint == one.fingerprint
    if one.fingerprint not in lowered:
        Lowering(one, machine.local(1), SGD).lower(whole_on(one))
        lowered.add(one.fingerprint)


@every_model
def test_logits_of_every_model_lie_with_their_classes_first(text: str) -> None:
    graph = rewrite.apply("classes_first", original(text))
    for node in graph.nodes.values():
        if node.op.name in ("cross_entropy", "block_entropy"):
            last = len(graph.tensors[node.inputs[0]].shape) - 1
            assert graph.orders[node.inputs[0]] == (last, *range(last))


@pytest.mark.parametrize("more", ["softmax", "log_softmax", "layer_norm", "mean"])
def test_logits_that_others_take_by_rows_lie_as_they_come(more: str) -> None:
    g = Graph("drawn")
    logits = g.linear("head", g.input("x", (2, 3, 4), "b s d"), features=7)
    loss = g.cross_entropy("loss", g.tanh("cap", logits), g.input("label", (2, 3), "b s", "int32"))
    g.minimise(g.add("both", loss, g.mean("mean", getattr(g, more)("more", logits))))
    assert rewrite.apply("classes_first", g).orders == {}


def test_an_unknown_rewrite_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no rewrite 'fuze' \(did you mean 'fuse'.*there are"):
        rewrite.apply("fuze", Graph("empty"))


def test_every_model_takes_a_rewrite_as_a_setting() -> None:
    plain, fused = models.parse("resnet:size=8,width=2"), models.parse("resnet:size=8,rewrite=fuse,width=2")
    assert fused.settings == plain.settings and fused.recipe == plain.recipe
    for training_ in (True, False):
        made = fused.graph(4, training=training_)
        assert made.fingerprint == rewrite.apply("fuse", plain.graph(4, training=training_)).fingerprint
        assert made.fingerprint != plain.graph(4, training=training_).fingerprint
    with pytest.raises(ValueError, match="no rewrite 'fuze'"):
        models.parse("mlp:rewrite=fuze")
    assert models.parse("resnet:size=8,rewrite=fuse+channels_last").graph(4).orders
