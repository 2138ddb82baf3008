"""What PyTorch leaves out at random by whole channels or blocks is left out in training, and is there in evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from castile.launch import models
from castile.launch.arrays import weights
from castile.planner.known.plans import data_parallel
from castile.planner.strategy import Strategy
from castile.runtime import machine
from tests.op_laws import relative
from tests.strategies import whole_on
from tests.test_models import forward
from tests.training import train

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from tests.test_onnx_masks import Net, export  # noqa: E402

n = torch.nn


def channels() -> Net:
    return Net(lambda s, x: s.left(s.one(x)), one=n.Conv2d(3, 64, 3), left=n.Dropout2d(0.3))


def blocks() -> Net:
    """Stochastic depth: of some samples a block is left out."""

    def forward(s: Net, x: torch.Tensor) -> torch.Tensor:
        y = s.one(x)
        if s.training:
            y = y * torch.empty((x.shape[0], 1, 1, 1), dtype=x.dtype).bernoulli_(0.75).div_(0.75)
        return y

    return Net(forward, one=n.Conv2d(3, 4, 3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "how", "share", "dims"),
    [(channels, "whole", 0.7, (2, 3)), (blocks, "whole", 0.75, (1, 2, 3)), (blocks, "older", 0.75, (1, 2, 3))],
)
def test_whole_parts_are_left_out_in_training_alone(make, how, share, dims, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, path, batch = make(), str(tmp_path / "net.onnx"), 64
    export(net, (torch.randn(2, 3, 5, 4),), path, how)
    model, x = models.parse(path), torch.randn(batch, 3, 5, 4).double()
    alone, trained = (model.graph(batch, "float64", training=training) for training in (False, True))
    wanted = net.double().eval()(x).detach().numpy()
    env = {**weights.load(path, model, alone), "x0": x.numpy(), "target": np.zeros_like(wanted)}
    assert relative(forward(alone, env)[alone.outputs[0]], wanted) < 1e-12
    given = {name: np.broadcast_to(0.0 + 1, trained.tensors[name].shape) for name in trained.states}
    found = forward(trained, {**env, **given, "noise": np.array(7)})[trained.outputs[0]]
    times = (found / wanted).mean(dims)
    assert set(np.unique(times.round(6))) == {0.0, round(1 / share, 6)}
    assert abs((times > 0).mean() - share) < 4 * np.sqrt(share * (1 - share) / times.size)
    cuts = data_parallel(trained, 2)
    assert all(cuts[node.name].split == {"b": 2} for node in trained.nodes.values())
    data, values = [{"x0": x.numpy(), "target": wanted}] * 2, weights.load(path, model, trained)
    plans = whole_on(trained), Strategy(cuts, num_procs=2)
    one, two = (train(trained, plan, machine.local(plan.num_procs), data, values).losses for plan in plans)
    assert relative(two, one) < 1e-10


@pytest.mark.filterwarnings("ignore")
def test_other_random_numbers_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "net.onnx")
    net = Net(lambda s, x: s.left(s.one(x)), one=n.Linear(4, 4), left=n.AlphaDropout(0.2))
    export(net, (torch.randn(2, 4),), path, "whole")
    with pytest.raises(ValueError, match="of what is left at random"):
        models.parse(path).graph(2)
