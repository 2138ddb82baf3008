"""Vocabularies that no number of processors divides, as GPT-2's: classes, heads and tables are cut all the same."""

from collections import Counter

import numpy as np
import pytest

from castile.launch import models
from castile.launch.jobs import jobs
from castile.planner.axes import parse
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.megatron import TensorCuts
from castile.planner.known.plans import megatron
from castile.planner.known.seeds import known_names
from castile.planner.lower import Lowering
from castile.planner.op import available, find
from castile.planner.ops.cross_entropy import MANY_CLASSES
from castile.planner.search import search
from castile.planner.strategy import Strategy, parts
from castile.runtime import machine as machines
from castile.runtime.machine import Level, Machine, Processor
from tests.documented import COUNTED
from tests.effort import rare
from tests.strategies import whole_on
from tests.test_models import values
from tests.training import train

# A prime.
WORDS = 1009
GPT = f"gpt:layers=1,width=16,heads=8,seq=5,vocab={WORDS}"
# Axes of parameters that may not be cut, and why.
WHOLE = {
    "conv1d": "the places of a window",
    "conv2d": "the places of a window",
    "conv_transpose2d": "the places of a window",
    "group_norm": "channels of a group, all of which its statistics need",
    "gru_cell": "gates, which are not as many as features",
    "layer_norm": "features, all of which statistics need",
    "lstm_cell": "gates, which are not as many as features",
    "rms_norm": "features, all of which statistics need",
}


def on(procs: int) -> Machine:
    return Machine("test", (Processor("p", 1e12, 1e12, 2**34, 0, 1e-7),) * procs, (Level("link", procs, 1e-6, 1e10),))


@pytest.mark.parametrize("more", ["tied=true", "tied=true,rewrite=fuse+classes_first", *rare("tied=false")])
@pytest.mark.parametrize("procs", [2, 3, *rare(4, 8)])
def test_a_cut_vocabulary_trains_as_a_whole_one(procs: int, more: str) -> None:
    graph = models.parse(f"{GPT},{more},class_blocks=48").graph(2, "float64")
    rng = np.random.default_rng(procs)
    tokens = [{name: rng.integers(0, WORDS, (2, 5)).astype(np.int32) for name in graph.inputs} for _ in range(2)]
    held = {name: array for name, array in values(graph).items() if graph.tensors[name].param}
    configs = megatron(TensorCuts(graph), procs, procs)
    assert (configs["tok"].split, configs["head"].split, configs["loss.blocks"].split) == (
        {"v": procs}, {"o": procs}, {"p": procs}
    )  # fmt: skip
    one = train(graph, whole_on(graph), machines.parse("local:procs=1"), tokens, held)
    many = train(graph, Strategy(configs), on(procs), tokens, held)
    assert np.abs(one.losses - many.losses).max() <= 1e-13 * np.abs(one.losses).max()
    for name, array in one.carried.items():
        assert np.abs(array - many.carried[name]).max() <= 1e-12 * max(np.abs(array).max(), 1e-3), name


def test_what_a_cut_vocabulary_saves() -> None:
    """Nobody has or sends logits of all classes, and of a table each keeps its rows, whose gradients stay there."""
    table, kept, sent, logits = WORDS * 16 * 4, {}, {}, 2 * 5 * WORDS * 4
    for blocks in (1, 48):
        graph = models.parse(f"{GPT},class_blocks={blocks},tied=true").graph(2)
        same = Evaluator(Lowering(graph, on(2), Updates(find("adam")())), CostModel(on(2)))
        tasks, memory = same.simulate(Strategy(megatron(TensorCuts(graph), 2, 2)))
        keys = [tasks.cost_keys[c] for c in tasks.cost]
        sent[blocks] = Counter(key.nbytes for key in keys if key.link)
        kept[blocks] = memory.persistent_bytes.max()
    # Parameters and two moments of them; half of the words, and one more.
    assert kept[1] - kept[48] == pytest.approx(3 * table / 2, rel=2e-3)
    assert max(sent[1]) == table and max(sent[48]) < logits / 10 < table / 10


@pytest.mark.parametrize("procs", [4, *rare(8)])
def test_a_search_cuts_a_vocabulary_where_that_pays(procs: int) -> None:
    """A large one, of few samples."""
    graph = models.parse(f"gpt:layers=1,width=64,heads=8,seq=16,vocab={50257}").graph(2)
    same = Evaluator(Lowering(graph, on(procs), Updates(find("adam")())), CostModel(on(procs)))
    found = search("mcmc", same, "100")
    configs = found.strategy.configs
    assert configs["head"].degree("o") > 1 and configs["loss.blocks"].degree("p") > 1
    assert found.evaluated.seconds < 0.5 * found.seeds["data_parallel"].seconds
    assert found.evaluated.moved_bytes < 0.1 * found.seeds["data_parallel"].moved_bytes


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_no_model_has_many_classes_that_cannot_be_cut(name: str) -> None:
    """And what is cut alike in head and loss lies alike, however many classes there are."""
    # Layers are alike.
    short = f"{name},layers=1" if name.startswith(("gpt:", "llama:", "moe:")) else name
    graph = models.parse(short).graph()
    for node in graph.nodes.values():
        if node.op.name in ("cross_entropy", "softmax", "log_softmax"):
            assert node.alignment.extents["v"] < MANY_CLASSES, node.name
        if node.op.name == "block_entropy":
            _lies_as_its_head(graph, node.name)


def _lies_as_its_head(graph: Graph, loss: str) -> None:
    node = graph.nodes[loss]
    head = next(other for other in graph.nodes.values() if node.inputs[0] in other.outputs)
    for degree in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48):
        made, read = parts(head, {"o": degree}), parts(node, {"p": degree})
        assert [part.writes(0) for part in made] == [part.reads(0) for part in read], degree
        if degree <= 8:
            cuts = TensorCuts(graph).of(degree)
            assert (cuts[head.name], cuts[loss]) == ("o", "p") or head.name not in cuts, degree


def test_what_fits_of_gpt3_is_known() -> None:
    """Nothing else fits on 1,024 processors with as many texts, so blocks of classes must be cut evenly as often."""
    named, machine = models.parse("gpt:size=175b"), machines.parse("dgx-h100:nodes=128")
    lowering = Lowering(named.graph(1024), machine, jobs.recipe_updates(named.recipe), microbatches=32)
    assert "megatron_32_zero" in known_names(lowering)


def test_what_cannot_be_cut_of_parameters_is_said() -> None:
    """All other axes of parameters may be cut, into parts that are as even as can be."""
    found = set()
    for name in available():
        line = parse(find(name).line)
        if any(line.frozen.intersection(operand.axes) for operand in line.operands if operand.param):
            found.add(name)
    assert found == set(WHOLE)
