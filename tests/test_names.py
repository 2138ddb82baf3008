"""Names: what a user calls something is never what castile calls something else."""

import numpy as np
import pytest

from castile.launch.typed import optimizers
from castile.planner.families.updates import Optimizer, Updates
from castile.planner.graph import MARKS, Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import Init, available, find
from castile.planner.step import passes
from castile.planner.step.beside import names
from castile.runtime import machine
from tests.effort import rare
from tests.training import difference, train

OPTIMIZERS = [name for name in available() if issubclass(find(name), Optimizer)]
KINDS = {
    "input": lambda g, name: g.input(name, (4, 3), "b i"),
    "param": lambda g, name: g.param(name, (4,), ("c",), Init("zeros")),
    "state": lambda g, name: g.state(name, (4,), ("c",), Init("zeros")),
    "scalar": lambda g, name: g.scalar(name, "float64"),
    "node": lambda g, name: g.relu(name, g.input("image", (4, 3), "b i")),
}


def network(x: str = "x", label: str = "label", loss: str = "loss") -> Graph:
    g = Graph("named", "float64")
    h = g.linear("fc", g.input(x, (4, 3), "b i"), features=4)
    g.minimise(g.cross_entropy(loss, g.dropout("drop", h, rate=0.5), g.input(label, (4,), "b", "int64")))
    g.outputs = ["fc"]
    return g


@pytest.mark.parametrize("kind", KINDS)
def test_what_castile_makes_of_names_is_nobody_elses(kind: str) -> None:
    graph, made = network(), set[str]()
    for optimizer in OPTIMIZERS:
        for clip, scaled in ((None, False), (1.0, False), (None, True)):
            updates = Updates(optimizers.parse(optimizer), clip, scaled=scaled)
            known = names(graph, updates)
            made.update(known.optional)
            for count in (1, 2):
                program = passes.training(graph, updates, frozenset(known.optional), count)
                made.update(flow.region for flow in program.flows)
    made -= graph.tensors.keys()
    assert all(any(mark in name for mark in MARKS) for name in made)
    for name in (*sorted(made), ""):
        with pytest.raises(ValueError, match="give it a name without / and @"):
            KINDS[kind](Graph("other", "float64"), name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_other_name_trains_the_same(optimizer: str) -> None:
    updates, rng, on = Updates(optimizers.parse(optimizer), clip=0.5), np.random.default_rng(0), machine.local(2)
    data = [(rng.normal(size=(4, 3)), rng.integers(0, 4, 4)) for _ in range(2)]
    values = {"fc.weight": rng.normal(size=(4, 3)), "fc.bias": rng.normal(size=4)}

    def losses(x: str, label: str, loss: str) -> np.ndarray:
        graph = network(x, label, loss)
        plan = seeds(Lowering(graph, on, updates))["data_parallel"]
        fed = [{x: images, label: labels} for images, labels in data]
        return train(graph, plan, on, fed, values, updates=updates).losses

    plain = losses("x", "label", "loss")
    for name in (*find(optimizer).scalars, "gradients", "a b, c", *rare("weight", "x:1", "*")):
        for each in ((name, "label", "loss"), ("x", name, "loss"), ("x", "label", name)):
            assert difference(losses(*each), plain) == 0, each


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_name_is_shared_by_parameters_and_by_numbers_of_the_host_alone(kind: str, other: str) -> None:
    g = Graph("twice", "float64")
    first = KINDS[kind](g, "name")
    if kind == other in ("param", "scalar"):
        assert KINDS[other](g, "name") is first
    else:
        with pytest.raises(ValueError, match="named"):
            KINDS[other](g, "name")


@pytest.mark.parametrize("extent", [0, -1, 2.0, "3", None])
def test_a_shape_holds_whole_numbers_from_1_on(extent: object) -> None:
    g = Graph("shapes")
    for make in (
        lambda: g.input("x", (4, extent), "b i"),
        lambda: g.param("w", (extent, 3), ("o", "i"), Init("zeros")),
        lambda: g.state("s", (extent,), ("c",), Init("zeros")),
        lambda: g.linear("fc", g.input("y", (4, 3), "b i"), features=extent),
    ):
        with pytest.raises(ValueError, match=r"^tensor '.*': .* should be a whole number from 1 on$"):
            make()


def test_a_dtype_that_there_is_not_is_told_where_it_stands() -> None:
    with pytest.raises(ValueError, match=r"^tensor 'x': 'int33' is no dtype"):
        Graph("dtypes").input("x", (4, 3), "b i", "int33")
