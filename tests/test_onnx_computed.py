"""Networks of PyTorch that compute weights of weights are trained as PyTorch trains them, or refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from castile.launch import models
from castile.launch.arrays import weights
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.ops.sgd import Sgd
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from tests import theirs
from tests.effort import rare
from tests.op_laws import relative
from tests.test_models import forward
from tests.test_onnx import asked
from tests.test_onnx_torch import export, exported, put
from tests.training import train

pytest.importorskip("onnxscript")
torch = pytest.importorskip("torch")

n, f = torch.nn, torch.nn.functional
BATCH, STEPS, RATE = 4, 4, 0.05
# The files have numbers of these networks that are no weights in single precision.
TOLERANCE = {"standardised": 1e-8, "gains": 1e-8, "fixed": 1e-6}
UPDATES = Updates(Sgd(momentum=0.9))


class Net(n.Module):
    """What is computed of an input and of weights; the others, and parts with weights, are attributes."""

    def __init__(self, forward: Callable[..., torch.Tensor], **parts: object) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, n.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.of = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.of(self, x)


def weight(*shape: int) -> n.Parameter:
    return n.Parameter(torch.randn(*shape) * 0.5)


def lora() -> Net:
    return Net(
        lambda s, x: f.linear(x, s.base.weight + 0.5 * s.up @ s.down, s.base.bias),
        base=n.Linear(6, 5), up=weight(5, 2), down=weight(2, 6),
    )  # fmt: skip


def tied() -> Net:
    """A table that is a head too, by half, and the weight of a layer, turned."""
    return Net(
        lambda s, x: torch.tanh(f.linear(s.e(x), s.w, s.a)) @ s.w @ (0.5 * s.e.weight.t()),
        e=n.Embedding(7, 6), w=weight(5, 6), a=weight(5),
    )  # fmt: skip


def standardised() -> Net:
    def forward(s: Net, x: torch.Tensor) -> torch.Tensor:
        w = s.c.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.var((1, 2, 3), keepdim=True, unbiased=False) + 1e-3).sqrt()
        return f.conv2d(x, w, s.c.bias).flatten(1)

    return Net(forward, c=n.Conv2d(2, 3, 3))


def normed() -> n.Module:
    of = n.utils.parametrizations.weight_norm
    return n.Sequential(of(n.Linear(6, 8)), n.Tanh(), n.Unflatten(1, (2, 4)), of(n.Conv1d(2, 3, 3)), n.Flatten())


def gains() -> Net:
    """Gains that are computed, of a normalisation too, one number, and shares that sum to one."""

    def forward(s: Net, x: torch.Tensor) -> torch.Tensor:
        y = s.l(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + s.w)
        shares = s.shares.softmax(0)
        y = shares[0] * f.layer_norm(y, (8,), 2 * s.w, -s.b) + shares[1] * y * -torch.exp(s.b)
        return y * s.gate + s.t.exp() + s.w.sum()

    one = n.Parameter(torch.full((1,), 0.3))
    return Net(forward, l=n.Linear(6, 8), w=weight(8), b=weight(8), shares=weight(2), gate=one, t=n.Parameter(one[0]))


def rows() -> Net:
    """Rows of tables by indices that are known: one after another, in any order, by two dims, moved afterwards."""

    def forward(s: Net, x: torch.Tensor) -> torch.Tensor:
        bias = s.table[s.places.view(-1)].view(3, 3, 2).permute(2, 0, 1)
        near = s.near(s.places % 4).permute(2, 0, 1).unsqueeze(0)
        bias = bias + s.turned.t()[1:3, None, :3] + s.grid[s.places[0], s.places[1]]
        return (x.unsqueeze(1) * bias + near).flatten(1)

    places = torch.tensor([[4, 0, 2], [2, 2, 1], [3, 4, 4]])
    return Net(
        forward, table=weight(5, 2), near=n.Embedding(4, 2), turned=weight(4, 5), grid=weight(5, 5), places=places
    )  # fmt: skip


def recurrent() -> Net:
    """Layers whose weights the exporter puts together: an LSTM's two biases are two, a first state makes no weights."""

    def forward(s: Net, x: torch.Tensor) -> torch.Tensor:
        y = s.plain(s.rnn(s.gru(s.lstm(x)[0])[0])[0])[0]
        return y[:, -1]

    return Net(
        forward, lstm=n.LSTM(3, 4, batch_first=True, bidirectional=True), gru=n.GRU(8, 4, batch_first=True),
        rnn=n.RNN(4, 4, batch_first=True), plain=n.LSTM(4, 3, batch_first=True, bias=False),
    )  # fmt: skip


