"""Searches: the law that none ends behind a seed, legality of all that is proposed, budgets, repeatability."""

import itertools
import random
from dataclasses import replace
from math import prod
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.jobs.execution import prepare
from castile.planner import search as searching
from castile.planner.choices.moves import Moves
from castile.planner.choices.space import placements, space_of
from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Environment, Measured, snapshot_of
from castile.planner.evaluation import budget as budgets
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.traffic import key_moves
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.search import Evaluator, Run, parse_budget, search
from castile.planner.searches import available, find, mcmc
from castile.planner.searching.results import best_fitting
from castile.planner.sketch.sketched_plans import num_parts
from castile.planner.strategy import PATH, Config, Strategy, check_config, decode, encode
from castile.runtime import machine as machines
from castile.runtime import memory
from castile.runtime.collectives import plan
from castile.runtime.machine import Level, Machine, Processor
from tests.effort import examples, rare, some
from tests.little import SEARCHES, one_layer, residual, two_layers
from tests.transfers import groups, layouts, links, situations


def machine(procs: int, latency: float = 1e-6, rate: float = 1e9, memory: int = 2**30, flops: float = 1e8) -> Machine:
    levels = (Level("link", procs, latency, rate),) if procs > 1 else ()
    return Machine("test", (Processor("cpu", flops, 1e9, memory, task_overhead_seconds=1e-7),) * procs, levels)


def evaluator(graph: Graph, on: Machine, snapshot=None) -> Evaluator:
    return Evaluator(Lowering(graph, on), CostModel(on, snapshot), snapshot)


GRAPHS = {"two": two_layers(), "one": one_layer(), "residual": residual(), "uneven": two_layers(5, 7)}
SEEDS = (0, *rare(1, 2))
# Of each kind one that no search gets to the end of.
WITHOUT_END = [{"proposals": 10**9}, {"proposals": 10**9, "patient": True}, {"seconds": 1e9}]
on_machines = st.builds(
    machine,
    st.integers(1, 5),
    latency=st.sampled_from([0.0, 1e-7, 1e-4]),
    rate=st.sampled_from([1e6, 1e9, 1e12]),
    flops=st.sampled_from([1e6, 1e9]),
)


@settings(max_examples=examples(40))
@given(st.sampled_from(sorted(GRAPHS)), on_machines, st.integers(0, 3), st.integers(1, 40))
def test_no_search_ends_behind_a_seed(name, on, seed, budget):
    same = evaluator(GRAPHS[name], on)
    found = search("mcmc", same, str(budget), seed)
    assert found.seeds.keys() == seeds(same.lowering).keys() and "data_parallel" in found.seeds
    for known in found.seeds.values():
        assert found.evaluated.seconds <= known.seconds
    fresh = evaluator(GRAPHS[name], on).evaluate(found.strategy)
    assert (fresh.seconds, fresh.moved_bytes) == (found.evaluated.seconds, found.evaluated.moved_bytes)
    if found.equals:
        assert found.evaluated.seconds == found.seeds[found.equals].seconds
    assert found.num_proposals == budget


@settings(max_examples=30)
@given(st.sampled_from(sorted(GRAPHS)), on_machines, st.integers(0, 10**6))
def test_every_proposal_is_legal(name, on, seed):
    lowering = Lowering(GRAPHS[name], on)
    moves, rng = Moves.of(lowering), random.Random(seed)
    configs = dict(rng.choice(list(seeds(lowering).values())).configs)
    for _ in range(40):
        configs = moves.change(configs, rng)
        assert set(configs) >= set(lowering.graph.nodes)
        for node, config in configs.items():
            check_config(moves.nodes[node], config, on.num_procs)
    lowering.lower(Strategy(configs))


@given(st.sampled_from(sorted(GRAPHS)), st.integers(1, 24))
def test_a_space_holds_legal_configs_each_once(name, num_procs):
    for node in GRAPHS[name].nodes.values():
        space = space_of(node, num_procs)
        assert len(space.configs) == len(space) == len(set(space.configs))
        for config in space.configs:
            check_config(node, config, num_procs)
            size = len(config.procs)
            assert len(set(config.procs)) == size
            assert num_procs % size == 0 or (config.replicas == 1 and config.procs == tuple(range(size)))
            if num_procs % size == 0:
                start = min(config.procs)
                assert start % size == 0 and sorted(config.procs) == list(range(start, start + size))


