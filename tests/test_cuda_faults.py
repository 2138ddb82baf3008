"""Faults of a device, injected at every piece of work of a step: they end it, and its task or one after is named.

On a stand-in, which tells of them as CUDA and CuPy do: late, at every call, and to those who only look never.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from castile.planner.strategy import Config, Strategy
from castile.runtime.worker import Worker
from tests.late import device
from tests.strategies import whole_on
from tests.test_cuda import ONE, TWO, Plan, Ranks, small


class Noted:
    """Where in its rank's program the task stands that each piece of work on a device is for, -1 outside of a step."""

    def __init__(self) -> None:
        self.position: dict[Any, int] = {}
        self.workers: list[Worker] = []

    def enqueue(self, real: Any, stream: Any, work: Any, name: str, *places: Any) -> None:
        if self.workers:
            worker = self.workers[stream.device_id]
            self.position[work] = -1 if worker.done else worker.position
        real(stream, work, name, *places)


@contextmanager
def noted() -> Iterator[Noted]:
    """Of ranks that are made within, one worker each."""
    from cupy.cuda import Stream

    made, real = Noted(), Stream.enqueue
    with patch.object(Stream, "enqueue", lambda *args: made.enqueue(real, *args)):
        yield made


def faulty(plan: Plan, way: str, steps: int, at: int) -> tuple[Ranks, Noted, Exception | None]:
    """Ranks that have trained so many steps, of which a device fails after so many pieces of work of the last one."""
    import cupy

    from castile.runtime.comm.nccl import NcclCommunicator

    reach = NcclCommunicator if way == "nccl" else lambda comm: comm
    with noted() as found:
        ranks = Ranks(plan, "cuda", reach, lambda rank: cupy.cuda.Device(rank).use())
        found.workers = [worker for e in ranks.executions for worker in e.runner._workers]
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


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("way", ["alone", "nccl", "staged"])
def test_a_fault_of_any_kernel_ends_the_step_and_is_told_of_a_task_that_does_not_come_before(
    way: str, steps: int
) -> None:
    """A device that has failed says so late, and CuPy's `done` never does: nobody may wait for it for ever."""
    problem = small()
    apart = Strategy({name: Config({}, 1, (n % 2,)) for n, name in enumerate(problem.graph.nodes)})
    plan = Plan(problem, whole_on(problem.graph), ONE, 1) if way == "alone" else Plan(problem, apart, TWO, 2)
    told, failing = 0, set()
    for at in range(0, 1000, 2 if way == "alone" else 5):
        with device() as cupy:
            ranks, found, error = faulty(plan, way, steps, at)
            if error is None:
                break
            assert "cudaErrorIllegalAddress" in str(error)
            notes = getattr(error, "__notes__", ())
            if not notes:  # before the step, or after it
                continue
            ((rank, work),) = cupy.cuda.world.broken.items()
            program, position = found.workers[rank].program, found.workers[rank].position
            name = ranks.prepared.tasks.tasks[program.tasks[position]].name
            assert notes[1] == f"step {steps}, at or before task {name}, rank {rank}"
            assert "CUDA_LAUNCH_BLOCKING=1" in notes[0]
            # within a graph its nodes are the work
            assert found.position[work] <= position
            told += 1
            failing.add((rank, found.position[work]))
    assert error is None and told > 10 and len(failing) > 4


def test_where_kernels_are_waited_for_the_one_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    problem, named = small(), set()
    for at in range(0, 1000, 3):
        with device() as cupy:
            ranks, found, error = faulty(Plan(problem, whole_on(problem.graph), ONE, 1), "alone", 3, at)
            (worker,) = found.workers
            assert worker._graph is None and "CUDA_LAUNCH_BLOCKING is set" in worker.remark
            if error is None:
                break
            if not hasattr(error, "__notes__"):
                continue
            assert found.position[cupy.cuda.world.broken[0]] == worker.position
            name = ranks.prepared.tasks.tasks[worker.program.tasks[worker.position]].name
            assert error.__notes__ == [f"step 3, task {name}, rank 0"]
            named.add(name)
    assert error is None and len(named) > len(worker.program.tasks) // 4
