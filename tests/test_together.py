"""Casts, clipping and updates of many parameters in one task: the same bits as one by one, in every number format."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod

import msgspec
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from castile.kernels.table import Table, definitions
from castile.launch import models
from castile.launch.typed import optimizers
from castile.planner.bodies import vocabulary
from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Environment, Measured, snapshot_of
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seed
from castile.planner.lower import Lowering
from castile.planner.lowering import task_merging
from castile.planner.lowering.contraction import Contraction
from castile.planner.lowering.task_merging import groups_of_equal_calls
from castile.planner.op import Init
from castile.planner.simulation import repeats
from castile.planner.step.beside import TAKEN
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines
from castile.runtime.task import STRIDED, Call, CostKey, Kind, TaskGraph
from tests import device_ranks
from tests.cut_batches import can_be_cut, one_of
from tests.effort import examples, rare
from tests.graphs import task_graphs
from tests.kernel_cases import Case, cases
from tests.late import device
from tests.named_plans import links
from tests.strategies import Problem, in_microbatches, strategies, whole_on
from tests.test_folding import check_plan
from tests.test_kernels import dense, scratch_of, several, stepped, unwritten
from tests.test_mixed import NARROW, same
from tests.training import SGD, train

GPT = "gpt:layers=1,width=16,heads=2,seq=8,vocab=16"
MANY = [name for name in sorted(definitions()) if vocabulary.takes_many(name)]
SUMS = [name for name in sorted(definitions()) if vocabulary.sums_many(name)]


def one_by_one(name: str, case: Case) -> list[Case]:
    """A case of the arrays of several as a case of each."""
    args, params = case
    parameters = inspect.signature(definitions()[name]).parameters.values()
    length = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) + params.get("guarded", False)
    return [(args[n : n + length], params) for n in range(0, len(args), length)]


def check_each(table: Table, name: str, case: Case, place: object, adds: bool = False) -> None:
    """One call for several gives, or adds, what calls for each do, to the last bit."""

    def made(one: Case) -> list[np.ndarray]:
        args, params = tuple(map(place, one[0])), one[1]  # type: ignore[call-overload]
        made = several(definitions()[name](*args, **params))
        outs = tuple(place(np.full_like(x, np.pi) if adds else unwritten(x)) for x in made)  # type: ignore[operator]
        table.bind(name, args, outs, params, scratch_of(name, args, params, adds), adds)()
        return list(outs)

    apart = [out for one in one_by_one(name, case) for out in made(one)]
    for got, want in zip(made(case), apart, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=f"{name} {case[1]}")


@pytest.mark.parametrize("place", [dense, stepped], ids=["dense", "stepped"])
@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("form", ["reference", "numpy"])
def test_a_call_for_several_gives_the_bits_of_one_for_each(form: str, name: str, place: object) -> None:
    more = [case for case in cases(name, "float32") if len(one_by_one(name, case)) > 1]
    assert more
    table = Table(form)
    for case in more:
        check_each(table, name, case, place)
        if name not in table.forms or table.adds(name):
            check_each(table, name, case, place, adds=True)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("place", [dense, stepped], ids=["dense", "stepped"])
@pytest.mark.parametrize("form", ["reference", "numpy"])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_several_has_the_bits_of_sums_that_are_added_to_it(
    name: str, form: str, place: object, adds: bool
) -> None:
    """As tasks for each leave them, the first of which may find something there. What is no number is seen anywhere."""
    table, checked = Table(form), 0

    def call(arrays: tuple[np.ndarray, ...], out: np.ndarray, params: dict[str, object], onto: bool) -> None:
        table.bind(name, tuple(map(place, arrays)), (out,), params, None, onto)()  # type: ignore[call-overload]

    for case in cases(name, "float32"):
        for start in (np.pi, 1e3) if adds else (np.nan,):
            found, want = np.array(start, np.float32), np.array(start, np.float32)
            call(case[0], found, case[1], adds)
            for n, (args, params) in enumerate(one_by_one(name, case)):
                call(args, want, params, adds or n > 0)
            np.testing.assert_array_equal(found, want)
        checked += len(case[0]) > 1
        for one in filter(np.size, case[0]):
            before, one.flat[-1] = one.flat[-1], np.nan
            found[...] = 0
            call(case[0], found, case[1], adds)
            one.flat[-1] = before
            assert np.isnan(found)
    assert checked


def odd(dtype: str) -> Graph:
    """Matrices and vectors, of which few have a length that vectors divide."""
    g = Graph("odd", dtype)
    x, t = g.input("x", (12, 7), "b i"), g.input("t", (12, 3), "b o")
    for n, width in enumerate((5, 16, 1, 9)):
        x = g.relu(f"act{n}", g.linear(f"layer{n}", x, features=width))
    g.minimise(g.mse("loss", g.linear("down", x, features=3), t))
    return g


def with_size(plan: Strategy, size: int) -> Strategy:
    return msgspec.structs.replace(plan, bucket_bytes=size)


def num_tasks(tasks: TaskGraph) -> Counter[str]:
    """How many tasks each operator has."""
    return Counter(tasks.cost_keys[cost].name.partition(".")[0] for cost in tasks.cost.tolist())


# Of two numbers of processors and two types by default one of each for every optimizer, in turn.
IN_TURN = [(n % 2 + 1, name, NARROW[n // 2 % 2]) for n, name in enumerate(optimizers.available())]


@pytest.mark.parametrize(
    ("num_procs", "name", "dtype"),
    [*IN_TURN, *rare(*(one for one in product((1, 2), optimizers.available(), NARROW) if one not in IN_TURN))],
)
def test_in_16_bits_what_is_put_together_leaves_the_same_bits(num_procs: int, name: str, dtype: str) -> None:
    """A step that overflows among them, which scaled ones skip, on poisoned memory."""
    graph, on = odd(dtype), machines.local(num_procs)
    updates = Updates(optimizers.parse(name), clip=None if num_procs == 1 else 1.0)
    lowering, rng = Lowering(graph, on, updates), np.random.default_rng(0)
    data = [{"x": rng.normal(size=(12, 7)), "t": rng.normal(size=(12, 3))} for _ in range(4)]
    data[1]["t"] = data[1]["t"] * 1e4
    values = {p.name: rng.normal(size=p.shape) / 4 for p in graph.params}
    plan = Strategy(seed("data_parallel", lowering))
    # As in a training: sums of its infinities are no numbers, and mean to be none.
    with np.errstate(over="ignore", invalid="ignore"):
        each = [train(graph, with_size(plan, size), on, data, values, 2**-7, num_procs, updates) for size in (0, 2**20)]
    same(*each)
    apart, found = (num_tasks(one.prepared.tasks) for one in each)
    assert apart["fetch"] == len(graph.params) * num_procs and found["fetch"] == num_procs
    assert found[name] == num_procs < apart[name]
    assert found["clip"] == found["square_sum"] == (num_procs if apart["clip"] else 0)
    if dtype == "float16":
        assert each[0].carried[TAKEN] == 3


@pytest.mark.parametrize("num_procs", [1, 2])
def test_gradients_that_are_copies_go_together_but_where_one_is_added_to_another(num_procs: int) -> None:
    g = Graph("added")
    x, t = g.input("x", (8, 4), "b i"), g.input("t", (8, 4), "b i")
    p, q, r = (g.param(name, (8, 4), ("b", "i"), Init("zeros")) for name in "pqr")
    x = g.relu("act1", g.add("s1", x, p))
    x = g.relu("act2", g.add("s2", x, p))
    g.minimise(g.mse("loss", g.add("s4", g.relu("act3", g.add("s3", x, q)), r), t))
    on, rng = machines.local(num_procs), np.random.default_rng(0)
    data = [{"x": rng.normal(size=(8, 4)), "t": rng.normal(size=(8, 4))} for _ in range(2)]
    values = {one.name: rng.normal(size=one.shape) for one in g.params}
    plan = Strategy(seed("data_parallel", Lowering(g, on, SGD)))
    each = [train(g, with_size(plan, size), on, data, values, 2**-3, num_procs, SGD) for size in (0, 2**20)]
    same(*each)
    assert each[1].prepared.tasks.num_tasks < each[0].prepared.tasks.num_tasks


def test_no_task_comes_to_wait_for_itself() -> None:
    """Of any tasks on any lanes, all of which call the same."""
    fewer, count = 0, examples(120)

    @settings(max_examples=count, derandomize=True, deadline=None)
    @given(task_graphs())
    def check(drawn: TaskGraph) -> None:
        nonlocal fewer
        key = CostKey("same.F", "8", "float32", 0, 32)
        tasks = replace(drawn, cost=0 * drawn.cost, cost_keys=(key,))
        own = np.flatnonzero(tasks.kind == Kind.COMPUTE).tolist()
        groups = groups_of_equal_calls(tasks, [(task, Call("copy", (), ())) for task in own])
        needs = Contraction(tasks, groups).fields()
        rows = [set(row) for row in np.split(needs["needs"], needs["need_ptr"][1:])[:-1]]
        left = set(range(len(rows)))
        while ready := {task for task in left if not rows[task] & left}:
            left -= ready
        assert not left
        fewer += bool(groups)

    check()
    assert 4 * fewer > count


def test_what_is_put_together_is_alike_and_no_more_than_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls that differ in one respect each, on any lanes; who waits is waited for by the last at most."""
    key = CostKey("same.F", "8", "float32", 0, 30)
    changes = ({}, {"nbytes": 60}, {"dtype": "float64"}, {"name": "other.F"}, {"name": "same.F" + STRIDED})
    keys = tuple(msgspec.structs.replace(key, **change) for change in changes)
    plain, other = (Call("copy", (), (), params) for params in ((), (("n", 1),)))
    which = [st.sampled_from((*[usual] * 4, 0, 3)) for usual in range(len(keys))]
    told = [st.tuples(costs, st.sampled_from((plain, plain, plain, other))) for costs in which]
    found, count = 0, examples(500, 1 / 8)

    @settings(max_examples=count, derandomize=True, deadline=None)
    @given(task_graphs(), st.data())
    def check(drawn: TaskGraph, data: st.DataObject) -> None:
        nonlocal found
        most, most_bytes = data.draw(st.sampled_from(((2, 1000), (9, 70))))
        monkeypatch.setattr(task_merging, "MOST", most)
        monkeypatch.setattr(task_merging, "MOST_BYTES", most_bytes)
        each = data.draw(st.lists(data.draw(st.sampled_from(told)), min_size=drawn.num_tasks, max_size=drawn.num_tasks))
        tasks = replace(drawn, cost=np.array([cost for cost, _ in each], int), cost_keys=keys)
        own = np.flatnonzero(tasks.kind == Kind.COMPUTE).tolist()
        groups = groups_of_equal_calls(tasks, [(task, each[task][1]) for task in own])
        assert len({task for group in groups for task in group}) == sum(map(len, groups))
        every = range(tasks.num_tasks)
        followers = [[t for t in every if task in tasks.needs_of(t)] for task in every]
        for group in groups:
            costs = [keys[each[task][0]] for task in group]
            assert (
                1 < len(group) <= most and sum(cost.nbytes for cost in costs) <= most_bytes and group == sorted(group)
            )
            assert not any(cost.dense for cost in costs) and len({(cost.name, cost.dtype) for cost in costs}) == 1
            assert len({(each[task][1].params, *tasks.lanes_of(task).tolist()) for task in group}) == 1
            needs = [tasks.needs_of(task).tolist() for task in group]
            assert len({tuple(t for t in of if tasks.kind[t] == Kind.COLLECTIVE) for of in needs}) == 1
            assert not any(needs) or not any(followers[t] for task in group for t in followers[task])
        found += bool(groups)

    check()
    assert 8 * found > count


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(st.data(), st.sampled_from(NARROW), st.sampled_from((2, 4)))
def test_any_plan_in_16_bits_folds_exactly(data: st.DataObject, dtype: str, num_procs: int) -> None:
    """Of processors of one role the same is put together, and no task comes to wait for itself."""
    graph, updates = odd(dtype), Updates(optimizers.parse("adamw"), clip=1.0)
    lowering = Lowering(graph, links(num_procs), updates)
    plans = st.one_of(strategies(graph, num_procs, updates), st.just(Strategy(seed("data_parallel", lowering))))
    check_plan(lowering, with_size(data.draw(plans), 2**20))