def test_a_space_holds_every_split_that_fits():
    node = GRAPHS["two"].nodes["up"]
    splits = {tuple(sorted(c.split.items())) for c in space_of(node, 4).configs}
    degrees = itertools.product(range(1, 5), repeat=3)
    fitting = [point for point in degrees if prod(point) <= 4]
    wanted = {tuple((a, d) for a, d in zip("bio", point) if d > 1) for point in fitting}
    assert splits == wanted
    assert (2, (0, 2, 1, 3)) in placements(2, 4) and (2, (0, 1, 2, 3)) in placements(2, 4)


def test_a_search_repeats_bit_for_bit():
    def run(seed):
        found = search("mcmc", evaluator(GRAPHS["residual"], machine(4)), "60", seed)
        return encode(found.strategy), found.history

    known = [run(seed) for seed in (3, 0)]
    assert known[0] == run(3) and known[0][0] != known[1][0]


def test_what_was_known_before_changes_nothing():
    same = evaluator(GRAPHS["two"], machine(3))
    first = search("mcmc", same, "50", 1)
    again = search("mcmc", same, "50", 1)
    assert encode(first.strategy) == encode(again.strategy)


def test_the_bound_decides_nothing_that_the_simulator_would_not(monkeypatch):
    with_it = [search("mcmc", evaluator(GRAPHS["residual"], machine(4)), "80", seed) for seed in SEEDS]
    monkeypatch.setattr(Evaluator, "bound", lambda self, configs: 0.0)
    without = [search("mcmc", evaluator(GRAPHS["residual"], machine(4)), "80", seed) for seed in SEEDS]
    assert [f.strategy for f in with_it] == [f.strategy for f in without]


def test_a_found_plan_says_what_it_is():
    env = Environment("cpu")
    on = machine(2)
    some = evaluator(GRAPHS["two"], on).simulate(Strategy({n: Config() for n in GRAPHS["two"].nodes}))[0].cost_keys[0]
    snapshot = snapshot_of(env, [Measured(some, 1e-5)])
    found = search("mcmc", evaluator(GRAPHS["two"], on, snapshot), "30", 7)
    plan = found.strategy
    assert (plan.model, plan.graph) == ("two", GRAPHS["two"].fingerprint)
    assert (plan.machine, plan.num_procs) == (on.fingerprint, 2)
    assert (plan.search, plan.seed) == ("mcmc", 7) and len(plan.cost_snapshot) == 16
    assert plan.predicted is not None
    assert plan.predicted.step_seconds == found.evaluated.seconds
    assert plan.predicted.peak_bytes == max(found.arena_bytes) >= max(found.evaluated.peak_bytes)
    assert decode(encode(plan)) == plan


def test_a_search_starts_from_what_it_is_given():
    same = evaluator(GRAPHS["residual"], machine(4))
    good = search("mcmc", same, "300", 0)
    again = search("mcmc", evaluator(GRAPHS["residual"], machine(4)), "1", 5, start={"mine": good.strategy})
    assert again.evaluated.seconds <= good.evaluated.seconds
    assert again.equals == "mine" or again.evaluated.seconds < good.evaluated.seconds


def test_data_parallel_is_what_its_name_says():
    slow = machine(4, latency=1.0)
    found = search("data_parallel", evaluator(GRAPHS["two"], slow))
    assert found.equals == "data_parallel" and found.seeds["one_processor"].seconds < found.evaluated.seconds
    assert found.strategy.configs["up"] == Config({"b": 4}, 1, (0, 1, 2, 3))
    few = seeds(Lowering(two_layers(batch=2), machine(3)))["data_parallel"]
    assert few.configs["up"] == Config({"b": 2}, 1, (0, 1))


@pytest.mark.parametrize("on", [machine(2), machine(2, latency=1e-4), machine(2, flops=1e6, latency=0.0)])
def test_exhaustive_search_is_brute_force_and_metropolis_finds_it(on):
    same = evaluator(GRAPHS["one"], on)
    names = list(GRAPHS["one"].nodes)
    spaces = [space_of(GRAPHS["one"].nodes[n], 2).configs for n in names]
    every = [same.evaluate(Strategy(dict(zip(names, point)))).seconds for point in itertools.product(*spaces)]
    found = search("exhaustive", evaluator(GRAPHS["one"], on))
    assert found.evaluated.seconds == min(every)
    assert found.num_proposals <= len(every)
    assert search("mcmc", evaluator(GRAPHS["one"], on), "300").evaluated.seconds <= min(every)


