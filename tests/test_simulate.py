"""The simulator against an oracle that shares no idea with it, its forms against each other, FlexFlow's example."""

import random
from heapq import heapify, heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.simulate import simulate
from castile.runtime.task import NUM_LANES, Kind, Lane
from tests import flexflow
from tests.effort import examples
from tests.graphs import Draft, engine_maps, task_graphs, timings


def served_by_search(graph, durations, engines):
    """Start and end of every task: again and again the least (ready, order) of all tasks whose needs have ended."""
    start, end, free = {}, {}, {}
    while len(end) < graph.num_tasks:
        ready = {
            t: max((end[n] for n in graph.needs_of(t)), default=0)
            for t in range(graph.num_tasks)
            if t not in end and all(n in end for n in graph.needs_of(t))
        }
        t = min(ready, key=lambda t: (ready[t], graph.order[t]))
        places = {(lane // NUM_LANES, engines[lane % NUM_LANES]) for lane in graph.lanes_of(t).tolist()}
        start[t] = max([ready[t], *(free.get(place, 0) for place in places)])
        end[t] = start[t] + max(1, int(durations[graph.cost[t]]))
        free.update(dict.fromkeys(places, end[t]))
    return [start[t] for t in range(graph.num_tasks)], [end[t] for t in range(graph.num_tasks)]


def live_bytes(graph, start, end, proc, time):
    """What lies in a processor's memory at one time, counted thing by thing."""
    total = 0
    for b in np.flatnonzero(graph.buffer_proc == proc):
        users = [t for t in range(graph.num_tasks) if b in graph.uses_of(t)]
        first = graph.buffer_first[b]
        if first < 0 or start[first] <= time < max(end[t] for t in users):
            total += int(graph.buffer_bytes[b])
    for t in range(graph.num_tasks):
        if proc in graph.lanes_of(t) // NUM_LANES and start[t] <= time < end[t]:
            total += int(graph.private_bytes[t])
    return total


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_equals_search_over_all_ready_tasks(data):
    graph, engines = data.draw(task_graphs()), data.draw(engine_maps)
    durations = data.draw(timings(graph))
    result = simulate(graph, durations, engines)
    start, end = served_by_search(graph, durations, engines)
    assert result.timeline.start.tolist() == start
    assert result.timeline.end.tolist() == end
    assert result.num_tasks == graph.num_tasks
    assert result.seconds == max(end, default=0) / 10**12


def served_by_heap(graph, durations, engines):
    """The same for larger graphs."""
    waits, ready = np.diff(graph.need_ptr).tolist(), [0] * graph.num_tasks
    followers = [[] for _ in waits]
    for t in range(graph.num_tasks):
        for n in graph.needs_of(t).tolist():
            followers[n].append(t)
    heap = [(0, int(graph.order[t]), t) for t in range(graph.num_tasks) if waits[t] == 0]
    heapify(heap)
    start, end, free = [0] * graph.num_tasks, [0] * graph.num_tasks, {}
    while heap:
        begin, _, t = heappop(heap)
        places = {(lane // NUM_LANES, engines[lane % NUM_LANES]) for lane in graph.lanes_of(t).tolist()}
        start[t] = max([begin, *(free.get(place, 0) for place in places)])
        end[t] = start[t] + max(1, int(durations[graph.cost[t]]))
        free.update(dict.fromkeys(places, end[t]))
        for f in followers[t]:
            ready[f], waits[f] = max(ready[f], end[t]), waits[f] - 1
            if waits[f] == 0:
                heappush(heap, (ready[f], int(graph.order[f]), f))
    return start, end


@settings(max_examples=examples(100), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_tasks=st.integers(1, 150),
    num_procs=st.sampled_from([1, 2, 9]),
    reach=st.sampled_from([1, 3, 1000]),
    digits=st.sampled_from([0, 1, 6, 13]),
    engines=engine_maps,
    form=st.sampled_from(["auto", "plain"]),
)
def test_times_of_any_scale_are_served_in_order(seed, num_tasks, num_procs, reach, digits, engines, form):
    """Chains and crowds, ties and durations many orders of magnitude apart; orders have nothing to do with needs."""
    rng, draft = random.Random(seed), Draft(num_procs)
    orders = rng.sample(range(10 * num_tasks), num_tasks)
    for t in range(num_tasks):
        procs = rng.sample(range(num_procs), rng.randint(1, min(2, num_procs)))
        near = range(max(0, t - reach), t)
        needs = rng.sample(near, min(len(near), rng.randint(0, 2)))
        draft.task([(p, rng.choice(list(Lane))) for p in procs], needs, rng.randint(0, 9), order=orders[t])
    graph = draft.graph()
    durations = np.array([int(10 ** rng.uniform(0, digits)) for _ in graph.cost_keys], np.int64)
    result = simulate(graph, durations, engines, form)
    start, end = served_by_heap(graph, durations, engines)
    assert result.timeline.start.tolist() == start
    assert result.timeline.end.tolist() == end


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_peak_memory_equals_count_at_every_time(data):
    graph, engines = data.draw(task_graphs()), data.draw(engine_maps)
    result = simulate(graph, data.draw(timings(graph)), engines)
    start, end = result.timeline.start, result.timeline.end
    for proc in range(graph.num_procs):
        times = range(int(end.max(initial=0)) + 1)
        assert result.peak_bytes[proc] == max(live_bytes(graph, start, end, proc, time) for time in times)
        mine = (graph.buffer_proc == proc) & (graph.buffer_first < 0)
        assert result.persistent_bytes[proc] == graph.buffer_bytes[mine].sum()


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_plain_form_equals_compiled_form(data):
    graph, engines = data.draw(task_graphs(max_tasks=40, max_procs=5)), data.draw(engine_maps)
    durations = data.draw(timings(graph))
    plain, compiled = (simulate(graph, durations, engines, form) for form in ("plain", "numba"))
    for a, b in [
        (plain.timeline.start, compiled.timeline.start),
        (plain.timeline.end, compiled.timeline.end),
        (plain.peak_bytes, compiled.peak_bytes),
        (plain.persistent_bytes, compiled.persistent_bytes),
        (plain.busy_seconds, compiled.busy_seconds),
    ]:
        assert a.tolist() == b.tolist()


def test_busy_counts_only_the_compute_lane():
    draft = Draft(2)
    a = draft.task([(0, Lane.COMPUTE)], cost=5)
    draft.task([(0, Lane.SEND), (1, Lane.RECEIVE)], [a], cost=7, kind=Kind.MOVE)
    draft.task([(1, Lane.COMPUTE)], cost=2)
    result = simulate(draft.graph(), np.array([2, 5, 7]), tuple(Lane))
    assert result.busy_seconds.tolist() == [5e-12, 2e-12]


def test_freed_before_taken_at_the_same_time():
    draft = Draft(1)
    a = draft.task([(0, Lane.COMPUTE)], private=100)
    draft.task([(0, Lane.COMPUTE)], [a], private=70)
    draft.task([(0, Lane.HOST)], [a], private=20)
    assert simulate(draft.graph(), np.array([3]), tuple(Lane)).peak_bytes.tolist() == [100]


def test_long_times_stay_exact():
    draft = Draft(1)
    last = None
    for _ in range(1000):
        last = draft.task([(0, Lane.COMPUTE)], [] if last is None else [last])
    day = 86_400 * 10**12 + 1
    assert simulate(draft.graph(), np.array([day // 1000]), tuple(Lane)).timeline.end[-1] == day // 1000 * 1000


def test_a_step_that_is_too_long_to_be_told_is_refused():
    draft = Draft(1)
    for _ in range(10):
        draft.task([(0, Lane.COMPUTE)])
    graph = draft.graph()
    durations = np.full(len(graph.cost_keys), 2**59)
    with pytest.raises(ValueError, match=r"^the tasks of a step would take 5\.76e\+06 s in all"):
        simulate(graph, durations, range(NUM_LANES))
    assert simulate(graph, durations // 2, range(NUM_LANES)).seconds == pytest.approx(2.88e6, rel=1e-3)


def test_unknown_form_is_refused():
    with pytest.raises(ValueError, match="'cuda'"):
        simulate(Draft(1).graph(), np.array([]), tuple(Lane), "cuda")


def test_missing_numba_is_told_only_where_it_was_asked_for(monkeypatch):
    monkeypatch.setattr("castile.planner.simulate.can_compile", lambda: False)
    with pytest.raises(ValueError, match="needs numba"):
        simulate(Draft(1).graph(), np.array([]), tuple(Lane), "numba")
    assert simulate(Draft(1).graph(), np.array([]), tuple(Lane)).seconds == 0


def check_flexflow(figure):
    graph, durations, number = figure.graph
    result = simulate(graph, durations, tuple(Lane))
    for name, (ready, start) in figure.expected.items():
        needs = graph.needs_of(number[name])
        assert max(result.timeline.end[needs], default=0) == ready, name
        assert result.timeline.start[number[name]] == start, name
    assert result.timeline.end.max() == figure.makespan


def test_flexflow_worked_example():
    """Figure 4 of Jia, Zaharia, Aiken, MLSys 2019, before operator o3 drops to degree 1."""
    check_flexflow(flexflow.before())


def test_flexflow_worked_example_after_the_change():
    """The same with t3:1 computing the whole of o3: t3:2 and c3:2 are gone."""
    check_flexflow(flexflow.after())
