"""What networks of PyTorch are trained on: classes of pixels, and losses that stand in the file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from castile.launch import models
from castile.launch.arrays import weights
from castile.launch.training.scoring import HeldOut, labels_of
from castile.planner.graph import Graph
from castile.planner.known.plans import data_parallel
from castile.planner.strategy import Strategy
from castile.runtime import machine
from tests import theirs
from tests.effort import rare
from tests.judged import judge
from tests.op_laws import relative
from tests.strategies import whole_on
from tests.test_models import forward
from tests.training import train

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from tests.test_onnx_masks import BATCH, CLASSES, RATE, Net, export  # noqa: E402

n, f = torch.nn, torch.nn.functional


def by_exporters(*names: str) -> list[tuple[str, str]]:
    """Each by one of the exporters in turns, and by the other where the law is proved on all."""
    return [
        (name, how)
        for number, name in enumerate(names)
        for how in (("whole", "older")[number % 2], *rare(("older", "whole")[number % 2]))
    ]


def pixels(s: Net, x: torch.Tensor) -> torch.Tensor:
    return s.two(f.relu(s.one(x)))


def resized(how: dict[str, object]) -> Net:
    parts = {"one": n.Conv2d(3, 6, 3, stride=2), "two": n.Conv2d(6, CLASSES, 1)}
    return Net(lambda s, x: f.interpolate(pixels(s, x), **how), **parts)


def net_of(kind: str) -> Net:
    if kind == "pixels":
        return Net(pixels, one=n.Conv2d(3, 6, 3, padding=1), two=n.Conv2d(6, CLASSES, 1))
    layers = {"one": n.Linear(8, 12), "two": n.Linear(12, CLASSES)}
    if kind == "tokens":
        return Net(lambda s, x, y: f.cross_entropy(pixels(s, x).transpose(1, 2), y), **layers)
    if kind == "logits":
        return Net(lambda s, x, y: (f.nll_loss(f.log_softmax(z := pixels(s, x), 1), y), z), **layers)
    return Net(lambda s, x, y: (pixels(s, x) - y).square().mean(), **layers)


def drawn(kind: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    if kind == "pixels":
        return torch.randn(count, 3, 6, 4), torch.randint(0, CLASSES, (count, 6, 4))
    if kind == "tokens":
        return torch.randn(count, 3, 8), torch.randint(0, CLASSES, (count, 3))
    x = torch.randn(count, 8)
    return x, torch.randint(0, CLASSES, (count,)) if kind == "logits" else torch.randn(count, CLASSES)


def loss_of(kind: str, net: n.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if kind == "pixels":
        return f.cross_entropy(net(x), y)
    loss = net(x, y if kind != "square" else y.double())
    return loss[0] if kind == "logits" else loss


def learned(kind: str, net: n.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    losses = (partial(loss_of, kind, net, x.double(), y) for x, y in data)
    return theirs.learned(net, losses, RATE, 0.5)


def said(graph: Graph, values: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> HeldOut:
    assert labels_of(graph) == "label"
    found = forward(graph, {**values, **given})
    told = judge(graph, [(found[graph.outputs[0]], given["label"])], BATCH)
    assert told is not None and told.loss == pytest.approx(found[graph.loss])
    return told


def check_judged(path: str, model: models.Model, kind: str, net: n.Module) -> None:
    """That what it says is judged by classes, as PyTorch's logits would be."""
    graph, (x, y) = model.graph(BATCH, "float64", training=False), drawn(kind, BATCH)
    values = dict(weights.load(path, model, graph))
    told = said(graph, values, {graph.inputs[0]: x.double().numpy(), "label": y.numpy().astype(np.int32)})
    logits = pixels(net.double(), x.double())
    assert told.accuracy == pytest.approx((logits.argmax(1 if kind == "pixels" else -1) == y).double().mean().item())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "how"), by_exporters("pixels", "tokens", "logits", "square"))
def test_it_is_judged_by_classes_and_learns_as_in_pytorch(kind: str, how: str, tmp_path: Path) -> None:
    """To export a network takes longer than both."""
    torch.manual_seed(0)
    net, path = net_of(kind), str(tmp_path / "net.onnx")
    export(net, drawn(kind, 2)[: 1 if kind == "pixels" else 2], path, how)
    model = models.parse(f"{path}:loss=cross_entropy" if kind == "pixels" else f"{path}:inputs=x+label")
    if kind != "square":
        check_judged(path, model, kind, net)
    graph, data = model.graph(BATCH, "float64"), [drawn(kind, BATCH) for _ in range(3)]
    samples = [{graph.inputs[0]: x.numpy(), "label": y.numpy()} for x, y in data]
    values, losses = weights.load(path, model, graph), learned(kind, net.double(), data)
    for plan in (whole_on(graph), Strategy(data_parallel(graph, 2), num_procs=2)):
        found = train(graph, plan, machine.local(plan.num_procs), samples, values, RATE)
        assert relative(found.losses, np.array(losses)) < 1e-12
        for key, param in net.named_parameters():
            assert relative(found.carried[key], param.detach().numpy()) < 1e-12, key


@pytest.mark.filterwarnings("ignore")
def test_a_loss_beside_that_of_the_file_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "net.onnx")
    export(net_of("square"), drawn("square", 2), path, "older")
    with pytest.raises(ValueError, match="is a loss of its own: leave out loss=mse"):
        models.parse(f"{path}:loss=mse").graph(BATCH)


SIZES: dict[str, dict[str, object]] = {
    "twice": {"scale_factor": 2, "mode": "bilinear"},
    "corners": {"size": (6, 4), "mode": "bilinear", "align_corners": True},
    "odd": {"size": (7, 5), "mode": "bilinear"},
    "less": {"size": (3, 2), "mode": "bilinear"},
    "cubic": {"size": (6, 3), "mode": "bicubic"},
    "nearest": {"size": (5, 3)},
    "side by side": {"scale_factor": 3},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("size", "how"), by_exporters(*SIZES))
def test_images_of_other_sizes_are_learned_as_in_pytorch(size: str, how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, path = resized(SIZES[size]), str(tmp_path / "net.onnx")
    export(net, (torch.randn(2, 3, 9, 7),), path, how)
    model = models.parse(f"{path}:loss=cross_entropy")
    graph, data = model.graph(BATCH, "float64"), []
    for _ in range(3):
        x = torch.randn(BATCH, 3, 9, 7)
        data.append((x, torch.randint(0, CLASSES, (BATCH, *net(x).shape[2:]))))
    samples = [{graph.inputs[0]: x.numpy(), "label": y.numpy()} for x, y in data]
    values, losses = weights.load(path, model, graph), learned("pixels", net.double(), data)
    cuts = data_parallel(graph, 2)
    assert all(cuts[node.name].split == {"b": 2} for node in graph.nodes.values())
    for plan in (whole_on(graph), Strategy(cuts, num_procs=2)):
        found = train(graph, plan, machine.local(plan.num_procs), samples, values, RATE)
        assert relative(found.losses, np.array(losses)) < 1e-7
        for key, param in net.named_parameters():
            assert relative(found.carried[key], param.detach().numpy()) < 1e-7, key
