"""Residual networks against the published numbers of parameters, and trained and evaluated as PyTorch does it."""

from collections.abc import Mapping
from math import prod

import numpy as np
import pytest

from castile.launch import models
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.ops.sgd import Sgd
from castile.runtime.machine import Machine, Processor
from tests.strategies import whole_on
from tests.test_models import forward
from tests.training import train

ONE = Machine("one", (Processor("p", 1e9, 1e9, 2**32, 0, 0.0),), ())
STEPS, RATE = 3, 0.05


def graph_of(settings: str, batch: int, training: bool = True) -> Graph:
    return models.parse(f"resnet:{settings}").graph(batch, "float64", training)


@pytest.mark.parametrize(
    ("depth", "count"), [("18", 11_689_512), ("34", 21_797_672), ("50", 25_557_032), ("101", 44_549_160)]
)
def test_the_published_number_of_parameters(depth, count):
    graph = graph_of(f"depth={depth}", 2)
    assert sum(prod(t.shape) for t in graph.params) == count
    assert graph.tensors["layer4.0.relu"].shape[1:] == ((512 if depth in ("18", "34") else 2048), 7, 7)
    assert {"conv1.weight", "bn1.bias", "layer2.0.downsample.0.weight", "layer4.1.bn2.weight", "fc.bias"} <= {
        t.name for t in graph.params
    }


@pytest.mark.parametrize("same", ["wide_resnet:times=1", "resnext:groups=1,group_width=64"])
def test_wider_and_grouped_blocks_are_those_of_a_residual_network_where_they_are_neither(same):
    plain, other = models.parse("resnet:depth=50").graph(2), models.parse(same).graph(2)
    assert other.nodes == plain.nodes and other.tensors == plain.tensors and other.params == plain.params



def test_settings_change_what_they_say():
    graph = graph_of("width=8,blocks=2,size=8,channels=3,classes=7", 4)
    assert graph.tensors["image"].shape == (4, 3, 8, 8) and graph.tensors["fc"].shape == (4, 7)
    assert graph.tensors["layer3.1.relu"].shape == (4, 32, 2, 2)
    with pytest.raises(ValueError, match="depth should be one of 18, 34, 50, 101, small, got '19'"):
        models.parse("resnet:depth=19").graph()


@pytest.mark.parametrize("settings", ["size=8,width=4", "depth=50,size=32,width=2,blocks=1,classes=5"])
def test_training_and_evaluation_are_torch(settings):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    rng = np.random.default_rng(0)
    graph, batch = graph_of(settings, 6), 6
    shape, classes = graph.tensors["image"].shape, graph.tensors["fc"].shape[1]
    data = [{"image": rng.normal(size=shape), "label": rng.integers(0, classes, batch)} for _ in range(STEPS)]
    values = {t.name: rng.normal(1 if "bn" in t.name else 0, 0.3, size=t.shape) for t in graph.params}
    found = train(graph, whole_on(graph), ONE, data, values, rate=RATE, updates=Updates(Sgd(0.9, 1e-3)))
    theirs = Torch(torch, graph, values)
    params = [theirs.held[t.name] for t in graph.params]
    optimizer = torch.optim.SGD(params, lr=RATE, momentum=0.9, weight_decay=1e-3)
    for arrays, ours in zip(data, found.losses, strict=True):
        optimizer.zero_grad()
        label = torch.tensor(arrays["label"])
        loss = torch.nn.functional.cross_entropy(theirs.logits(arrays["image"], True), label)
        loss.backward()
        optimizer.step()
        assert abs(ours / float(loss.detach()) - 1) <= 1e-8
    for name, tensor in theirs.held.items():
        want = tensor.detach().numpy()
        assert np.abs(found.carried[name] - want).max() <= 1e-8 * max(1, np.abs(want).max()), name
    still = graph_of(settings, batch, training=False)
    env = {name: found.carried[name] for name in (*(t.name for t in still.params), *still.states)}
    logits = forward(still, {**env, **data[0]})["fc"]
    want = theirs.logits(data[0]["image"], False).detach().numpy()
    assert np.abs(logits - want).max() <= 1e-8 * np.abs(want).max()


class Torch:
    """The graph's network written in PyTorch by the names of torchvision, with these values."""

    def __init__(self, torch, graph: Graph, values: Mapping[str, np.ndarray]) -> None:
        self.torch, self.blocks = torch, sorted({n.rpartition(".")[0] for n in graph.nodes if n.endswith(".add")})
        self.held = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in values.items()}
        for name in graph.states:
            kind = torch.zeros if name.endswith("mean") else torch.ones
            self.held[name] = kind(graph.tensors[name].shape, dtype=torch.float64)

    def logits(self, image: np.ndarray, training: bool):
        self.training = training
        x = torch_relu(self._normal("conv1", "bn1", self.torch.tensor(image), 2 if self._deep else 1))
        if self._deep:
            x = self.torch.nn.functional.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = self._block(block, x)
        return x.mean((2, 3)) @ self.held["fc.weight"].T + self.held["fc.bias"]

    @property
    def _deep(self) -> bool:
        return self.held["conv1.weight"].shape[-1] == 7

    def _block(self, name: str, x):
        stride = 2 if name.endswith(".0") and not name.startswith("layer1") else 1
        count = sum(f"{name}.conv{n}.weight" in self.held for n in (1, 2, 3))
        y = x
        for n in range(1, count + 1):
            y = self._normal(f"{name}.conv{n}", f"{name}.bn{n}", y, stride if n == count - 1 else 1)
            y = torch_relu(y) if n < count else y
        if f"{name}.downsample.0.weight" in self.held:
            x = self._normal(f"{name}.downsample.0", f"{name}.downsample.1", x, stride)
        return torch_relu(x + y)

    def _normal(self, conv: str, norm: str, x, stride: int):
        w = self.held[f"{conv}.weight"]
        y = self.torch.nn.functional.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2)
        kept = (self.held[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        return self.torch.nn.functional.batch_norm(y, *kept, training=self.training)


def torch_relu(x):
    return x.clamp_min(0)
