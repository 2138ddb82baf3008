"""Moves of the Metropolis search: each makes legal plans, does what its name says, and has room on small machines."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.choices.moves import STORAGES, Moves
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.ops.linear import Linear
from castile.planner.step.program import accumulate_name, fetch_name, update_name
from castile.planner.strategy import Config, Strategy, check_config
from castile.runtime.machine import Level, Machine, Processor
from tests.effort import examples
from tests.little import drawn

KINDS = ("change_node", "change_group", "change_users", "spread", "permute_procs", "relocate", "change_storage")


def machine(procs: int) -> Machine:
    levels = (Level("link", procs, 1e-6, 1e9),) if procs > 1 else ()
    return Machine("test", (Processor("p", 1e9, 1e10, 2**30),) * procs, levels)


def tied() -> Graph:
    """Two equal blocks, a table that an embedding and a head share, and a recurrence of its weights."""
    g = Graph("tied", "float32")
    tokens, y = g.input("tokens", (8, 4), "b s", "int32"), g.input("label", (8, 4), "b s", "int32")
    x = g.embedding("tok", tokens, rows=16, features=8)
    for n in range(2):
        x = g.relu(f"block{n}.act", g.linear(f"block{n}.fc", x, features=8))
    x = g.apply(Linear(), "again", x, g.tensors["block0.fc.weight"])
    g.minimise(g.cross_entropy("loss", g.apply(Linear(), "head", x, g.tensors["tok.weight"]), y))
    g.outputs = ["head"]
    return g


def moves(procs: int = 4, graph: Graph | None = None, optimizer: str = "adam", mode: str = "train") -> Moves:
    return Moves.of(Lowering(graph or tied(), machine(procs), Updates(find(optimizer)()), mode))


def begin(some: Moves, seed: int) -> dict[str, Config]:
    rng = random.Random(seed)
    known = [plan.configs for plan in seeds(some.lowering).values()]
    return dict(rng.choice([*known, drawn(some.lowering.piece, some.num_procs, rng)]))


@settings(max_examples=examples(80))
@given(st.sampled_from(KINDS), st.integers(2, 6), st.integers(0, 10**6), st.sampled_from(("sgd", "adafactor")))
def test_every_move_is_legal(kind, procs, seed, optimizer):
    some, rng = moves(procs, optimizer=optimizer), random.Random(seed)
    configs = begin(some, seed)
    for _ in range(3):
        getattr(some, kind)(configs, rng)
    for name, config in configs.items():
        check_config(some.nodes[name], config, procs)
    some.lowering.lower(Strategy(configs))


@pytest.mark.parametrize("kind", KINDS)
def test_every_move_changes_something_now_and_then(kind):
    some, rng = moves(), random.Random(0)
    changed = 0
    for seed in range(20):
        configs = begin(some, seed)
        before = dict(configs)
        getattr(some, kind)(configs, rng)
        changed += configs != before
    assert changed > 5


def test_a_move_is_any_of_those_that_there_is_room_for():
    assert {move.__name__ for move in moves().kinds()} == set(KINDS)
    assert {move.__name__ for move in moves(1).kinds()} == {"change_node", "spread", "change_group", "change_users"}
    alone = Graph("alone", "float32")
    x = alone.input("x", (8, 6), "b i")
    alone.minimise(alone.sum("loss", alone.linear("head", x, features=4)))
    alone.outputs = ["head"]
    several = {"change_node", "spread", "permute_procs", "relocate", "change_storage"}
    assert {move.__name__ for move in moves(2, alone).kinds()} == several


def test_one_changes_one_node():
    some, rng = moves(), random.Random(1)
    for seed in range(20):
        configs = begin(some, seed)
        before = dict(configs)
        some.change_node(configs, rng)
        assert sum(configs[name] != before.get(name) for name in configs) <= 1


def test_equal_nodes_of_blocks_move_together():
    some, rng = moves(), random.Random(2)
    assert ["block0.fc", "block1.fc"] in some.groups and ["block0.act", "block1.act"] in some.groups
    for seed in range(20):
        configs = begin(some, seed)
        before = dict(configs)
        some.change_group(configs, rng)
        moved = [group for group in some.groups if len({configs[name] for name in group}) == 1]
        assert moved and sum(configs[name] != before[name] for name in before) <= max(map(len, some.groups))


def test_users_of_a_parameter_move_together():
    some = moves()
    assert sorted(map(sorted, some.shared)) == [["again", "block0.fc"], ["head", "tok"]]
    alike = Counter()
    for seed in range(60):
        configs = begin(some, seed)
        some.change_users(configs, random.Random(seed))
        alike["same kind"] += configs["again"].split == configs["block0.fc"].split
        # The table's features are called d where rows are looked up, and i where they are contracted.
        alike["tied"] += configs["tok"].degree("d") == configs["head"].degree("i")
    assert min(alike.values()) > 20
    configs = begin(some, 0)
    configs["tok"] = Config({"d": 4}, 1, (3, 1, 0, 2))
    tokens, axes = "head", dict(some.shared[0 if "tok" in some.shared[0] else 1]["tok"])["head"]
    assert some._like_neighbour(configs["tok"], tokens, axes, random.Random(0)) == Config({"i": 4}, 1, (3, 1, 0, 2))


def test_turning_keeps_cuts_and_renames_processors():
    some, rng = moves(5), random.Random(3)
    seen: Counter[str] = Counter()
    for seed in range(60):
        configs = begin(some, seed)
        before = dict(configs)
        some.permute_procs(configs, rng)
        for name, config in configs.items():
            old = before[name]
            assert (config.split, config.replicas, len(config.procs)) == (old.split, old.replicas, len(old.procs))
            moved = dict(zip(old.procs, config.procs))
            assert len(set(moved.values())) == len(moved)
            steps = {(there - here) % 5 for here, there in moved.items()}
            seen["shift"] += len(moved) > 2 and len(steps) == 1 and steps != {0}
            seen["swap"] += sum(here != there for here, there in moved.items()) == 2 and len(moved) > 2
    assert seen["shift"] > 3 and seen["swap"] > 3


@settings(max_examples=60)
@given(st.integers(2, 8), st.integers(0, 10**6))
def test_a_region_goes_to_one_place_and_is_cut_alike_but_for_one_axis(procs, seed):
    some, rng = moves(procs), random.Random(seed)
    configs = begin(some, seed)
    before = dict(configs)
    some.relocate(configs, rng)
    changed = [name for name in some.names if configs[name] != before[name]]
    assert len({frozenset(before[name].procs) for name in changed}) <= 1
    # Twice as many cannot be had of an axis that is too short: such nodes, and those in between, stay.
    assert len({frozenset(configs[name].procs) for name in changed}) <= 1
    for name in changed:
        old, new = before[name], configs[name]
        ratios = [new.degree(a) / old.degree(a) for a in some.nodes[name].alignment.axes]
        ratios = [n for n in (*ratios, new.replicas / old.replicas) if n != 1]
        assert ratios == ([] if len(new.procs) == len(old.procs) else [len(new.procs) / len(old.procs)])
        assert ratios in ([], [2], [0.5])


def test_regions_go_everywhere():
    some, rng = moves(), random.Random(7)
    seen = Counter()
    for _ in range(200):
        configs = dict.fromkeys(some.names, Config({"b": 2}, 1, (0, 1)))
        some.relocate(configs, rng)
        seen.update({(config.procs, config.num_parts) for config in configs.values()})
    assert set(seen) == {((0, 1), 2), ((0,), 1), ((1,), 1), ((2, 3), 2), ((0, 1, 2, 3), 4)} and min(seen.values()) > 20


def kept(configs: dict[str, Config], param: str) -> str:
    """How a parameter is kept."""
    update, accumulate, fetch = (configs.get(of(param)) for of in (update_name, accumulate_name, fetch_name))
    if fetch is not None:
        return "fetched"
    if accumulate is not None:
        return "accumulated" if accumulate == update else "?"
    return "used" if update is None else "pieces or drawn"


def test_parameters_are_kept_in_all_ways():
    some, rng = moves(), random.Random(4)
    seen: Counter[str] = Counter()
    configs = dict(seeds(some.lowering)["data_parallel"].configs)
    for _ in range(150):
        before = dict(configs)
        some.change_storage(configs, rng)
        assert {n: c for n, c in configs.items() if "/" not in n} == {n: c for n, c in before.items() if "/" not in n}
        seen.update(kept(configs, param) for param in some.families)
        some.lowering.lower(Strategy(configs))
    assert set(seen) == {"used", "pieces or drawn", "accumulated", "fetched"} and len(STORAGES) == 5
    assert min(seen.values()) > 20


def test_pieces_are_as_many_as_users_have_processors():
    some = moves()
    assert some._sharded("tok.weight", (2, 0, 2, 3)) == Config({"v": 3}, 1, (0, 2, 3))
    assert some._sharded("block0.fc.bias", (1,)) == Config({}, 1, (1,))


def test_forward_passes_have_nothing_to_accumulate():
    some, rng = moves(mode="forward"), random.Random(5)
    for seed in range(40):
        configs = begin(some, seed)
        some.change_storage(configs, rng)
        assert not [name for name in configs if name.endswith(("/accumulate", "/fetch"))]


def test_moves_of_a_model_do_not_leave_it():
    graph = models.parse("gpt:layers=2,width=32,heads=4,seq=8,vocab=64").graph(4)
    some, rng = moves(4, graph), random.Random(6)
    configs = dict(seeds(some.lowering)["megatron"].configs)
    for _ in range(60):
        configs = some.change(configs, rng)
    some.lowering.lower(Strategy(configs))
    assert set(some.families["block1.q.weight"]) == {"block1.q.weight", "block2.q.weight"}
