"""Frozen parameters: a step leaves them as they are, and moves all others as it would without."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import search
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines_by_name
from castile.runtime.machine import Machine
from tests.effort import examples, rare
from tests.strategies import Problem, batches, beginnings, in_buckets, machines, problems, whole_on
from tests.training import SGD, Trained, apart, difference, train

TOLERANCE = 1e-10
ADAM = Updates(find("adamw")(decay=0.1), clip=0.5)


@dataclass(frozen=True)
class Case:
    """A problem of which some parameters are frozen, and a plan for that on so many ranks."""

    problem: Problem
    graph: Graph
    machine: Machine
    strategy: Strategy
    size: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    problem, machine = draw(problems().filter(lambda one: len(one.graph.params) > 1)), draw(machines())
    names = [param.name for param in problem.graph.params]
    trained = draw(st.sets(st.sampled_from(names), min_size=1, max_size=len(names) - 1))
    graph = replace(problem.graph, frozen=frozenset(names) - trained)
    strategy = draw(in_buckets(graph, machine.num_procs))
    return Case(problem, graph, machine, strategy, draw(st.integers(1, machine.num_procs)))


@settings(max_examples=examples(150, 1 / 6), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_any_plan_moves_the_others_as_without(case: Case) -> None:
    data, values = batches(case.problem, 1, exact=False), beginnings(case.problem, exact=False)
    one = Machine("one", case.machine.processors[:1], ())
    plain = train(case.problem.graph, whole_on(case.problem.graph), one, data, values, 2**-7)
    held = train(case.graph, case.strategy, case.machine, data, values, 2**-7, case.size)
    assert difference(held.losses, plain.losses) < TOLERANCE
    for name, array in held.carried.items():
        if name in case.graph.frozen:
            assert np.array_equal(array, values[name]), name
        else:
            assert apart(held.carried, plain.carried, name) < TOLERANCE, name
    gone = {name for name in plain.carried if name.rpartition("/")[0] in case.graph.frozen}
    assert plain.carried.keys() - held.carried.keys() == gone


def trained(graph: Graph, plan: Strategy, on: Machine, updates: Updates) -> Trained:
    problem = Problem(graph, {"tokens": 7, "targets": 7})
    return train(graph, plan, on, batches(problem, 2, False), beginnings(problem, False), 2**-7, on.num_procs, updates)


@pytest.mark.parametrize("updates", [ADAM, *rare(SGD)])
def test_known_plans_in_microbatches_train_the_same(updates: Updates) -> None:
    """With gradients summed, clipped and gathered; the norm of the gradients is of those that there are."""
    graph = models.parse("gpt:layers=2,width=8,heads=2,seq=4,vocab=7,frozen=tok*+*norm*+block1*").graph(4, "float64")
    assert graph.frozen == {p.name for p in graph.params if not p.name.startswith(("block2.", "pos", "head"))} | {
        p.name for p in graph.params if "norm" in p.name
    }
    on = machines_by_name.local(2)
    expected = trained(graph, whole_on(graph), machines_by_name.local(1), updates)
    recompute = tuple(f"{name}/fetch" for name in ("block1.up.weight", "block2.up.weight"))
    for again in ((), recompute):
        lowering = Lowering(graph, on, updates, microbatches=2, recompute=again)
        for name, plan in seeds(lowering).items():
            held = trained(graph, plan, on, updates)
            assert difference(held.losses, expected.losses) < TOLERANCE, name
            assert held.carried.keys() == expected.carried.keys()
            far = [region for region in held.carried if apart(held.carried, expected.carried, region) > 1e-8]
            assert not far, (name, far)


def test_searches_find_plans_that_hold_less() -> None:
    on = machines_by_name.parse("dgx-h100:nodes=1")
    held = {}
    for text in ("gpt", "gpt:frozen=block*+tok*"):
        same = Evaluator(Lowering(models.parse(text).graph(16), on, ADAM), CostModel(on))
        found = search("mcmc", same, "200")
        held[text] = found.seeds["data_parallel"]
        assert found.evaluated.rank <= held[text].rank
    whole, less = held.values()
    assert less.seconds < whole.seconds and max(less.peak_bytes) < 0.6 * max(whole.peak_bytes)


def test_what_is_frozen_is_part_of_what_a_network_is() -> None:
    """So that plans and checkpoints of one are not taken for the other's."""
    plain, frozen = (models.parse(text).graph(4) for text in ("mlp", "mlp:frozen=fc1.*"))
    assert frozen.frozen == {"fc1.weight", "fc1.bias"} and plain.fingerprint != frozen.fingerprint
    assert [p.name for p in frozen.trained] == [p.name for p in plain.params if not p.name.startswith("fc1.")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mlp:frozen=conv*", r"frozen=conv\*: no parameter has a name like that; there are fc1.weight, fc1.bias, "),
        ("mlp:frozen=fc1.*+fc1.wieght", r"frozen=fc1.wieght: .* \(did you mean 'fc1.weight'\?\)"),
        ("mlp:frozen=*", "mlp: all of its parameters are frozen, and none is left to train"),
    ],
)
def test_what_cannot_be_frozen_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        models.parse(text).graph(4)
