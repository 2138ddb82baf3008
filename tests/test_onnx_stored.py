"""What was trained of a network of PyTorch goes back into it as it is there, and comes from there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as each_of
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.arrays import weights
from tests.answers import answer
from tests.effort import rare
from tests.op_laws import relative
from tests.test_models import forward

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from tests.test_onnx_masks import CLASSES, Net, export  # noqa: E402

n = torch.nn
COUNT = 32


def images(between: n.Module) -> n.Module:
    first, last = n.Conv2d(1, 6, 3, padding=1), n.Linear(6, CLASSES)
    return Net(lambda s, x: s.last(s.between(s.first(x)).mean((2, 3))), first=first, between=between, last=last)


def product() -> Net:
    net = Net(lambda s, x: s.head(torch.tanh(x.flatten(1) @ s.turned)), head=n.Linear(12, CLASSES))
    net.turned = n.Parameter(torch.randn(64, 12) * 0.1)
    return net


def square() -> Net:
    net = Net(lambda s, x: s.head(torch.tanh(x.flatten(1) @ s.turned)), head=n.Linear(64, CLASSES))
    net.turned = n.Parameter(torch.randn(64, 64) * 0.1)
    return net


def rows() -> Net:
    parts = {"up": n.ConvTranspose1d(8, 4, 3, stride=2), "head": n.Linear(4, CLASSES)}
    return Net(lambda s, x: s.head(torch.tanh(s.up(x[:, 0])).mean(2)), **parts)


CASES: dict[str, Callable[[], n.Module]] = {
    "slopes": lambda: images(n.PReLU(6)),
    "slope": lambda: images(n.PReLU()),
    "groups": lambda: images(n.GroupNorm(2, 6)),
    "product": product,
    "square": square,
    "rows": rows,
}
HOW = ("older", "whole")
# Of both exporters each by default, in turn.
IN_TURN = [(name, HOW[n % 2]) for n, name in enumerate(CASES)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "how"), [*IN_TURN, *rare(*sorted({*each_of(CASES, HOW)} - {*IN_TURN}))])
def test_parameters_go_back_as_pytorch_has_them(name: str, how: str, alone: Path, capsys) -> None:
    torch.manual_seed(0)
    net = CASES[name]()
    export(net, (torch.randn(2, 1, 8, 8),), "net.onnx", how)
    x = torch.randn(COUNT, 1, 8, 8)
    labels = np.random.default_rng(0).integers(0, CLASSES, COUNT)
    capsys.readouterr()
    np.savez("train.npz", x0=x.numpy(), label=labels)
    said = ("--data", "numpy:file=train.npz", "--search", "data_parallel")
    answer(capsys, "train", "net.onnx", *said, "--steps", "3", "--batch", "8", "--lr", "0.1", "--weights", "net.onnx",
           "--checkpoint", "run")  # fmt: skip
    assert main(["checkpoint", "export", "run", "--out", "w.safetensors"]) == 0
    capsys.readouterr()
    found, before = load_file("w.safetensors"), {key: p.detach().clone() for key, p in net.named_parameters()}
    assert {key: found[key].shape for key in before} == {key: tuple(p.shape) for key, p in before.items()}
    net.load_state_dict({key: torch.from_numpy(array) for key, array in found.items() if key in before}, strict=False)
    assert all(not torch.equal(p, before[key]) for key, p in net.named_parameters())
    # and as weights of PyTorch they are what castile trained
    model = models.parse("net.onnx")
    graph = model.graph(COUNT, training=False)
    save_file({key: found[key] for key in (*before, *(k for k in graph.states if k in found))}, "own.safetensors")
    values = {key: np.array(array) for key, array in weights.load("own.safetensors", model, graph).items()}
    states = {key: array for key, array in weights.load("net.onnx", model, graph).items() if key in graph.states}
    env = {**states, **values, "x0": x.numpy(), "label": labels.astype(np.int32)}
    wanted = net.eval()(x).detach().numpy()
    assert relative(forward(graph, env)[graph.outputs[0]], wanted) < 1e-5
    told = answer(capsys, "predict", "net.onnx", "--checkpoint", "run", "--data", "numpy:held_out=train.npz", "--out",
                  "said.npz")  # fmt: skip
    with np.load("said.npz") as file:
        assert relative(file[next(iter(told["outputs"]))], wanted) < 1e-5