def cells() -> Net:
    """States that are weights, or zeros, at the beginning."""

    def forward(s: Net, x: torch.Tensor) -> torch.Tensor:
        begun = s.begin.expand(1, x.shape[0], 4).contiguous()
        y = s.layer(x, (begun, 2 * begun))[0][:, -1]
        return s.gru(y, s.gru(x[:, 0])) + s.lstm(y)[0]

    return Net(
        forward, layer=n.LSTM(4, 4, batch_first=True), gru=n.GRUCell(4, 4), lstm=n.LSTMCell(4, 4), begin=weight(1, 1, 4)
    )


def fixed() -> Net:
    """Buffers, also where weights might stand, and what is computed of them alone."""
    return Net(
        lambda s, x: f.conv1d((x @ s.mix).unsqueeze(1), s.blur / 3 + s.w.exp() * 0, s.shift.cos()).flatten(1) + s.b,
        mix=torch.randn(6, 6), blur=torch.rand(2, 1, 3), shift=torch.randn(2), w=weight(2, 1, 3), b=weight(8),
    )  # fmt: skip


def stacked() -> Net:
    """Experts whose weights are put side by side, and attention whose weights lie in one."""

    def forward(s: Net, x: torch.Tensor) -> torch.Tensor:
        y = s.attention(x, x[:, :2], x[:, :2], need_weights=False)[0]
        w = torch.stack([one.weight for one in s.experts])
        return torch.einsum("bsi,eoi->beo", y, w) @ torch.cat([s.a, s.c.clone()], 1) + (s.a * s.c).sum()

    return Net(
        forward, attention=n.MultiheadAttention(4, 2, batch_first=True), a=weight(4, 2), c=weight(4, 2),
        experts=n.ModuleList(n.Linear(4, 4, bias=False) for _ in range(2)),
    )  # fmt: skip


CASES: dict[str, tuple[Callable[[], n.Module], tuple[int, ...]]] = {
    "lora": (lora, (6,)), "tied": (tied, (3,)), "standardised": (standardised, (2, 5, 5)), "normed": (normed, (6,)),
    "gains": (gains, (6,)), "rows": (rows, (3, 3)), "recurrent": (recurrent, (2, 3)), "cells": (cells, (2, 4)),
    "fixed": (fixed, (6,)), "stacked": (stacked, (3, 4)),
}  # fmt: skip


@cache
def written(name: str, how: str) -> dict[str, bytes]:
    torch.manual_seed(0)
    make, shape = CASES[name]
    net = make()
    return exported(net, torch.randint(0, 7, (2, *shape)) if name == "tied" else torch.randn(2, *shape), how)


def made(name: str, path: str, how: str = "whole") -> tuple[n.Module, list[torch.Tensor], list[torch.Tensor]]:
    """A case in float64, after its export, with samples and targets of each step."""
    put(written(name, how), Path(path).parent)
    torch.manual_seed(0)
    make, shape = CASES[name]
    net = make()
    draw = (lambda *s: torch.randint(0, 7, s)) if name == "tied" else torch.randn
    given = [draw(BATCH, *shape) for _ in range(STEPS)]
    net = net.double().train()
    given = [x if name == "tied" else x.double() for x in given]
    return net, given, [torch.randn_like(net(x)).detach() for x in given]


