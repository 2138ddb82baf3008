"""Laws of the runner and its backends: any ranks compute what program order computes, on poisoned memory."""

from __future__ import annotations

import tracemalloc
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.runtime.backends import base
from castile.runtime.backends.null import Backend
from castile.runtime.comm.local import LocalCommunicator, LocalWorld
from castile.runtime.comm.messages import Request
from castile.runtime.mapper import Default, Logging
from castile.runtime.memory import pack
from castile.runtime.region import Box, whole
from castile.runtime.runner import Runner, run_local, whole_step
from castile.runtime.task import AT_ONCE, Arg, Call, Comm, Kind, Task, Temp, View
from tests import standing
from tests.collective_cases import turns
from tests.effort import examples
from tests.handmade import Hand, in_order, interpret, random_graph, random_inputs, spread

CASES = Path(__file__).parent / "mpi_cases"
NUMPY_DOMAIN = np.lib.tracemalloc_domain


def runners(graph, size: int | None = None, ranks=None, packer=spread, **options) -> list[Runner]:
    """One runner a rank of a local world."""
    size = size or graph.num_procs
    ranks = ranks or list(range(graph.num_procs))
    world = LocalWorld(size)
    procs = [[p for p, rank in enumerate(ranks) if rank == r] for r in range(size)]
    timeline, packing = in_order(graph), packer(graph)
    return [
        Runner(graph, timeline, packing, procs[r], world.communicators[r], ranks=ranks, **options) for r in range(size)
    ]


def tight(graph):
    """A packing in which memory is taken over as early as can be."""
    return pack(graph, in_order(graph))


def feed(ranks: list[Runner], inputs: dict[str, np.ndarray]) -> None:
    for runner in ranks:
        for (region, _, _), array in runner.persistent("input").items():
            array[...] = inputs[region]


def outputs(ranks: list[Runner]) -> dict[str, np.ndarray]:
    return {region: a for runner in ranks for (region, _, _), a in runner.persistent("output").items()}


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 30), st.data())
def test_any_graph_on_any_ranks_computes_what_program_order_does(seed, num_procs, num_tasks, data) -> None:
    # of fewer elements than members some have no piece
    graph = random_graph(seed, num_procs, num_tasks, data.draw(st.sampled_from((1, 3, 7))))
    size = data.draw(st.integers(1, num_procs))
    ranks = data.draw(st.lists(st.integers(0, size - 1), min_size=num_procs, max_size=num_procs))
    packer = data.draw(st.sampled_from([spread, tight]))
    world = runners(graph, size, ranks, packer, poison=True)
    for step in range(2):
        inputs = random_inputs(graph, seed + step)
        feed(world, inputs)
        run_local(world)
        found, expected = outputs(world), interpret(graph, inputs)
        assert found.keys() == expected.keys()
        for region in found:
            assert found[region].tobytes() == expected[region].tobytes(), f"step {step}, {region}"
    assert world[0].comm._world.quiet


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_under_mpirun(num_ranks: int) -> None:
    status, output, errors = standing.run(num_ranks, str(CASES / "random_graphs.py"))
    assert status == 0 and output.count("graphs agree") == num_ranks, errors


def test_a_copy_that_is_missing_shows_as_nan() -> None:
    hand = Hand(1)
    never = hand.buffer("never written", (3,), 0)
    hand.compute("add", [never, never], hand.buffer("y", (3,), 0, "output"))
    world = runners(hand.graph(), poison=True)
    run_local(world)
    assert np.isnan(outputs(world)["y"]).all()


def test_views_in_strides_scalars_runs_and_nothing() -> None:
    hand = Hand(1)
    x = hand.buffer("x", (4, 6), 0, "input")
    inner, corner = Box((1, 2), (3, 5)), Box((1, 0), (2, 6))
    y, z = hand.buffer("y", (4, 6), 0, "output"), hand.buffer("z", (), 0, "output")
    run, nothing = hand.buffer("run", (2, 3), 0, "output"), hand.buffer("nothing", (0, 3), 0, "output")
    hand.compute("copy", [View(x, inner)], View(y, inner))
    hand.compute("sum_over", [View(x, inner)], z, dims=(0, 1))
    hand.compute("copy", [View(x, corner, (2, 3))], run)
    hand.compute("copy", [View(x, Box((2, 3), (2, 6)))], nothing)
    world = runners(hand.graph(), poison=True)
    data = np.arange(24.0).reshape(4, 6)
    feed(world, {"x": data})
    run_local(world)
    found = outputs(world)
    assert np.array_equal(found["y"][1:3, 2:5], data[1:3, 2:5])
    assert np.isnan(found["y"]).sum() == 24 - 6
    assert found["z"] == data[1:3, 2:5].sum()
    assert np.array_equal(found["run"], data[1].reshape(2, 3))