@settings(max_examples=examples(40), derandomize=True, deadline=None)
@given(st.data(), st.sampled_from((1, 2, 4)), st.sampled_from((1, 3)), st.sampled_from(("bfloat16", "float32")))
def test_what_may_come_together_is_told_of_the_task_that_does_it(
    data: st.DataObject, num_procs: int, count: int, dtype: str
) -> None:
    """By the call that it is, with the numbers that its own part has; of no microbatch."""
    graph, updates = models.parse(GPT).graph(4 * count, dtype), Updates(optimizers.parse("adamw"), clip=1.0)
    lowering = Lowering(graph, links(num_procs), updates, microbatches=count)
    plan = data.draw(in_microbatches(data.draw(strategies(one_of(graph, count), num_procs, updates)), count))
    if not can_be_cut(lowering, plan):
        reject()
    composed = lowering._composed(plan)
    number = repeats.numbers(lowering.program(plan), composed.tasks)
    for task, call in composed.candidates.calls:
        assert composed.tasks.tasks[task].body.calls == (call,)
        assert number[task] == -1


@pytest.mark.parametrize("dtype", NARROW)
def test_on_a_device_they_are_captured(dtype: str) -> None:
    """On a stand-in of a GPU, of which a step that is replayed casts what the one before it left."""
    problem = Problem(odd(dtype), {})
    plan = device_ranks.Plan(problem, with_size(whole_on(problem.graph), 2**20), device_ranks.ONE, 1)
    host = device_ranks.on_host(plan, 5)
    with device(3):
        found = device_ranks.Ranks(plan, "cuda").train(5)
    device_ranks.same(found, host)
    assert num_tasks(found.prepared.tasks)["fetch"] == 1
    assert [(worker.uncaptured, worker._graph is None) for worker in found.workers] == [("", False)]


