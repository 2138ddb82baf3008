"""Learning: medians over steps, the overhead between tasks, and what was known before."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.cost import CostModel
from castile.planner.costs.learn import gaps_of, learn
from castile.planner.costs.snapshot import Measured, Snapshot, snapshot_of
from castile.runtime.task import NUM_LANES, Kind, Lane
from castile.runtime.timeline import PICOSECONDS, Timeline
from tests.graphs import Draft, task_graphs
from tests.prices import HERE, MACHINE, product


def two_rank_step(seconds, gap=0.0):
    """Three kernels a rank, then an all-reduce of both; `seconds` of each task in turn, `gap` before each."""
    draft, now, spans = Draft(2), [0.0, 0.0], []
    for k in range(3):
        for p in range(2):
            draft.task([(p, Lane.COMPUTE)], cost=k)
            spans.append((now[p] + gap, now[p] + gap + seconds[k]))
            now[p] = spans[-1][1]
    draft.task([(0, Lane.COLLECTIVE), (1, Lane.COLLECTIVE)], cost=9, kind=Kind.COLLECTIVE)
    start = max(now) + gap
    spans.append((start, start + seconds[3]))
    ticks = np.rint(np.array(spans) * PICOSECONDS).astype(np.int64)
    return draft.graph(), Timeline(np.arange(len(spans)), ticks[:, 0], ticks[:, 1])


def test_a_step_has_the_sum_of_its_gaps():
    draft, starts = Draft(1), np.array([0, 11, 23, 90])
    for _ in starts:
        draft.task([(0, Lane.COMPUTE)])
    steps = [Timeline(np.arange(4), starts * f, starts * f + 10) for f in (1, 1, 7)]
    assert learn(Snapshot(HERE), draft.graph(), steps).overhead_seconds * PICOSECONDS == pytest.approx(60 / 3)


def test_learn_takes_medians_over_steps_and_the_overhead():
    base = np.array([1e-4, 2e-4, 3e-4, 4e-4])
    steps = [two_rank_step(base * f, gap=1e-5) for f in (1.0, 1.1, 0.9, 50.0, 1.0)]
    snapshot = learn(Snapshot(HERE), steps[0][0], [timeline for _, timeline in steps])
    assert [row.seconds for row in snapshot.rows] == pytest.approx(base)
    assert {row.count for row in snapshot.rows} == {5}
    assert snapshot.rows[0].spread_seconds == pytest.approx(0.05e-4)
    assert snapshot.overhead_seconds == pytest.approx(1e-5)


def test_learn_adds_to_what_was_known():
    """Averaged by how many steps each has seen, of which the older ones count four times as many at most."""
    steps = [two_rank_step(np.array([1e-4, 2e-4, 3e-4, 4e-4]) * f) for f in (1.0, 1.2, 1.4)]
    graph, timelines = steps[0][0], [timeline for _, timeline in steps]
    new = {row.key: row for row in learn(Snapshot(HERE), graph, timelines).rows}[graph.cost_keys[0]]
    unrelated = Measured(product(1, 1, 1), 1.0)
    for seen in (1, 1000):
        old = Measured(new.key, 3e-4, 7e-5, seen)
        rows = {row.key: row for row in learn(snapshot_of(HERE, [unrelated, old]), graph, timelines).rows}
        assert rows[unrelated.key] == unrelated
        weight = min(seen, 12) / (min(seen, 12) + 3)
        assert rows[new.key].seconds == pytest.approx(weight * 3e-4 + (1 - weight) * new.seconds)
        assert rows[new.key].spread_seconds == pytest.approx(weight * 7e-5 + (1 - weight) * new.spread_seconds)
        assert new.spread_seconds > 0 and rows[new.key].count == seen + 3


def test_learned_costs_are_what_the_step_spent():
    graph, timeline = two_rank_step(np.array([1e-4, 2e-4, 3e-4, 4e-4]))
    costs = CostModel(MACHINE, snapshot_of(HERE, learn(Snapshot(HERE), graph, [timeline]).rows))
    assert costs.sources(graph.cost_keys) == {"measured": 4}
    assert (costs.picoseconds(graph.cost_keys)[graph.cost] == timeline.durations()).all()


def test_waiting_for_a_transfer_is_no_overhead():
    draft = Draft(1)
    draft.task([(0, Lane.COMPUTE)])
    draft.task([(0, Lane.RECEIVE)], kind=Kind.MOVE)
    draft.task([(0, Lane.COMPUTE)], needs=[1])
    draft.task([(0, Lane.COMPUTE)], needs=[0])
    timeline = Timeline(np.arange(4), np.array([0, 5, 900, 953]), np.array([10, 890, 950, 960]))
    assert gaps_of(draft.graph(), timeline).tolist() == [3]


def test_a_step_without_gaps_leaves_the_overhead_as_it_was_known():
    """A processor's first task has none, nor has one that waits for a transfer."""
    draft, old = Draft(1), Snapshot(HERE, overhead_seconds=3e-6)
    draft.task([(0, Lane.RECEIVE)], kind=Kind.MOVE)
    draft.task([(0, Lane.COMPUTE)], needs=[0])
    both = Timeline(np.arange(2), np.array([0, 30]), np.array([10, 40]))
    assert learn(old, draft.graph(), [both]).overhead_seconds == old.overhead_seconds


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8), st.sampled_from([0.0, 3e-6]))
def test_a_step_that_others_held_up_teaches_no_overhead(drawn, known):
    """Where all were, what was known holds, else the quickest counts: what holds up only adds."""
    made, steps = [two_rank_step(np.full(4, 1e-4), gap=gap * 1e-5) for gap, _ in drawn], []
    for (_, timeline), (_, was_held_up) in zip(made, drawn, strict=True):
        steps.append(replace(timeline, delayed=int(was_held_up * timeline.seconds * PICOSECONDS / 2)))
    free = [gap * 1e-5 for gap, was_held_up in drawn if not was_held_up]
    expected = np.median(free) if free else known or min(gap for gap, _ in drawn) * 1e-5
    learned = learn(Snapshot(HERE, overhead_seconds=known), made[0][0], steps)
    assert learned.overhead_seconds == pytest.approx(expected)


