"""Recurrent cells where the laws of operators do not reach: the first step, one cost for all steps, and their words."""

import numpy as np
import pytest

from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.ops.gru_cell import GruCell
from castile.planner.ops.lstm_cell import LstmCell
from castile.planner.strategy import Config, Strategy, parts
from castile.runtime import machine
from tests.op_cases import Case, case, cases_of
from tests.op_laws import Whole, deviation, node_of, recorded, splits
from tests.training import train

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")


def first_step(kind: str) -> Case:
    """A cell with nothing before it."""
    rng = np.random.default_rng(0)
    if kind == "lstm":
        return case(LstmCell(1), (rng.normal(size=(4, 3, 4, 5)), "b s g h"), (rng.normal(size=(4, 5)), "*g h"))
    biases = [(rng.normal(size=(3, 5)), "*g h") for _ in range(2)]
    return case(GruCell(1), (rng.normal(size=(4, 3, 3, 5)), "b s g h"), *biases)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_first_step_is_a_step_after_zeros(kind: str) -> None:
    first = first_step(kind)
    num_gates, h = first.arrays[0].shape[2:]
    states = [(np.zeros((4, 1, h)), "b t i"), (np.zeros((4, 1, h)), "b t h")]
    weight = (np.random.default_rng(1).normal(size=(num_gates, h, h)), "*g h i")
    given = [(a, "*" * t.param + " ".join(t.axes)) for a, t in zip(first.arrays, first.tensors, strict=True)]
    one, other = Whole(first), Whole(case(first.op, *given, *states, weight))
    for mine, theirs in zip(one.y, other.y, strict=True):
        assert np.array_equal(mine, theirs)
    for which, count in (("B", 1), ("W", len(first.arrays) - 1)):
        for mine, theirs in zip(one.results[which], other.results[which][:count], strict=True):
            assert mine is not None and theirs is not None and np.allclose(mine, theirs, rtol=1e-14, atol=1e-14)
    for split in splits(one.node):
        assert deviation(one, split) <= 1e-12, split


@pytest.mark.parametrize("kind", ["lstm_cell", "gru_cell"])
def test_a_part_of_the_hidden_units_reads_the_whole_state_and_its_own_of_all_else(kind: str) -> None:
    everything = node_of(next(c for c in cases_of(kind) if c.tensors[0].shape[3] == 4))
    lower, _ = parts(everything, {"h": 2})
    states = [
        n for n, operand in enumerate(everything.alignment.operands) if ("i",) in operand.dims and not operand.param
    ]
    position = everything.op.position
    assert lower.reads(0).lo[1:] == (position, 0, 0) and lower.reads(0).hi[1:3] == (position + 1, lower.extent("g"))
    assert [lower.reads(n).hi[2] for n in states] == [4]
    others = [n for n, operand in enumerate(everything.alignment.operands) if ("h",) in operand.dims]
    assert all(lower.reads(n).shape[everything.alignment.operands[n].dims.index(("h",))] == 2 for n in others)


def test_backward_keeps_the_gates_and_not_what_they_came_from() -> None:
    kept = {"lstm_cell": ({"dy0", "dy1", 3, 4, "y1", "y2"}, {"dy0", "dy1", 2, 3, "y1", "y2"}),
            "gru_cell": ({"dy0", 4, 5, "y1"}, {"dy0", 3, 4, "y1"})}  # fmt: skip
    for kind, expected in kept.items():
        # of one position, the whole is what a step reads
        c = next(c for c in cases_of(kind) if c.tensors[0].shape[1] == 1)
        everything = Whole(c)
        for which, names in zip("BW", expected, strict=True):
            recording, _ = recorded(c, which, everything.node.whole(), *everything.local(everything.node.whole()))
            numbered = [f"dy{j}" for j in range(c.op.flows)] + [*range(len(c.arrays))]
            numbered += [f"y{j}" for j in range(len(everything.y))]
            assert {numbered[n] for n in recording.reads} == names, (kind, which)


