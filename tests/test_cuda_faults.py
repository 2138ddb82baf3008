"""Faults of a device, injected at pieces of work of a step: they end it, and no task before theirs is named.

Pieces are every second, third or fifth. On a stand-in, which tells of faults as CUDA and CuPy do: late, at every call,
and to those who only look never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import Level, Machine
from castile.runtime.worker import Worker
from tests.device_ranks import ONE, TWO, Plan, Ranks, small
from tests.effort import rare
from tests.late import device
from tests.strategies import Problem, batches, whole_on

FOUR = Machine("four", ONE.processors * 4, (Level("link", 4, 1e-6, 1e9),))


class Noted:
    """The worker that put each piece of work onto a device, and where in its program it stood; none outside of a step.

    worker  the one that begins or goes on, or has failed at that. begins: whether at its beginning
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.begins = False
        self._stood: dict[Any, tuple[Worker, int]] = {}

    def within(self, worker: Worker, call: Callable[..., Any], *args: Any) -> Any:
        self.worker, self.begins = worker, call.__name__ == "begin"
        found = call(*args)
        self.worker = None
        return found

    def enqueue(self, real: Any, stream: Any, work: Any, name: str, *places: Any) -> None:
        if self.worker is not None:
            self._stood[work] = self.worker, self.worker.position
        real(stream, work, name, *places)

    def of(self, work: Any) -> tuple[Worker | None, int]:
        return self._stood.get(work, (None, -1))


@contextmanager
def noted() -> Iterator[Noted]:
    """Of streams that are used within."""
    from cupy.cuda import Stream

    made, real = Noted(), Stream.enqueue
    with patch.object(Stream, "enqueue", lambda *args: made.enqueue(real, *args)):
        yield made


def workers_of(ranks: Ranks) -> list[Worker]:
    return [worker for execution in ranks.executions for worker in execution.runner._workers]


def name_of(ranks: Ranks, worker: Worker, position: int) -> str:
    return str(ranks.prepared.tasks.tasks[worker.program.tasks[position]].name)


def in_graph(worker: Any, work: Any) -> bool:
    """Whether work is a node of the worker's step."""
    graph = getattr(worker, "_graph", None)
    return graph is not None and any(work is node for node, _, _ in getattr(graph, "captured", graph).nodes)


def faulty(plan: Plan, way: str, steps: int, at: int) -> tuple[Ranks, Noted, Exception | None]:
    """Ranks that have trained so many steps, of which a device fails after so many pieces of work of the last one."""
    import cupy

    from castile.runtime.comm.nccl import NcclCommunicator

    reach = NcclCommunicator if way == "nccl" else lambda comm: comm
    with noted() as found:
        ranks = Ranks(plan, "cuda", reach, lambda rank: cupy.cuda.Device(rank).use())
        for worker in workers_of(ranks):
            worker.begin = partial(found.within, worker, worker.begin)  # type: ignore[method-assign]
            worker.advance = partial(found.within, worker, worker.advance)  # type: ignore[method-assign]
        if steps > 1:
            ranks.train(steps - 1)
        cupy.cuda.world.fails_at = len(cupy.cuda.world.done) + at
        try:
            ranks.train(1)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return ranks, found, error
    # nobody waited for what had come to it
    assert not cupy.cuda.world.broken
    return ranks, found, None


def apart(problem: Problem, num_procs: int) -> Strategy:
    """Each node on the next processor."""
    return Strategy({name: Config({}, 1, (n % num_procs,)) for n, name in enumerate(problem.graph.nodes)})