@settings(max_examples=40)
@given(st.data())
def test_a_gap_is_what_has_passed_since_anything_ended_on_the_processor(data):
    """Of any tasks that a timeline has, in its order."""
    graph, whens = data.draw(task_graphs(8)), st.tuples(st.integers(0, 20), st.integers(1, 5))
    kinds = data.draw(st.lists(st.sampled_from(Kind), min_size=graph.num_tasks, max_size=graph.num_tasks))
    graph = replace(graph, kind=np.array(kinds, np.int8))
    task = data.draw(st.permutations(range(graph.num_tasks)))[: data.draw(st.integers(0, graph.num_tasks))]
    start, lasted = np.array([data.draw(whens) for _ in task], np.int64).reshape(-1, 2).T
    timeline, expected = Timeline(np.array(task, np.int64), start, start + lasted), []
    for began, one in zip(start, task, strict=True):
        for lane in graph.lanes_of(one):
            proc = lane // NUM_LANES
            ended = [e for e, t in zip(timeline.end, task) if proc in graph.lanes_of(t) // NUM_LANES and e <= began]
            waits = (graph.kind[graph.needs_of(one)] >= Kind.MOVE).any()
            if lane % NUM_LANES == Lane.COMPUTE and ended and not waits:
                expected.append(began - max(ended))
    assert sorted(gaps_of(graph, timeline).tolist()) == sorted(expected)


def test_learning_from_nothing_or_from_failures_is_refused():
    graph, timeline = two_rank_step(np.array([1e-4, 2e-4, 3e-4, 4e-4]))
    with pytest.raises(ValueError, match="no measured steps"):
        learn(Snapshot(HERE), graph, [])
    one_ends_early = np.where(timeline.task == 2, timeline.start - 1, timeline.end)
    for end in (timeline.start, timeline.start - 1, one_ends_early):
        with pytest.raises(ValueError, match="not a cost"):
            learn(Snapshot(HERE), graph, [Timeline(timeline.task, timeline.start, end)])
    for by in (1, -1):
        with pytest.raises(ValueError, match="graph with 7"):
            learn(Snapshot(HERE), graph, [Timeline(timeline.task + by, timeline.start, timeline.end)])
