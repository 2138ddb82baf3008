"""Task Bench's patterns on the runtime: every task gets the tokens that it reads, and a wrong one is seen."""

from __future__ import annotations

import json
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.task_bench import kernel
from benchmarks.task_bench.metg import Curve, Run, metg
from benchmarks.task_bench.on_castile import OnCastile, lowered
from benchmarks.task_bench.on_dask import OnDask, is_installed
from benchmarks.task_bench.patterns import NAMES, Pattern, owner
from castile.runtime.comm.local import LocalWorld
from castile.runtime.task import Kind, Task
from tests import standing
from tests.effort import examples
from tests.mpi import CHECKOUT


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_every_task_gets_the_tokens_that_it_reads(name: str, data: st.DataObject) -> None:
    width = data.draw(st.integers(2, 9))
    pattern = Pattern(name, width, data.draw(st.integers(2 * width, 24)))
    num_procs = data.draw(st.integers(1, min(3, width)))
    world = LocalWorld(data.draw(st.integers(1, num_procs)))
    bench = OnCastile(pattern, num_procs, world.communicators, poison=True)
    for _ in range(2):
        bench.run(1)
        bench.check()
    assert world.quiet
    assert sum(task.kind == Kind.COMPUTE for task in bench.graph.tasks) == pattern.num_tasks


@pytest.mark.parametrize("name", NAMES)
def test_the_runtime_moves_no_more_than_others_read(name: str) -> None:
    pattern, procs = Pattern(name, 4, 10), 2
    moved = sum(_moved(task) for task in lowered(pattern, procs).tasks)
    needed = {
        (step, source, owner(point, 4, procs))
        for step in range(pattern.num_steps)
        for point in pattern.points(step)
        for source in pattern.reads(step, point)
        if owner(source, 4, procs) != owner(point, 4, procs)
    }
    assert moved == kernel.TOKEN * len(needed)


def test_all_points_of_a_step_go_to_another_processor_in_one_message() -> None:
    pattern, procs = Pattern("all_to_all", 6, 12), 2
    moves = [task for task in lowered(pattern, procs).tasks if task.kind >= Kind.MOVE]
    assert len(moves) == procs * (procs - 1) * (pattern.num_steps - 1)


def _moved(task: Task) -> int:
    return sum(prod(comm.send[0].box.shape) for comm in task.comms if comm.send[0])


@settings(max_examples=60)
@given(st.sampled_from(NAMES), st.integers(2, 16))
def test_every_point_reads_points_that_there_are(name: str, width: int) -> None:
    pattern = Pattern(name, width, 2 * width + 3)
    for step in range(1, pattern.num_steps):
        for point in pattern.points(step):
            reads = pattern.reads(step, point)
            assert reads and set(reads) <= set(pattern.points(step - 1)) and len(set(reads)) == len(reads)


@pytest.mark.parametrize(
    ("name", "point", "reads"),
    [
        ("stencil", 3, [(2, 3, 4)] * 3),
        ("fft", 3, [(2, 3, 4), (1, 3, 5), (3, 7)]),
        ("tree", 3, [(1,)] * 3),
        ("nearest", 3, [(1, 2, 3, 4, 5)] * 3),
        ("spread", 0, [(0, 2, 4, 5, 7), (0, 3, 5, 6), (0, 1, 3, 4, 6)]),
        ("all_to_all", 5, [tuple(range(8))] * 3),
        ("sweep", 3, [(2, 3)] * 3),
    ],
)
def test_the_patterns_are_those_of_the_paper(name: str, point: int, reads: list[tuple[int, ...]]) -> None:
    pattern = Pattern(name, 8, 40)
    assert [pattern.reads(step, point) for step in (10, 11, 12)] == reads


def test_a_wrong_input_is_seen() -> None:
    order, out = np.array([7, 3]), np.empty(kernel.TOKEN, np.int64)
    token, other = np.array([4, 1]), np.array([4, 2])
    kernel.bind(order, out, 5, [(token, 1), (other, 2)])()
    assert out.tolist() == [5, 5]
    kernel.bind(order, out, 6, ())()
    assert out.tolist() == [7, 6]
    with pytest.raises(kernel.WrongInput, match=r"point 5 got \[\[4, 2\]\], where it reads \[1\]"):
        kernel.bind(order, out, 5, [(other, 1)])()
    other[0] = 3
    with pytest.raises(kernel.WrongInput):
        kernel.bind(order, out, 5, [(token, 1), (other, 2)])()


def test_the_runtime_tells_which_task_got_a_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    shifted = kernel.bind
    monkeypatch.setattr(kernel, "bind", lambda order, out, point, inputs: shifted(order, out, point + 1, inputs))
    bench = OnCastile(Pattern("stencil", 4, 8), 2, LocalWorld(2).communicators)
    with pytest.raises(kernel.WrongInput) as caught:
        bench.run(1)
    assert "task 1[" in caught.value.__notes__[0]


def test_metg_is_where_half_the_peak_rate_is_reached() -> None:
    # 10 us a task beside its work, 1 us of work a turn, on two cores
    runs = tuple(Run(turns, 100 * 1e-6 * (10 + turns) / 2) for turns in (1, 2, 4, 8, 16, 32, 10_000))
    found = metg(Curve(100, 2, runs), 2e6)
    assert found is not None and found == pytest.approx(20e-6)
    assert metg(Curve(100, 2, runs[:3]), 2e6) is None
    assert metg(Curve(100, 2, runs[5:]), 2e6) == pytest.approx(42e-6)


@pytest.mark.skipif(not is_installed(), reason="needs dask: pip install 'castile[bench]'")
@pytest.mark.parametrize("name", NAMES)
def test_dask_computes_every_pattern(name: str) -> None:
    bench = OnDask(Pattern(name, 4, 10), 2)
    for _ in range(2):
        bench.run(1)
        bench.check()


@pytest.mark.parametrize(("name", "width", "steps"), [("ring", 4, 10), ("fft", 1, 10), ("tree", 4, 7)])
def test_what_is_no_pattern_is_refused(name: str, width: int, steps: int) -> None:
    with pytest.raises(ValueError, match=r"no pattern 'ring': choose from|take a width of at least 2"):
        Pattern(name, width, steps)


@pytest.mark.mpi
def test_the_benchmark_tells_all_patterns_on_two_ranks(tmp_path) -> None:
    found = tmp_path / "curves.json"
    words = (str(CHECKOUT / "benchmarks" / "task_bench"), "--rank", str(found), "--rounds", "1", "--steps", "10")
    status, _, errors = standing.run(2, *words)
    assert status == 0, errors
    curves = json.loads(found.read_text())
    assert set(curves) == set(NAMES) and {len(systems) for systems in curves.values()} == {2}
    assert all(run["wall_seconds"] > 0 for s in curves.values() for c in s.values() for run in c["runs"])