@settings(max_examples=25)
@given(st.sampled_from(sorted(GRAPHS)), on_machines, st.integers(0, 10**6))
def test_the_bound_is_one(name, on, seed):
    same = evaluator(GRAPHS[name], on)
    rng = random.Random(seed)
    configs = {n: space_of(node, on.num_procs).draw(rng) for n, node in GRAPHS[name].nodes.items()}
    seconds = same.evaluate(Strategy(configs)).seconds
    assert 0 < same.bound(configs) <= seconds
    some = {n: configs[n] for n in rng.sample(sorted(configs), 2)}
    assert same.bound(some) <= same.bound(configs)


def test_an_exhaustive_search_refuses_what_is_too_large():
    with pytest.raises(ValueError, match=r"two has [\d,]+ plans on 4 processors, more than the budget"):
        search("exhaustive", evaluator(GRAPHS["two"], machine(4)))
    with pytest.raises(ValueError, match=r"not done after 0\.01 s"):
        search("exhaustive", evaluator(GRAPHS["two"], machine(4)), "0.01s")


@pytest.mark.parametrize("text", ["5000", "1", "10s", "0.5s"])
def test_budgets(text):
    budget = parse_budget(text)
    assert (budget.proposals, budget.seconds) == ((int(text), None) if text.isdigit() else (None, float(text[:-1])))


@pytest.mark.parametrize("text", ["", "0", "0s", "-3", "ten", "10 s", "1e3", "5000x", "s", "٣", "nan", "infs"])
def test_a_budget_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="give a number of proposals such as 5000, or a time such as 10s"):
        parse_budget(text)


def test_a_budget_of_seconds_ends(monkeypatch):
    """By a clock of its own, a tenth of a second for each look at it: how fast this machine is makes no difference."""
    ticks = itertools.count()
    monkeypatch.setattr(budgets, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 10))
    # What is compiled meanwhile takes none of this clock's time: with it taken off this one went back for so long.
    monkeypatch.setattr(budgets, "compiling_seconds", lambda: 0.0)
    short, long = (search("mcmc", evaluator(GRAPHS["two"], machine(2)), budget) for budget in ("5s", "10s"))
    assert 5 <= short.elapsed_seconds < 6 and 10 <= long.elapsed_seconds < 11
    assert 0 < short.num_proposals < long.num_proposals


