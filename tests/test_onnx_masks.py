"""Networks of PyTorch that mask by what they are given, or choose between numbers, learn as they do there."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from castile.launch import models
from castile.launch.arrays import weights
from castile.planner.known.plans import data_parallel
from castile.planner.strategy import Strategy
from castile.runtime import machine
from tests import theirs
from tests.effort import rare
from tests.op_laws import relative
from tests.strategies import whole_on
from tests.test_models import forward
from tests.training import train

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

n, f = torch.nn, torch.nn.functional
BATCH, STEPS, RATE, TOKENS, CLASSES = 4, 4, 0.1, 6, 5
Draw = Callable[[int], tuple[torch.Tensor, ...]]


class Net(n.Module):
    """What is computed of inputs and of parts that have weights."""

    def __init__(self, forward: Callable[..., torch.Tensor], **parts: n.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.of = forward

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.of(self, *given)


def texts(count: int) -> tuple[torch.Tensor, ...]:
    """Tokens, of which 0 fills up what is shorter."""
    tokens, lengths = torch.randint(1, 17, (count, TOKENS)), torch.randint(2, TOKENS + 1, (count, 1))
    return (tokens * (torch.arange(TOKENS) < lengths).long(),)


def with_empty(count: int) -> tuple[torch.Tensor, ...]:
    (tokens,) = texts(count)
    return (tokens * (torch.arange(count) != 1)[:, None],)


def with_mask(count: int) -> tuple[torch.Tensor, ...]:
    (tokens,) = texts(count)
    return tokens, (tokens > 0).long()


def with_segments(count: int) -> tuple[torch.Tensor, ...]:
    return *texts(count), torch.randint(0, 2, (count, TOKENS))


def with_lengths(count: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(count, TOKENS, 16), torch.randint(1, TOKENS + 1, (count,))


def with_truths(count: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(count, 16), torch.rand(count, 16) > 0.5


def rows(count: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(count, 16),)


def of_tokens(forward: Callable[..., torch.Tensor], **parts: n.Module) -> Net:
    dense = {name: n.Linear(16, 16) for name in ("q", "k", "v")}
    return Net(forward, table=n.Embedding(17, 16), head=n.Linear(16, CLASSES), **dense, **parts)


def heads(s: Net, x: torch.Tensor) -> list[torch.Tensor]:
    return [dense(x).view(x.shape[0], TOKENS, 2, 8).transpose(1, 2) for dense in (s.q, s.k, s.v)]


def joined(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], TOKENS, 16)


def encoder() -> Net:
    layer = n.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)

    def forward(s: Net, tokens: torch.Tensor) -> torch.Tensor:
        x = s.layers(s.table(tokens), src_key_padding_mask=tokens == 0)
        there = (tokens != 0).unsqueeze(-1).to(x.dtype)
        return s.head((x * there).sum(1) / there.sum(1).clamp(min=1))

    layers = n.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Net(forward, table=n.Embedding(17, 16), head=n.Linear(16, CLASSES), layers=layers)


def extended(s: Net, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """A mask as HuggingFace's models have it."""
    mask = (tokens > 0).long() if mask is None else mask
    q, k, v = heads(s, s.table(tokens))
    hidden = (1.0 - mask[:, None, None, :].to(q.dtype)) * -1e9
    return s.head(joined((q @ k.transpose(-1, -2) * 0.5 + hidden).softmax(-1) @ v)[:, 0])


def filled(s: Net, tokens: torch.Tensor) -> torch.Tensor:
    x = s.table(tokens)
    scores = (s.q(x) @ s.k(x).transpose(1, 2)).masked_fill((tokens == 0)[:, None, :], float("-inf"))
    return s.head((scores.softmax(-1) @ s.v(x)).mean(1))


