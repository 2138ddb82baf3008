"""Nodes that a sketch prices as one have one space, whatever passes they have and whatever is pinned of some.

Walks change those without any passes, too.
"""

import math

import numpy as np
import pytest

from castile.launch import models
from castile.planner.choices import pins
from castile.planner.choices.pins import Pins
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.sketch import sketch as sketches
from castile.planner.sketch.sketch import NUM_DRAWS, Sketch
from castile.planner.strategy import Names
from castile.runtime import machine as machines
from tests.test_models import small

# Of a forward pass it has nodes without any, of several shapes.
BERT = "bert:layers=2,width=12,heads=3,seq=7,vocab=30,positions=9"


@pytest.mark.parametrize("mode", ["train", "forward"])
@pytest.mark.parametrize("pin", ["", "block1.q: {b: 2}", "block1.*: {procs: 0-3}"])
def test_nodes_of_one_kind_have_one_space(mode: str, pin: str) -> None:
    machine = machines.parse("flexflow-p100:nodes=2")
    lowering = Lowering(models.parse(BERT).graph(64), machine, Updates(find("sgd")()), mode)
    cost, names = CostModel(machine), Names(lowering.piece.nodes, lowering.names.optional)
    pinned = Pins([pins.parse(pin)], names, machine.num_procs) if pin else None
    plans = seeds(lowering, None, cost, pinned)
    sketch = Sketch(lowering, cost, Spaces(lowering, cost, pinned), [plan.configs for plan in plans.values()])
    assert all(0 < sketch.seconds(plan.configs) < math.inf for plan in plans.values())
    pairs = set(zip(sketch._kinds.tolist(), sketch._spaces.tolist(), strict=True))
    assert len(pairs) == len({kind for kind, _ in pairs})


@pytest.mark.parametrize("model", [BERT, small("moe")])
def test_walks_change_nodes_without_passes(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machines.parse("flexflow-p100:nodes=1")
    lowering = Lowering(models.parse(model).graph(64), machine, Updates(find("sgd")()), "forward")
    cost = CostModel(machine)
    start = seeds(lowering)["data_parallel"].configs
    sketch = Sketch(lowering, cost, Spaces(lowering, cost), [start])
    # Behind all nodes comes the host, which reads.
    is_idle = np.append(np.diff(sketch.program.own_ptr)[:-1] == 0, False)
    assert is_idle[len(start) - 1] and len(is_idle) == len(start) + 1
    # Plain loops refuse to look beyond the ends of arrays.
    monkeypatch.setattr(sketches, "can_compile", lambda: False)
    sketches._bodies.cache_clear()
    draws, capacity = np.random.default_rng(0).random((200, NUM_DRAWS)), np.full(machine.num_procs, np.inf)
    plan = sketch.number(start)
    trail = sketch.walk(plan, draws, np.full(200, 0.1), capacity)
    assert trail.least == sketch.seconds(sketch.configs(trail.best))
    sketches._bodies.cache_clear()
    assert (plan != sketch.number(start))[is_idle].any() and plan[-1] == sketch.number(start)[-1]