def test_temporaries_lie_in_private_memory_which_is_poisoned_each_time() -> None:
    hand = Hand(1)
    x, y = hand.buffer("x", (5,), 0, "input"), hand.buffer("y", (5,), 0, "output")
    calls = [
        Call("add", (Arg("temp", 1), Arg("view", 0)), (Arg("view", 1),)),
        Call("relu", (Arg("view", 0),), (Arg("temp", 1),)),
    ]
    hand.compute("", [x], y, temps=[Temp(0, (2,), "float32"), Temp(64, (5,), "float64")], calls=calls, private=128)
    world = runners(hand.graph(), poison=True)
    feed(world, {"x": np.ones(5)})
    for _ in range(2):
        run_local(world)
        assert np.isnan(outputs(world)["y"]).all(), "what the last step left in private memory was read"
    calls.reverse()
    hand.compute("", [x], y, temps=[Temp(0, (2,), "float32"), Temp(64, (5,), "float64")], calls=calls, private=128)
    world = runners(hand.graph(), poison=True)
    feed(world, {"x": np.ones(5)})
    run_local(world)
    assert (outputs(world)["y"] == 2).all()


def test_accumulate_adds_to_what_is_there() -> None:
    hand = Hand(1)
    x, y = hand.buffer("x", (5,), 0, "input"), hand.buffer("y", (5,), 0, "output")
    hand.compute("copy", [x], y)
    hand.compute("copy", [x], y, accumulate=True)
    world = runners(hand.graph(), poison=True)
    feed(world, {"x": np.arange(5.0)})
    run_local(world)
    assert np.array_equal(outputs(world)["y"], 2 * np.arange(5.0))


def shared(dtype: str = "float64"):
    hand = Hand(1)
    w, y = hand.buffer("w", (5,), 0, "carried", dtype), hand.buffer("y", (5,), 0, "output", dtype)
    hand.compute("add", [w, w], y)
    return hand.graph()


def test_graphs_share_the_arrays_of_their_state() -> None:
    state: base.State = {}
    train, evaluate = runners(shared(), state=state), runners(shared(), state=state)
    key = ("w", whole((5,)), 0)
    assert state[key] is train[0].persistent("carried")[key] is evaluate[0].persistent("carried")[key]
    state[key][:] = 3
    run_local(evaluate)
    assert (outputs(train)["y"] == 6).all()
    assert train[0].nbytes > 0 == evaluate[0].nbytes
    assert runners(shared())[0].persistent("carried")[key].sum() == 0


def test_memory_is_what_the_packing_says_to_the_byte() -> None:
    graph = random_graph(7, 4, 50, n=1001)
    peaks = pack(graph, in_order(graph)).peak_bytes.tolist()
    assert [runner.nbytes for runner in runners(graph, packer=tight)] == peaks
    assert [runner.nbytes for runner in runners(graph, 2, [0, 1, 0, 1], tight)] == [
        peaks[0] + peaks[2],
        peaks[1] + peaks[3],
    ]


def test_a_rank_without_processors_has_nothing_to_do() -> None:
    graph = random_graph(7, 2, 20)
    world = runners(graph, 3)
    feed(world, random_inputs(graph, 0))
    run_local(world)
    assert len(world[2].timeline().task) == 0 and len(whole_step([r.timeline() for r in world]).task) == graph.num_tasks


def test_state_of_another_type_is_refused() -> None:
    state: base.State = {}
    runners(shared(), state=state)
    with pytest.raises(
        ValueError, match=r"region 'w' on processor 0 is float32\[5\] here, but its array is float64\[5\]"
    ):
        runners(shared("float32"), state=state)


class Failing(Request):
    """What is under way and then fails."""

    def poll(self) -> bool:
        raise ZeroDivisionError("boom")


@pytest.mark.parametrize("which", ["call", "poll", "begin"])
def test_an_exception_names_step_task_and_rank(which: str) -> None:
    """Whichever task it comes of, as it is called or while it is under way; or none, as the step begins."""
    graph, ranks = random_graph(3, 3, 12), [0, 0, 1]
    first = [(rank, w) for rank, runner in enumerate(runners(graph, 2, ranks)) for w in range(len(runner._workers))]
    tried = 0
    for (rank, w), at in product(first, range(graph.num_tasks)):
        world = runners(graph, 2, ranks)
        run_local(world)
        victim = world[rank]._workers[w]
        if at >= len(victim.actions) or (which == "poll" and not victim.program.asynchronous[at]):
            continue
        if which == "begin":
            victim.begin = lambda timed: Failing().poll()  # type: ignore[method-assign, assignment]
        else:
            failing = Failing().poll if which == "call" else Failing
            victim.actions = (*victim.actions[:at], failing, *victim.actions[at + 1 :])
        with pytest.raises(ZeroDivisionError) as caught:
            run_local(world)
        if which == "begin":
            told = f"step 2, at or before task {{}}{' or on another processor' * (rank == 0)}, rank {rank}"
            name = graph.tasks[victim.program.tasks[victim.position]].name
        else:
            told, name = f"step 2, task {{}}, rank {rank}", graph.tasks[victim.program.tasks[at]].name
        assert caught.value.__notes__ == [told.format(name)]
        tried += 1
    assert tried > 4


