"""The model lstm: the same in PyTorch learns the same, steps share weights whose gradients are sent once."""

from collections import Counter
from math import prod

import msgspec
import numpy as np
import pytest

from castile.launch import models
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.ops.sgd import Sgd
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from castile.runtime.task import Kind, TaskGraph
from tests.training import difference, train

SMALL = "lstm:layers=2,width=6,seq=5,vocab=11"


def graph_of(text: str, batch: int = 4) -> Graph:
    return models.parse(text).graph(batch, "float64")


def beginning(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.normal(size=t.shape) / np.sqrt(t.shape[-1]) for t in graph.params}


def windows(graph: Graph, count: int) -> list[dict[str, np.ndarray]]:
    """Tokens and what follows each of them."""
    rng = np.random.default_rng(1)
    b, s = graph.tensors["tokens"].shape
    texts = [rng.integers(0, 11, (b, s + 1)) for _ in range(count)]
    return [{"tokens": text[:, :-1], "targets": text[:, 1:]} for text in texts]


def over(graph: Graph, num_procs: int, axis: str) -> Strategy:
    """Nodes cut along one axis where they have it, else alike everywhere."""
    every = tuple(range(num_procs))

    def config(name: str) -> Config:
        a = graph.nodes[name].alignment
        cuts = axis in a.axes and axis not in a.frozen and a.extents[axis] >= num_procs
        return Config({axis: num_procs}, 1, every) if cuts else Config({}, num_procs, every)

    return Strategy({name: config(name) for name in graph.nodes})


def test_its_parameters_are_shared_by_all_steps() -> None:
    graph = graph_of(SMALL)
    of_layer = 4 * 6 * 6 + 4 * 6 * 6 + 4 * 6
    assert sum(prod(t.shape) for t in graph.params) == 11 * 6 + 2 * of_layer + 11 * 6 + 11
    cells = Counter(node.inputs[1] for node in graph.nodes.values() if node.op.name == "lstm_cell")
    assert cells == {"lstm1.bias": 5, "lstm2.bias": 5}
    assert graph.tensors[graph.outputs[0]].shape == (4, 5, 11)


def test_it_learns_as_torchs_lstm_does() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    from benchmarks.torch_lstm import TorchLstm

    graph, one = graph_of(SMALL), machine.local(1)
    values, data = beginning(graph), windows(graph, 5)
    ours = train(graph, over(graph, 1, "b"), one, data, values, rate=0.5, updates=Updates(Sgd(momentum=0.9)))
    theirs = TorchLstm(graph, 0, values)
    learning = [p for p in theirs.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.SGD(learning, lr=0.5, momentum=0.9), []
    for arrays in data:
        optimizer.zero_grad()
        loss = theirs({name: torch.from_numpy(array) for name, array in arrays.items()})
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert difference(ours.losses, np.array(losses)) < 1e-9
    assert difference(ours.carried["lstm2.weight"].ravel(), theirs.lstm.weight_hh_l1.detach().numpy().ravel()) < 1e-9
    assert difference(ours.carried["tok.weight"], theirs.tokens.weight.detach().numpy()) < 1e-9


@pytest.mark.parametrize("axis", ["b", "h", "s"])
def test_it_learns_the_same_with_samples_or_units_or_positions_cut(axis: str) -> None:
    graph, on = graph_of(SMALL), machine.local(2)
    values, data = beginning(graph), windows(graph, 2)
    one, many = (train(graph, over(graph, n, axis), on, data, values, size=n) for n in (1, 2))
    assert difference(many.losses, one.losses) < 1e-10
    assert all(difference(many.carried[name], one.carried[name]) < 1e-9 for name in values)


def test_what_nobody_reads_has_one_gradient_for_all_microbatches() -> None:
    graph, on = graph_of(SMALL), machine.local(1)
    values, data = beginning(graph), windows(graph, 2)
    whole, plan = over(graph, 1, "b"), msgspec.structs.replace(over(graph, 1, "b"), microbatches=4)
    one, cut = (train(graph, each, on, data, values) for each in (whole, plan))
    assert difference(cut.losses, one.losses) < 1e-10
    assert all(difference(cut.carried[name], one.carried[name]) < 1e-9 for name in values)
    filled = [buffer.region for buffer in Lowering(graph, on).lower(plan).buffers if buffer.role == "input"]
    # the last state of a cell is read by no other
    assert filled.count("lstm1.5:cell/grad") == filled.count("lstm2.5:cell/grad") == 1
    assert not [region for region in filled if "/grad@" in region]


def lowered(length: int) -> TaskGraph:
    graph = graph_of(f"lstm:layers=1,width=6,seq={length},vocab=11")
    return Lowering(graph, machine.local(2)).lower(over(graph, 2, "b"))


def test_the_gradient_of_a_shared_weight_is_summed_before_it_is_sent() -> None:
    def sent(tasks: TaskGraph, name: str) -> int:
        moving = np.flatnonzero(tasks.kind >= Kind.MOVE)
        return sum(tasks.tasks[int(n)].name.startswith(f"lstm1.{name}/grad:") for n in moving)

    for name in ("weight", "bias", "input"):
        assert sent(lowered(4), name) == sent(lowered(9), name) > 0, name


def test_longer_sequences_have_no_more_kinds_of_tasks() -> None:
    assert len(lowered(8).cost_keys) == len(lowered(16).cost_keys)
