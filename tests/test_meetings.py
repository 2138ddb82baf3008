"""Meetings: what a step takes longer than its tasks make it is learned, and predicted."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphs import Draft, engine_maps, task_graphs, timings
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from castile.launch.jobs.jobs import Job
from castile.planner.cost import CostModel
from castile.planner.costs import learn as spans
from castile.planner.costs.learn import DELAYED
from castile.planner.costs.snapshot import Measured, Snapshot, snapshot_of
from castile.planner.simulate import simulate
from castile.planner.simulation import meetings
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.task import Kind, Lane
from castile.runtime.timeline import PICOSECONDS, Timeline
from tests.prices import HERE

# As this host: kernels have an engine, and transfers another.
MACHINE = Machine("m", (Processor("cpu", 5e10, 1e10, 2**30),) * 2, (Level("host", 2, 1e-5, 8e9),), (0, 1, 1, 1, 1))

NOTHING = Snapshot(HERE)
nanoseconds = st.integers(1, 10**6)
rounds = st.lists(st.tuples(nanoseconds, nanoseconds, st.integers(1, 10**4)), min_size=1, max_size=6)


def step(lasts, besides):
    """Rounds of a kernel on each of two processors and a sum over both, in nanoseconds; and what was measured of them.

    besides   what each sum takes that its span does not show, nanoseconds
    """
    draft, now, spans_of = Draft(2), 0, []
    for n, (*kernels, together) in enumerate(lasts):
        needs = [len(draft.kind) - 1] if n else []
        for p in range(2):
            draft.task([(p, Lane.COMPUTE)], needs, cost=3 * n + p)
            spans_of.append((now, now + kernels[p]))
        both = [(0, Lane.COLLECTIVE), (1, Lane.COLLECTIVE)]
        draft.task(both, [len(draft.kind) - 2, len(draft.kind) - 1], cost=3 * n + 2, kind=Kind.COLLECTIVE)
        now += max(kernels) + besides + together
        spans_of.append((now - together, now))
    graph = draft.graph()
    keys = [structs.replace(k, link="host", members=2) if n % 3 == 2 else k for n, k in enumerate(graph.cost_keys)]
    ticks = 1000 * np.array(spans_of, np.int64)
    return replace(graph, cost_keys=tuple(keys)), Timeline(np.arange(len(ticks)), ticks[:, 0], ticks[:, 1])


def known(graph, timeline):
    """What every task took, and no more."""
    lasted = timeline.durations() / PICOSECONDS
    return snapshot_of(HERE, [Measured(graph.cost_keys[c], lasted[t]) for t, c in enumerate(graph.cost)])


def taught(snapshot, *measured, machine=MACHINE, before=NOTHING):
    """The snapshot with what the meetings of these take, each a graph and its steps."""
    lessons = [meetings.measured_steps(graph, timelines) for graph, timelines in measured]
    return meetings.learn(snapshot, before, machine, [one for one in lessons if one is not None])


def predicted(graph, snapshot):
    return simulate(*CostModel(MACHINE, snapshot).by_kind(graph), MACHINE.engines).seconds


@given(rounds, st.integers(0, 10**6))
def test_what_meetings_take_is_found(lasts, besides):
    graph, timeline = step(lasts, besides)
    learned = taught(known(graph, timeline), (graph, [timeline]))
    assert learned.meeting_seconds == pytest.approx(besides * 1e-9, abs=2e-7)
    assert learned.num_meetings == len(lasts)
    assert predicted(graph, learned) == pytest.approx(timeline.seconds, abs=1e-6 * len(lasts))


@settings(max_examples=40)
@given(st.data())
def test_where_tasks_make_a_step_as_long_as_it_is_nothing_is_learned(data):
    """Whatever they wait for: each other, or engines that they share."""
    graph, machine = data.draw(task_graphs(8, 2)), replace(MACHINE, engines=data.draw(engine_maps))
    links = [structs.replace(key, link="host", members=2) for key in graph.cost_keys]
    keys = tuple(link if n % 2 else key for n, (key, link) in enumerate(zip(graph.cost_keys, links, strict=True)))
    graph, lasts = replace(graph, cost_keys=keys), 1 + data.draw(timings(graph))
    timeline = simulate(graph, lasts, machine.engines).timeline
    rows = [Measured(key, ps / PICOSECONDS) for key, ps in zip(keys, lasts.tolist(), strict=True)]
    snapshot = snapshot_of(HERE, rows)
    learned = taught(snapshot, (graph, [timeline]), machine=machine)
    assert learned.meeting_seconds == 0 and learned.rows == snapshot.rows
    assert learned.num_meetings == sum(bool(keys[cost].link) for cost in graph.cost.tolist())


def test_chance_where_processors_meet_is_learned_from_steps():
    """Kernels that take typically as long on both processors, where either may be late."""
    rng = np.random.default_rng(0)
    steps = [step([(*rng.lognormal(12, 0.3, 2).astype(int), 1000) for _ in range(20)], 0) for _ in range(40)]
    graph = steps[0][0]
    graph = replace(graph, cost_keys=graph.cost_keys[:3], cost=graph.cost % 3)
    timelines = [timeline for _, timeline in steps]
    took = np.median([timeline.seconds for timeline in timelines])
    without = spans.learn(Snapshot(HERE), graph, timelines)
    assert predicted(graph, without) < 0.9 * took
    assert predicted(graph, taught(without, (graph, timelines))) == pytest.approx(took, rel=1e-3)


def test_plans_say_together_what_meetings_take_and_as_many_as_there_were_count():
    """Each by how far it is off, whatever its length and in whatever order; what was known before counts by number."""
    few, many = step([(5, 9, 2)] * 2, 70_000), step([(7, 8, 3)] * 6, 10_000)
    snapshot = snapshot_of(HERE, {row.key: row for each in (few, many) for row in known(*each).rows}.values())
    lessons = [(graph, [timeline]) for graph, timeline in (few, many)]
    both = taught(snapshot, *lessons)
    assert both == taught(snapshot, *reversed(lessons)) and both.num_meetings == 8
    alone = [taught(snapshot, each).meeting_seconds for each in lessons]
    assert alone == pytest.approx([70e-6, 10e-6], abs=2e-7)
    # times as much too long as the other is too short
    assert both.meeting_seconds == pytest.approx((alone[0] * alone[1]) ** 0.5, rel=0.01)
    before = Snapshot(HERE, meeting_seconds=both.meeting_seconds + 8e-5, num_meetings=24)
    anew = taught(snapshot, *lessons, before=before)
    assert anew.meeting_seconds == pytest.approx(both.meeting_seconds + 6e-5) and anew.num_meetings == 32
    # What was seen long ago counts no more than what may be remembered.
    old = structs.replace(before, meeting_seconds=1.0, num_meetings=10**9)
    last = taught(snapshot, *lessons, before=old)
    assert last.num_meetings == meetings.REMEMBERED + 8 and last.meeting_seconds < 1


def test_a_job_learns_from_all_plans_that_it_measured_and_counts_what_was_known_once():
    start = Snapshot(HERE, meeting_seconds=1e-4, num_meetings=24)
    job: Any = SimpleNamespace(snapshot=start, _known=start, machine=MACHINE, agree=lambda make: make())
    job._measured_steps = []
    measured = [(graph, [timeline]) for graph, timeline in (step([(5, 9, 2)] * 2, 70_000), step([(7, 8, 3)], 10_000))]
    for graph, timelines in measured:
        Job.learn(job, SimpleNamespace(tasks=graph), timelines)
    assert job.snapshot == taught(job.snapshot, *measured, before=start) and job.snapshot.num_meetings == 27


def test_a_job_prices_by_what_is_known_now():
    job: Any = SimpleNamespace(snapshot=NOTHING, machine=replace(MACHINE), _cost=None)
    now: Any = Job.cost.fget
    for more in ({}, {"snapshot": Snapshot(HERE)}, {"machine": replace(MACHINE)}):
        vars(job).update(more)
        assert now(job) is now(job) and now(job).snapshot is job.snapshot and now(job).machine is job.machine


@given(rounds, st.integers(0, 10**6), st.floats(0, DELAYED))
def test_for_how_long_a_rank_waited_for_its_core_is_no_meetings(lasts, besides, share):
    """Of long steps on a busy host it is more than all meetings: other plans have many more of these."""
    graph, timeline = step(lasts, besides)
    waited = int(share / (1 - share) * timeline.end.max())
    late = replace(timeline, start=timeline.start + waited, end=timeline.end + waited, delayed=waited)
    learned, wanted = (taught(known(graph, timeline), (graph, [each])) for each in (late, timeline))
    assert learned.meeting_seconds == pytest.approx(wanted.meeting_seconds, abs=2e-7)


def test_of_steps_without_transfers_and_of_those_that_were_held_up_nothing_is_learned():
    graph, timeline = step([(5, 9, 2)], 70_000)
    snapshot = structs.replace(known(graph, timeline), meeting_seconds=1e-5, num_meetings=3)
    held = Timeline(timeline.task, timeline.start, timeline.end, int(2 * DELAYED * timeline.end.max()))
    assert taught(snapshot, (graph, [held])) == snapshot
    alone = Draft(1)
    alone.task([(0, Lane.COMPUTE)])
    took = Timeline(np.arange(1), np.zeros(1, np.int64), np.full(1, 10**9))
    assert taught(snapshot, (alone.graph(), [took])) == snapshot
    # A step may take less than its tasks make it.
    short = step([(5, 9, 2)], 0)[1]
    slow = snapshot_of(HERE, [Measured(row.key, 2 * row.seconds) for row in snapshot.rows])
    assert taught(slow, (graph, [short])).meeting_seconds == 0
