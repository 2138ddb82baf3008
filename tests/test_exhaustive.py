"""Exhaustive search: bounds that are bounds, and the optimum of plain enumeration without looking at every plan."""

import random
from contextlib import nullcontext
from itertools import combinations, product
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.bounds import partial_bounds, path_bounds
from castile.planner.bounds.additive import Additive
from castile.planner.bounds.partial_bounds import PartialBounds
from castile.planner.choices.space import space_of
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.budget import Budget
from castile.planner.lower import Lowering
from castile.planner.search import Evaluated, Evaluator, search
from castile.planner.searches import exhaustive
from castile.planner.strategy import Strategy, encode
from castile.runtime.machine import Level, Machine
from castile.runtime.task import NUM_LANES
from castile.runtime.timeline import PICOSECONDS
from tests.effort import examples, rare
from tests.little import GRAPHS, evaluator, machine, two_layers
from tests.strategies import machines, problems

ON = {
    "two": machine(2),
    "far": machine(2, latency=1e-4),
    "near": machine(2, flops=1e6, latency=0.0),
    "three": machine(3, latency=1e-5),
}


def every(same):
    """The seconds of all plans of the space, those that fit first."""
    graph, known = same.lowering.graph, Spaces(same.lowering, same.cost)
    spaces = [known[name].configs for name in graph.nodes]
    return sorted(same.evaluate(Strategy(dict(zip(graph.nodes, point)))).rank for point in product(*spaces))


@pytest.mark.parametrize("on", sorted(ON))
def test_it_is_plain_enumeration(on):
    ranks = every(evaluator(GRAPHS["one"], ON[on]))
    found = search("exhaustive", evaluator(GRAPHS["one"], ON[on]))
    assert found.evaluated.rank[:2] == ranks[0][:2]
    assert found.num_proposals < len(ranks) / 2


@pytest.mark.slow
@pytest.mark.parametrize("on", ["two", *rare("far")])
def test_it_is_plain_enumeration_of_a_longer_chain(on):
    ranks = every(evaluator(GRAPHS["two"], ON[on]))
    found = search("exhaustive", evaluator(GRAPHS["two"], ON[on]))
    assert found.evaluated.rank[:2] == ranks[0][:2] and found.num_proposals < len(ranks) / 10


def test_without_room_for_bounds_of_all_nodes_the_optimum_is_the_same(monkeypatch):
    monkeypatch.setattr(path_bounds, "MOST_ENTRIES", 0)
    found = search("exhaustive", evaluator(GRAPHS["one"], ON["far"]))
    assert found.evaluated.rank[:2] == every(evaluator(GRAPHS["one"], ON["far"]))[0][:2]


def test_what_has_no_room_or_no_time_is_told_before_tables_are_made(monkeypatch):
    monkeypatch.setattr(partial_bounds, "missing_elements", None)
    with pytest.raises(ValueError, match=r"not done after 1e-06 s and 0 plans"):
        search("exhaustive", evaluator(GRAPHS["one"], ON["two"]), Budget(seconds=1e-6))
    with pytest.raises(ValueError, match=r"not done after 3 s and 0 plans"):
        search("exhaustive", evaluator(GRAPHS["one"], ON["two"]), Budget(seconds=1e-6, before=3.0))
    monkeypatch.setattr(exhaustive, "MOST_ENTRIES", 10)
    with pytest.raises(ValueError, match=r"has \d+ plans on 2 processors, more than its bounds have room for"):
        search("exhaustive", evaluator(GRAPHS["one"], ON["two"]))


def test_a_space_that_just_has_room_in_the_budget_and_in_tables_is_searched(monkeypatch):
    same = evaluator(GRAPHS["one"], ON["three"])
    known, model = Spaces(same.lowering, same.cost), Additive(same.lowering, same.cost)
    size = prod(len(known[name].configs) for name in GRAPHS["one"].nodes)
    entries = sum(3 * prod(len(known[name].configs) for name in edge.nodes) for edge in model.edges)
    looked = []
    monkeypatch.setattr(exhaustive.Descent, "run_all", lambda descent: looked.append(descent))
    for plans, room, words in ((0, 0, ""), (1, 0, "the budget"), (0, 1, "its bounds have room for")):
        monkeypatch.setattr(exhaustive, "MOST_ENTRIES", entries - room)
        with pytest.raises(ValueError, match=f"more than {words}") if words else nullcontext():
            search("exhaustive", same, str(size - plans))
    assert len(looked) == 1


def test_how_many_plans_there_are_is_told_in_few_letters():
    assert exhaustive._readable(10**12 - 1) == "999,999,999,999"
    assert exhaustive._readable(10**12) == "about 10^12"
    assert exhaustive._readable(7 * 10**5000) == "about 10^5001"