@pytest.mark.parametrize(
    ("way", "steps"),
    [("alone", 3), ("nccl", 3), ("staged", 1), ("shared", 1),
     *rare(("alone", 1), ("nccl", 1), ("staged", 3), ("shared", 3))],
)  # fmt: skip
def test_a_fault_of_any_kernel_ends_the_step_and_is_told_of_a_task_that_does_not_come_before(
    way: str, steps: int
) -> None:
    """A device that has failed says so late, and CuPy's `done` never does: nobody may wait for it for ever."""
    problem = small()
    plan = {
        "alone": Plan(problem, whole_on(problem.graph), ONE, 1),
        "shared": Plan(problem, apart(problem, 4), FOUR, 2),
    }.get(way, Plan(problem, apart(problem, 2), TWO, 2))
    others = " or on another processor" * (way == "shared")
    told, captured, elsewhere, failing = 0, 0, 0, set()
    for at in range(0, 1000, 2 if way == "alone" else 5):
        with device() as cupy:
            ranks, found, error = faulty(plan, way, steps, at)
            if error is None:
                break
            assert "cudaErrorIllegalAddress" in str(error)
            notes = getattr(error, "__notes__", ())
            if found.worker is None:  # before the step, or after it
                assert not notes
                continue
            ((rank, work),) = cupy.cuda.world.broken.items()
            worker, (owner, failed) = found.worker, found.of(work)
            name = name_of(ranks, worker, worker.position)
            assert notes[1] == f"step {steps}, at or before task {name}{others}, rank {rank}"
            assert "CUDA_LAUNCH_BLOCKING=1" in notes[0]
            if in_graph(worker, work):  # of which all tasks are launched at once
                assert worker.position == len(worker.program.tasks) - 1
                captured += 1
            elif owner in (worker, None):  # work of no task is what a step begins with
                assert failed <= worker.position
            else:
                assert owner in ranks.executions[rank].runner._workers and others
                elsewhere += 1
            told += 1
            failing.add((rank, owner and name_of(ranks, owner, failed)))
    assert error is None and told > 10 and len(failing) > 4
    assert bool(captured) == (steps > 1 and way in ("alone", "nccl")) and bool(elsewhere) == (way == "shared")


@pytest.mark.parametrize("fails", [False, True], ids=["well", "failed"])
@pytest.mark.parametrize("captured", [False, True], ids=["issued", "captured"])
@pytest.mark.parametrize("known", ["", "late", "alone"])
def test_a_transfer_that_fails_is_named_alone_only_where_it_is_known_and_the_device_is_well(
    known: str, captured: bool, fails: bool
) -> None:
    """Where the device has failed too, NCCL may be the first to say so, and a kernel after the transfer the one."""
    problem = small()
    with device() as cupy:
        from castile.runtime.comm.nccl import NcclCommunicator, TransferError

        plan = Plan(problem, apart(problem, 2), TWO, 2)
        ranks = Ranks(plan, "cuda", NcclCommunicator, lambda rank: cupy.cuda.Device(rank).use())
        if captured:
            ranks.train(2)
        ranks._feed(iter(enumerate(batches(problem, 1, exact=False))))
        (worker, _), (first, _) = workers_of(ranks), ranks.executions
        task = next(n for n, moves in enumerate(worker.program.asynchronous) if moves)

        def check() -> None:
            if fails:
                cupy.cuda.world.broken[0] = check
            which = [name for name, at in worker._named.items() if at == worker.program.tasks[task]]
            raise TransferError("no peer", which[0] if known else None, known == "late")

        cupy.cuda.Device(0).use()
        with patch.object(worker, "_check", check), pytest.raises(RuntimeError, match="no peer") as caught:
            first.run()  # the other rank never comes
        assert (worker._graph is not None) == captured
        last = len(worker.program.tasks) - 1
        assert task < last
        said = "task " + name_of(ranks, worker, task if known and not fails else last)
        said = said if known == "alone" and not fails else f"at or before {said}"
        assert caught.value.__notes__[-1] == f"step {1 + 2 * captured}, {said}, rank 0"


def test_a_graph_whose_launch_fails_by_itself_clears_no_task() -> None:
    problem = small()
    with device():
        ranks = Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda")
        ranks.train(2)
        (worker,) = workers_of(ranks)
        launch = patch.object(worker._graph, "launch", side_effect=RuntimeError("out of resources"))
        with launch, pytest.raises(RuntimeError, match="out of resources") as caught:
            ranks.train(1)
        name = name_of(ranks, worker, -1)
        assert caught.value.__notes__ == [f"step 3, at or before task {name}, rank 0"]


