"""Batch normalisation as a layer against PyTorch's: results, every gradient and running statistics, over some steps."""

import numpy as np
import pytest

from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.op import Init
from castile.planner.ops.sgd import Sgd
from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import Level, Machine, Processor
from tests.strategies import whole_on
from tests.training import train

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")

SHAPES = [(6, 3), (4, 3, 5), (4, 3, 5, 2)]
TWO = Machine("two", (Processor("p", 1e9, 1e9, 2**30, 0, 0.0),) * 2, (Level("link", 2, 1e-6, 1e9),))
STEPS, RATE, MOMENTUM = 4, 0.25, 0.3


def graph_of(shape, training: bool = True) -> Graph:
    """The sum of a table times what normalising x plus a table gives: both tables and the layer learn."""
    g = Graph("normal", "float64")
    axes = ("b", "c", "h", "w")[: len(shape)]
    x = g.input("x", shape, " ".join(axes))
    before = g.param("before", shape[1:], axes[1:], Init("zeros"))
    after = g.param("after", shape[1:], axes[1:], Init("ones"))
    y = g.batch_norm("norm", g.add("shifted", x, before), momentum=MOMENTUM, training=training)
    g.outputs = [y.name]
    g.minimise(g.sum("loss", g.mul("weighted", g.tanh("bent", y), after)))
    return g


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "samples cut"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_training_is_torch_training(shape, cut):
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(3, 2, size=shape)} for _ in range(STEPS)]
    values = {"before": rng.normal(size=shape[1:]), "after": rng.normal(size=shape[1:])}
    values |= {"norm.weight": rng.normal(size=shape[1]), "norm.bias": rng.normal(size=shape[1])}
    graph = graph_of(shape)
    strategy = Strategy({n: Config({"b": 2}, 1, (0, 1)) if "b" in node.alignment.axes else Config({}, 2, (0, 1))
                         for n, node in graph.nodes.items()}) if cut else whole_on(graph)  # fmt: skip
    found = train(graph, strategy, TWO, data, values, rate=RATE, size=2, updates=Updates(Sgd()))
    layer = torch.nn.BatchNorm1d if len(shape) < 4 else torch.nn.BatchNorm2d
    norm = layer(shape[1], momentum=MOMENTUM, dtype=torch.float64)
    held = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in values.items()}
    norm.weight, norm.bias = held["norm.weight"], held["norm.bias"]
    optimizer = torch.optim.SGD(held.values(), lr=RATE)
    for arrays, ours in zip(data, found.losses, strict=True):
        optimizer.zero_grad()
        loss = (torch.tanh(norm(torch.tensor(arrays["x"]) + held["before"])) * held["after"]).sum()
        loss.backward()
        optimizer.step()
        assert abs(ours - float(loss.detach())) <= 1e-9 * max(1, abs(float(loss.detach())))
    theirs = {**{n: p.detach() for n, p in held.items()},
              "norm.running_mean": norm.running_mean, "norm.running_var": norm.running_var}  # fmt: skip
    for name, tensor in theirs.items():
        np.testing.assert_allclose(found.carried[name], tensor.numpy(), rtol=1e-8, atol=1e-9, err_msg=name)


def test_evaluation_reads_what_training_kept():
    training, evaluation = graph_of((4, 3, 2)), graph_of((4, 3, 2), training=False)
    assert training.states == evaluation.states == ["norm.running_mean", "norm.running_var"]
    assert set(training.updates) == set(training.states) and not evaluation.updates
    assert set(evaluation.nodes) < set(training.nodes)


def test_one_number_a_channel_is_refused():
    with pytest.raises(ValueError, match="one number a channel has no variance"):
        graph_of((1, 3))
    graph_of((1, 3), training=False)


def test_moments_of_float32_keep_what_the_mean_would_drown():
    from castile.kernels.table import Table

    x = np.random.default_rng(0).normal(3000, 1, size=(64, 2, 100)).astype(np.float32)
    out = np.empty((2, 2))
    Table("numpy").bind("moments", (x,), (out,), {"scale": 1 / 6400})()
    assert np.abs((out[1] - out[0] ** 2) / x.astype(np.float64).var(axis=(0, 2)) - 1).max() < 1e-7
