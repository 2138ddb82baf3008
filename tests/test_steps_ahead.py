"""Steps that lie on a device behind others, on a stand-in: nobody waits for the host, and nothing else is different."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from castile.launch.here import gpus
from castile.runtime.runner import Runner
from tests.answers import answer
from tests.device_ranks import ONE, Plan, Ranks, on_host, same, small
from tests.late import device
from tests.strategies import batches, whole_on
from tests.test_gpus import host_with_gpus

TRAIN = "train mlp:layers=2,width=16 --search data_parallel --steps 30".split()


def test_results_are_of_their_step_when_the_next_one_has_ended_too() -> None:
    plan = Plan(small(), whole_on(small().graph), ONE, 1)
    host, losses = on_host(plan, 6).losses, []
    with device():
        ranks = Ranks(plan, "cuda")
        (execution,), fed = ranks.executions, iter(enumerate(batches(plan.problem, 6, exact=False)))
        (worker,) = execution.runner._workers
        ranks._feed(fed)
        for step in range(6):
            execution.runner.begin(False)
            execution.runner.advance()
            if step < 5:
                ranks._feed(fed)
                execution.runner.begin_ahead()
            # the first is no graph yet
            assert worker._is_followed == (1 <= step < 5)
            ranks._run()
            execution.runner.backend(0).compute_stream.synchronize()
            losses.append(float(execution.output(plan.problem.graph.loss)))
    assert losses == host and len(set(losses)) == 6


def test_what_has_no_room_on_the_host_is_read_before_the_next_step() -> None:
    plan = Plan(small(), whole_on(small().graph), ONE, 1)
    host = on_host(plan, 4)
    with device():
        from castile.runtime.backends.cuda import supply

        with patch.object(supply, "MOST_RESULT_BYTES", 0), followed() as steps:
            same(Ranks(plan, "cuda").train(4), host)
    assert not steps


def test_a_step_that_is_timed_lies_alone() -> None:
    plan = Plan(small(), whole_on(small().graph), ONE, 1)
    with device(), followed() as steps:
        ranks = Ranks(plan, "cuda")
        ranks.train(3)
        (runner,) = [execution.runner for execution in ranks.executions]
        runner.begin(True)
        runner.advance()
        runner.begin_ahead()
        assert steps == [2]
        ranks._run()
        assert len(runner.timeline().task) == ranks.prepared.tasks.num_tasks


@contextmanager
def followed(then: Callable[[int], object] = lambda step: None) -> Iterator[list[int]]:
    """The steps, counted from one, behind which another was put, and what is done at each."""
    steps = list[int]()

    def begin_ahead(runner: Runner) -> None:
        begun(runner)
        if any(worker._is_followed for worker in runner._workers):
            steps.append(runner.num_steps)
            then(runner.num_steps)

    begun = Runner.begin_ahead
    with patch.object(Runner, "begin_ahead", begin_ahead):
        yield steps


@pytest.fixture
def train(alone: Any, capsys: Any, monkeypatch: Any) -> Iterator[Callable[..., dict[str, Any]]]:
    """`castile train` on a host with GPUs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(alone))
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        yield lambda *more: answer(capsys, *TRAIN, *more)


def test_the_state_between_two_steps_is_there_for_whoever_wants_it(train) -> None:
    """Steps that are timed, saved or judged end before the next begins; others need not, and come to the same."""
    words = "--checkpoint-every 5 --evaluate-every 7 --checkpoint".split()
    with followed() as steps:
        found = train(*words, "saved")
    timed, wanted = {step for step in range(1, 31) if step % 4 == 0}, {*range(5, 31, 5), *range(7, 31, 7)}
    assert steps == [step for step in range(2, 30) if not {step, step + 1} & timed and step not in wanted]
    with patch.object(Runner, "begin_ahead"):
        alone = train(*words, "alone")
    for key in ("losses", "held_out_loss", "evaluations"):
        assert found[key] == alone[key], key


def test_one_who_is_asked_to_stop_ends_the_step_that_is_under_way(train) -> None:
    whole = train()
    at = 9

    def then(step: int) -> None:
        if step == at:
            signal.raise_signal(signal.SIGTERM)

    with followed(then) as steps:
        found = train("--checkpoint", "saved")
    assert found["stopped_by"] == "SIGTERM" and steps[-1] == at
    assert len(found["losses"]) == at + 1 and found["checkpoints"][-1]["step"] == at + 1
    again = train("--checkpoint", "saved", "--resume")
    assert found["losses"] + again["losses"] == whole["losses"]
