"""Known plans: what their names say, on models and machines of any size; each is a search of its own too."""

from collections import Counter

import pytest

from castile.launch import models
from castile.planner import search as searching
from castile.planner.cost import CostModel
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.megatron import tensor_cuts
from castile.planner.op import find
from castile.planner.search import Evaluator, search
from castile.planner.seeds import data_parallel, fsdp, megatron, seed, seeds
from castile.planner.space import space_of
from castile.planner.strategy import Config, Strategy, check_config
from castile.planner.updates import Updates
from castile.runtime.machine import Level, Machine, Processor
from tests.little import proposed

GPT = "gpt:layers=2,width=32,heads=4,seq=8,vocab=64"
PAIRS = {"q": "o", "k": "o", "v": "o", "attention": "h", "o": "i", "up": "o", "gelu": "o", "down": "i"}
INSISTING = ("data_parallel", "one_weird_trick", "fsdp", "megatron")


def machine(procs: int, node: int = 0, latency: float = 1e-6) -> Machine:
    levels = [Level("near", node, latency, 1e10)] if node else []
    levels += [Level("far", procs, 10 * latency, 1e9)] if procs > 1 else []
    return Machine("test", (Processor("p", 1e10, 1e11, 2**30, 0, 1e-7),) * procs, tuple(levels))


def no_pairs() -> Graph:
    g = Graph("single", "float32")
    x, y = g.input("x", (8, 6), "b i"), g.input("label", (8,), "b", "int32")
    g.minimise(g.cross_entropy("loss", g.linear("head", x, features=4), y))
    g.outputs = ["head"]
    return g


def evaluator(graph: Graph, on: Machine, updates: str = "adam") -> Evaluator:
    return Evaluator(Lowering(graph, on, Updates(find(updates)())), CostModel(on))


def gpt(batch: int = 8, settings: str = "") -> Graph:
    return models.parse(GPT + settings).graph(batch)


@pytest.mark.parametrize("model", [GPT, "convnet", "moe:layers=2,width=32,seq=8", "dlrm", "mlp", "resnet:depth=18"])
@pytest.mark.parametrize(("procs", "node"), [(1, 0), (3, 0), (8, 4)])
def test_every_seed_is_a_plan(model, procs, node):
    lowering = Lowering(models.parse(model).graph(4), machine(procs, node))
    known = seeds(lowering)
    assert next(iter(known)) == "data_parallel"
    for plan in known.values():
        assert plan.configs.keys() >= lowering.graph.nodes.keys()
        for name, config in plan.configs.items():
            check_config(lowering.names.nodes.get(name) or lowering.names.optional[name], config, procs)
    assert len({str(sorted(plan.configs.items(), key=lambda item: item[0])) for plan in known.values()}) == len(known)


def test_megatron_cuts_attention_by_heads_and_matrices_in_pairs():
    cuts = tensor_cuts(gpt(), 4)
    assert cuts == {f"block{n}.{part}": axis for n in (1, 2) for part, axis in PAIRS.items()}
    gated = tensor_cuts(gpt(settings=",mlp=silu,norm=rms,rotary=true"), 2)
    assert {gated[f"block1.{part}"] for part in ("gate", "up", "silu", "gated")} == {"o"} and gated[
        "block1.down"
    ] == "i"
    # Four heads are too few for eight ways; the rest goes on as before.
    assert set(tensor_cuts(gpt(), 8)) == {f"block{n}.{part}" for n in (1, 2) for part in ("up", "gelu", "down")}


def test_megatron_cuts_experts_and_plain_layers_but_nothing_without_a_partner():
    cuts = tensor_cuts(models.parse("moe:layers=2,width=32,heads=4,seq=8").graph(4), 4)
    assert (cuts["block2.up"], cuts["block2.gelu"], cuts["block2.down"]) == ("f", "f", "f")
    assert tensor_cuts(models.parse("mlp:layers=2,width=16").graph(8), 2) == {"fc1": "o", "relu1": "o", "fc2": "i"}
    assert tensor_cuts(no_pairs(), 2) == tensor_cuts(models.parse("resnet:depth=18").graph(4), 2) == {}