def test_memory_is_a_hard_limit():
    roomy = every(evaluator(GRAPHS["one"], ON["far"]))
    same = evaluator(GRAPHS["one"], ON["far"])
    least = min(max(same.evaluate(Strategy(dict(zip(GRAPHS["one"].nodes, p)))).peak_bytes) for p in product(
        *[space_of(node, 2).configs for node in GRAPHS["one"].nodes.values()]
    ))  # fmt: skip
    tight = machine(2, latency=1e-4, memory=least)
    ranks = every(evaluator(GRAPHS["one"], tight))
    assert ranks[0][0] == 0 and ranks[0] > roomy[0]
    assert search("exhaustive", evaluator(GRAPHS["one"], tight)).evaluated.rank[:2] == ranks[0][:2]


@pytest.mark.parametrize("objective", ["latency", "memory"])
def test_other_objectives_are_enumerated_alike(objective):
    on = machine(2, latency=1e-5)
    lowering = Lowering(GRAPHS["one"], on, mode="forward" if objective == "latency" else "train")
    found = search("exhaustive", Evaluator(lowering, CostModel(on), objective=objective))
    best = every(Evaluator(lowering, CostModel(on), objective=objective))[0]
    assert found.evaluated.rank[:2] == best[:2]


def test_unequal_processors_are_priced_each_by_its_kind():
    slow, fast = (machine(1, flops=flops).processors[0] for flops in (1e7, 1e9))
    on = Machine("unequal", (slow, fast, fast), (Level("link", 3, 1e-6, 1e9),))
    same = evaluator(GRAPHS["one"], on)
    assert search("exhaustive", same).evaluated.rank[:2] == every(same)[0][:2]
    spaces = [space_of(node, 3).configs for node in GRAPHS["one"].nodes.values()]
    relaxed = PartialBounds(Additive(same.lowering, same.cost), spaces)
    for point in product(*(range(0, len(space), 3) for space in spaces)):
        plan = {name: space[n] for name, space, n in zip(GRAPHS["one"].nodes, spaces, point)}
        bound = relaxed.served(dict(enumerate(point)))[0]
        assert bound <= round(same.evaluate(Strategy(plan)).seconds * PICOSECONDS)


@settings(max_examples=examples(60))
@given(problems(most_layers=5), machines(), st.data())
def test_no_plan_takes_less_than_its_bounds(problem, on, data):
    same = evaluator(problem.graph, on)
    spaces = [space_of(node, on.num_procs) for node in problem.graph.nodes.values()]
    some = [data.draw(st.sets(st.integers(0, len(s) - 1), min_size=1, max_size=3)) for s in spaces]
    choices = [[space[number] for number in sorted(numbers)] for space, numbers in zip(spaces, some)]
    relaxed = PartialBounds(Additive(same.lowering, same.cost), choices)
    point = [data.draw(st.integers(0, len(configs) - 1)) for configs in choices]
    plan = {name: configs[n] for name, configs, n in zip(problem.graph.nodes, choices, point)}
    seconds = same.evaluate(Strategy(plan)).seconds
    quick = full = 0
    for node in range(len(point)):
        chosen = dict(enumerate(point[:node]))
        bounds = relaxed.bounds(chosen, node)
        tighter = max(relaxed.served({**chosen, node: point[node]})[0], int(bounds[point[node]]))
        assert quick <= bounds[point[node]] <= tighter and full <= tighter
        quick, full = int(bounds[point[node]]), tighter
    assert 0 < full <= round(seconds * PICOSECONDS)


