"""The mixture of experts is PyTorch's of the same weights, alone and under plans that split experts."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from castile.kernels import reference
from castile.launch import models
from castile.launch.typed import optimizers
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.op import find
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from tests import little
from tests.op_cases import case
from tests.op_laws import node_of, relative
from tests.strategies import whole_on
from tests.training import difference, train

SMALL = "moe:layers=2,width=8,heads=2,seq=7,vocab=11,experts=4,choices={},capacity={},balance=0.1"
STEPS, RATE = 4, 0.01
ADAM = Updates(optimizers.parse("adam"))


def problem(choices: int, capacity: float) -> tuple[Graph, list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The model with inputs of some steps, and weights that tell experts apart."""
    graph = models.parse(SMALL.format(choices, capacity)).graph(batch=4, dtype="float64")
    rng = np.random.default_rng(0)
    steps = [{name: rng.integers(0, 11, graph.tensors[name].shape) for name in graph.inputs} for _ in range(STEPS)]
    return graph, steps, {t.name: rng.normal(size=t.shape) / 2 for t in graph.params}


def test_an_expert_takes_in_no_more_than_all_tokens() -> None:
    few, many = (models.parse(SMALL.format(2, capacity)).graph(2).fingerprint for capacity in ("2", "1e308"))
    assert few == many


@pytest.mark.parametrize(("choices", "capacity"), [(1, 1.0), (2, 0.7), (3, 4.0)])
def test_losses_are_those_of_torch(choices: int, capacity: float) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    graph, steps, start = problem(choices, capacity)
    done = train(graph, whole_on(graph), machine.local(1), steps, start, rate=RATE, updates=ADAM)
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    optimizer = torch.optim.Adam(list(weights.values()), lr=RATE)
    for step, arrays in enumerate(steps):
        loss = torch_loss(torch, weights, choices, capacity, **{n: torch.tensor(a) for n, a in arrays.items()})
        assert relative(done.losses[step : step + 1], loss.detach().numpy().reshape(1)) < 1e-9
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, weight in weights.items():
        assert difference(done.carried[name], weight.detach().numpy()) < 1e-9, name


def torch_loss(torch, p, choices: int, capacity: float, tokens, targets):
    """The model in plain PyTorch, a token at a time where it is routed."""

    def norm(name: str, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])

    def linear(name: str, x):
        return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)

    def attention(name: str, x):
        a = norm(f"{name}.norm1", x)
        q, k, v = (linear(f"{name}.{part}", a).unflatten(-1, (2, -1)).transpose(1, 2) for part in "qkv")
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + linear(f"{name}.o", a.transpose(1, 2).flatten(-2))

    def gelu(x):
        return torch.nn.functional.gelu(x, approximate="tanh")

    x = p["tok.weight"][tokens] + p["pos.weight"]
    x = attention("block1", x)
    x = x + linear("block1.down", gelu(linear("block1.up", norm("block1.norm2", x))))
    x = attention("block2", x)
    m = norm("block2.norm2", x)
    probs = torch.softmax(linear("block2.gate", m), dim=-1)
    worked, balance = [], 0
    for sample in range(len(tokens)):
        gates, experts = probs[sample].topk(choices)
        if choices > 1:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        out = [torch.zeros(m.shape[-1], dtype=m.dtype) for _ in range(m.shape[1])]
        most, taken = ceil(capacity * choices * m.shape[1] / 4), [0] * 4
        for choice in range(choices):
            for token in range(m.shape[1]):
                expert = int(experts[token, choice])
                taken[expert] += 1
                if taken[expert] <= most:
                    hidden = gelu(m[sample, token] @ p["block2.up.weight"][expert])
                    out[token] = out[token] + gates[token, choice] * (hidden @ p["block2.down.weight"][expert])
        worked.append(torch.stack(out))
        shares = torch.bincount(experts[:, 0], minlength=4).double() / m.shape[1]
        balance = balance + 4 * (shares * probs[sample].mean(dim=0)).sum() / len(tokens)
    logits = linear("head", norm("norm", x + torch.stack(worked)))
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.1 * balance


@pytest.mark.parametrize("num_procs", [2, 4])
def test_experts_may_be_split_while_samples_are(num_procs: int) -> None:
    """Tokens go to the experts and back all to all, as the axes of dispatch and combine say."""
    graph, steps, start = problem(2, 1.25)
    on = little.machine(num_procs)
    procs = tuple(range(num_procs))
    experts = {"block2.up", "block2.gelu", "block2.down"}
    by = {name: "e" if name in experts else "b" for name in graph.nodes}
    legal = {name: axis for name, axis in by.items() if axis in graph.nodes[name].alignment.axes}
    cut = {name: Config({axis: num_procs}, 1, procs) for name, axis in legal.items()}
    plan = Strategy({name: cut.get(name, Config({}, num_procs, procs)) for name in graph.nodes})
    one = train(graph, whole_on(graph), machine.local(1), steps, start, rate=RATE, updates=ADAM)
    many = train(graph, plan, on, steps, start, rate=RATE, size=num_procs, updates=ADAM)
    assert difference(many.losses, one.losses) < 1e-10
    for name, expected in one.carried.items():
        moved = np.abs(one.carried[name.rpartition("/")[0] or name]).max()
        assert difference(many.carried[name], expected, moved) < 1e-10, name
    names = [task.name for task in many.prepared.tasks.tasks]
    assert any("block2.dispatch" in name and "all_to_all" in name for name in names), names


def test_a_full_queue_passes_tokens_over() -> None:
    experts = np.array([[[0, 1], [0, 1], [0, 2], [1, 0]]])
    slots = reference.queue(experts, num_experts=3, capacity=2)
    # all first choices come before any second one
    assert slots.tolist() == [[[0, 1], [1, -1], [-1, 0], [0, -1]]]
    x = np.arange(8.0).reshape(1, 4, 2)
    there = reference.dispatch(x, experts, slots, num_experts=3, capacity=2, first_expert=0, first_slot=0)
    assert there[:, 0].tolist() == [[[0, 1], [2, 3]], [[6, 7], [0, 1]], [[4, 5], [0, 0]]]


def test_the_loss_of_balance_is_one_where_loads_are_equal() -> None:
    balance = find("balance")()
    for experts, expected in ((np.arange(4), 1.0), (np.zeros(4, int), 4.0)):
        probs = np.eye(4)[experts][None].repeat(2, axis=0)
        chosen = experts.reshape(1, 4, 1).repeat(2, axis=0)
        part = node_of(case(balance, (probs, "b s e"), (chosen, "b s k"))).whole()
        assert float(balance.forward(reference, probs, chosen, at=part)) == pytest.approx(expected)


def test_evaluation_leaves_the_loss_of_balance_out() -> None:
    model = models.parse(SMALL.format(2, 1.25))
    trained, judged = (model.build(batch=2, training=mode, **model.settings) for mode in (True, False))
    assert {n.op.name for n in trained.nodes.values()} - {n.op.name for n in judged.nodes.values()} == {
        "balance", "scale",
    }  # fmt: skip
    assert [t.name for t in trained.params] == [t.name for t in judged.params]
    assert judged.outputs == trained.outputs == ["head"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("moe:width=10,heads=4", "width 10 should be a multiple of heads, 4"),
        ("moe:experts=2,choices=3", "choices 3 should be at most experts, 2"),
        ("moe:capacity=0.0", "capacity 0.0 should be more than 0"),
    ],
)
def test_wrong_settings_are_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        models.parse(text).graph()