def test_megatron_crosses_samples_with_features_and_positions():
    configs = megatron(gpt(batch=4), 8, 4)
    assert configs["block1.q"] == Config({"b": 2, "o": 4}, 1, tuple(range(8)))
    assert configs["block2.attention"] == Config({"b": 2, "h": 4}, 1, tuple(range(8)))
    # Four samples are too few for eight processors: positions are cut too.
    assert configs["block1.norm1"] == configs["head"] == Config({"b": 2, "s": 4}, 1, tuple(range(8)))
    assert megatron(gpt(batch=8), 8, 4)["block1.norm1"] == Config({"b": 8}, 1, tuple(range(8)))
    experts = megatron(models.parse("moe:layers=2,width=32,heads=4,seq=8").graph(4), 8, 2)
    assert experts["block2.up"] == Config({"b": 4, "f": 2}, 1, tuple(range(8)))


def test_megatron_sends_activations_twice_a_half_block_and_no_gradient_of_what_is_cut():
    graph = gpt(batch=4)
    tasks, _ = evaluator(graph, machine(4, latency=0.0)).simulate(Strategy(megatron(graph, 4, 4)))
    sent = Counter((tasks.cost_keys[c].name, tasks.cost_keys[c].nbytes) for c in tasks.cost if tasks.cost_keys[c].link)
    stream = 4 * 8 * 32 * 4
    # Forward and backward, of each half of each block.
    assert sent["all_gather", stream] == sent["reduce_scatter", stream] == 2 * 2 * 2
    # What else is summed are the gradients of the tables and the head, and of norms and biases.
    assert {nbytes for name, nbytes in sent if name == "all_reduce"} == {8192, 1024, 128}


def test_fsdp_keeps_pieces_at_home():
    graph = gpt()
    same = evaluator(graph, machine(4))
    kept = [same.simulate(Strategy(c))[1].persistent_bytes for c in (data_parallel(graph, 4), fsdp(same.lowering))]
    assert kept[1].max() < 0.3 * kept[0].max()
    configs = fsdp(same.lowering)
    assert configs["block1.up.weight/update"] == Config({"o": 4}, 1, (0, 1, 2, 3))
    assert {n: c for n, c in configs.items() if "/" not in n} == data_parallel(graph, 4)
    assert fsdp(Lowering(graph, machine(1))) == data_parallel(graph, 1)


@pytest.mark.parametrize("name", INSISTING)
def test_a_known_plan_is_a_search_that_insists(name):
    same = evaluator(gpt(), machine(4, 2))
    found = search(name, same)
    assert found.strategy.configs == seed(name, same.lowering) and found.strategy.search == name
    assert found.equals == name and found.num_proposals == 1
    assert len({str(seed(other, same.lowering)) for other in INSISTING}) == len(INSISTING)


def test_a_known_plan_that_is_another_is_found_under_that_name():
    same = evaluator(no_pairs(), machine(2))
    assert "megatron" not in seeds(same.lowering)
    assert search("megatron", same).equals == "data_parallel"


def test_random_search_draws_from_the_whole_space():
    graph = models.parse("mlp:layers=1,width=8").graph(4)
    plans = proposed("random", evaluator(graph, machine(4)), "300")
    for name, node in graph.nodes.items():
        assert {plan[name] for plan in plans} <= set(space_of(node, 4).configs)
    assert len({plan["fc1"] for plan in plans}) > 0.9 * len(space_of(graph.nodes["fc1"], 4))
    found = search("random", evaluator(graph, machine(4)), "40", 3)
    again = search("random", evaluator(graph, machine(4)), "40", 3)
    assert found.num_proposals == 40 and found.strategy == again.strategy
    assert all(found.evaluated.seconds <= known.seconds for known in found.seeds.values())


def test_every_known_plan_of_a_name_has_its_file():
    assert set(INSISTING) | {"random", "mcmc"} <= set(searching.available())