def drawn_space(rng):
    """By point of a space what its plan is worth, and by beginning of one a bound of the seconds of all its plans.

    In picoseconds, of which every task takes one at least; bounds are more or less tight, and some plans do not fit.
    """
    sizes = [rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
    # the second kind are just as far apart as limits are
    least, most = rng.choice(((1, 3), (100, 101), (1, 10**7)))
    objective, plans, bounds = rng.choice(("time", "time", "memory")), {}, {}
    for point in product(*map(range, sizes)):
        bound, nbytes = (rng.randint(least, most) for _ in range(2))
        seconds = (bound + rng.choice((0, 0, 1, 5))) / PICOSECONDS
        plans[point] = Evaluated(Strategy({}), seconds, (nbytes,), 0, rng.choice((0.0, 0.0, 0.5)), objective)
        for length in range(1, len(point) + 1):
            bounds[point[:length]] = min(bound, bounds.get(point[:length], bound))
    return sizes, plans, bounds


@pytest.mark.parametrize("which", ["bounds", "served", "rungs", "ladder"])
def test_any_bounds_lead_to_a_best_plan_by_the_most_promising_and_to_none_twice(which):
    """Whoever of those who are asked knows them, while the others know nothing."""
    rng = random.Random(which)
    for _ in range(300):
        space = drawn_space(rng)
        check_descent(*space, rng.choice([*space[1]]), which)


def check_descent(sizes, plans, bounds, first, which):
    proposed = []

    def propose(configs):
        proposed.append(tuple(configs.values()))
        known = bounds[proposed[-1]] / PICOSECONDS
        assert run.best.objective == "memory" or not run.best.fits or known < run.best.seconds
        run.best = min(run.best, plans[proposed[-1]], key=lambda one: one.rank)

    def knows(name, chosen):
        return bounds[tuple(chosen.values())] if which == name else 1

    def each(name):
        return lambda chosen, node: np.array([knows(name, {**chosen, node: n}) for n in range(sizes[node])])

    run = SimpleNamespace(best=plans[first], propose=propose, budget=Budget())
    run.evaluator = SimpleNamespace(objective=plans[first].objective)
    relaxed = SimpleNamespace(
        names=[f"n{n}" for n in range(len(sizes))], choices=[list(range(size)) for size in sizes],
        bounds=each("bounds"), served=lambda chosen: (knows("served", chosen), None),
    )  # fmt: skip
    quick = SimpleNamespace(bounds=each("rungs"), bound=lambda chosen, _: knows("ladder", chosen))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exhaustive, "PathBounds", lambda _: quick)
        exhaustive.Descent(run, relaxed).run_all()
    assert run.best.rank[:2] == min(plan.rank[:2] for plan in plans.values())
    assert len(set(proposed)) == len(proposed)
    for point, later in combinations(proposed, 2):
        assert point[:-1] != later[:-1] or bounds[point] <= bounds[later]
    if run.best.objective == "time" and run.best.fits:
        most = run.best.seconds * PICOSECONDS * exhaustive.RAISE
        assert all(bounds[point] <= most for point in proposed), "limits are raised little by little"


def least_by_hand(same, plan):
    """The longest path of the lowered plan, and for each engine what starts from some time on, one after the other."""
    tasks = same.lowering.lower(Strategy(plan))
    engines = same.lowering.machine.engines
    lasts = same.cost.picoseconds(tasks.cost_keys)[tasks.cost]
    start = np.zeros(tasks.num_tasks, np.int64)
    for _ in range(tasks.num_tasks):
        before = start.copy()
        for t in range(tasks.num_tasks):
            needs = tasks.needs_of(t)
            start[t] = (start[needs] + lasts[needs]).max(initial=0)
        if (before == start).all():
            break
    served = []
    for engine in {(lane // NUM_LANES, engines[lane % NUM_LANES]) for lane in tasks.lanes.tolist()}:
        on = [
            t for t in range(tasks.num_tasks)
            if any((lane // NUM_LANES, engines[lane % NUM_LANES]) == engine for lane in tasks.lanes_of(t).tolist())
        ]  # fmt: skip
        served += [start[t] + sum(lasts[u] for u in on if start[u] >= start[t]) for t in on]
    return max(*served, *(start + lasts))


@settings(max_examples=examples(30))
@given(problems(most_layers=4), machines(), st.data())
def test_the_bound_of_a_whole_plan_leaves_out_nothing_but_the_order(problem, on, data):
    same = evaluator(problem.graph, on)
    plan = {name: space_of(n, on.num_procs)[data.draw(st.integers(0, len(space_of(n, on.num_procs)) - 1))]
            for name, n in problem.graph.nodes.items()}  # fmt: skip
    relaxed = PartialBounds(Additive(same.lowering, same.cost), [[config] for config in plan.values()])
    assert relaxed.served(dict.fromkeys(range(len(plan)), 0))[0] == least_by_hand(same, plan)


def test_the_bound_is_the_step_where_nothing_runs_beside_anything():
    same = evaluator(GRAPHS["two"], machine(2))
    relaxed = PartialBounds(
        Additive(same.lowering, same.cost), [space_of(n, 2).configs for n in GRAPHS["two"].nodes.values()]
    )
    first = {n: next(i for i, c in enumerate(configs) if c.procs == (0,)) for n, configs in enumerate(relaxed.choices)}
    plan = {name: relaxed.choices[n][first[n]] for n, name in enumerate(relaxed.names)}
    assert relaxed.served(first)[0] == round(same.evaluate(Strategy(plan)).seconds * PICOSECONDS)


def test_it_repeats():
    found, again = (search("exhaustive", evaluator(GRAPHS["one"], machine(3))) for _ in range(2))
    assert encode(found.strategy) == encode(again.strategy) and found.history == again.history


def test_what_is_too_large_is_refused():
    with pytest.raises(ValueError, match=r"two has [\d,]+ plans on 4 processors, more than the budget"):
        search("exhaustive", evaluator(two_layers(), machine(4)))
    with pytest.raises(ValueError, match=r"not done after 0\.01 s"):
        search("exhaustive", evaluator(two_layers(), machine(4)), "0.01s")