def within(s: Net, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    x, same = s.table(tokens), segments[:, :, None] == segments[:, None, :]
    scores = (s.q(x) @ s.k(x).transpose(1, 2)).masked_fill(~same | (tokens == 0)[:, None, :], -1e9)
    return s.head((scores.softmax(-1) @ s.v(x)).mean(1))


def seen(is_causal: bool) -> Callable[..., torch.Tensor]:
    """A mask of truths for PyTorch's attention, in which a text of nothing but fillers sees nothing."""

    def forward(s: Net, tokens: torch.Tensor) -> torch.Tensor:
        mask = (tokens != 0)[:, None, None, :]
        if is_causal:
            mask = mask & torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        return s.head(joined(f.scaled_dot_product_attention(*heads(s, s.table(tokens)), attn_mask=mask)).mean(1))

    return forward


def banded(s: Net, tokens: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(-1).tril(1)
    return s.head(joined(f.scaled_dot_product_attention(*heads(s, s.table(tokens)), attn_mask=mask)).mean(1))


def shorter(s: Net, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    there = (torch.arange(TOKENS)[None] < lengths[:, None]).unsqueeze(-1).to(x.dtype)
    return s.head((s.up(x) * there).sum(1) / there.sum(1))


def chosen(s: Net, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return s.head(torch.where(mask ^ (x > 0), s.up(x), s.up.bias))


def placed(s: Net, tokens: torch.Tensor) -> torch.Tensor:
    """Positions that are counted without fillers, and tokens that stand for others."""
    there = (tokens != 0).long()
    places = torch.cumsum(there, 1) * there
    x = s.table(torch.where(tokens == 3, 1, tokens).clamp(max=11)) + s.places(places)
    return s.head((x + f.one_hot(tokens, 17)[..., :16].to(x.dtype)).mean(1))


def bent(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Net]:
    return lambda: Net(lambda s, x: s.head(function(s.up(x))), up=n.Linear(16, 16), head=n.Linear(16, CLASSES))


def tables() -> dict[str, n.Module]:
    return {"table": n.Embedding(17, 16), "places": n.Embedding(8, 16), "head": n.Linear(16, CLASSES)}


def up(forward: Callable[..., torch.Tensor]) -> Callable[[], Net]:
    return lambda: Net(forward, up=n.Linear(16, 16), head=n.Linear(16, CLASSES))


CASES: dict[str, tuple[Callable[[], Net], Draw]] = {
    "encoder": (encoder, texts), "extended": (lambda: of_tokens(extended), texts),
    "given": (lambda: of_tokens(extended), with_mask), "filled": (lambda: of_tokens(filled), texts),
    "within": (lambda: of_tokens(within), with_segments), "seen": (lambda: of_tokens(seen(False)), with_empty),
    "causal": (lambda: of_tokens(seen(True)), with_empty), "banded": (lambda: of_tokens(banded), texts),
    "placed": (lambda: Net(placed, **tables()), texts), "shorter": (up(shorter), with_lengths),
    "chosen": (up(chosen), with_truths),
    "softplus": (bent(lambda x: f.softplus(x, 1.0, 0.5)), rows), "hardswish": (bent(f.hardswish), rows),
    "softshrink": (bent(f.softshrink), rows), "hardshrink": (bent(f.hardshrink), rows),
    "where": (bent(lambda x: torch.where(x > 0.25, 2 * x, x.exp())), rows),
    "sign": (bent(lambda x: x * torch.sign(x - 0.25)), rows), "numbers": (bent(torch.nan_to_num), rows),
    "bounds": (bent(lambda x: x.clamp(-0.5, 0.5)), rows),
}  # fmt: skip
# What the older exporter writes otherwise than PyTorch computes.
NEWER = ("softplus",)
# Always by one exporter each, as the newer one takes longer for all that attends.
BY_NEWER = (*NEWER, "seen", "placed", "shorter", "chosen", "where", "sign", "bounds")
EXPORTED = [(name, "whole" if name in BY_NEWER else "older") for name in CASES]
EXPORTED += rare(*((name, "older" if name in BY_NEWER else "whole") for name in CASES if name not in NEWER))


def export(net: n.Module, given: tuple[torch.Tensor, ...], path: str, how: str) -> None:
    names = [f"x{number}" for number in range(len(given))]
    if how == "older":
        torch.onnx.export(
            net, given, path, input_names=names, dynamic_axes={name: {0: "batch"} for name in names},
            opset_version=17, dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
        )  # fmt: skip
        return
    pytest.importorskip("onnxscript")
    theirs.export_faster()
    shapes = (tuple({0: "batch"} for _ in names),)
    torch.onnx.export(net, given, path, input_names=names, dynamic_shapes=shapes, optimize=False)


def learned(net: n.Module, data: list[dict[str, torch.Tensor]], dtype: torch.dtype) -> list[float]:
    """Losses of PyTorch's steps."""
    net = net.to(dtype)

    def loss_of(sample: dict[str, torch.Tensor]) -> torch.Tensor:
        given = [x.to(dtype) if x.is_floating_point() else x for name, x in sample.items() if name != "label"]
        return f.cross_entropy(net(*given), sample["label"])

    return theirs.learned(net, (partial(loss_of, sample) for sample in data), RATE, 0.5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "how"), EXPORTED)
def test_what_is_masked_is_trained_as_in_pytorch(name: str, how: str, tmp_path: Path) -> None:
    """In either precision: to export a network takes longer than to train it twice."""
    torch.manual_seed(0)
    (make, draw), path = CASES[name], str(tmp_path / "net.onnx")
    # by the newer exporter's files what sees nothing sees all alike
    draw = texts if draw is with_empty and how == "whole" else draw
    net = make()
    export(net, draw(2), path, how)
    model = models.parse(f"{path}:loss=cross_entropy")
    data = []
    for _ in range(STEPS):
        given = {f"x{number}": x for number, x in enumerate(draw(BATCH))}
        data.append(given | {"label": torch.randint(0, CLASSES, (BATCH,))})
    samples = [{key: x.numpy() for key, x in sample.items()} for sample in data]
    # roots and factors that the file has in single precision
    for dtype, tolerance in (("float64", 1e-7), ("float32", 1e-5)):
        graph, mine = model.graph(BATCH, dtype), deepcopy(net)
        values = weights.load(path, model, graph)
        losses = learned(mine.train(), data, getattr(torch, dtype))
        cuts = data_parallel(graph, 2)
        assert all(cuts[node.name].split == {"b": 2} for node in graph.nodes.values() if "b" in node.alignment.axes)
        for plan in (whole_on(graph), Strategy(cuts, num_procs=2))[dtype == "float32" :]:
            found = train(graph, plan, machine.local(plan.num_procs), samples, values, RATE)
            assert relative(found.losses, np.array(losses)) < tolerance, dtype
            for key, param in mine.named_parameters():
                assert relative(found.carried[key], param.detach().numpy()) < tolerance, (dtype, key)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["given", "placed", "shorter", *rare("encoder", "within")])
def test_it_learns_in_16_bits_nearly_so(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    (make, draw), path = CASES[name], str(tmp_path / "net.onnx")
    export(make(), draw(2), path, "older")
    model, losses = models.parse(f"{path}:loss=cross_entropy"), []
    data = [{f"x{k}": x.numpy() for k, x in enumerate(draw(BATCH))} | {"label": np.arange(BATCH)} for _ in range(2)]
    for dtype in ("float64", "bfloat16"):
        graph = model.graph(BATCH, dtype)
        rows = [{key: x.astype(graph.tensors[key].dtype) for key, x in sample.items()} for sample in data]
        values = weights.load(path, model, graph)
        losses.append(np.array(train(graph, whole_on(graph), machine.local(1), rows, values, RATE).losses))
    assert 0 < relative(losses[1], losses[0]) < 1e-2


@pytest.mark.filterwarnings("ignore")
def test_tokens_that_are_one_in_16_bits_are_told_apart(tmp_path: Path) -> None:
    path = str(tmp_path / "net.onnx")
    net = Net(
        lambda s, tokens: s.table(tokens) * (tokens != 257).unsqueeze(-1).to(s.table.weight.dtype),
        table=n.Embedding(300, 4),
    )
    export(net, (torch.randint(0, 300, (2, 4)),), path, "older")
    graph, tokens = models.parse(path).graph(1, "bfloat16", training=False), np.array([[255, 256, 257, 258]], np.int32)
    values, weight = dict.fromkeys(graph.inputs, np.zeros(1)), np.ones((300, 4), "bfloat16")
    found = forward(graph, {**values, "target": np.zeros((1, 4, 4)), "x0": tokens, "table.weight": weight})
    assert np.array_equal(found[graph.outputs[0]].astype(float)[0, :, 0], [1, 1, 0, 1])
