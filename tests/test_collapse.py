"""Collapsed equals expanded exactly: times, ties and memory; and what is symmetric does collapse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.collapse import collapse, expand
from castile.planner.simulate import simulate
from castile.runtime.task import NUM_LANES, Kind, Lane
from tests.graphs import ENGINES, Draft, engine_maps, task_graphs, timings


def check_exact(graph, durations, engines):
    collapsed = collapse(graph, engines)
    whole, small = simulate(graph, durations, engines), simulate(collapsed.graph, durations, engines)
    result = expand(collapsed, small)
    assert result.timeline.start.tolist() == whole.timeline.start.tolist()
    assert result.timeline.end.tolist() == whole.timeline.end.tolist()
    assert result.peak_bytes.tolist() == whole.peak_bytes.tolist()
    assert result.persistent_bytes.tolist() == whole.persistent_bytes.tolist()
    assert result.busy_seconds.tolist() == whole.busy_seconds.tolist()
    return collapsed


def data_parallel(num_procs, layers, group=None, slow=None):
    """A step whose gradients are summed over groups of processors; `slow` computes at another cost."""
    draft, group = Draft(num_procs), group or num_procs
    weights = [draft.buffer(p, 1000, name="weights") for p in range(num_procs)]
    last, kept = [[] for _ in range(num_procs)], []
    for layer in range(layers):
        for p in range(num_procs):
            cost = 9 if p == slow and layer == layers // 2 else layer % 3
            last[p] = [draft.task([(p, Lane.COMPUTE)], last[p], cost, uses=[weights[p]], private=10)]
        kept.append([draft.buffer(p, 100 + layer, last[p][0]) for p in range(num_procs)])
    for layer in reversed(range(layers)):
        for p in range(num_procs):
            last[p] = [draft.task([(p, Lane.COMPUTE)], last[p], 4, uses=[kept[layer][p]])]
        for lo in range(0, num_procs, group):
            members = range(lo, lo + group)
            needs = [last[p][0] for p in members]
            total = draft.task([(p, Lane.COLLECTIVE) for p in members], needs, 5, Kind.COLLECTIVE)
            for p in members:
                draft.task([(p, Lane.COMPUTE)], [total], 6, uses=[weights[p]])
    return draft.graph()


def ring(num_procs, rounds):
    """Each processor computes and sends to its right neighbour, again and again."""
    draft, last = Draft(num_procs), [[] for _ in range(num_procs)]
    for _ in range(rounds):
        done = [draft.task([(p, Lane.COMPUTE)], last[p], 1, private=8) for p in range(num_procs)]
        for p in range(num_procs):
            right = (p + 1) % num_procs
            move = draft.task([(p, Lane.SEND), (right, Lane.RECEIVE)], [done[p]], 2, Kind.MOVE)
            draft.buffer(right, 50, move)
            last[right] = [move, done[right]]
    return draft.graph()


def durations_of(graph, rng):
    return rng.integers(0, 6, len(graph.cost_keys))


@pytest.mark.parametrize("engines", ENGINES)
@pytest.mark.parametrize(
    "graph",
    [
        data_parallel(8, 5),
        data_parallel(8, 5, group=2),
        data_parallel(6, 4, slow=2),
        data_parallel(8, 4, group=4, slow=5),
        ring(6, 3),
        ring(2, 2),
        ring(1, 2),
    ],
)
def test_regular_graphs_collapse_exactly(graph, engines):
    rng = np.random.default_rng(0)
    for _ in range(5):
        check_exact(graph, durations_of(graph, rng), engines)


def test_symmetric_processors_collapse_to_one():
    graph = data_parallel(64, 6)
    collapsed = check_exact(graph, np.arange(len(graph.cost_keys)) + 1, tuple(Lane))
    assert collapsed.graph.num_procs == 1
    assert collapsed.graph.num_tasks == 6 + 6 * 3
    assert collapsed.graph.num_buffers == 1 + 6


def test_groups_collapse_across_and_within():
    assert check_exact(data_parallel(64, 3, 8), np.arange(6), tuple(Lane)).graph.num_procs == 1


def test_ring_collapses_where_sends_and_receives_run_beside_each_other():
    graph = ring(16, 4)
    assert check_exact(graph, np.array([3, 4]), tuple(Lane)).graph.num_procs == 1
    assert check_exact(graph, np.array([3, 4]), (0,) * NUM_LANES).graph.num_procs == 16


def test_straggler_is_kept_apart():
    graph = data_parallel(16, 3, slow=7)
    collapsed = check_exact(graph, np.arange(1, 1 + len(graph.cost_keys)), tuple(Lane))
    assert collapsed.graph.num_procs == 2
    assert np.flatnonzero(collapsed.proc_class == collapsed.proc_class[7]).tolist() == [7]


def test_unequal_memory_is_kept_apart():
    draft = Draft(3)
    for p in range(3):
        draft.buffer(p, 100, draft.task([(p, Lane.COMPUTE)]))
    draft.buffer(1, 64)
    assert check_exact(draft.graph(), np.array([1]), tuple(Lane)).proc_class.tolist() == [0, 1, 0]


def test_opposite_ties_are_kept_apart():
    """Two tasks ready at once, served in opposite sequence on the two processors."""
    draft = Draft(2)
    for p, costs in ((0, (1, 2)), (1, (2, 1))):
        for cost in costs:
            draft.task([(p, Lane.COMPUTE)], cost=cost)
    assert check_exact(draft.graph(), np.array([3, 5]), tuple(Lane)).graph.num_procs == 2


@settings(deadline=None)
@given(st.data())
def test_any_graph_collapses_exactly(data):
    graph, engines = data.draw(task_graphs()), data.draw(engine_maps)
    check_exact(graph, data.draw(timings(graph)), engines)


@st.composite
def nearly_symmetric(draw):
    """One program on every processor, with sums, shifts and exchanges between them, and perhaps a few odd tasks."""
    num_procs = draw(st.integers(2, 6))
    draft, last = Draft(num_procs), [[] for _ in range(num_procs)]
    for _ in range(draw(st.integers(1, 6))):
        form = draw(st.sampled_from(["compute", "compute", "sum", "shift", "pairs", "odd"]))
        cost = draw(st.integers(0, 2))
        if form == "compute":
            fresh = [draft.task([(p, Lane.COMPUTE)], last[p], cost, private=cost) for p in range(num_procs)]
        elif form == "sum":
            everything = [(p, Lane.COLLECTIVE) for p in range(num_procs)]
            fresh = [draft.task(everything, [t for needs in last for t in needs], cost, Kind.COLLECTIVE)] * num_procs
        elif form == "odd":
            p = draw(st.integers(0, num_procs - 1))
            last[p] = [draft.task([(p, Lane.COMPUTE)], last[p], cost)]
            continue
        else:
            step = draw(st.integers(1, num_procs - 1)) if form == "shift" else 1
            moves = [
                draft.task([(p, Lane.SEND), (to, Lane.RECEIVE)], last[p], cost, Kind.MOVE)
                for p, to in ((p, (p + step) % num_procs if form == "shift" else p ^ 1) for p in range(num_procs))
                if to < num_procs
            ]
            fresh = [moves[p % len(moves)] for p in range(num_procs)]
        keep = draw(st.booleans())
        last = [[f, *(last[p] if keep else [])][:4] for p, f in enumerate(fresh)]
        if form == "compute":
            for p in range(num_procs):
                draft.buffer(p, 10 * cost, fresh[p])
    return draft.graph()


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_nearly_symmetric_graphs_collapse_exactly(data):
    graph, engines = data.draw(nearly_symmetric()), data.draw(engine_maps)
    if data.draw(st.booleans()):
        graph = replace(graph, order=np.array(data.draw(st.permutations(graph.order.tolist()))))
    check_exact(graph, data.draw(timings(graph)), engines)
