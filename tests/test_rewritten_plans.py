"""Plans of any kind train rewritten graphs as one processor trains what they were made of; the graphs are drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from castile.kernels.table import Table
from castile.planner import rewrite
from castile.planner.graph import Graph, Node
from castile.planner.lower import Lowering
from castile.planner.op import Init, Tensor
from castile.runtime import machine
from castile.runtime.backends import numpy as numpy_backend
from tests.cut_batches import one_of
from tests.effort import examples
from tests.strategies import Problem, batches, beginnings, in_microbatches, machines, strategies, whole_on
from tests.test_rewrites import apart
from tests.training import SGD, train

RATE = 2**-9
all_rewrites = pytest.mark.parametrize("name", ["+".join(rewrite.available())])
slow = settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
SHAPES = {"images": ((3, 2, 3), "c h w"), "tokens": ((5, 4), "s d"), "rows": ((6,), "d")}
ALONE = ("relu", "gelu", "silu", "tanh", "sigmoid", "square", "neg", "abs", "softplus")
PAIRS = ("add", "sub", "mul", "maximum")


@st.composite
def chained(draw: st.DrawFn, normal: bool = True) -> Problem:
    """A graph of layers on each element between a few others, with residuals, biases and shared values."""
    g = Graph("drawn", "float64")
    batch, (shape, axes) = 2 * draw(st.integers(1, 2)), SHAPES[draw(st.sampled_from(sorted(SHAPES)))]
    x = g.input("x", (batch, *shape), f"b {axes}")
    image = len(shape) == 3
    pool = [g.conv2d("first", x, shape[0], 1) if image else g.linear("first", x, features=shape[-1])]
    for n in range(draw(st.integers(2, 9))):
        pool.append(_layer(draw, g, f"n{n}", draw(st.sampled_from(pool[-3:])), pool, image and normal))
    total, labels = None, dict[str, int]()
    used = {name for node in g.nodes.values() for name in node.inputs}
    for leaf in [t for t in pool if t.name not in used]:
        loss = _entropy(draw, g, leaf, labels) if draw(st.booleans()) else _mean(g, leaf)
        total = loss if total is None else g.add(f"{leaf.name}.total", total, loss)
    assert total is not None
    g.minimise(total)
    g.outputs = [pool[-1].name]
    return Problem(g, labels)


def _mean(g: Graph, leaf: Tensor) -> Tensor:
    return g.mean(f"{leaf.name}.mean", g.tanh(f"{leaf.name}.bound", leaf))


def _entropy(draw: st.DrawFn, g: Graph, leaf: Tensor, labels: dict[str, int]) -> Tensor:
    """A head, with a bias, bounded or averaged too or not, and a loss over its classes, whole or in blocks."""
    name, classes = leaf.name, draw(st.integers(2, 7))
    logits = g.linear(f"{name}.head", g.tanh(f"{name}.bound", leaf), features=classes, bias=draw(st.booleans()))
    if draw(st.booleans()):
        logits = g.tanh(f"{name}.cap", g.scale(f"{name}.logits", logits, factor=0.5))
    axes = " ".join(["b", *(f"l{n}" for n in range(len(leaf.shape) - 2))])
    label = g.input(f"{name}.label", logits.shape[:-1], axes, "int64")
    labels[label.name] = classes
    loss = g.cross_entropy(f"{name}.loss", logits, label, blocks=draw(st.sampled_from((1, 2, classes))))
    return g.add(f"{name}.both", loss, g.mean(f"{name}.mean", logits)) if draw(st.integers(0, 3)) == 0 else loss


def _layer(draw: st.DrawFn, g: Graph, name: str, x: Tensor, pool: list[Tensor], image: bool) -> Tensor:
    kind = draw(st.sampled_from(("alone", "alone", "pair", "param", "matrix", *(["norm"] * 2 * image))))
    if kind == "alone":
        return getattr(g, draw(st.sampled_from(ALONE)))(name, x)
    if kind == "pair":
        return getattr(g, draw(st.sampled_from(PAIRS)))(name, x, draw(st.sampled_from(pool)))
    if kind == "param":
        dims = draw(st.integers(0, len(x.shape) - 1))
        shape = tuple(draw(st.sampled_from((n, 1))) for n in x.shape[len(x.shape) - dims :])
        p = g.param(f"{name}.weight", shape, tuple(f"p{n}" for n in range(dims)), Init("normal", 1.0))
        return getattr(g, draw(st.sampled_from(PAIRS)))(name, x, p)
    if kind == "norm":
        return g.batch_norm(name, x)
    return g.linear(name, x, features=x.shape[-1])


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are their definitions: random lines would be compiled, a second each."""
    monkeypatch.setattr(numpy_backend, "_table", lambda: Table("reference"))


@all_rewrites
@pytest.mark.usefixtures("plainly")
def test_any_plan_of_a_rewritten_graph_trains_alike(name: str, tell: Callable[[str], None]) -> None:
    seen: Counter[str] = Counter()
    count = examples(60)

    @settings(slow, max_examples=count)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        problem, on = data.draw(chained()), data.draw(machines())
        made = rewrite.apply(name, problem.graph)
        plan = data.draw(strategies(made, on.num_procs))
        steps, begin = batches(problem, 2, exact=False), beginnings(problem, exact=False)
        one = train(problem.graph, whole_on(problem.graph), on, steps, begin, rate=RATE)
        many = train(made, plan, on, steps, begin, rate=RATE, size=data.draw(st.integers(1, on.num_procs)))
        assert apart(one, many, RATE) < 1e-10
        seen.update({node.op.name for node in made.nodes.values()}, examples=1)
        seen["laid"] += any(len(order) > 3 for order in made.orders.values())
        seen["classes"] += any(of_classes(made, node) for node in made.nodes.values())

    check()
    tell(f"rewrite {name}: {seen.most_common()}")
    assert 2 * seen["fused"] > seen["examples"] >= count and 6 * min(seen["laid"], seen["classes"]) >= count


def of_classes(graph: Graph, node: Node) -> bool:
    """Whether a node's first operand lies with its classes outermost."""
    return node.op.numbering == ((1, "v"),) and graph.orders.get(node.inputs[0], (0,))[0] > 0


@all_rewrites
@pytest.mark.usefixtures("plainly")
def test_microbatches_of_a_rewritten_graph_train_alike(name: str) -> None:
    @settings(slow, max_examples=examples(15))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        problem, on = data.draw(chained(normal=False)), machine.local(2)
        made = rewrite.apply(name, problem.graph)
        plan = data.draw(in_microbatches(data.draw(strategies(one_of(made, 2), 2)), 2))
        try:
            Lowering(made, on, SGD).lower(plan)
        except ValueError as error:
            assert "microbatches" in str(error), error
            reject()
        steps, begin = batches(problem, 2, exact=False), beginnings(problem, exact=False)
        one = train(problem.graph, whole_on(problem.graph), on, steps, begin, rate=RATE)
        many = train(made, plan, on, steps, begin, rate=RATE)
        assert apart(one, many, RATE) < 1e-10

    check()
