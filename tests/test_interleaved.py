"""Interleaved pipelines: groups of processors that come round to several short stretches of the network each."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.pipelines import Pipelines, stretches
from castile.planner.known.plans import data_parallel
from castile.planner.known.seeds import known_names, seeds
from castile.planner.lower import Lowering
from castile.planner.lowering.stages import stages
from castile.planner.search import search
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines
from tests.test_stages import LITTLE, PASS, WIDTH, on, stack
from tests.training import SGD


def layers(num_stages: int, rounds: int, microbatches: int) -> Lowering:
    batch = 256
    machine = on(num_stages, 2.0 * WIDTH**2 * batch)
    return Lowering(stack(num_stages * rounds, batch * microbatches), machine, SGD, microbatches=microbatches)


def seconds(lowering: Lowering, configs: dict) -> float:
    known = Evaluator(lowering, CostModel(lowering.machine))
    return known.evaluate(Strategy(configs, lowering.microbatches)).seconds


@pytest.mark.parametrize(("num_stages", "rounds"), [(2, 2), (2, 4), (4, 2), (4, 3), (8, 2)])
def test_a_pipeline_fills_in_as_many_times_less_as_it_comes_round(num_stages: int, rounds: int) -> None:
    """Of as many microbatches as stages, which is what interleaving is for: F, B and W take as long as each other."""
    lowering = layers(num_stages, rounds, num_stages)
    rows, inner = Pipelines(lowering), data_parallel(lowering.piece, 1)
    around, once = rows.interleaved(num_stages, inner), rows.once(num_stages, inner)
    assert [around[f"fc{n}"].procs for n in range(num_stages * rounds)] == [(n,) for n in range(num_stages)] * rounds
    work, fill = 3 * PASS * rounds * num_stages, 3 * PASS * (num_stages - 1)
    # Once through all stages is what a pipeline that comes round once cannot do without.
    assert work + LITTLE <= seconds(lowering, around) <= (work + fill) * (1 + LITTLE)
    assert seconds(lowering, around) < seconds(lowering, once) - 0.5 * (rounds - 1) * fill / 3 * (1 - LITTLE)


def test_stretches_take_as_little_as_can_be_and_the_last_are_full() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        work, rates = random.integers(1, 9, random.integers(1, 8)).tolist(), random.integers(1, 3, 3).tolist()
        upto = np.append(0, np.cumsum(work)).tolist()
        longest, begins = stretches(upto, rates)
        ends, of = [*begins[1:], len(work)], rates[len(rates) - len(begins) :]
        lasts = [(upto[b] - upto[a]) / rate for a, b, rate in zip(begins, ends, of, strict=True)]
        assert begins[0] == 0 and max(lasts) <= longest * (1 + 1e-5)
        every = itertools.combinations_with_replacement(range(len(work) + 1), len(rates) - 1)
        cuts = ([0, *inner, len(work)] for inner in every)
        best = min(max((upto[b] - upto[a]) / r for a, b, r in zip(cut, cut[1:], rates)) for cut in cuts)
        assert longest == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("model", ["gpt:layers=8,width=64,heads=4,seq=64,vocab=256", "vit:layers=6,width=64,heads=2"])
def test_one_tensor_is_handed_over(model: str) -> None:
    """Wherever a group hands over to the next; the last one has the loss."""
    lowering = Lowering(models.parse(model).graph(16), machines.parse("dgx-h100"), SGD, microbatches=4)
    configs = Pipelines(lowering).interleaved(4, data_parallel(lowering.piece, 2))
    nodes, stage = lowering.piece.nodes, stages(config.procs for config in configs.values())
    assert len([n for n in range(1, len(stage)) if stage[n] != stage[n - 1]]) >= 2 * 4 - 1
    assert configs[list(nodes)[-1]].procs == (6, 7)
    place = {name: n for n, name in enumerate(nodes)}
    maker = {name: place[node.name] for node in nodes.values() for name in node.outputs}
    for n in range(1, len(stage)):
        if stage[n] != stage[n - 1]:
            after = [t for node in list(nodes.values())[n:] for t in node.inputs if maker.get(t, n) < n]
            assert len(set(after)) == 1, (list(nodes)[n], after)


def test_interleaving_is_known_where_microbatches_are_few() -> None:
    for microbatches, found in ((2, [2]), (4, [2, 4]), (8, [4]), (16, [])):
        lowering = layers(4, 4, microbatches)
        known = [name for name in known_names(lowering) if name.endswith("_interleaved")]
        assert known == [f"pipeline_{n}_interleaved" for n in found]
        assert len(seeds(lowering, known)) == len(known)


def test_what_cannot_be_cut_into_more_is_the_pipeline_itself() -> None:
    lowering = layers(4, 1, 4)
    rows, inner = Pipelines(lowering), data_parallel(lowering.piece, 1)
    assert rows.interleaved(4, inner) == rows.once(4, inner)
    assert "pipeline_4_interleaved" not in seeds(lowering)


def test_a_search_ends_with_an_interleaved_pipeline_where_nothing_else_fills() -> None:
    lowering = layers(4, 4, 4)
    found = search("mcmc", Evaluator(lowering, CostModel(lowering.machine)), "40", 0)
    assert found.evaluated.seconds <= found.seeds["pipeline_4_interleaved"].seconds
    assert found.seeds["pipeline_4_interleaved"].seconds < 0.8 * found.seeds["pipeline_4"].seconds
