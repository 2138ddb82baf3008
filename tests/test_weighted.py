"""Weighted cross-entropy: loss and gradients are the defined ones under any plan, and weights that fit nothing are
refused."""

from __future__ import annotations

import numpy as np
import pytest

from castile.planner.graph import Graph
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from tests.training import train

BATCH, FEATURES = 6, 4


def build(weights: tuple[float, ...], seq: int = 3) -> Graph:
    g = Graph("weighted", "float64")
    x, label = g.input("x", (BATCH, seq, FEATURES), "b s i"), g.input("label", (BATCH, seq), "b s", "int32")
    logits = g.linear("fc", x, features=len(weights), bias=False)
    g.minimise(g.weighted_cross_entropy("loss", logits, label, weights))
    return g


@pytest.mark.parametrize("weights", [(1.0, 0.25, 7.0), (2.0, 3.0)])
@pytest.mark.parametrize("size", [1, 2])
def test_it_is_the_mean_of_weighted_losses_and_so_is_its_gradient(weights: tuple[float, ...], size: int) -> None:
    rng, g = np.random.default_rng(0), build(weights)
    x, label = rng.normal(size=(BATCH, 3, FEATURES)), rng.integers(0, len(weights), (BATCH, 3)).astype(np.int32)
    w = rng.normal(size=(len(weights), FEATURES))
    config = Config({"b": size}, procs=tuple(range(size)))
    configs = {n: config if "b" in node.alignment.extents else Config() for n, node in g.nodes.items()}
    on = machine.parse("local:procs=2")
    found = train(g, Strategy(configs, num_procs=2), on, [{"x": x, "label": label}], {"fc.weight": w}, 0.5, 2)
    logits = x @ w.T
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    each, hot = np.array(weights)[label], np.eye(len(weights))[label]
    assert found.losses[0] == pytest.approx((each * -np.log((shares * hot).sum(-1))).mean())
    slope = each[..., None] * (shares - hot) / label.size
    np.testing.assert_allclose(found.carried["fc.weight"], w - 0.5 * np.einsum("bsc,bsi->ci", slope, x), rtol=1e-12)


@pytest.mark.parametrize("weights", [(1.0, 2.0), (1.0, 0.0, 2.0), (1.0, float("inf"), 2.0), ()])
def test_weights_that_fit_no_classes_are_refused(weights: tuple[float, ...]) -> None:
    g = Graph("refused", "float64")
    x, label = g.input("x", (BATCH, 3), "b i"), g.input("label", (BATCH,), "b", "int32")
    with pytest.raises(ValueError, match="loss: 3 classes take as many weights above 0, got "):
        g.weighted_cross_entropy("loss", x, label, weights)


def test_many_classes_take_as_many_nodes_as_few() -> None:
    assert len(build((1.0,) * 300).nodes) == len(build((1.0,) * 3).nodes)
