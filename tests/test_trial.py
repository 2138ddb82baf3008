"""Trials: any plan's steps give whole results and gradients, which are those of one processor and follow from each
other."""

from __future__ import annotations

import numpy as np
import pytest

from castile.launch.jobs.offline import Desk, desk
from castile.launch.jobs.trial import Step, Trial
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine

BATCH = 8
MODEL = "mlp:width=6,layers=2"


@pytest.fixture(scope="module")
def at() -> Desk:
    return desk(MODEL, machine.parse("dgx-h100:nodes=1"), BATCH, dtypes=("float64",))


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"image": rng.normal(size=(BATCH, 1, 8, 8)), "label": rng.integers(0, 10, BATCH)}


def plans(at: Desk) -> dict[str, Strategy]:
    nodes = at.evaluator.lowering.graph.nodes
    whole = {name: Config() for name in nodes}
    samples = {name: Config({"b": 4}, procs=(0, 1, 2, 3)) for name in nodes}
    summed = whole | {"fc2": Config({"i": 2}, procs=(4, 7)), "fc1": Config({"o": 3}, procs=(1, 2, 3))}
    away = summed | {"head.bias/update": Config(procs=(6,)), "head.bias/accumulate": Config(procs=(5,))}
    return {
        "whole": Strategy(whole, num_procs=8), "samples": Strategy(samples, num_procs=8),
        "summed": Strategy(summed, num_procs=8), "away": Strategy(away, num_procs=8),
        "micro": Strategy(whole, num_procs=8, microbatches=2), "both": Strategy(samples, num_procs=8, microbatches=2),
    }  # fmt: skip


def two(at: Desk, plan: Strategy) -> tuple[Step, dict[str, np.ndarray]]:
    trial = Trial(at, plan)
    trial.step(batch(), 0.1)
    return trial.step(batch(), 0.1), trial.parameters


@pytest.mark.parametrize("which", ["whole", "samples", "summed", "away", "micro", "both"])
def test_any_plan_gives_what_one_processor_does(at: Desk, which: str) -> None:
    step, parameters = two(at, plans(at)[which])
    first, wanted = two(at, plans(at)["whole"])
    assert step.loss == pytest.approx(first.loss, rel=1e-12)
    for found, of_one in ((step.results, first.results), (step.gradients, first.gradients), (parameters, wanted)):
        assert found.keys() == of_one.keys()
        for name, array in found.items():
            np.testing.assert_allclose(array, of_one[name], rtol=1e-9, atol=1e-14, err_msg=name)


def test_what_it_gives_follows_from_each_other(at: Desk) -> None:
    graph, given = at.evaluator.lowering.graph, batch()
    trial = Trial(at, plans(at)["summed"])
    before = {name: array.copy() for name, array in trial.parameters.items()}
    step = trial.step(given, 0.25)
    flat = given["image"].reshape(BATCH, -1)
    np.testing.assert_allclose(step.results["fc1"], flat @ before["fc1.weight"].T + before["fc1.bias"], rtol=1e-12)
    np.testing.assert_allclose(step.gradients["fc1.weight"], step.gradients["fc1"].T @ flat, rtol=1e-9, atol=1e-15)
    for param in graph.params:
        slope = step.gradients[param.name]
        np.testing.assert_allclose(trial.parameters[param.name], before[param.name] - 0.25 * slope, rtol=1e-9)
    again = Trial(at, plans(at)["whole"], values=before)
    assert again.step(given).loss == pytest.approx(step.loss, rel=1e-12)


def test_what_does_not_fit_is_told_in_a_sentence(at: Desk) -> None:
    trial, given = Trial(at, plans(at)["whole"]), batch()
    few = given | {"image": given["image"][:4]}
    for arrays, told in (
        ({"image": given["image"]}, "no array for the input 'label', of shape (8,)"),
        (few, "input 'image' has shape (4, 1, 8, 8), and the graph takes (8, 1, 8, 8)"),
        (given | {"labels": given["label"]}, "the graph has no input 'labels' (did you mean 'label'?)"),
        (given | {"label": np.full(8, 0.5)}, "data: input 'label' has 0.5 where the model takes whole numbers"),
    ):
        with pytest.raises(ValueError) as error:
            trial.step(arrays)
        assert str(error.value).startswith(told), error.value
    cut = plans(at)["whole"].configs | {"fc1": Config({"o": 7}, procs=tuple(range(7)))}
    with pytest.raises(ValueError, match="fc1"):
        Trial(at, Strategy(cut, num_procs=8))


@pytest.mark.parametrize("which", ["whole", "both"])
def test_gradients_are_the_losss_in_sixteen_bits_too(at: Desk, which: str) -> None:
    """Those by results as those by parameters, which differ from float64's by what 16 bits round."""
    wanted = Trial(at, plans(at)["whole"])
    first = wanted.step(batch())
    for dtype in ("float16", "bfloat16"):
        narrow = desk(MODEL, machine.parse("dgx-h100:nodes=1"), BATCH, dtypes=(dtype,))
        trial = Trial(narrow, plans(narrow)[which], values=wanted.parameters)
        step = trial.step(batch())
        assert step.gradients.keys() == first.gradients.keys()
        for name, slope in first.gradients.items():
            assert np.abs(step.gradients[name] - slope).max() < 0.03 * np.abs(slope).max(), (dtype, name)
        again = Trial(at, plans(at)["whole"], values=trial.parameters)
        assert again.step(batch()).loss == pytest.approx(first.loss, rel=1e-6)


def test_values_of_nothing_and_of_other_shapes_are_refused(at: Desk) -> None:
    """Also shapes that NumPy would spread over the parameter's; what another optimizer keeps is left aside."""
    given = {"fc1.bias": np.ones(6), "fc1.bias/square": np.ones(6)}
    assert np.array_equal(Trial(at, plans(at)["samples"], values=given).parameters["fc1.bias"], np.ones(6))
    for values, told in (
        ({"fc1.bais": np.ones(6)}, "mlp has no parameter 'fc1.bais' (did you mean 'fc1.bias'?)"),
        ({"fc1.bias": np.ones(1)}, "the value of 'fc1.bias' has shape (1,), it should have (6,)"),
        ({"fc1.weight": np.ones((1, 64))}, "the value of 'fc1.weight' has shape (1, 64), it should have (6, 64)"),
        ({"head.weight": np.ones((10, 7))}, "the value of 'head.weight' has shape (10, 7), it should have (10, 6)"),
    ):
        with pytest.raises(ValueError) as error:
            Trial(at, plans(at)["samples"], values=values)
        assert str(error.value) == told
