"""Dynamic programming: elimination is brute force, prices are the lowering's own, the simulator has the last word."""

from dataclasses import replace
from functools import reduce
from itertools import combinations, product
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.cost_tables import MICROBATCHES, WORK, CostTables
from castile.planner.bounds.elimination import elimination_order, minimise, num_entries
from castile.planner.bounds.transfer_bound import layouts, least_move, missing_elements
from castile.planner.choices.pins import Pins, parse
from castile.planner.choices.space import space_of
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.known.pipelines import divisors
from castile.planner.lower import Lowering
from castile.planner.lowering.versions import Versions
from castile.planner.op import find
from castile.planner.search import Evaluator, search
from castile.planner.searches import dynamic
from castile.planner.searches.dynamic import candidate_configs
from castile.planner.step.recompute import FULL, NOTHING, PARAMETERS, Recomputation
from castile.planner.strategy import Config, Strategy, encode
from castile.runtime.machine import Machine
from castile.runtime.region import Box, blocks, intersect
from castile.runtime.timeline import PICOSECONDS
from tests.effort import examples, rare
from tests.little import GRAPHS, evaluator, machine, run, tower
from tests.strategies import machines, problems


@st.composite
def factor_graphs(draw):
    """Sizes of up to 6 nodes, and tables over any one, two or three of them, some over the same."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    scopes = [s for k in (1, 2, 3) for s in combinations(range(len(sizes)), k)]
    drawn = draw(st.lists(st.sampled_from(scopes), max_size=9).map(lambda s: [*s, *s[:1]]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    factors = [
        (s := tuple(rng.permutation(scope).tolist()), rng.integers(-9, 10, [sizes[n] for n in s])) for scope in drawn
    ]
    return sizes, [*factors, *(((n,), np.zeros(size, np.int64)) for n, size in enumerate(sizes))]


@given(factor_graphs())
def test_elimination_finds_the_least_of_all(problem):
    sizes, factors = problem

    def worth(point):
        return sum(int(table[tuple(point[n] for n in scope)]) for scope, table in factors)

    order = elimination_order(len(sizes), [scope for scope, _ in factors])
    assert sorted(order) == list(range(len(sizes)))
    point, total = minimise(factors, order)
    assert worth(point) == total == min(worth(p) for p in product(*map(range, sizes)))


def test_elimination_needs_no_more_than_the_width_of_the_graph():
    chain = [(n, n + 1) for n in range(50)]
    assert num_entries([7] * 51, chain, elimination_order(51, chain)) == 50 * 7**2 + 7
    ring = [*chain, (50, 0)]
    assert num_entries([7] * 51, ring, elimination_order(51, ring)) == 49 * 7**3 + 7**2 + 7
    ladder = [*((n, n + 2) for n in range(98)), *((n, n + 1) for n in range(0, 98, 2))]
    assert num_entries([7] * 100, ladder, elimination_order(100, ladder)) < 100 * 7**3


def table_of(model: Additive, configs: dict[int, list[Config]]) -> tuple[list[str], np.ndarray]:
    """The price of every combination, one axis a node, added up without elimination."""
    names = list(model.steps)
    axis = {name: n for n, name in enumerate(names)}
    of = {name: configs[model.kinds[name]] for name in names}
    total = np.zeros([len(of[name]) for name in names], np.int64)
    for name in names:
        shape = [-1 if n == axis[name] else 1 for n in range(len(names))]
        total = total + np.array([model.work(name, c) + model.sync(name, c) for c in of[name]]).reshape(shape)
    for edge in model.edges:
        a, b = edge.nodes
        shape = [len(of[name]) if name in edge.nodes else 1 for name in names]
        total = total + np.array([[model.move(edge, c, d) for d in of[b]] for c in of[a]]).reshape(shape)
    return names, total


@settings(max_examples=examples(40))
@given(problems(most_layers=4), machines(3), st.data())
def test_the_optimum_is_that_of_brute_force(problem, on, data):
    model = Additive(Lowering(problem.graph, on), CostModel(on))
    kinds = {kind: name for name, kind in model.kinds.items()}
    most = max(1, int(20000 ** (1 / len(model.kinds))))
    configs = {}
    for kind, name in kinds.items():
        space = space_of(problem.graph.nodes[name], on.num_procs)
        numbers = data.draw(st.sets(st.integers(0, len(space) - 1), min_size=1, max_size=min(4, most)))
        configs[kind] = [space[number] for number in sorted(numbers)]
    found = CostTables(model, {name: configs[kind] for name, kind in model.kinds.items()}).optimum(WORK, WORK)
    names, total = table_of(model, configs)
    assert total.size <= 20000
    assert WORK * model.price(found) == WORK * int(total.min())
    point = tuple(configs[model.kinds[name]].index(found[name]) for name in names)
    assert total[point] == total.min()


@settings(max_examples=10)
@given(st.sampled_from(sorted(GRAPHS)), machines(3), st.data())
def test_what_is_near_a_plan_costs_so_much_more(name, on, data):
    """With any nodes, alike or not, under any other Config that all of them may have."""
    under_way = run(evaluator(GRAPHS[name], on))
    model = Additive(under_way.lowering, under_way.evaluator.cost)
    tables = CostTables(model, candidate_configs(under_way, model, 3))
    for n in range(max(map(len, tables.configs))):
        tables._price([min(n, len(configs) - 1) for configs in tables.configs])
    for number, (a, b) in enumerate(tables.scopes):
        for i, j in product(range(len(tables.configs[a])), range(len(tables.configs[b]))):
            tables._set(number, i, j)
    plan = {n: data.draw(st.sampled_from(configs)) for n, configs in zip(tables.names, tables.configs)}
    group = sorted(data.draw(st.sets(st.integers(0, len(plan) - 1), min_size=1)))
    for config, more in tables.near(plan, group):
        changed = {**plan, **{tables.names[n]: config for n in group}}
        assert changed != plan and more == WORK * (model.price(changed) - model.price(plan))


@pytest.mark.parametrize("procs", [3, *rare(4)])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_what_is_found_is_not_behind_what_is_near_it(name, procs):
    """The simulator has the last word on plans of which one node, or several alike, has another Config."""
    same = evaluator(GRAPHS[name], machine(procs))
    found = search("dynamic", same, "1000")
    assert found.num_proposals < 1000
    under_way = run(same, "1000")
    tables = dynamic._rounds(under_way)
    configs = {n: found.strategy.configs[n] for n in tables.names}
    near = [(n, *row) for n in range(len(tables.names)) for row in tables.near(configs, [n])]
    for n, config, _ in sorted(near, key=lambda row: row[2])[: dynamic.PATIENCE // 2]:
        assert same.evaluate(Strategy({**configs, tables.names[n]: config})).rank >= found.evaluated.rank


@settings(max_examples=30, suppress_health_check=[HealthCheck.filter_too_much])
@given(problems(most_layers=3), machines())
def test_a_plan_without_transfers_costs_what_the_simulator_says(problem, on):
    same = evaluator(problem.graph, on)
    model = Additive(same.lowering, same.cost)
    users = [{model.deciders[name] for name in names} for names in model.program.users]
    # Of more than two users each is priced as if it were alone with the producer.
    assume(all(len(names) <= 2 for names in users))
    plan = {name: Config() for name in problem.graph.nodes}
    seconds = model.price(plan) / PICOSECONDS
    assert seconds == pytest.approx(same.evaluate(Strategy(plan)).seconds, rel=1e-9)


def test_a_chain_is_priced_to_the_last_transfer():
    """Where no tensor has more than two users every transfer of the lowered plan is in the price once."""
    same = evaluator(GRAPHS["two"], machine(2, latency=1e-3))
    model = Additive(same.lowering, same.cost)
    spaces = [space_of(node, 2).configs[::3] for node in GRAPHS["two"].nodes.values()]
    for point in product(*spaces):
        plan = dict(zip(GRAPHS["two"].nodes, point))
        tasks, _ = same.simulate(Strategy(plan))
        lasts = same.cost.picoseconds(tasks.cost_keys)[tasks.cost]
        work = sum(model.work(name, config) for name, config in plan.items())
        moves = model.price(plan) - work
        on_links = int(lasts[tasks.kind != 0].sum())
        assert (moves > 0) == (on_links > 0) and moves <= on_links


@settings(max_examples=20)
@given(st.sampled_from(sorted(GRAPHS)), machines(4))
def test_the_quick_bound_is_below_the_price(name, on):
    same = evaluator(GRAPHS[name], on)
    model = Additive(same.lowering, same.cost)
    tried = {kind: space_of(GRAPHS[name].nodes[n], on.num_procs).configs[::7] for n, kind in model.kinds.items()}
    for edge in model.edges:
        first, second = (tried[model.kinds[n]] for n in edge.nodes)
        bound = least_move(model, edge, first, second)
        for i, j in product(range(len(first)), range(len(second))):
            assert bound[i, j] <= model.move(edge, first[i], second[j]), (edge.nodes, first[i], second[j])


def test_the_quick_bound_knows_what_is_free():
    same = evaluator(GRAPHS["two"], machine(4))
    model = Additive(same.lowering, same.cost)
    edge = next(e for e in model.edges if e.nodes == ("up", "act"))
    first, second = (space_of(GRAPHS["two"].nodes[n], 4).configs for n in edge.nodes)
    bound = least_move(model, edge, first, second)
    prices = np.array([[model.move(edge, a, b) for b in second[::9]] for a in first])
    assert ((bound[:, ::9] > 0) <= (prices > 0)).all()
    assert (bound[:, ::9] > 0).sum() > 0.9 * (prices > 0).sum()


def test_equal_layers_share_their_tables():
    few, many = (Additive(evaluator(tower(n), machine(4)).lowering, CostModel(machine(4))) for n in (4, 12))
    assert len(few.edges) < len(many.edges)
    assert len({e.key for e in few.edges}) == len({e.key for e in many.edges})
    assert len(set(few.kinds.values())) == len(set(many.kinds.values()))


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_what_shares_a_table_costs_the_same(name):
    same = evaluator(GRAPHS[name], machine(3))
    for edge in Additive(same.lowering, same.cost).edges:
        first, second = (space_of(GRAPHS[name].nodes[n], 3).configs[1] for n in edge.nodes)
        alone, shared = (Additive(same.lowering, same.cost) for _ in range(2))
        for other in shared.edges:
            if other.key == edge.key:
                shared.move(other, first, second)
        assert alone.move(edge, first, second) == shared.move(edge, first, second)


@settings(max_examples=examples(15))
@given(st.sampled_from(sorted(GRAPHS)), machines(3))
def test_it_repeats_and_is_never_behind_a_seed(name, on):
    found, again = (search("dynamic", evaluator(GRAPHS[name], on)) for _ in range(2))
    assert encode(found.strategy) == encode(again.strategy)
    assert all(found.evaluated.seconds <= known.seconds for known in found.seeds.values())


def test_it_beats_the_seeds_where_layers_want_different_splits():
    wide = GRAPHS["one"]
    found = search("dynamic", evaluator(wide, machine(4, latency=1e-5)))
    assert found.evaluated.seconds < min(known.seconds for known in found.seeds.values())


def test_clipping_states_and_microbatches_are_priced():
    updates = Updates(find("adam")(), clip=1.0)
    same = evaluator(GRAPHS["two"], machine(3), updates)
    assert search("dynamic", same).evaluated.fits
    pieces = evaluator(GRAPHS["two"], machine(2), microbatches=2)
    whole, cut = (
        Additive(e.lowering, e.cost).price({n: Config() for n in GRAPHS["two"].nodes}) for e in (same, pieces)
    )
    assert whole > 0 and cut > 0
    assert search("dynamic", pieces).strategy.microbatches == 2


def test_budgets():
    one = search("dynamic", evaluator(GRAPHS["residual"], machine(4)), "1")
    assert one.num_proposals == 1
    late = search("dynamic", evaluator(GRAPHS["residual"], machine(4)), "0.000001s")
    assert late.num_proposals == 0
    best = reduce(min, (k.seconds for k in late.seeds.values()))
    assert late.evaluated.seconds <= best


@pytest.mark.parametrize("objective", ["latency", "memory"])
def test_other_objectives_are_judged_alike(objective):
    on = machine(3)
    lowering = Lowering(GRAPHS["residual"], on, mode="forward" if objective == "latency" else "train")
    found = search("dynamic", Evaluator(lowering, CostModel(on), objective=objective))
    assert all(found.evaluated.rank <= known.rank for known in found.seeds.values())


def test_configs_that_are_looked_at_are_the_seeds_and_the_plainest():
    under_way = run(evaluator(GRAPHS["two"], machine(4)))
    model = Additive(under_way.lowering, under_way.evaluator.cost)
    few, all_of_them = candidate_configs(under_way, model, 2), candidate_configs(under_way, model, 10**6)
    for name, configs in few.items():
        known = {seed.strategy.configs[name] for seed in under_way.seeds.values()}
        assert len(configs) == len(set(configs)) <= len(known) + 2 and known <= set(configs) <= set(all_of_them[name])
    beginning = [c for c in space_of(GRAPHS["two"].nodes["up"], 4).configs if c.procs[0] == 0]
    assert set(all_of_them["up"]) == set(beginning)
    assert prod(map(len, all_of_them.values())) > prod(map(len, few.values()))


def test_alike_nodes_share_their_configs_unless_pins_tell_them_apart():
    graph = tower(3)
    same = evaluator(graph, machine(4))
    free, model = run(same), Additive(same.lowering, same.cost)
    pins = Pins([parse("fc1: {o: 2}")], same.lowering.names, 4)
    looked = candidate_configs(free, model, 6)
    assert looked["fc2"] is looked["fc1"]
    looked = candidate_configs(replace(free, pins=pins), model, 6)
    assert looked["fc2"] is not looked["fc1"]
    assert search("dynamic", same, pins=pins).strategy.configs["fc1"].split["o"] == 2


@st.composite
def placed(draw):
    """A grid over 4 x 6 elements, or that many sums over all of them, each part with its replicas on some of 6."""
    rows, columns, replicas = draw(st.sampled_from([(1, 1, 1), (1, 1, 4), (2, 1, 2), (1, 3, 2), (2, 3, 1), (3, 1, 1)]))
    grid = [Box((a, c), (b, d)) for a, b in blocks(4, rows) for c, d in blocks(6, columns)]
    grid = [Box((0, 0), (4, 6))] * len(grid) if draw(st.integers(0, 3)) == 0 else grid
    boxes = (grid[0], *(None if draw(st.integers(0, 5)) == 0 else box for box in grid[1:]))
    procs = draw(st.permutations(range(6)))[: len(grid) * replicas]
    return Versions(machine(6)).placed(boxes, Config({"r": rows, "c": columns}, replicas, tuple(procs)))


@given(st.lists(placed(), min_size=1, max_size=3), st.lists(placed(), min_size=1, max_size=3))
def test_what_a_processor_lacks_is_what_it_needs_and_does_not_hold(held, needed):
    """Of a sum that several hold in part none holds anything."""
    model = SimpleNamespace(lowering=SimpleNamespace(machine=machine(6)))
    found = missing_elements(layouts(model, held), layouts(model, needed))
    for a, b, proc in product(range(len(held)), range(len(needed)), range(6)):
        has, wants = (dict(zip(p.touching, p.touched, strict=True)).get(proc) for p in (held[a], needed[b]))
        summed = len({*held[a].touched}) == 1 < len([box for box in held[a].boxes if box is not None])
        common = intersect(has, wants) if has is not None and wants is not None and not summed else None
        assert found[a, b, proc] == (wants.volume if wants else 0) - (common.volume if common else 0)


@settings(max_examples=examples(60))
@given(st.sampled_from(sorted(GRAPHS)), machines(4), st.data())
def test_few_microbatches_cost_what_all_do(name: str, on: Machine, data: st.DataObject) -> None:
    """Of any plan, whatever is computed or gathered again."""
    lowering = Lowering(GRAPHS[name], on, Updates(find("sgd")(momentum=0.9)))
    again = Recomputation(GRAPHS[name], lowering.updates).named(data.draw(st.sampled_from([NOTHING, FULL, PARAMETERS])))
    count = data.draw(st.sampled_from(divisors(GRAPHS[name].batch)))
    all_of_them = lowering.remade(microbatches=count, recompute=again)
    few, model = (Additive(one, CostModel(on)) for one in (all_of_them.shortened(MICROBATCHES), all_of_them))
    assert len({step.micro for step in few.program.steps if step.micro.count > 1}) <= MICROBATCHES
    spaces = Spaces(lowering, CostModel(on))
    plan = {node: data.draw(st.sampled_from(spaces[node].configs)) for node in lowering.piece.nodes}
    assert few.price(plan) == model.price(plan)


@pytest.mark.parametrize(("count", "priced"), [(2, 2), (8, 3), (256, 3)])
def test_of_many_microbatches_few_are_priced(count: int, priced: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Additive] = []
    monkeypatch.setattr(dynamic, "Additive", lambda *given: seen.append(Additive(*given)) or seen[-1])
    search("dynamic", evaluator(tower(3, batch=512), machine(2), microbatches=count), "3")
    (model,) = seen
    assert len({step.micro for step in model.program.steps if step.micro.count > 1}) == priced