def learned(net: n.Module, given: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[float]:
    """Losses of PyTorch's steps."""
    losses = (lambda x=x, y=y: f.mse_loss(net(x), y) for x, y in zip(given, wanted, strict=True))
    return theirs.learned(net, losses, RATE, 0.9)


# Recurrent layers take the newer exporter longest; the older one's are tried always.
TRIED = [name for name in CASES if name != "recurrent" or rare(name)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRIED)
def test_weights_that_are_computed_are_trained_as_in_pytorch(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "net.onnx")
    net, given, wanted = made(name, path)
    model = models.parse(f"{path}:loss=mse")
    graph = model.graph(BATCH, "float64")
    assert {t.name: t.shape for t in graph.params} == {k: tuple(p.shape) for k, p in net.named_parameters()}
    data = [{"x": x.numpy(), "target": y.numpy()} for x, y in zip(given, wanted, strict=True)]
    values = weights.load(path, model, graph)
    losses = learned(net, given, wanted)
    for plan in plans(graph):
        found = train(graph, plan, machine.local(plan.num_procs), data, values, RATE, updates=UPDATES)
        assert relative(found.losses, np.array(losses)) < TOLERANCE.get(name, 1e-12)
        for key, param in net.named_parameters():
            assert relative(found.carried[key], param.detach().numpy()) < TOLERANCE.get(name, 1e-12), key


def plans(graph: Graph) -> list[Strategy]:
    """All on one processor, and known plans of two."""
    known = seeds(Lowering(graph, machine.local(2), UPDATES))
    alone = Strategy({node: Config() for node in graph.nodes}, num_procs=1)
    return [alone, *(known[name] for name in ("data_parallel", "fsdp") if name in known)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["lora", "tied", "standardised", "recurrent", "cells", "stacked"])
def test_the_older_exporter_tells_as_much(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "net.onnx")
    net, given, wanted = made(name, path, "older")
    model = models.parse(f"{path}:loss=mse")
    graph = model.graph(BATCH, "float64")
    data = [{"x": x.numpy(), "target": y.numpy()} for x, y in zip(given, wanted, strict=True)]
    found = train(
        graph, plans(graph)[0], machine.local(1), data, weights.load(path, model, graph), RATE, updates=UPDATES
    )
    assert relative(found.losses, np.array(learned(net, given, wanted))) < TOLERANCE.get(name, 1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRIED)
def test_frozen_weights_keep_their_names_and_their_numbers(name: str, tmp_path: Path) -> None:
    """Whatever is computed of them: so weights go back into PyTorch, and into the same network with others frozen."""
    path = str(tmp_path / "net.onnx")
    net, given, wanted = made(name, path)
    names = [key for key, _ in net.named_parameters()]
    frozen = set(names[::2] if len(names) > 1 else ())
    for key, param in net.named_parameters():
        param.requires_grad_(key not in frozen)
    model = models.parse(f"{path}:loss=mse" + (f",frozen={'+'.join(frozen)}" if frozen else ""))
    graph = model.graph(BATCH, "float64")
    assert {t.name for t in graph.params} == set(names) and graph.frozen == frozen
    data = [{"x": x.numpy(), "target": y.numpy()} for x, y in zip(given, wanted, strict=True)]
    values = weights.load(path, model, graph)
    found = train(graph, plans(graph)[0], machine.local(1), data, values, RATE, updates=UPDATES)
    assert relative(found.losses, np.array(learned(net, given, wanted))) < TOLERANCE.get(name, 1e-12)
    for key, param in net.named_parameters():
        assert relative(found.carried[key], param.detach().numpy()) < TOLERANCE.get(name, 1e-12), key


REFUSED = {
    "tangent": (lambda s, x: x * s.w.tan(), "Tan of the weight 'w' (as in node_tan)"),
    "sign": (
        lambda s, x: torch.where(s.w > 0, s.w, x),
        "Greater of the weight 'w', which is trained, to whole numbers",
    ),
    "power": (lambda s, x: x.abs() ** s.w[0], "Pow with an exponent that is no number (as in node_pow_1)"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_of_weights_is_refused(name: str, tmp_path: Path) -> None:
    forward, sentence = REFUSED[name]
    path = str(tmp_path / "net.onnx")
    export(Net(forward, w=weight(6)), torch.randn(2, 6), path, "whole")
    for training in (True, False):
        with pytest.raises(ValueError) as error:
            models.parse(f"{path}:loss=mse").graph(BATCH, training=training)
        assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_but_of_what_is_frozen_its_numbers_do(name: str, tmp_path: Path) -> None:
    forward_, _ = REFUSED[name]
    path = str(tmp_path / "net.onnx")
    torch.manual_seed(0)
    net, x = Net(lambda s, x: s.end(forward_(s, x)), w=weight(6), end=n.Linear(6, 5)), torch.randn(BATCH, 6)
    export(net, x[:2], path, "whole")
    model = models.parse(f"{path}:loss=mse,frozen=w")
    graph = model.graph(BATCH, training=False)
    found = forward(graph, {**weights.load(path, model, graph), **asked(graph, {"x": x.numpy()})})
    assert relative(found[graph.outputs[0]], net(x).detach().numpy()) < 1e-6


@pytest.mark.filterwarnings("ignore")
def test_what_a_file_does_not_tell_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "net.onnx")
    made("gains", path, "older")
    told = models.parse(path).remark(models.parse(path).graph(BATCH))
    assert told == f"gate, t of {path} are not trained: the file does not say whether these single numbers are"
    made("gains", path)
    assert models.parse(path).remark(models.parse(path).graph(BATCH)) == ""
    torch.onnx.export(lora(), (torch.randn(2, 6),), path, input_names=["x"])
    told = models.parse(path).remark(models.parse(path).graph(BATCH))
    assert told.startswith(f"add of {path} are weights of their own: PyTorch computed them of others")


@pytest.mark.filterwarnings("ignore")
def test_rows_that_are_known_go_back_as_weights(tmp_path: Path) -> None:
    path, saved = str(tmp_path / "net.onnx"), str(tmp_path / "net.safetensors")
    net, given, _ = made("rows", path)
    graph = models.parse(path).graph(BATCH, "float64", training=False)
    save_file(dict(weights.load(path, models.parse(path), graph)), saved)
    values = weights.load(saved, models.parse(path), graph)
    assert graph.states and all(values[name].dtype == np.int32 for name in graph.states)
    found = forward(graph, {**values, **asked(graph, {"x": given[0].numpy()})})[graph.outputs[0]]
    assert relative(found, net(given[0]).detach().numpy()) < 1e-6
