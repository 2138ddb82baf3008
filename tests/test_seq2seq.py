"""The model seq2seq: the same in PyTorch learns the same, it attends, and it learns to reverse; its data set."""

import numpy as np
import pytest

from castile.launch import data, models
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.ops.sgd import Sgd
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from tests.training import difference, train

SMALL = "seq2seq:layers=2,width=6,seq=4,vocab=9"


def alone(graph: Graph) -> Strategy:
    return Strategy({name: Config({}, 1, (0,)) for name in graph.nodes})


def beginning(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.normal(size=t.shape) / np.sqrt(t.shape[-1]) for t in graph.params}


def torch_loss(values, batch):
    """The loss of the model as PyTorch's own layers compute it."""
    import torch
    from torch.nn import functional as F

    source, given, targets = (torch.from_numpy(batch[name]).long() for name in ("source", "given", "targets"))

    def layers(side: str, x, states):
        ends = []
        for n, state in enumerate(states, start=1):
            of = {key: values[f"{side}{n}.{key}"] for key in ("input", "weight", "bias")}
            weights = [of["input"].flatten(0, 1), of["weight"].flatten(0, 1), of["bias"].flatten()]
            h, c = state or [torch.zeros(x.shape[0], 6, dtype=x.dtype)] * 2
            steps = []
            for t in range(x.shape[1]):
                h, c = torch.lstm_cell(x[:, t], (h, c), *weights, torch.zeros_like(weights[2]))
                steps.append(h)
            x, ends = torch.stack(steps, 1), [*ends, (h, c)]
        return x, ends

    read, states = layers("encoder", values["encoder.tok.weight"][source], [None, None])
    written, _ = layers("decoder", values["decoder.tok.weight"][given], states)
    scores = F.linear(written, values["query.weight"]) @ read.transpose(1, 2) / 6**0.5
    joined = torch.cat([scores.softmax(-1) @ read, written], -1)
    out = F.linear(joined, values["attending.weight"]).tanh()
    logits = F.linear(out, values["head.weight"], values["head.bias"])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_it_learns_as_in_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    graph = models.parse(SMALL).graph(5, "float64")
    pairs = data.load("reverse:vocab=9,seq=4,samples=40", 0)
    batches, values = [pairs.batch(step, 5) for step in range(4)], beginning(graph)
    updates = Updates(Sgd(momentum=0.9))
    ours = train(graph, alone(graph), machine.local(1), batches, values, rate=0.3, updates=updates)
    weights = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in values.items()}
    optimizer, losses = torch.optim.SGD(weights.values(), lr=0.3, momentum=0.9), []
    for batch in batches:
        optimizer.zero_grad()
        loss = torch_loss(weights, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert difference(ours.losses, np.array(losses)) < 1e-9
    for name, weight in weights.items():
        assert difference(ours.carried[name], weight.detach().numpy()) < 1e-9, name


@pytest.mark.parametrize("order", ["reverse", "sort"])
def test_pairs_are_what_they_say(order: str) -> None:
    pairs = data.load(f"reverse:order={order},seq=5,vocab=7,samples=60", 3)
    batch = pairs.batch(0, 20)
    source, given, targets = (batch[name] for name in ("source", "given", "targets"))
    assert source.shape == given.shape == targets.shape == (20, 5)
    assert source.min() >= 1 and source.max() <= 6 and (given[:, 0] == 0).all()
    assert np.array_equal(given[:, 1:], targets[:, :-1])
    assert np.array_equal(targets, source[:, ::-1] if order == "reverse" else np.sort(source))
    again = data.load(f"reverse:order={order},seq=5,vocab=7,samples=60", 3).batch(0, 20)
    assert all(np.array_equal(batch[name], again[name]) for name in batch)
    assert not np.array_equal(
        source, data.load(f"reverse:order={order},seq=5,vocab=7,samples=60", 4).batch(0, 20)["source"]
    )
    assert pairs.num_samples + pairs.num_held_out == 60


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reverse:order=shuffle", "order should be one of reverse, sort"),
        ("reverse:vocab=2", "vocab 2 at least 3"),
        ("reverse:seq=0", "seq 0 should be at least 1"),
        ("reverse:samples=1", "too few"),
    ],
)
def test_settings_that_make_no_pairs_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data.load(text, 0)


def test_it_learns_to_reverse() -> None:
    graph = models.parse("seq2seq:width=24,seq=4,vocab=6").graph(32, "float64")
    pairs = data.load("reverse:seq=4,vocab=6,samples=2000", 0)
    batches = [pairs.batch(step, 32) for step in range(150)]
    updates = Updates(Sgd(momentum=0.9), clip=1.0)
    values = beginning(graph)
    losses = train(graph, alone(graph), machine.local(1), batches, values, rate=0.3, updates=updates).losses
    # guessing each of five symbols costs log 5
    assert losses[0] > 1.4 and losses[-5:].mean() < 0.2
