"""Stages that send among themselves compute nothing meanwhile, which sketches of pipelines count."""

from __future__ import annotations

import pytest

from castile.launch import models
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import known_names, seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.sketch.sketched_plans import SketchedPlans
from castile.runtime import machine as machines

GPT = "gpt:layers=8,width=2048,heads=16,seq=512,vocab=512"


def seen(text: str, on: str, samples: int, microbatches: int) -> tuple[Evaluator, SketchedPlans]:
    """All known pipelines, as one sketch sees them."""
    machine = machines.parse(on)
    graph = models.parse(text).graph(samples, "bfloat16")
    lowering = Lowering(graph, machine, Updates(find("adamw")()), microbatches=microbatches)
    same = Evaluator(lowering, CostModel(machine))
    names = [name for name in known_names(lowering) if name.startswith("pipeline_")]
    return same, SketchedPlans(same, seeds(lowering, names), Spaces(lowering, same.cost))


def test_what_stages_send_among_themselves_is_counted() -> None:
    """Of stages that cut matrices sketches know what a step takes no worse than of those that do not."""
    same, sieve = seen(GPT, "dgx-a100:nodes=1", 32, 16)
    cut = {name for name in sieve.plans if "megatron" in name and "interleaved" not in name}
    assert len(cut) > 2
    for name in cut:
        one, seconds = sieve.estimates[name], same.evaluate(sieve.plans[name]).seconds
        assert one.seconds == pytest.approx(seconds, rel=0.12), name
    assert min(sieve.estimates[name].plain / same.evaluate(sieve.plans[name]).seconds for name in cut) < 0.85


def test_who_sends_little_within_a_stage_is_hardly_blocked() -> None:
    """Where samples of a stage are cut what comes from the stage before is no loss, nor is anything in one stage."""
    _, sieve = seen(GPT, "dgx-a100:nodes=1", 32, 4)
    alone, cut = sieve.estimates["pipeline_4"], sieve.estimates["pipeline_2_megatron_4"]
    assert 0 <= alone.blocked < 0.01 * alone.plain and cut.blocked > 0.05 * cut.plain
    assert sieve.energy["pipeline_2_megatron_4"] == cut.energy(cut.plain)
    same, _ = seen(GPT, "dgx-a100:nodes=1", 32, 16)
    flat = SketchedPlans(same, seeds(same.lowering, ["megatron"]), Spaces(same.lowering, same.cost))
    assert flat.estimates["megatron"].blocked == 0