@pytest.mark.parametrize("dtype", NARROW)
def test_gpt_casts_and_updates_by_a_tenth_of_its_launches(dtype: str) -> None:
    graph = models.parse("gpt:size=124m").graph(dtype=dtype)
    lowering = Lowering(graph, machines.parse("virtual:procs=1"), Updates(optimizers.parse("adamw")))
    plan = Strategy(seed("data_parallel", lowering))
    apart, found = (lowering.lower(with_size(plan, size)) for size in (0, 2**20))
    before, after = num_tasks(apart), num_tasks(found)
    names = ("fetch", "adamw", "clip", "square_sum")[: 4 if dtype == "float16" else 2]
    for name in names:
        assert before[name] == len(graph.params) and 5 * after[name] < before[name]
        those = np.array([key.name.startswith(name) for key in found.cost_keys])[found.cost]
        assert not found.private_bytes[those].any(), "one call, which needs no memory of its own"
    assert before - after == Counter({name: before[name] - after[name] for name in names})


def test_what_was_measured_of_some_prices_several() -> None:
    """Casts are a family: between two that were measured a price lies between theirs, and its own goes before all."""
    lowering = Lowering(odd("bfloat16"), machines.local(1), Updates(optimizers.parse("adamw")))
    plan = whole_on(lowering.graph)
    apart, found = (
        {key for key in lowering.lower(with_size(plan, size)).cost_keys if key.name == "fetch.F"} for size in (0, 2**20)
    )
    (key,) = found - apart
    assert 900 < key.nbytes == sum(3 * 2 * prod(p.shape) for p in lowering.graph.params) < 1800
    rows = [Measured(msgspec.structs.replace(key, shapes=f"{n}|", nbytes=n), n * 1e-9) for n in (900, 1800)]
    for more, word in (([], "interpolated"), ([Measured(key, 1.0)], "measured")):
        price = CostModel(lowering.machine, snapshot_of(Environment("p"), [*rows, *more])).seconds(key)
        assert price.source == word and (price.seconds == 1.0) == bool(more)
    alone = CostModel(lowering.machine, snapshot_of(Environment("p"), [Measured(one, 1e-3) for one in apart]))
    assert alone.seconds(key).source == "learned"
