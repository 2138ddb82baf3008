"""Templates: what parts, steps and flows share is what each of them would find alone."""

from __future__ import annotations

import random
from math import inf
from types import SimpleNamespace

import pytest

from castile.launch import models
from castile.planner.known.plans import data_parallel
from castile.planner.lower import Lowering
from castile.planner.lowering.template import RangeCache, Templates
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines
from tests.little import drawn

# Cells that read elsewhere, pieces of concatenations, windows, microbatches: models, samples, and in how many of these.
MODELS = (
    ("lstm:layers=2,width=8,seq=3,vocab=16", 8, 1),
    ("lstm:layers=1,width=8,seq=3,vocab=16", 8, 2),
    ("seq2seq:layers=1,width=8,seq=3,vocab=16", 8, 1),
    ("convnet", 8, 1),
    ("gpt:layers=1,width=16,heads=2,seq=8,vocab=32,dropout=0.5", 8, 2),
)


def test_what_is_shared_is_what_each_would_find() -> None:
    rng, num_asked, num_found = random.Random(0), 0, 0
    for _ in range(200):
        axes = "abcd"[: rng.randint(1, 4)]
        # at which ranges one looks may depend on what one saw
        branch = {n: rng.sample(axes, rng.randint(0, len(axes))) for n in range(3)}
        found = []

        def look(part, axes=axes, branch=branch, found=found):
            found.append(part)
            first = part.ranges[axes[0]]
            return first, [part.ranges[axis] for axis in branch[first[0]]]

        shared = RangeCache()
        for _ in range(20):
            part = SimpleNamespace(op=None, alignment=None, ranges={a: (n := rng.randrange(3), n + 1) for a in axes})
            num_asked, mine = num_asked + 1, shared.of(part, look)
            num_found += len(found)
            found.clear()
            assert mine == look(part)
            found.clear()
    assert num_found < num_asked / 2


@pytest.mark.parametrize(("model", "samples", "microbatches"), MODELS)
def test_what_steps_and_flows_of_one_kind_share_is_their_own(model: str, samples: int, microbatches: int) -> None:
    machine, rng, shared = machines.local(4), random.Random(0), 0
    graph = models.parse(model).graph(samples)
    lowering = Lowering(graph, machine, microbatches=microbatches)
    for configs in (*(drawn(lowering.piece, 4, rng) for _ in range(2)), data_parallel(lowering.piece, 4)):
        strategy = Strategy(configs, microbatches)
        steps, flows = lowering.instances(strategy)
        program, every = lowering.program(strategy), lowering.configs(strategy)
        for step in steps:
            alone = Templates().get(step.step, step.config.split, program.dtypes.__getitem__)
            for mine, own in zip(step.template.parts, alone.parts, strict=True):
                assert mine[:2] == own[:2] and mine.key == own.key and mine.work.turns == own.work.turns
                adds = (False,) * len(step.step.outputs)
                assert mine.body(adds) == own.body(adds)
        for flow in flows:
            assert lowering._flow_template(flow.flow, flow.slots, every, steps, inf) is flow.template
        shared += len({id(step.template) for step in steps}) - len({id(step.template.does) for step in steps})
    assert shared or not model.startswith(("lstm", "seq2seq"))
