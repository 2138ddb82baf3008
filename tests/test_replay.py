"""Replays: what tasks took, in place of what they were predicted to take, says where an error of a step is from."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from graphs import Draft, task_graphs, timings
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from castile.launch.reports import errors
from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Measured, snapshot_of
from castile.planner.simulate import simulate
from castile.planner.simulation.replay import Replay, Sort, replay
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.task import Kind, Lane
from castile.runtime.timeline import PICOSECONDS, Timeline
from tests.prices import HERE

MACHINE = Machine("m", (Processor("cpu", 5e10, 1e10, 2**30),) * 3, (Level("host", 3, 1e-5, 8e9),), (0, 1, 1, 1, 1))
OVERHEAD, MEETING = 3e-6, 7e-6


def model(graph, picoseconds):
    """A cost model by which each cost key takes so long, and what was learned besides."""
    rows = [Measured(key, ps / PICOSECONDS) for key, ps in zip(graph.cost_keys, picoseconds.tolist(), strict=True)]
    return CostModel(MACHINE, structs.replace(snapshot_of(HERE, rows, OVERHEAD), meeting_seconds=MEETING))


def measured(graph, picoseconds):
    """A step in which each cost key took so long, and tasks began as predicted with that; only spans were seen."""
    cost = model(graph, picoseconds)
    timeline = simulate(graph, cost.picoseconds(graph.cost_keys), MACHINE.engines).timeline
    besides = np.rint([PICOSECONDS * cost.besides(key) for key in graph.cost_keys]).astype(np.int64)[graph.cost]
    return Timeline(timeline.task, timeline.start + besides, timeline.end)


@st.composite
def cases(draw):
    """A graph whose cost keys are sorts of their own, some of transfers; what each was predicted to take and took."""
    graph = draw(task_graphs(10))
    assume(graph.num_tasks)
    links = [structs.replace(key, link="host", members=2) for key in graph.cost_keys]
    keys = tuple(link if n % 2 else key for n, (key, link) in enumerate(zip(graph.cost_keys, links, strict=True)))
    predicted, took = (10**6 * (1 + draw(timings(graph))) for _ in range(2))
    return replace(graph, cost_keys=keys), predicted, took


@settings(max_examples=25)
@given(cases())
def test_with_what_tasks_took_a_step_takes_what_it_took_where_they_wait_as_simulated(case):
    graph, predicted, took = case
    cost, step = model(graph, predicted), measured(graph, took)
    told = replay(graph, cost, [step])
    assert told.predicted_seconds == simulate(*cost.by_kind(graph), MACHINE.engines).seconds
    assert told.typical_seconds == told.replayed_seconds == told.measured_seconds == step.seconds
    assert sum(sort.num_tasks for sort in told.sorts.values()) == graph.num_tasks
    for n, key in enumerate(graph.cost_keys):
        sort, count = told.sorts[key.name], int((graph.cost == n).sum())
        lasted = [count * ps[n] / PICOSECONDS for ps in (predicted, took)]
        assert [sort.predicted_seconds, sort.measured_seconds] == pytest.approx(lasted)
        assert sort.sources == {"measured": sort.predicted_seconds}
        mixed = np.where(np.arange(len(took)) == n, took, predicted)
        assert sort.step_seconds == measured(graph, mixed).seconds


@settings(max_examples=15)
@given(cases(), st.integers(1, 10**9))
def test_waiting_that_no_span_shows_is_what_is_left(case, waiting):
    graph, predicted, took = case
    step = measured(graph, took)
    late = replace(step, start=step.start + waiting, end=step.end + waiting)
    told = replay(graph, model(graph, predicted), [late])
    assert told.typical_seconds == step.seconds < told.measured_seconds


def test_what_single_steps_differ_by_is_told_apart():
    """Two kernels side by side, one of which is late in each step, before one that needs both."""
    draft = Draft(2)
    for n in range(2):
        draft.task([(n, Lane.COMPUTE)], cost=n)
    draft.task([(0, Lane.COMPUTE)], [0, 1], cost=2)
    graph = draft.graph()
    steps = [measured(graph, np.array([1 + 8 * (n % 3 == 0), 1 + 8 * (n % 3 == 1), 1]) * 10**6) for n in range(9)]
    told = replay(graph, model(graph, np.array([10**6] * 3)), steps)
    assert told.predicted_seconds == told.typical_seconds == pytest.approx(2e-6 + 2 * OVERHEAD)
    assert told.replayed_seconds == told.measured_seconds == pytest.approx(10e-6 + 2 * OVERHEAD)


def test_steps_that_others_held_up_do_not_count_where_there_are_others():
    draft = Draft(1)
    draft.task([(0, Lane.COMPUTE)], kind=Kind.COMPUTE)
    graph = draft.graph()
    quick, slow = (measured(graph, np.array([ps])) for ps in (10**6, 10**9))
    slow, cost = replace(slow, delayed=10**9), model(graph, np.array([10**6]))
    assert replay(graph, cost, [quick, slow, slow]).measured_seconds == quick.seconds
    assert replay(graph, cost, [slow, slow]).measured_seconds == slow.seconds
    with pytest.raises(ValueError, match="no measured steps"):
        replay(graph, cost, [])


@given(st.lists(st.tuples(*[st.floats(0.5, 2.0)] * 4), min_size=1, max_size=4))
def test_sorts_stand_in_the_order_of_what_their_times_are_worth(plans):
    steps = {}
    for n, (predicted, *right) in enumerate(plans):
        sorts = {name: Sort(2, 1.0, 2.0, {"measured": 1.0}, s) for name, s in zip("abc", right, strict=True)}
        # of the first plan one sort is missing
        steps[f"plan {n}"] = Replay(predicted, 1.0, 1.0, 1.0, {k: s for k, s in sorts.items() if n or k != "a"})
    told = errors.facts(steps)
    rows = {row["sort"]: row for row in told["sorts"]}
    means = [row["mean_error"] for row in told["sorts"]]
    assert means == sorted(means) and sum(row["measured_share"] for row in rows.values()) == pytest.approx(1)
    assert told["mean_error"] == pytest.approx(np.mean([abs(p[0] - 1) for p in plans]))
    for place, name in enumerate("abc", 1):
        if name in rows:
            right = [p[place] if n or name != "a" else p[0] for n, p in enumerate(plans)]
            assert rows[name]["mean_error"] == pytest.approx(np.mean([abs(s - 1) for s in right]))
            assert rows[name]["ratio"] == 0.5
    assert told["plans"] == [
        {"name": name} | {f"{of}_seconds": asdict(step)[f"{of}_seconds"] for of in errors.STEPS}
        for name, step in steps.items()
    ]


def test_the_table_is_short_and_says_how_much_of_it_is_left_out():
    sorts = {f"k{n}": Sort(1, 1.0, 1.0, {"learned": 0.75, "measured": 0.25}, 1.0 + n / 100) for n in range(20)}
    lines = errors.lines(errors.facts({"p": Replay(2.0, 1.5, 1.25, 1.0, sorts)}))
    assert [line.split()[0] for line in lines[1 : errors.MOST_ROWS + 1]] == [f"k{n}" for n in range(errors.MOST_ROWS)]
    assert "learned 75.0 %" in lines[1] and f"and {20 - errors.MOST_ROWS} more" in lines[-3]
    assert "50.0 %" in lines[-2] and "25.0 %" in lines[-1]


@pytest.mark.parametrize("first", [1.25, 1.9375, 2.5])
def test_a_sentence_names_the_sort_whose_times_help_most_if_any_does(first):
    sorts = {"move": Sort(1, 1.0, 1.0, {"learned": 1.0}, first), "fold": Sort(1, 1.0, 1.0, {"learned": 1.0}, 3.0)}
    told = errors.sentence(errors.facts({"p": Replay(2.0, 1.125, 1.0, 1.0, sorts)}))
    assert "it is 100.0 %" in told and "12.5 % with all tasks" in told
    assert ("25.0 % with move" in told) == ("with move" in told) == (first < 1.9) and "fold" not in told
