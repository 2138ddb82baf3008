"""Steps that other programs held up teach of transfers what others do not; on too few cores that is how it is.

They do not say how long anything lasts here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphs import Draft
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from castile.launch.jobs.jobs import Job
from castile.launch.measuring import task_timing
from castile.launch.training import run_report
from castile.planner.costs.learn import DELAYED, learn
from castile.planner.costs.snapshot import Environment, Measured, snapshot_of
from castile.runtime import cores
from castile.runtime import machine as machines
from castile.runtime.comm.local import LocalWorld
from castile.runtime.memory import pack
from castile.runtime.runner import Runner, run_local, whole_step
from castile.runtime.task import Kind, Lane, TaskGraph
from castile.runtime.timeline import Timeline

HERE = Environment("cpu", 1, 2, "", "")


def step_of_two() -> TaskGraph:
    """A kernel each, a move, a kernel, a collective; the keys of the two transfers have a link."""
    draft = Draft(2)
    for proc in range(2):
        draft.task([(proc, Lane.COMPUTE)], cost=0)
    draft.task([(0, Lane.SEND), (1, Lane.RECEIVE)], needs=[0], cost=1, kind=Kind.MOVE)
    draft.task([(1, Lane.COMPUTE)], needs=[2], cost=2)
    draft.task([(0, Lane.COLLECTIVE), (1, Lane.COLLECTIVE)], needs=[3], cost=3, kind=Kind.COLLECTIVE)
    graph = draft.graph()
    links = {int(c) for c in graph.cost[graph.kind >= Kind.MOVE]}
    keys = (structs.replace(key, link="host" * (n in links)) for n, key in enumerate(graph.cost_keys))
    return replace(graph, cost_keys=tuple(keys))


GRAPH = step_of_two()
LINKS = {key for key in GRAPH.cost_keys if key.link}


def timeline(lasted: Sequence[int], share: float) -> Timeline:
    """A step whose tasks follow each other, in which a rank waited for that share of it."""
    ends = np.cumsum(np.array(lasted, np.int64))
    return Timeline(np.arange(len(lasted)), ends - lasted, ends, int(share * ends[-1]))


steps = st.lists(
    st.tuples(
        st.lists(st.integers(10**6, 10**9), min_size=5, max_size=5), st.sampled_from([0, DELAYED / 2, DELAYED * 2, 3])
    ),
    min_size=1,
    max_size=6,
)


@given(steps)
def test_a_run_tells_how_many_of_its_steps_were_held_up(drawn) -> None:
    progress = run_report.Progress(sampled=[timeline(*one) for one in drawn], seconds=[1.0])
    prepared = SimpleNamespace(simulated=SimpleNamespace(seconds=1.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "simulated", lambda *_: 1.0)
        found = run_report._predictions(
            SimpleNamespace(machine=machines.local(2)),  # type: ignore[arg-type]
            SimpleNamespace(prepared=prepared), progress,  # type: ignore[arg-type]
        )  # fmt: skip
    count = sum(share > DELAYED for _, share in drawn)
    assert (found["num_held_up"], found["num_sampled"]) == (count, len(drawn))
    # told is what a step takes that nobody holds up, and errors are errors of that
    lasted = [(sum(each), share) for each, share in drawn]
    free = [all_of_it * (1 - share) for all_of_it, share in lasted if share <= DELAYED]
    wanted = np.median(free) if free else min(all_of_it for all_of_it, _ in lasted)
    assert found["measured_step_seconds"] == pytest.approx(wanted / 1e12)
    assert found["error_after_learning"] == pytest.approx(abs(1e12 / wanted - 1))
    rest = {"remarks": [], "num_steps": 1, "first_step": 0, "waited_seconds": 0, "stopped_by": "", "files": {}}
    rest |= {"gradients": {}, "best": {}}
    text = run_report.text({**found, **rest, "total_seconds": 1.0})
    assert ("held up" in text) == (count > 0)


@given(steps, st.booleans())
def test_transfers_are_learned_from_steps_that_nobody_held_up_and_kernels_from_all(drawn, is_known) -> None:
    told = [timeline(*one) for one in drawn]
    free = [one for one, (_, share) in zip(told, drawn, strict=True) if share <= DELAYED]
    old = snapshot_of(HERE, [Measured(key, 1e-3, 0.0, 7) for key in GRAPH.cost_keys] if is_known else [])
    learned, of_all, of_free = (
        {row.key: row for row in (learn(old, GRAPH, each) if each else old).rows}
        for each in (told, [replace(t, delayed=0) for t in told], free)
    )
    for key in GRAPH.cost_keys:
        if key in LINKS and not free and not is_known:
            # what holds up only adds: the quickest is nearer than nothing, and gives way to the first that was free
            assert learned[key] == Measured(
                key, min(row.seconds for t in told for row in learn(old, GRAPH, [t]).rows if row.key == key), 0.0, 1
            )
        else:
            assert learned.get(key) == (of_free if key in LINKS else of_all).get(key)
    assert any(s > DELAYED for _, s in drawn) or learned == of_all


def runners(crowded: bool) -> list[Runner]:
    world = LocalWorld(2)
    for comm in world.communicators:
        comm.crowded = crowded
    times = timeline([1, 1, 1, 1, 1], 0)
    packing = pack(GRAPH, times)
    return [Runner(GRAPH, times, packing, [rank], world.communicators[rank], "null") for rank in range(2)]


@pytest.mark.parametrize("crowded", [False, True])
def test_a_step_tells_for_how_long_its_rank_waited_for_a_core(monkeypatch, crowded: bool) -> None:
    """Where there are cores enough; what was before the step, or in one that is not timed, counts nothing."""
    waited = SimpleNamespace(now=10**6)

    def clock() -> int:
        waited.now += 1000
        return waited.now

    monkeypatch.setattr(cores, "delayed_ns", clock)
    both = runners(crowded)
    for _ in range(2):
        run_local(both, timed=False)
        waited.now += 10**9
        run_local(both)
        # ranks that take turns have the waits of the one thread: each from where it began to where it is asked
        told = [runner.timeline().delayed for runner in both]
        assert told == ([0, 0] if crowded else [2_000_000, 2_000_000])


lasts = st.lists(
    st.tuples(st.integers(10**3, 10**9), st.sampled_from([0, DELAYED / 2, DELAYED * 2, 3])), min_size=5, max_size=5
)


@given(st.lists(lasts, min_size=task_timing.MOST_ROUNDS, max_size=task_timing.MOST_ROUNDS))
def test_a_transfer_that_was_held_up_is_measured_again_and_counts_only_where_all_were(drawn) -> None:
    (number,), told = np.flatnonzero(GRAPH.kind == Kind.COLLECTIVE), iter(drawn)

    def exchange(tasks, repetitions):
        # a few first say how many there can be
        each = next(told) if repetitions > task_timing.LEAST_REPETITIONS else [(1, 0)] * repetitions
        return np.array([[10, 10 + lasted, int(share * lasted)] for lasted, share in each], np.int64)

    comm = LocalWorld(1).communicators[0]
    job = SimpleNamespace(comm=comm, leads=True, agree=lambda make: make())
    bench = SimpleNamespace(tasks=GRAPH, mine=np.array([number]), exchange=exchange)
    measured, _ = task_timing.measure(job, bench, int(GRAPH.cost[number]))  # type: ignore[arg-type]
    num_rounds = len(drawn) - len(list(told))
    seen = [one for each in drawn[:num_rounds] for one in each]
    free = [lasted for lasted, share in seen if share <= DELAYED]
    assert measured.seconds == pytest.approx(np.median(free or [lasted for lasted, _ in seen]) / 1e9)
    assert free or num_rounds == task_timing.MOST_ROUNDS


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=4))
def test_a_whole_step_waited_as_long_as_the_rank_that_waited_longest(waits: list[int]) -> None:
    ranks = [replace(timeline([5, 5], 0), delayed=wait) for wait in waits]
    world = LocalWorld(len(ranks))
    gathered: Any = None
    # the root has its turn last
    for rank in reversed(range(len(ranks))):
        gathered = Job.gather(SimpleNamespace(comm=world.communicators[rank]), ranks[rank])  # type: ignore[arg-type]
        assert (gathered is None) == (rank > 0)
    assert gathered.delayed == whole_step(ranks).delayed == max(waits)
    assert gathered.durations().tolist() == [5, 5]


def test_what_linux_tells_of_a_thread_is_read_and_what_it_does_not_tell_is_nothing(tmp_path: Path) -> None:
    where = tmp_path / "proc/thread-self"
    assert cores.delayed_ns(tmp_path) == 0
    where.mkdir(parents=True)
    for text, wanted in (("98 765 4\n", 765), ("", 0), ("0\n", 0)):
        (where / "schedstat").write_text(text)
        assert cores.delayed_ns(tmp_path) == wanted
    assert cores.delayed_ns() <= cores.delayed_ns()