def test_timelines_hold_each_task_once_in_order_of_needs() -> None:
    graph = random_graph(1, 4, 40)
    world = runners(graph)
    for _ in range(2):
        run_local(world)
    local = [runner.timeline() for runner in world]
    assert all((t.start >= 0).all() for t in local), "times count from the world's beginning"
    timeline = whole_step(local)
    assert np.array_equal(timeline.task, np.arange(graph.num_tasks))
    assert timeline.start.min() >= 0 and (timeline.end >= timeline.start).all()
    for task in range(graph.num_tasks):
        for need in graph.needs_of(task):
            assert timeline.end[need] <= timeline.start[task] or graph.tasks[need].comms or graph.tasks[task].comms
    assert min(int(t.start.min()) for t in local) + timeline.end.max() == max(int(t.end.max()) for t in local)


def test_a_step_alone_gives_its_timeline() -> None:
    graph = random_graph(0, 1, 10)
    (runner,) = runners(graph)
    feed([runner], random_inputs(graph, 0))
    first, second = runner.step(), runner.step()
    assert (first.end[-1] <= second.start).all(), "a later step does not write over an earlier timeline"


def test_a_rank_alone_is_told_that_it_would_wait_for_ever() -> None:
    world = runners(random_graph(0, 3, 20))
    with pytest.raises(RuntimeError, match="take turns"):
        world[0].step()
    world = runners(random_graph(0, 3, 20))
    with pytest.raises(RuntimeError, match="wait for each other"):
        run_local(world[:1])


def test_a_mapper_decides_the_order() -> None:
    log = Logging(Default())
    world = runners(random_graph(5, 3, 20), mapper=log)
    assert [log.orders[r.comm.rank] for r in world] == [r._workers[0].program.tasks for r in world]


def test_a_warm_step_makes_no_arrays() -> None:
    graph = random_graph(2, 3, 60, n=5000)
    world = runners(graph)
    feed(world, random_inputs(graph, 0))
    run_local(world)
    copies = sum(len(w.program.tasks) for r in world for w in r._workers) > 0
    tracemalloc.start()
    try:
        run_local(world)
        mine = tracemalloc.DomainFilter(True, NUMPY_DOMAIN)
        left = sum(s.size for s in tracemalloc.take_snapshot().filter_traces([mine]).statistics("filename"))
    finally:
        tracemalloc.stop()
    assert copies and left < 64 * 1024


def test_the_null_backend_runs_a_thousand_processors() -> None:
    graph = random_graph(0, 1000, 1500)
    world = runners(graph, backend="null")
    run_local(world)
    assert sum(len(r.timeline().task) for r in world) >= graph.num_tasks
    assert world[0].nbytes == 0 and not world[0].persistent("input")
    assert world[0].comm._world.quiet


@pytest.mark.parametrize("form", AT_ONCE)
def test_the_null_backend_sends_for_each_of_what_begins_together(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send = LocalCommunicator.send
    monkeypatch.setattr(LocalCommunicator, "send", lambda end, *what: sent.append(end.rank) or send(end, *what))
    group = (2, 0, 1)
    comm = Comm(form, group, (None,) * 3, (None,) * 3, (None,) * 3, ((1, 1, 1),) * 3)
    counts = []
    for number in (1, 2, 5):
        world = LocalWorld(3)
        task = Task(0, "", Kind.COLLECTIVE, group, comms=(comm,) * number)
        null = [Backend.__new__(Backend).transfer(task, world.communicators[p], 7) for p in group]
        for _ in range(2):
            turns([begin() for begin in null], number)
        assert world.quiet
        counts.append(len(sent))
        sent.clear()
    assert counts == [counts[0], 2 * counts[0], 5 * counts[0]] and counts[0]


def test_backends_are_found_by_name() -> None:
    assert {"null", "numpy"} <= set(base.names())
    for name in ("null", "numpy"):
        assert issubclass(base.load(name), base.Backend)
    with pytest.raises(ValueError, match="did you mean 'numpy'"):
        base.load("numpi")
