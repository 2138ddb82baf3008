"""Orders: a graph whose kernels are chained runs as they were listed, folded or whole, and computes the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch.__main__ import main
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import WORTH
from castile.planner.evaluation.folding import Folding, price_graph
from castile.planner.known.pieces import in_pieces
from castile.planner.lower import Lowering
from castile.planner.simulate import simulate, simulation_of
from castile.planner.simulation import ordering
from castile.planner.simulation.ordering import Slower, chain_kernels, list_schedule, longest_chains, simulate_in_order
from castile.planner.simulation.repeats import numbers
from castile.planner.strategy import ORDERS, READY, Strategy
from castile.runtime.task import NUM_LANES, Lane
from castile.runtime.timeline import PICOSECONDS
from tests import named_plans
from tests.answers import answer
from tests.effort import examples
from tests.graphs import Draft, engine_maps, task_graphs, timings
from tests.strategies import in_buckets, in_groups, machines, problems
from tests.test_folding import MOMENTUM, assert_same, marred, numbered, one_block

OTHERS = tuple(order for order in ORDERS if order != READY)


@pytest.mark.parametrize("form", ["auto", "plain"])
@settings(max_examples=examples(200, 1 / 8), deadline=None)
@given(st.data())
def test_chained_kernels_run_as_they_were_listed(form: str, data: st.DataObject) -> None:
    """Whatever is how urgent, on engines that serve other lanes too."""
    graph = data.draw(task_graphs())
    engines, durations = data.draw(engine_maps), data.draw(timings(graph))
    size = graph.num_tasks
    urgency = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=size, max_size=size)), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        if form == "plain":
            patch.setattr(ordering, "_compiled_starts", lambda: ordering._starts)
        lane, served = list_schedule(graph, durations, engines, urgency)
        start = served.start
        # Who asks about less is told so, and who asks about as much is told all.
        last = int((start + np.maximum(durations[graph.cost], 1)).max(initial=0))
        assert list_schedule(graph, durations, engines, urgency, last / PICOSECONDS)[1].start.tolist() == start.tolist()
        if last > 1:
            with pytest.raises(Slower):
                list_schedule(graph, durations, engines, urgency, (last - 2) / PICOSECONDS)
    chained_so, found = simulate(chain_kernels(graph, lane, start), durations, engines), simulation_of(graph, served)
    assert chained_so.timeline.start.tolist() == start.tolist()
    for name in ("persistent_bytes", "peak_bytes", "busy_seconds"):
        assert getattr(found, name).tolist() == getattr(chained_so, name).tolist()
    assert found.timeline.end.tolist() == chained_so.timeline.end.tolist()


def test_of_what_is_ready_the_most_urgent_begins() -> None:
    draft = Draft(2)
    first = draft.task([(0, Lane.COMPUTE)])
    late, soon = (draft.task([(0, Lane.COMPUTE)], [first]) for _ in range(2))
    other = draft.task([(1, Lane.COMPUTE)])
    graph, durations = draft.graph(), np.array([5])
    for urgency, expected in (([0, 0, 1, 0], [0, 10, 5, 0]), ([0, 1, 1, 0], [0, 5, 10, 0])):
        lane, served = list_schedule(graph, durations, range(NUM_LANES), np.array(urgency))
        start = served.start
        assert lane.tolist() == [0, 0, 0, 1] and start.tolist() == expected
        before, after = (soon, late) if urgency[soon] > urgency[late] else (late, soon)
        found = chain_kernels(graph, lane, start)
        assert found.needs_of(after).tolist() == sorted([first, before])
        assert found.needs_of(before).tolist() == [first] and not len(found.needs_of(other))


def test_what_takes_longer_than_can_be_told_is_not_listed() -> None:
    draft = Draft(1)
    for _ in range(2):
        draft.task([(0, Lane.COMPUTE)])
    with pytest.raises(ValueError, match="is not simulated"):
        list_schedule(draft.graph(), np.array([2**61]), range(NUM_LANES), np.zeros(2, np.int64))


def test_the_longest_chain_is_that_of_the_longest_among_tasks_of_one_step() -> None:
    draft = Draft(2)
    one, two = (draft.task([(proc, Lane.COMPUTE)], cost=proc) for proc in range(2))
    draft.task([(0, Lane.COMPUTE)], [one], cost=2, order=5 << 20)
    draft.task([(1, Lane.COMPUTE)], [two], cost=1, order=6 << 20)
    found = longest_chains(draft.graph(), np.array([10, 25, 30]), np.full(4, -1))
    assert found.tolist() == [50, 50, 30, 25]


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_chains_are_followed_from_all_tasks_of_a_step_as_far_from_the_beginning(data: st.DataObject) -> None:
    """And out of no microbatch but the last."""
    graph = data.draw(task_graphs())
    durations, size = data.draw(timings(graph)), graph.num_tasks
    step, number = (
        np.array(data.draw(st.lists(st.integers(least, 2), min_size=size, max_size=size)), np.int64)
        for least in (0, -1)
    )
    leaves = (number < 0) | (number == number.max(initial=-1))
    needs = [[n for n in graph.needs_of(t).tolist() if leaves[n] or number[n] == number[t]] for t in range(size)]
    level: list[int] = []
    for t in range(size):
        level.append(max((level[n] + 1 for n in needs[t]), default=0))
    places, ahead = list(zip(level, step.tolist())), Counter[tuple[int, int]]()
    for place, t in sorted(zip(places, range(size)), reverse=True):
        then = max((ahead[places[f]] for f in range(size) if t in needs[f]), default=0)
        ahead[place] = max(ahead[place], max(1, int(durations[graph.cost[t]])) + then)
    found = longest_chains(replace(graph, order=step << 20 | graph.order), durations, number)
    assert found.tolist() == [ahead[place] for place in places]


@pytest.mark.parametrize("order", OTHERS)
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_block_of_tasks_folds_exactly(order: str, data: st.DataObject) -> None:
    graph = data.draw(marred())
    engines, durations = data.draw(engine_maps), data.draw(timings(graph))
    folded = one_block(graph, engines)
    names = {key: n for n, key in enumerate(graph.cost_keys)}
    lasts = durations[[names[key] for key in folded.graph.cost_keys]]
    pairs = (graph, durations), (folded.graph, lasts)
    alone = [(of, d, np.full(of.num_tasks, -1)) for of, d in pairs]
    urgencies = [-given[0].order if order == "program" else longest_chains(*given) for given in alone]
    each = [(of, *list_schedule(of, d, engines, u)) for (of, d), u in zip(pairs, urgencies, strict=True)]
    chains = [chain_kernels(of, lane, served.start) for of, lane, served in each]
    assert_same(folded, *(simulate(of, d, engines) for of, (_, d) in zip(chains, pairs, strict=True)))


@pytest.mark.parametrize("order", OTHERS)
@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_any_plan_folds_exactly(order: str, data: st.DataObject) -> None:
    """Any, or one that is alike on many processors."""
    problem, num_procs = data.draw(problems(batch=8)), data.draw(st.sampled_from((2, 4, 8)))
    lowering = Lowering(problem.graph, named_plans.links(num_procs), MOMENTUM)
    configs = data.draw(in_groups(problem.graph, num_procs))
    configs = in_pieces(lowering, configs) if data.draw(st.booleans()) else configs
    plan = Strategy(configs, bucket_bytes=data.draw(st.sampled_from((0, 2**20, 300))))
    if data.draw(st.integers(0, 3)) == 0:
        lowering = Lowering(problem.graph, data.draw(machines()))
        plan = data.draw(in_buckets(problem.graph, lowering.machine.num_procs))
    cost, program, engines = CostModel(lowering.machine), lowering.program(plan), lowering.machine.engines
    folded, whole = Folding(lowering).fold(plan), lowering.contracted(plan)
    few = simulate_in_order(numbers(program, folded.graph), folded.graph, price_graph(folded, cost), engines, order)[1]
    every = simulate_in_order(numbers(program, whole.graph), whole.graph, cost.by_kind(whole.graph), engines, order)[1]
    assert_same(numbered(folded, whole), every, few)


def test_what_an_order_is_worth_is_told(tmp_path, capsys):
    words, model = ["--machine", "dgx-h100"], "gpt:layers=2,width=128,heads=2,seq=32,vocab=64"
    path = str(tmp_path / "plan.json")
    answer(capsys, "plan", model, *words, "--search", "fsdp", "--out", path)
    plan, files, steps = strategies.read(path), {}, {}
    for order in ORDERS:
        files[order] = str(tmp_path / f"{order}.json")
        Path(files[order]).write_bytes(strategies.encode(msgspec.structs.replace(plan, order=order)))
        told = answer(capsys, "simulate", files[order], *words)
        steps[order] = told["step_seconds"]
        expected = None if order == READY else {"name": order, "step_seconds_without": steps[READY]}
        assert told["order"] == answer(capsys, "explain", files[order], *words)["order"] == expected
        assert main(["explain", files[order], *words]) == 0
        said = capsys.readouterr().out
        assert ("of several ready kernels" in said) == ("if kernels ran as they become ready" in said)
        assert ("of several ready kernels" in said) == (order != READY)
        assert main(["diff", files[READY], files[order]]) == 0
        assert ("order: ready -> " in capsys.readouterr().out) == (order != READY)
    assert len(set(steps.values())) > 1 and (1 - WORTH) * steps[plan.order] <= min(steps.values())
