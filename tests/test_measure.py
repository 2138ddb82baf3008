"""Measuring plans leaves a process as it was: what was made for it is gone, nobody else's garbage is looked for."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from castile.launch.measuring import measure
from castile.planner.costs.learn import DELAYED
from castile.runtime.comm.local import LocalWorld
from castile.runtime.garbage import is_frozen, set_aside


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.own = self


def trial(name, peak_bytes):
    """Of a plan that needs so much on each processor."""
    return measure.TimedPlan(name, None, SimpleNamespace(packing=SimpleNamespace(peak_bytes=np.array(peak_bytes))), 0)


def job(room, backend="numpy"):
    """On processors of so much memory."""
    return SimpleNamespace(backend=backend, machine=SimpleNamespace(capacity=np.array(room)))


@pytest.fixture(autouse=True)
def collected_by_nobody_else() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    yield
    if was:
        gc.enable()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_what_was_measured_is_free_and_what_was_there_is_left_alone(fails, frozen, monkeypatch):
    made: list[weakref.ref] = []

    def take_turns(*_) -> None:
        made.append(weakref.ref(Ring()))
        if fails:
            raise ValueError("too little memory")

    monkeypatch.setattr(measure, "_take_turns", take_turns)
    before = weakref.ref(Ring())
    with set_aside() if frozen else nullcontext():
        try:
            measure.measure(job([1]), [trial("a", [1])], lambda *_: None, 0.0, 1)
        except ValueError:
            assert fails
        assert [one() for one in made] == [None]
        assert before() is not None and is_frozen() == frozen
    assert not is_frozen()
    # Nobody but itself refers to it. (To look for garbage once more takes seconds after thousands of tests.)
    before().own = None
    assert before() is None


@pytest.mark.parametrize(
    ("backend", "room", "wanted"),
    [
        ("numpy", [100, 100], [["a", "b", "c", "d"]]),
        ("numpy", [60, 40], [["a", "b"], ["c"], ["d"]]),
        ("numpy", [30, 30], [["a"], ["b"], ["c"], ["d"]]),
        ("numpy", [1, 1], [["a"], ["b"], ["c"], ["d"]]),
        ("cuda", [100, 100], [["a"], ["b"], ["c"], ["d"]]),
    ],
)
def test_plans_take_turns_as_far_as_memory_holds_them_together(backend, room, wanted, monkeypatch):
    """Each processor has to hold what all of a turn need there."""
    needs = {"a": [30, 10], "b": [30, 10], "c": [5, 30], "d": [30, 20]}
    trials = [trial(name, peak) for name, peak in needs.items()]
    taken: list[list[str]] = []
    monkeypatch.setattr(measure, "_take_turns", lambda job, those, *_: taken.append([t.name for t in those]))
    measure.measure(job(room, backend), trials, lambda *_: None, 0.0, 1)
    assert taken == wanted


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize(("seconds", "held_up_for"), [(0.004, 0.0), (0.004, 0.1), (0.004, 9.0), (1.0, 0.0), (1.0, 9.0)])
def test_steps_are_warm_and_nothing_holds_them_up_before_they_are_timed(seconds, held_up_for, crowded, monkeypatch):
    """But not for long, where other programs will go on; on too few cores that is how steps are."""
    clock = SimpleNamespace(now=0.0, delayed=0)
    steps = []

    def run() -> None:
        steps.append(clock.now)
        clock.delayed += int(2e9 * DELAYED * seconds * (clock.now < held_up_for))
        clock.now += seconds

    monkeypatch.setattr(measure, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(measure.cores, "delayed_ns", lambda: clock.delayed)
    comm = LocalWorld(1).communicators[0]
    comm.crowded = crowded
    both = [SimpleNamespace(runner=SimpleNamespace(run=run))] * 2
    measure._warm_up(SimpleNamespace(comm=comm, agree=lambda make: make()), both)
    waits = 0.0 if crowded else held_up_for
    least = min(max(measure.WARM_UP_SECONDS, waits), measure.MOST_WARM_UP_SECONDS)
    # a round is what both take
    assert len(steps) >= 2 * measure.WARM_UP
    assert least <= clock.now <= max(least + 4 * seconds, 2 * measure.WARM_UP * seconds)