def test_an_unknown_search_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no search 'mcmcc' \(did you mean 'mcmc'"):
        search("mcmcc", evaluator(GRAPHS["two"], machine(2)))
    assert {"exhaustive", "mcmc"} <= set(available())


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_has_a_budget_of_its_own(name):
    assert parse_budget(find(name, evaluator(GRAPHS["two"], machine(2)).lowering).BUDGET)


@pytest.mark.parametrize(("name", "left"), some([*itertools.product(SEARCHES, WITHOUT_END)]))
def test_every_search_ends_once_it_is_told(name, left):
    same, asked = evaluator(GRAPHS["two"], machine(4)), itertools.count()
    try:
        found = search(name, same, Budget(**left, is_over=lambda: next(asked) >= 40))
    except ValueError as error:
        assert name == "exhaustive" and "not done after" in str(error)
        return
    assert found.evaluated.fits
    assert found.is_insisted or found.evaluated.rank <= found.seeds["data_parallel"].rank


def test_progress_goes_from_nothing_to_all():
    told: list[tuple[float, float]] = []
    same = evaluator(GRAPHS["two"], machine(2))
    search("mcmc", same, "20", progress=lambda spent, best, _: told.append((spent, best.seconds)))
    shares, seconds = zip(*told)
    assert list(shares) == sorted(shares) and shares[-1] == 1.0
    assert shares[0] == 0.0 and seconds[0] == min(same.evaluate(s).seconds for s in seeds(same.lowering).values())
    assert list(seconds) == sorted(seconds, reverse=True)


@pytest.mark.parametrize("budget", ["400", *rare("2000")])
def test_memory_is_a_hard_limit(budget):
    graph, roomy = GRAPHS["two"], machine(2)
    worth = {n: evaluator(graph, roomy).evaluate(s) for n, s in seeds(Lowering(graph, roomy)).items()}
    least = min(max(w.peak_bytes) for w in worth.values())
    tight = machine(2, memory=least - 64)
    same = evaluator(graph, tight)
    assert not any(same.evaluate(s).fits for s in seeds(same.lowering).values())
    found = search("mcmc", same, budget)
    assert found.evaluated.fits and max(found.arena_bytes) <= least - 64 and not found.equals


def test_a_plan_that_fits_comes_before_a_faster_one_that_does_not():
    graph, roomy = GRAPHS["residual"], machine(4)
    worth = [evaluator(graph, roomy).evaluate(plan) for plan in seeds(Lowering(graph, roomy)).values()]
    fastest = min(worth, key=lambda e: e.seconds)
    most = sorted(max(e.peak_bytes) for e in worth)
    tight = machine(4, memory=most[0])
    same = evaluator(graph, tight)
    run = Run(
        same, parse_budget("60"), random.Random(0), {n: same.evaluate(s) for n, s in seeds(same.lowering).items()}
    )
    assert run.best.fits and most[0] < most[-1] and not same.evaluate(fastest.strategy).fits
    assert run.best.seconds > fastest.seconds and run.best.energy == run.best.seconds
    assert same.evaluate(fastest.strategy).energy > fastest.seconds


def test_where_no_plan_fits_the_largest_owners_are_named():
    with pytest.raises(ValueError, match=r"no plan fits; the nearest one: processor \d needs .* most of it is"):
        search("mcmc", evaluator(GRAPHS["two"], machine(2, memory=128)), "20")


def test_that_no_plan_fits_is_said_after_few_simulated_plans(monkeypatch):
    same, simulated = evaluator(GRAPHS["two"], machine(32, memory=128)), []
    evaluate = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", lambda self, plan: simulated.append(plan) or evaluate(self, plan))
    with pytest.raises(ValueError, match="no plan fits"):
        search("mcmc", same, "20000")
    parts = num_parts(same)
    assert parts > mcmc.SMALL_PARTS and len(simulated) <= 2 * mcmc.SIMULATED_PARTS // parts + len(seeds(same.lowering))


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_packing_is_of_what_was_simulated(name, monkeypatch):
    same, fresh = evaluator(GRAPHS[name], machine(3)), evaluator(GRAPHS[name], machine(3))
    worth = [same.evaluate(plan) for plan in seeds(same.lowering).values()]
    wanted = [fresh.pack(found.strategy) for found in worth]
    best = min(range(len(worth)), key=lambda n: worth[n].rank)
    assert [same.pack(found.strategy) for found in worth] == wanted
    lowered = []
    monkeypatch.setattr(Lowering, "lower", lambda self, strategy: lowered.append(strategy))
    assert same.pack(worth[best].strategy) == wanted[best] and not lowered


def test_a_plan_is_packed_once(monkeypatch):
    same, packed = evaluator(GRAPHS["two"], machine(3)), []
    arenas = memory.arenas
    monkeypatch.setattr(memory, "arenas", lambda *of: packed.append(of) or arenas(*of))
    plan = seeds(same.lowering)["data_parallel"]
    assert same.pack(plan) == same.pack(plan) and len(packed) == 1
    # less memory is asked for anew; where there is less than what lives at one time nothing needs to be packed
    assert same.remade("time", max(same.pack(plan))).pack(plan) == same.pack(plan) and len(packed) == 2
    with pytest.raises(ValueError, match="needs"):
        same.remade("time", max(same.evaluate(plan).peak_bytes) - 1).pack(plan)
    assert len(packed) == 2


def test_where_an_arena_has_no_room_more_is_tried_whoever_asks():
    """Also when the plan is prepared to run."""
    graph, on = models.parse("lenet").graph(8), machines.parse("dgx-h100:nodes=1")
    usual = Evaluator(Lowering(graph, on), CostModel(on))
    plan = usual.lowering.plan(seeds(usual.lowering, ["fsdp"])["fsdp"].configs)
    alive, longest = max(usual.evaluate(plan).peak_bytes), max(usual.pack(plan))
    tight, too_tight = (usual.remade("time", room) for room in ((alive + longest) // 2, alive - 1))
    packed = tight.pack(plan)
    assert alive <= max(packed) <= (alive + longest) // 2 and tight.arenas(plan) == packed
    small = [msgspec.structs.replace(p, memory_bytes=p.reserved_bytes + max(packed)) for p in on.processors]
    prepared = prepare(Lowering(graph, replace(on, processors=tuple(small))), plan, usual.cost)
    assert prepared.packing.peak_bytes.tolist() == [*packed]
    with pytest.raises(ValueError, match="needs"):
        too_tight.pack(plan)
    assert max(too_tight.arenas(plan)) == longest


@pytest.mark.parametrize("more, others, is_tried", [
    (0, {"order": PATH}, False), (64, {"order": PATH, "ahead": 1}, False), (-64, {"order": PATH}, True),
    (0, {"bucket_bytes": 64}, True), (0, {"recompute": ("one",)}, True), (0, {"configs": {}}, True),
])  # fmt: skip
def test_what_is_as_full_as_what_was_refused_is_not_packed(more, others, is_tried):
    """Another order of the same tasks; what comes after it is."""
    packed = []

    def pack(plan):
        packed.append(plan)
        if plan != last.strategy:
            raise ValueError("too long")
        return (1,)

    configs = seeds(evaluator(GRAPHS["two"], machine(2)).lowering)["data_parallel"].configs
    first = Evaluated(Strategy(configs=configs), 1.0, (640, 640), 0, 0.0)
    alike = Evaluated(msgspec.structs.replace(first.strategy, **others), 2.0, (640, 640 + more), 0, 0.0)
    last = Evaluated(Strategy(configs=configs, bucket_bytes=7), 3.0, (640, 640), 0, 0.0)
    assert best_fitting(SimpleNamespace(pack=pack), [last, alike, first]) == (last, (1,))
    assert packed == [one.strategy for one in ((first, alike, last) if is_tried else (first, last))]


def test_moved_bytes_follow_from_the_layouts():
    same = evaluator(GRAPHS["one"], machine(2))
    assert same.evaluate(seeds(same.lowering)["one_processor"]).moved_bytes == 0
    # 30 x 40 weights and 30 biases of 8 bytes are summed over two processors, each sends and receives half twice.
    assert same.evaluate(seeds(same.lowering)["data_parallel"]).moved_bytes >= 2 * 30 * 41 * 8


@settings(max_examples=200)
@given(situations((groups, groups, layouts)))
def test_moved_bytes_are_those_that_go_between_members(situation):
    """Of a sum each piece goes to whoever adds it, and comes back; of an all-to-all no fewer are told."""
    sources, reads, _ = situation
    for pattern in plan(sources, reads, "float64", links()).patterns:
        if pattern.comm is None:
            assert key_moves(pattern.key) == 0
            continue
        form, counts = pattern.comm.form, np.array(pattern.comm.counts)
        between = counts[:1] if form == "broadcast" else counts * (2 if form == "all_reduce" else 1)
        moved = 8 * (between.sum() - np.trace(between))
        assert key_moves(pattern.key) == moved or (form == "all_to_all" and key_moves(pattern.key) >= moved)


def test_finalists_are_the_best_that_were_seen():
    same = evaluator(GRAPHS["residual"], machine(4))
    worth = {name: same.evaluate(plan) for name, plan in seeds(same.lowering).items()}
    run = Run(same, parse_budget("200"), random.Random(0), worth)
    seen = {str(sorted(e.strategy.configs.items())): e for e in worth.values()}
    moves, begin = Moves.of(same.lowering), worth["data_parallel"].strategy.configs
    for seed in range(60):
        found = run.propose(moves.change(begin, random.Random(seed)))
        assert found is not None
        seen[str(sorted(found.strategy.configs.items()))] = found
    wanted = sorted(e.rank for e in seen.values())[: searching.NUM_FINALISTS]
    assert [e.rank for e in run.finalists] == wanted and run.best.rank == wanted[0]


def test_a_model_is_planned_for_a_machine_that_is_not_here():
    graph, on = models.parse("gpt:layers=1,width=32,seq=16").graph(8), machines.parse("dgx-h100:nodes=1")
    found = search("mcmc", evaluator(graph, on), "10")
    assert found.strategy.num_procs == 8 and found.evaluated.seconds <= found.seeds["data_parallel"].seconds
