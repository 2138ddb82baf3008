"""Known plans: what their names say, on models and machines of any size; each is a search of its own too."""

import random
from collections import Counter
from math import prod

import numpy as np
import pytest

from castile.launch import models
from castile.planner.choices.pins import Pin, Pins
from castile.planner.choices.space import space_of
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.megatron import TensorCuts
from castile.planner.known.pieces import in_pieces
from castile.planner.known.plans import MOST_PASSED, context_parallel, data_parallel, fsdp, megatron
from castile.planner.known.seeds import known_names, seed, seeds, stamped
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import Evaluator, search
from castile.planner.searches import available
from castile.planner.searching.subsets import pins_within
from castile.planner.strategy import Config, Names, Strategy, check_config, parts
from castile.runtime import rng
from castile.runtime.machine import Level, Machine, Processor, parse
from castile.runtime.region import intersect
from tests.effort import rare
from tests.little import proposed
from tests.strategies import whole_on
from tests.training import difference, train

GPT = "gpt:layers=2,width=32,heads=4,seq=8,vocab=64"
PAIRS = {"q": "o", "k": "o", "v": "o", "attention": "h", "o": "i", "up": "o", "gelu": "o", "down": "i"}


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


@pytest.mark.parametrize("model", [GPT, "moe:layers=2,width=32,seq=8", "mlp"])
@pytest.mark.parametrize(("nodes", "left"), [(2, (0,)), (3, (0, 2)), (4, (1, 2)), (3, (0, 1, 2))])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_on_some_nodes_of_a_machine_plans_are_those_of_as_many(model, nodes, left, microbatches):
    graph, near = models.parse(model).graph(24), 4
    whole, part = (
        Lowering(graph, parse(f"flexflow-p100:nodes={count}"), microbatches=microbatches)
        for count in (nodes, len(left))
    )
    procs = [near * node + n for node in left for n in range(near)]
    names = Names(whole.piece.nodes, whole.names.optional)
    pins = Pins([Pin("*", procs=frozenset(procs), everywhere=True)], names, near * nodes)
    expected = {
        name: {node: (c.split, c.replicas, [procs[p] for p in c.procs]) for node, c in plan.configs.items()}
        for name, plan in seeds(part).items()
    }
    found = {
        name: {node: (c.split, c.replicas, [*c.procs]) for node, c in plan.configs.items()}
        for name, plan in seeds(whole, pins=pins).items()
    }
    assert found == expected
    assert set(known_names(whole, pins)) == set(known_names(part))


