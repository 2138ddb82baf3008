"""The recommendation model is PyTorch's of the same weights, learns, and says what it cannot take."""

from __future__ import annotations

import numpy as np
import pytest

from castile.launch import data, models
from castile.launch.training.scoring import auc
from castile.launch.typed import optimizers
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.runtime import machine
from tests.data_files import everything
from tests.op_laws import relative
from tests.strategies import whole_on
from tests.test_models import forward, values
from tests.training import train

SMALL = "dlrm:sizes=50+9+1,numbers=3,features=5,bottom=7+6,top=8+4"
STEPS, RATE = 5, 0.01


def batches(graph: Graph, num: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    found = data.load("clicks:sizes=50+9+1,numbers=3,samples=2000", seed)
    return [found.batch(step, graph.batch) for step in range(num)]


def test_losses_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    graph = models.parse(SMALL).graph(batch=6, dtype="float64")
    start = {t.name: np.random.default_rng(n).normal(size=t.shape) / 2 for n, t in enumerate(graph.params)}
    steps = batches(graph, STEPS)
    updates = Updates(optimizers.parse("adam"))
    done = train(graph, whole_on(graph), machine.local(1), steps, start, rate=RATE, updates=updates)
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    optimizer = torch.optim.Adam(list(weights.values()), lr=RATE)

    def network(x, *names: str):
        for name in names:
            x = torch.relu(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])
        return x

    for step, arrays in enumerate(steps):
        categories, numbers, label = (torch.tensor(arrays[name]) for name in ("categories", "numbers", "label"))
        dense = network(numbers.double(), "bottom1", "bottom2", "bottom3")
        tables = [weights[f"table{n}.weight"][categories[:, n - 1].long()] for n in (1, 2, 3)]
        vectors = torch.stack([dense, *tables], dim=1)
        rows, columns = torch.tril_indices(4, 4, -1)
        pairs = (vectors @ vectors.transpose(1, 2))[:, rows, columns]
        top = network(torch.cat([dense, pairs], dim=1), "top1", "top2")
        logits = top @ weights["head.weight"].T + weights["head.bias"]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, label.double())
        assert relative(done.losses[step : step + 1], loss.detach().numpy().reshape(1)) < 1e-9
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, weight in weights.items():
        assert relative(done.carried[name], weight.detach().numpy()) < 1e-9, name


def test_it_learns_tastes_that_no_sample_tells() -> None:
    model = models.parse("dlrm:sizes=20+10,numbers=1,bottom=8,top=16")
    graph, found = model.graph(batch=128), data.load("clicks:sizes=20+10,numbers=1,samples=20000", 0)
    steps = [found.batch(step, 128) for step in range(400)]
    updates = Updates(optimizers.parse("adam"))
    done = train(graph, whole_on(graph), machine.local(1), steps, values(graph), rate=0.01, updates=updates)
    held = everything(found.held_out)
    scores = forward(model.graph(batch=found.num_held_out), {**done.carried, **held})["head"]
    reached = auc(scores, held["label"] > 0.5)
    assert reached is not None and reached > 0.66
    assert np.mean(done.losses[-50:]) < np.mean(done.losses[:50]) - 0.03


def test_there_is_a_table_for_each_category() -> None:
    graph = models.parse("dlrm:sizes=4044+105+16,features=8,bottom=32,top=16").graph(batch=2)
    shapes = {t.name: t.shape for t in graph.params}
    assert [shapes[f"table{n}.weight"] for n in (1, 2, 3)] == [(4044, 8), (105, 8), (16, 8)]
    widths = [shapes[f"{name}.weight"] for name in ("bottom1", "bottom2", "top1", "head")]
    assert widths == [(32, 4), (8, 32), (16, 8 + 6), (1, 16)]
    assert all(shapes[f"{n}.bias"] == (shapes[f"{n}.weight"][0],) for n in ("bottom1", "bottom2", "top1", "head"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dlrm:sizes=4044+x", "model dlrm: sizes should be numbers from 1 on joined by ., such as 64.32, got '4044.x'"),
        ("dlrm:sizes=4044+0", "sizes should be"),
        ("dlrm:top=8+", "top should be"),
        ("dlrm:numbers=0", "numbers should be at least 1"),
    ],
)
def test_wrong_settings_are_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        models.parse(text).graph()


def test_clicks_are_the_same_for_a_seed_and_worth_learning() -> None:
    one, other = (data.load("clicks:samples=3000", seed) for seed in (0, 1))
    assert one.shapes == {"categories": (5,), "numbers": (4,), "label": (1,)}
    batch = one.batch(0, 2000)
    assert all(np.array_equal(batch[n], data.load("clicks:samples=3000", 0).batch(0, 2000)[n]) for n in batch)
    assert not np.array_equal(batch["label"], other.batch(0, 2000)["label"])
    assert 0.4 < batch["label"].mean() < 0.6
    for size, column in zip(one.sizes.values(), batch["categories"].T, strict=True):
        assert column.min() == 0 and size / 2 < column.max() < size


@pytest.mark.parametrize(
    "text", ["clicks:sizes=9+", "clicks:sizes=9+a", "clicks:sizes=9+²", "clicks:sizes=0+3", "clicks:numbers=0"]
)
def test_clicks_of_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"data set clicks: sizes .* should be numbers joined by"):
        data.load(text, 0)
