"""Networks that PyTorch exports as docs/own.md says have its own weights under its own names, and say what it says."""

from __future__ import annotations

from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from castile.launch import models
from castile.launch.arrays import weights
from castile.planner.known.plans import data_parallel
from castile.planner.lower import Lowering
from castile.planner.strategy import Strategy
from castile.runtime import machine
from tests import theirs
from tests.op_laws import relative
from tests.strategies import whole_on
from tests.test_models import forward
from tests.training import SGD, train

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")


def images() -> torch.nn.Module:
    n = torch.nn
    return n.Sequential(
        n.Conv2d(3, 8, 3, padding=1, bias=False), n.BatchNorm2d(8), n.SiLU(), n.MaxPool2d(2),
        n.Conv2d(8, 8, 3, groups=8, padding=1), n.GroupNorm(2, 8), n.Hardswish(), n.AdaptiveAvgPool2d(1), n.Flatten(),
        n.Dropout(0.2), n.Linear(8, 5),
    )  # fmt: skip


class Texts(torch.nn.Module):
    """A causal transformer whose head is its table of tokens."""

    def __init__(self) -> None:
        super().__init__()
        n = torch.nn
        self.table, self.places = n.Embedding(17, 16), n.Parameter(torch.randn(1, 9, 16))
        self.norms = n.ModuleList(n.LayerNorm(16) for _ in range(3))
        self.qkv, self.out, self.up, self.down = n.Linear(16, 48), n.Linear(16, 16), n.Linear(16, 32), n.Linear(32, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        f, (b, s) = torch.nn.functional, tokens.shape
        x = self.table(tokens) + self.places[:, :s]
        q, k, v = (t.view(b, s, 4, 4).transpose(1, 2) for t in self.qkv(self.norms[0](x)).split(16, dim=2))
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, 16))
        x = x + self.down(f.gelu(self.up(self.norms[1](x))))
        return self.norms[2](x) @ self.table.weight.T


class Patches(torch.nn.Module):
    """A class token before patches, and PyTorch's own layer of attention, which turns samples behind positions."""

    def __init__(self) -> None:
        super().__init__()
        n = torch.nn
        self.patch, self.token = n.Conv2d(3, 8, 4, 4), n.Parameter(torch.randn(1, 1, 8))
        self.layer = n.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True, activation="gelu")
        self.head = n.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        return self.head(self.layer(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))[:, 0])


CASES = {
    "images": (images, lambda batch: torch.randn(batch, 3, 8, 8)),
    "texts": (Texts, lambda batch: torch.randint(0, 17, (batch, 6))),
    "patches": (Patches, lambda batch: torch.randn(batch, 3, 8, 8)),
}


def export(net: torch.nn.Module, x: torch.Tensor, path: str, how: str) -> None:
    """Writes the network: for training by either exporter, or as PyTorch does by itself for a number of samples."""
    if how == "older":
        torch.onnx.export(
            net, (x,), path, input_names=["x"], dynamic_axes={"x": {0: "batch"}}, opset_version=17, dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
        )  # fmt: skip
        return
    pytest.importorskip("onnxscript")
    theirs.export_faster()
    if how == "whole":
        torch.onnx.export(net, (x,), path, input_names=["x"], dynamic_shapes=({0: "batch"},), optimize=False)
    else:
        torch.onnx.export(net.eval(), (x,), path, input_names=["x"])


def exported(net: torch.nn.Module, x: torch.Tensor, how: str) -> dict[str, bytes]:
    """What it writes by the name net.onnx: kept by who asks several things of it, as it takes longer than these."""
    with TemporaryDirectory() as folder:
        export(net, x, f"{folder}/net.onnx", how)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def put(files: dict[str, bytes], folder: Path) -> str:
    """Writes what was exported there; returns the path of the network."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder / "net.onnx")


@cache
def made(name: str, how: str) -> tuple[torch.nn.Module, dict[str, bytes]]:
    """A case after its export, which looks at samples where it is for training, and its files."""
    torch.manual_seed(0)
    make, draw = CASES[name]
    net = make()
    return net, exported(net, draw(1 if how == "usual" else 2), how)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["older", "whole", "usual"])
@pytest.mark.parametrize("name", CASES)
def test_what_pytorch_exports_is_its_network(name: str, how: str, tmp_path: Path) -> None:
    net, files = made(name, how)
    path = put(files, tmp_path)
    torch.manual_seed(0)
    model, given = models.parse(path), CASES[name][1](3)
    trained = {t.name: prod(t.shape) for t in model.graph(3).params}
    if how == "usual":
        # what was folded is gone or has another name, but no table and no mask is trained
        assert sum(trained.values()) <= sum(p.numel() for p in net.parameters())
    else:
        assert trained == {n: p.numel() for n, p in net.named_parameters()}
    graph = model.graph(3, "float64", training=False)
    values = weights.load(path, model, graph)
    for key, tensor in net.state_dict().items():
        if key in values and how != "usual":
            assert np.array_equal(np.sort(values[key].ravel()), np.sort(tensor.numpy().ravel()))
    zeros = {n: np.zeros(graph.tensors[n].shape, np.int32) for n in graph.inputs[1:]}
    found = forward(graph, {**values, **zeros, "x": given.numpy()})[graph.outputs[0]]
    assert relative(found, net.eval()(given).detach().numpy()) < 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["older", "whole", "usual"])
@pytest.mark.parametrize("name", ["texts", "patches"])
def test_samples_of_what_pytorch_exports_are_cut_everywhere(name: str, how: str, tmp_path: Path) -> None:
    path, draw = put(made(name, how)[1], tmp_path), CASES[name][1]
    torch.manual_seed(0)
    model = models.parse(f"{path}:loss=cross_entropy")
    graph = model.graph(4, "float64")
    sampled, cuts = set(graph.inputs), data_parallel(graph, 2)
    for node in graph.nodes.values():
        if sampled.intersection(node.inputs):
            sampled.update(node.outputs)
            assert cuts[node.name].split == {"b": 2}, node
    label = np.random.default_rng(0).integers(0, 5, graph.tensors["label"].shape)
    data, values = [{"x": draw(4).numpy(), "label": label}], weights.load(path, model, graph)
    losses = train(graph, whole_on(graph), machine.local(1), data, values).losses
    for count in (1, 2):
        plan = Strategy(data_parallel(graph, 2), num_procs=2, microbatches=count)
        if all(node.op.name != "dropout" for node in graph.nodes.values()):
            assert relative(train(graph, plan, machine.local(2), data, values).losses, losses) < 1e-10
        else:
            Lowering(graph, machine.local(2), SGD).lower(plan)