def test_megatron_cuts_attention_by_heads_and_matrices_in_pairs():
    cuts = TensorCuts(gpt()).of(4)
    assert cuts == {f"block{n}.{part}": axis for n in (1, 2) for part, axis in PAIRS.items()}
    gated = TensorCuts(gpt(settings=",mlp=silu,norm=rms,rotary=true")).of(2)
    assert {gated[f"block1.{part}"] for part in ("gate", "up", "silu", "gated")} == {"o"} and gated[
        "block1.down"
    ] == "i"
    # Four heads are too few for eight ways; the rest goes on as before.
    assert set(TensorCuts(gpt()).of(8)) == {f"block{n}.{part}" for n in (1, 2) for part in ("up", "gelu", "down")}


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 6, 8, 12, 16, 32])
@pytest.mark.parametrize(("procs", "width"), [(4, 4), (8, 4), (16, 4)])
def test_what_lies_between_pairs_is_gathered_as_it_lies(samples, procs, width):
    """Where samples can be shared so within each group: whole ones, and parts of one, and nothing is packed."""
    lowering = Lowering(gpt(samples), machine(procs, width if width < procs else 0))
    configs = megatron(TensorCuts(lowering.piece), procs, width)
    ways = procs // width
    if samples % procs == 0 or (samples % ways == 0 and width % (samples // ways) == 0):
        shared = {"b": min(samples, procs), "s": procs // min(samples, procs)}
        assert configs["block1.norm1"].split == {axis: n for axis, n in shared.items() if n > 1}
        lowered = lowering.lower(stamped(lowering, configs, "megatron"))
        around = {key.name for key in lowered.cost_keys if key.name.startswith(("pack", "unpack"))}
        assert not around, around


def test_megatron_cuts_experts_and_plain_layers_but_nothing_without_a_partner():
    cuts = TensorCuts(models.parse("moe:layers=2,width=32,heads=4,seq=8").graph(4)).of(4)
    assert (cuts["block2.up"], cuts["block2.gelu"], cuts["block2.down"]) == ("f", "f", "f")
    assert TensorCuts(models.parse("mlp:layers=2,width=16").graph(8)).of(2) == {"fc1": "o", "relu1": "o", "fc2": "i"}
    assert TensorCuts(no_pairs()).of(2) == TensorCuts(models.parse("resnet:depth=18").graph(4)).of(2) == {}


@pytest.mark.parametrize(
    "name", ["gpt:layers=2,width=24,heads=6", "moe:layers=2,width=32,heads=4,seq=8", "mlp", "dlrm"]
)
def test_cuts_that_are_looked_for_once_are_those_of_each_width(name):
    """In whatever order widths are asked for."""
    graph, widths = models.parse(name).graph(4), (2, 3, 4, 5, 6, 7, 8, 16, 24, 25, 64, 96, 97, 1000, 7, 2)
    alone = {width: TensorCuts(graph).of(width) for width in widths}
    for order in (widths, widths[::-1], random.Random(0).sample(widths, len(widths))):
        known = TensorCuts(graph)
        assert {width: known.of(width) for width in order} == alone, order


def test_megatron_crosses_samples_with_features_and_positions():
    configs = megatron(TensorCuts(gpt(batch=4)), 8, 4)
    assert configs["block1.q"] == Config({"b": 2, "o": 4}, 1, tuple(range(8)))
    assert configs["block2.attention"] == Config({"b": 2, "h": 4}, 1, tuple(range(8)))
    # Four samples are too few for eight processors: positions are cut too.
    assert configs["block1.norm1"] == configs["head"] == Config({"b": 4, "s": 2}, 1, tuple(range(8)))
    assert megatron(TensorCuts(gpt(batch=8)), 8, 4)["block1.norm1"] == Config({"b": 8}, 1, tuple(range(8)))
    # Two samples are too few for four groups: positions are cut across these too, and the loss as its scores.
    few = megatron(TensorCuts(gpt(batch=2)), 8, 2)
    assert few["block1.q"] == Config({"b": 2, "s": 2, "o": 2}, 1, tuple(range(8)))
    assert few["block1.o"] == Config({"b": 2, "s": 2, "i": 2}, 1, tuple(range(8)))
    assert few["block1.norm1"] == few["head"] == few["loss"] == Config({"b": 2, "s": 4}, 1, tuple(range(8)))
    experts = megatron(TensorCuts(models.parse("moe:layers=2,width=32,heads=4,seq=8").graph(4)), 8, 2)
    # Four experts lie apart on four processors each, however wide matrices are cut.
    assert experts["block2.up"] == Config({"e": 4, "b": 2}, 1, (0, 4, 1, 5, 2, 6, 3, 7))
    assert experts["block1.up"] == Config({"b": 4, "o": 2}, 1, tuple(range(8)))


def test_positions_are_cut_where_there_are_more_processors_than_samples():
    few = seeds(Lowering(gpt(batch=2), machine(8)))
    configs = few["context_parallel"].configs
    assert configs["block1.q"] == configs["block1.attention"] == Config({"b": 2, "s": 4}, 1, tuple(range(8)))
    assert few["context_parallel_zero"].configs["block1.up.weight/update"].num_parts == 8
    assert "context_parallel" not in known_names(Lowering(gpt(batch=8), machine(8)))
    # What counts are the samples of a microbatch.
    cut = seeds(Lowering(gpt(batch=8), machine(8), microbatches=4))
    assert cut["context_parallel"].configs == configs
    assert cut["pipeline_2"].configs["block1.q"].split == {"b": 2, "s": 2}


def test_matrices_of_stages_are_cut_as_wide_as_a_node_or_less():
    names = known_names(Lowering(gpt(batch=16), machine(16, 4), microbatches=8))
    assert {n for n in names if n.startswith("pipeline_2_meg")} == {"pipeline_2_megatron_4", "pipeline_2_megatron_2"}
    assert {n for n in names if n.startswith("pipeline_8_meg")} == {"pipeline_8_megatron_2"}


LONG = "gpt:layers=1,width=8,heads=2,vocab=16"


@pytest.mark.parametrize(("model", "samples", "procs", "width"), [
    (f"{LONG},seq=64", 1, 4, 1), (f"{LONG},seq=128,rotary=true", 2, 8, 2),
    *rare((f"{LONG},seq=64", 2, 8, 1), (f"{LONG},seq=64", 1, 8, 2)),
    ("gpt:layers=1,width=12,heads=3,vocab=16,seq=192", 1, 4, 4),
])  # fmt: skip
def test_of_positions_that_have_unequal_work_each_has_a_piece_of_either_end(model, samples, procs, width):
    """All do as much then, and lie as all others of their group do; and the network learns the same."""
    graph = models.parse(model).graph(samples, "float64")
    cuts = TensorCuts(graph)
    configs = megatron(cuts, procs, width) if width > 1 else context_parallel(cuts, procs)
    node = graph.nodes["block1.attention"]
    config, work = configs[node.name], Counter[int]()
    for proc, part in zip(config.procs, parts(node, config.split), strict=True):
        work[proc] += node.op.flops("F", part)
    assert max(work.values()) == min(work.values()) and set(Counter(config.procs).values()) == {2}
    assert set(Counter(configs["block1.norm1"].procs).values()) == {2}
    steps = [{name: np.arange(samples * t.shape[1]).reshape(t.shape) * k % 16 for name in graph.inputs
              for t in [graph.tensors[name]]} for k in (3, 5)]  # fmt: skip
    start = {t.name: rng.normal(0, t.name, t.shape) for t in graph.params}
    one = train(graph, whole_on(graph), parse("local:procs=1"), steps, start)
    many = train(graph, Strategy(configs), parse(f"local:procs={procs}"), steps, start, size=procs)
    assert difference(many.losses, one.losses) < 1e-12
    assert max(difference(many.carried[name], one.carried[name], 1e-3) for name in start) < 1e-9


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("procs", [16, 32, 128, 512, 1024])
@pytest.mark.parametrize("samples", [1, 2, 8])
@pytest.mark.parametrize("width", [1, 8])
def test_of_many_processors_as_many_have_positions_as_messages_allow(rotary, procs, samples, width):
    """Not one group alone, as soon as all would have too many; nor fewer for having a piece of either end."""
    settings = f"layers=1,width=16,heads=8,vocab=16,seq=65536,rotary={str(rotary).lower()}"
    cuts = TensorCuts(models.parse(f"gpt:{settings}").graph(samples))
    configs = megatron(cuts, procs, width) if width > 1 else context_parallel(cuts, procs)
    groups, left = min(procs // width, samples), procs // width // min(procs // width, samples)
    while left > 1 and procs * left > MOST_PASSED:
        left //= 2
    for name in ("block1.attention", "block1.q", "block1.down"):
        assert len({*configs[name].procs}) // configs[name].replicas == groups * left * width, name


def test_positions_of_equal_work_are_cut_once():
    for text in (f"{LONG},seq=4", "bert:layers=1,width=8,heads=2,seq=64,positions=64,vocab=16"):
        configs = context_parallel(TensorCuts(models.parse(text).graph(1)), 4)
        assert configs["block1.attention"] == Config({"s": 4}, 1, (0, 1, 2, 3)), text


def test_what_a_parameter_has_for_each_place_is_cut_as_places_are():
    graph = gpt(batch=1)
    configs = megatron(TensorCuts(graph), 8, 4)
    # Learned positions lie with the stream that they are added to, though a parameter bears them.
    assert configs["embed"] == configs["block1.norm1"] == Config({"s": 8}, 1, tuple(range(8)))
    assert configs["block1.q"].num_parts == 8 and all(configs[name].replicas == 1 for name in graph.nodes)


def test_megatron_sends_activations_twice_a_half_block_and_no_gradient_of_what_is_cut():
    graph = gpt(batch=4)
    tasks, _ = evaluator(graph, machine(4, latency=0.0)).simulate(Strategy(megatron(TensorCuts(graph), 4, 4)))
    sent = Counter((tasks.cost_keys[c].name, tasks.cost_keys[c].nbytes) for c in tasks.cost if tasks.cost_keys[c].link)
    stream = 4 * 8 * 32 * 4
    # Forward and backward, of each half of each block; and what each finds of the tokens in its rows of their table.
    assert sent["all_gather", stream] == sent["reduce_scatter", stream] == 2 * 2 * 2 + 1
    # What else is summed are the gradients of the tables and the head, and of norms and biases; and the loss.
    assert {nbytes for name, nbytes in sent if name == "all_reduce"} == {8192, 1024, 128, 4}


def test_fsdp_keeps_pieces_at_home():
    graph = gpt()
    same = evaluator(graph, machine(4))
    kept = [same.simulate(Strategy(c))[1].persistent_bytes for c in (data_parallel(graph, 4), fsdp(same.lowering))]
    assert kept[1].max() < 0.3 * kept[0].max()
    configs = fsdp(same.lowering)
    assert configs["block1.up.weight/update"] == Config({"o": 4}, 1, (0, 1, 2, 3))
    assert {n: c for n, c in configs.items() if "/" not in n} == data_parallel(graph, 4)
    assert fsdp(Lowering(graph, machine(1))) == data_parallel(graph, 1)


def holders(config: Config) -> list[set[int]]:
    return [set(config.procs[n * config.replicas : (n + 1) * config.replicas]) for n in range(config.num_parts)]


@pytest.mark.parametrize("model", [GPT, "convnet", "moe:layers=2,width=32,seq=8", "dlrm", "resnet:depth=18"])
@pytest.mark.parametrize("procs", [1, 6, 8])
def test_pieces_are_shares_of_what_the_same_processors_held_alike(model, procs):
    lowering = Lowering(models.parse(model).graph(6), machine(procs), Updates(find("adam")()))
    num_cut = 0
    for name, plan in seeds(lowering).items():
        configs = in_pieces(lowering, plan.configs)
        before, after = (
            lowering.configs(Strategy(c)) for c in ({n: plan.configs[n] for n in lowering.graph.nodes}, configs)
        )
        assert {n: before[n] for n in lowering.graph.nodes} == {n: after[n] for n in lowering.graph.nodes}, name
        for update in (f"{p.name}/update" for p in lowering.graph.params):
            node, old, new = lowering.names.optional[update], before[update], after[update]
            num_cut += new != old
            assert new.num_parts * new.replicas == old.num_parts * old.replicas
            lengths, cut = node.alignment.extents, [axis for axis, n in new.split.items() if n != old.degree(axis)]
            # Equal pieces, or one for each holder of what was whole along an axis that none divides.
            even = all(lengths[axis] % new.split[axis] == 0 for axis in cut)
            assert even or (new.replicas == 1 and all(old.degree(axis) == 1 for axis in cut))
            boxes = [[part.writes(0) for part in parts(node, config.split)] for config in (old, new)]
            for box, procs_of in zip(boxes[1], holders(new), strict=True):
                around = [n for n, other in enumerate(boxes[0]) if intersect(other, box) == box]
                assert len(around) == 1 and procs_of <= holders(old)[around[0]]
    assert procs == 1 or num_cut > 0


def test_of_parameters_of_one_size_all_are_in_pieces_or_none_and_little_of_all_together_is_not():
    graph = models.parse("gpt").graph(8)
    sizes = {p.name: prod(p.shape) for p in graph.params}
    cut = {name.removesuffix("/update") for name in fsdp(Lowering(graph, machine(4))) if name.endswith("/update")}
    kept = sizes.keys() - cut
    assert {"block1.norm1.weight", "block2.norm2.bias"} <= kept and {"head.weight", "block1.q.weight"} <= cut
    assert max(sizes[name] for name in kept) < min(sizes[name] for name in cut)
    assert sum(sizes[name] for name in kept) < 0.01 * sum(sizes.values())


def test_pieces_of_one_processor_each_where_that_divides():
    lowering = Lowering(gpt(), machine(8))
    configs = in_pieces(lowering, megatron(TensorCuts(lowering.graph), 8, 2))
    # Halves by Megatron, of each of which four processors have a share.
    assert configs["block1.up.weight/update"] == Config({"o": 8}, 1, (0, 2, 4, 6, 1, 3, 5, 7))
    # Six processors share 32 features as well as that goes, 96 could not: too many messages of unequal pieces.
    assert in_pieces(lowering, data_parallel(lowering.graph, 6))["pos.weight/update"].degree("d") == 6
    many = Lowering(models.parse("gpt:layers=1,width=128,heads=4,seq=8,vocab=17").graph(96), machine(96))
    assert in_pieces(many, data_parallel(many.graph, 96))["pos.weight/update"].degree("d") == 32
    # Sixteen share 24 features by cutting them in eight, and the others in two.
    twice = Lowering(models.parse("gpt:layers=1,width=24,heads=4,seq=8,vocab=17").graph(16), machine(16))
    cut = in_pieces(twice, data_parallel(twice.graph, 16))["block1.q.weight/update"]
    assert cut == Config({"o": 8, "i": 2}, 1, tuple(range(16)))


def short(memory: int, node: int = 4, procs: int = 16) -> Machine:
    levels = (Level("near", node, 1e-6, 1e10), Level("far", procs, 1e-5, 1e9))
    return Machine("short", (Processor("p", 1e10, 1e11, memory, 0, 1e-7),) * procs, levels)


def test_wider_and_in_pieces_only_where_memory_is_short():
    graph = models.parse("gpt:layers=2,width=64,heads=8,seq=8,vocab=64").graph(4)
    weights = sum(4 * prod(p.shape) for p in graph.params)
    large = {}
    for share in (16.0, 2.2, 1.2, 0.6, 0.1):
        known = seeds(Lowering(graph, short(int(share * weights)), Updates(find("adam")())))
        wide = [name for name in known if name.startswith("megatron")]
        large[share] = [name for name in wide if name.endswith("_zero") or name == "megatron_8"]
    # Adam keeps four times the weights: a quarter on each processor of a node, an eighth on those of two.
    assert large[16.0] == []
    assert large[2.2] == ["megatron_2_zero"]
    assert large[1.2] == ["megatron_zero", "megatron_2_zero", "megatron_8"]
    assert large[0.6] == ["megatron_zero", "megatron_2_zero", "megatron_8", "megatron_8_zero"]
    assert large[0.1] == []


def test_a_wide_cut_that_divides_nothing_evenly_is_not_known():
    graph = models.parse("gpt:layers=2,width=96,heads=12,seq=8,vocab=64").graph(4)
    weights = sum(4 * prod(p.shape) for p in graph.params)
    assert not any(name.startswith("megatron_8") for name in seeds(Lowering(graph, short(weights))))


def test_of_a_wide_plan_pieces_need_less_memory():
    graph = models.parse("gpt:layers=2,width=64,heads=8,seq=8,vocab=64").graph(4)
    same = evaluator(graph, short(250_000))
    wide, zero = (
        same.simulate(Strategy(c))[1]
        for c in (megatron(TensorCuts(graph), 16, 8), seed("megatron_8_zero", same.lowering))
    )
    assert (
        zero.persistent_bytes.max() < 0.7 * wide.persistent_bytes.max()
        and zero.peak_bytes.max() < wide.peak_bytes.max()
    )


@pytest.mark.parametrize(
    ("graph", "on"), [(gpt, machine(8, 4)), (no_pairs, machine(3)), (lambda: models.parse("moe").graph(4), machine(4))]
)
def test_each_known_plan_is_a_search_that_insists(graph, on):
    same = evaluator(graph(), on)
    names, plans = known_names(same.lowering), seeds(same.lowering)
    assert set(plans) <= set(names) and not set(names) & set(available())
    for name in names:
        found = search(name, same, seeds=[name])
        assert found.strategy.configs == seed(name, same.lowering) and found.strategy.search == name
        assert found.is_insisted and found.num_proposals == 1


def test_on_some_of_the_processors_it_is_the_plan_that_is_told_of_there():
    """With pins both are made for the processors that are left, not for all and then cut down."""
    same = evaluator(gpt(), machine(8, 4))
    pins = pins_within(same, range(4))
    for name in known_names(same.lowering, pins):
        expected = seeds(same.lowering, [name], pins=pins)[name].configs
        assert search(name, same, seeds=[name], pins=pins).strategy.configs == expected, name


def test_who_asks_for_another_search_is_told_what_there_is():
    same = evaluator(gpt(), machine(4, 2))
    with pytest.raises(ValueError, match=r"no search 'megatron_3' \(did you mean 'megatron'") as refused:
        search("megatron_3", same)
    for name in (*available(), *known_names(same.lowering)):
        assert name in str(refused.value)


def test_a_known_plan_that_is_another_is_found_under_that_name():
    same = evaluator(no_pairs(), machine(2))
    assert "megatron" not in seeds(same.lowering)
    assert search("megatron", same).equals == "data_parallel"


def test_random_search_draws_from_the_whole_space():
    graph = models.parse("mlp:layers=1,width=8").graph(4)
    plans = proposed("random", evaluator(graph, machine(2)), "60")
    for name, node in graph.nodes.items():
        assert {plan[name] for plan in plans} <= set(space_of(node, 2).configs)
    assert len({plan["fc1"] for plan in plans}) > 0.9 * len(space_of(graph.nodes["fc1"], 2))
    found = search("random", evaluator(graph, machine(2)), "40", 3)
    again = search("random", evaluator(graph, machine(2)), "40", 3)
    assert found.num_proposals == 40 and found.strategy == again.strategy
    assert all(found.evaluated.seconds <= known.seconds for known in found.seeds.values())


def test_a_network_may_have_any_depth():
    """Pairs of matrices are looked for from the end: one after the other they would be too many for the interpreter."""
    graph = models.parse("mlp:layers=1200,width=8").graph(8)
    cuts = TensorCuts(graph).of(2)
    assert [cuts[f"fc{n}"] for n in (1, 2, 3, 4)] == ["o", "i", "o", "i"] and "head" not in cuts
    assert len(cuts) == 1800