def test_where_kernels_are_waited_for_the_one_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    problem, named = small(), set()
    for at in range(0, 1000, 3):
        with device() as cupy:
            ranks, found, error = faulty(Plan(problem, whole_on(problem.graph), ONE, 1), "alone", 3, at)
            (worker,) = workers_of(ranks)
            assert worker._graph is None and "CUDA_LAUNCH_BLOCKING is set" in worker.remark
            if error is None:
                break
            if found.worker is None:
                continue
            assert found.of(cupy.cuda.world.broken[0]) == (worker, worker.position)
            # what a step begins with is brought before its first task
            name, before = name_of(ranks, worker, worker.position), "at or before " * found.begins
            assert error.__notes__ == [f"step 3, {before}task {name}, rank 0"] and not (before and worker.position)
            named.add(name)
    assert error is None and len(named) > len(worker.program.tasks) // 4


@pytest.mark.parametrize(
    ("way", "timed"),
    [("alone", False), ("nccl", True), ("staged", True), ("shared", False),
     *rare(("alone", True), ("nccl", False), ("staged", False), ("shared", True))],
)  # fmt: skip
def test_whatever_a_call_raises_is_told_with_step_task_and_rank(way: str, timed: bool) -> None:
    """Any call that puts something onto a stream, from the beginning of a step until its times are asked for."""
    problem, places = small(), set()
    plan = {
        "alone": Plan(problem, whole_on(problem.graph), ONE, 1),
        "shared": Plan(problem, apart(problem, 4), FOUR, 2),
    }.get(way, Plan(problem, apart(problem, 2), TWO, 2))
    # where times are taken, of more calls fewer
    few, many = (7, 19) if way == "alone" else (23, 67)
    for at in range(0, 1000, many if timed else few):
        with device() as cupy, noted() as found:
            from castile.runtime.comm.nccl import NcclCommunicator

            reach = NcclCommunicator if way == "nccl" else lambda comm: comm
            ranks = Ranks(plan, "cuda", reach, lambda rank: cupy.cuda.Device(rank).use())
            for worker in workers_of(ranks):
                for name in ("begin", "advance", "times"):
                    setattr(worker, name, partial(found.within, worker, getattr(worker, name)))
            try:
                with failing_at(at, found):
                    ranks.train(2, timed)
            except ZeroDivisionError as error:
                failed, (note,) = found.worker, error.__notes__
                (execution,) = (e for e in ranks.executions if failed in e.runner._workers)
                assert failed is not None
                name = name_of(ranks, failed, failed.position)
                assert f"task {name}" in note and note.endswith(f", rank {execution.comm.rank}")
                places.add(note.partition(",")[::2])
            else:
                break
    assert len(places) > 2 and {step for step, _ in places} == {"step 1", "step 2"}


@contextmanager
def failing_at(number: int, found: Noted) -> Iterator[None]:
    """A fault of the call of that number among those that a step makes, which the device knows nothing of."""
    from cupy.cuda import Stream

    left, real = [number], Stream.enqueue

    def enqueue(*args: Any) -> None:
        left[0] -= found.worker is not None
        if left[0] < 0:
            left[0] = 1000
            raise ZeroDivisionError("boom")
        real(*args)

    with patch.object(Stream, "enqueue", enqueue):
        yield


@pytest.mark.parametrize("fails", [False, True], ids=["well", "failed"])
def test_what_comes_up_beside_a_step_is_its_fault_only_where_the_device_has_failed(fails: bool) -> None:
    """The next step's samples are brought while one is under way: a kernel of that one may be to blame."""
    problem = small()
    with device() as cupy:
        ranks = Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda")
        ranks._feed(iter(enumerate(batches(problem, 1, exact=False))))

        def meanwhile() -> None:
            if fails:
                cupy.cuda.world.broken[0] = meanwhile
            raise ValueError("no such sample")

        wanted = cupy.cuda.runtime.CUDARuntimeError if fails else ValueError
        with pytest.raises(wanted) as caught:
            ranks.executions[0].run(meanwhile)
        last = name_of(ranks, workers_of(ranks)[0], -1)
        told = [f"step 1, at or before task {last}, rank 0"] * fails
        assert getattr(caught.value, "__notes__", [])[-1:] == told