def test_all_steps_of_a_layer_have_one_cost() -> None:
    for length in (4, 9):
        g = _graph("lstm", length)[0]
        strategy = Strategy({name: Config({}, 1, (0,)) for name in g.nodes})
        tasks = Lowering(g, machine.local(1)).lower(strategy)
        cells = [key.name for key in tasks.cost_keys if key.name.startswith("lstm_cell")]
        # each pass of the first step and of the others, and what it costs to read a position out of many: forward
        # always, and backward of the last layer, whose gradient is a piece of that of all positions
        strided = [f"lstm_cell.{which} strided" for which in "FFBW"]
        assert sorted(cells) == sorted([f"lstm_cell.{which}" for which in "FBW"] * 2 + strided)


def _graph(kind: str, length: int, width: int = 5) -> tuple[Graph, np.ndarray]:
    g = Graph(kind, "float64")
    x = g.input("x", (3, length, 4), "b s i")
    y, _ = getattr(g, kind)("layer", x, width)
    g.outputs = [y.name]
    g.minimise(g.sum("loss", g.tanh("curve", g.linear("head", y, features=2))))
    return g, np.random.default_rng(3).normal(size=(3, length, 4))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_layer_trains_as_torchs_does(kind: str) -> None:
    g, x = _graph(kind, 7)
    rng = np.random.default_rng(4)
    values = {t.name: rng.normal(size=t.shape) / 2 for t in g.params}
    whole = Strategy({name: Config({}, 1, (0,)) for name in g.nodes})
    ours = train(g, whole, machine.local(1), [{"x": x}] * 4, values, rate=0.05)
    layer = getattr(torch.nn, kind.upper())(4, 5, batch_first=True).double()
    head = torch.nn.Linear(5, 2).double()
    names = {"weight_ih_l0": "input", "weight_hh_l0": "weight", "bias_hh_l0": "bias", "bias_ih_l0": "input_bias"}
    for theirs, mine in names.items():
        array = values.get(f"layer.{mine}", np.zeros((4, 5)))
        getattr(layer, theirs).data = torch.tensor(array.reshape(getattr(layer, theirs).shape))
    # PyTorch's two biases of an LSTM add up to one
    layer.bias_ih_l0.requires_grad_(kind == "gru")
    head.weight.data, head.bias.data = (torch.tensor(values[f"head.{name}"]) for name in ("weight", "bias"))
    learning = [p for p in (*layer.parameters(), *head.parameters()) if p.requires_grad]
    optimizer, losses = torch.optim.SGD(learning, lr=0.05, momentum=0.5), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.tanh(head(layer(torch.tensor(x))[0])).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.allclose(ours.losses, losses, rtol=1e-10)
    assert np.allclose(ours.carried["layer.weight"].ravel(), layer.weight_hh_l0.detach().numpy().ravel(), rtol=1e-9)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: case(LstmCell(3), (np.zeros((2, 3, 4, 5)), "b s g h"), (np.zeros((4, 5)), "*g h")), "no position 3"),
        (lambda: case(LstmCell(), (np.zeros((2, 3, 4, 5)), "b s g h"), (np.zeros((3, 5)), "*g h")), "axis g=4"),
        (
            lambda: case(GruCell(9), (np.zeros((2, 3, 3, 5)), "b s g h"), *[(np.zeros((3, 5)), "*g h")] * 2),
            "position 9",
        ),
    ],
)
def test_operands_that_do_not_fit_are_refused_in_words(make, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=words):
        node_of(make())


def test_gates_of_another_number_are_refused_in_words() -> None:
    g = Graph("wrong", "float64")
    with pytest.raises(ValueError, match=r"lstm_cell: gates of shape .* should be .samples, 1, 4, units"):
        g.lstm_cell("step", g.input("x", (2, 3, 5, 4), "b s g h"), 0, "weights")
