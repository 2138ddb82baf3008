"""Window: a step of many microbatches takes as long, and holds as much, where only a part of them is written out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from castile.launch.simulate import kinds, looked_through, undrawn
from castile.planner.evaluation import evaluator as evaluators
from castile.planner.evaluation import simulated_step as steps
from castile.planner.explanation import account, label
from castile.planner.known.seeds import seeds
from castile.planner.simulate import flatten, simulate
from castile.planner.simulation import repeats, serving, window
from castile.planner.simulation.ordering import ListScheduler, list_schedule
from castile.planner.simulation.window import Alike, Serve
from castile.planner.strategy import ORDERS, PATH, PROGRAM, READY, Strategy
from castile.runtime.task import NUM_LANES, Lane, TaskGraph
from castile.runtime.transfer import TooManyTransfers
from tests.cut_batches import assert_few_say_all, piped
from tests.effort import examples, rare
from tests.graphs import engine_maps
from tests.little import evaluator, machine, tower
from tests.test_repeats import Loop, loops

EXAMPLES, FEWER = examples(80), examples(40)
# What says of which microbatch a region or a task is, or of how many.
MICRO = re.compile(r"@[0-9:]+|#\d+| of \d+ more microbatches")


@pytest.mark.parametrize(
    ("order", "folded_from"),
    [(READY, 64), (PROGRAM, 1), (PATH, 1), *rare((READY, 1), (PROGRAM, 64), (PATH, 64))],
    ids=str,
)
def test_any_pipeline_takes_what_all_its_microbatches_take(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None], order: str, folded_from: int
) -> None:
    monkeypatch.setattr(evaluators, "FOLDED_FROM", folded_from)
    monkeypatch.setattr(evaluators, "FILLING", 4)
    # as of stages that drift
    monkeypatch.setattr(repeats, "cycle", lambda *few: None)
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        known, plan = pipeline(data, order)
        seen["in a window" if assert_few_say_all(known, plan) else "all"] += 1

    check()
    tell(f"windows by {order}: {', '.join(f'{what} {n}' for what, n in seen.items())}")
    # by PATH many put the gradients of parameters off to the end
    assert seen["in a window"] > EXAMPLES // (20 if order == PATH else 10)


def alike(loop: Loop, tasks: TaskGraph, number: np.ndarray, count: int) -> Alike:
    """Which tasks are of all microbatches but the first and the last, whose others wait for any."""
    size, kinds = len(loop.every), (window.FIRST, window.LAST)
    part = np.full(tasks.num_tasks, window.ALIKE, np.int8)
    part[number == 0], part[number == count - 1] = kinds
    part[number < 0] = np.where(np.diff(tasks.need_ptr)[number < 0] > 0, window.ALL, window.NONE)
    is_alike = part == window.ALIKE
    copy, length = np.where(is_alike, number - 1, 0), np.where(is_alike, size, 0)
    return Alike(part, copy.astype(np.int32), length.astype(np.int32), count - 2, 1)


@pytest.mark.parametrize("served", ["ready", "listed", "plain"])
def test_any_tasks_take_what_all_microbatches_take(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None], served: str
) -> None:
    """Whatever the first and the last one have of their own, and however far each engine is ahead of others."""
    is_listed = served == "listed"
    if served == "plain":
        monkeypatch.setattr(window, "compiled", lambda body: body)
    seen: Counter[bool] = Counter()

    @settings(max_examples=examples(400), derandomize=True, deadline=None)
    @given(loops(), engine_maps, st.integers(5, 12), st.integers(1, 30), st.lists(st.integers(0, 3), min_size=4))
    def check(loop: Loop, engines: Sequence[int], written: int, more: int, urgent: Sequence[int]) -> None:
        few, number, durations = loop.written(written)
        all_of_it, numbers, lasts = loop.written(written + more)
        serve: Serve = partial(serving.serve_ready, form="plain" if served == "plain" else "auto")
        if is_listed:
            of = [np.array([urgent[t % len(urgent)] for t in places(each)]) for each in (number, numbers)]
            serve = ListScheduler(flatten(few, durations, engines), of[0])
        found = window.simulate_window(few, durations, engines, alike(loop, few, number, written), more, serve)
        seen[found is not None] += 1
        if found is None:
            return
        given = all_of_it, lasts, engines
        whole = list_schedule(*given, of[1])[1] if is_listed else simulate(*given).timeline
        # the first, and as many others as there are from the last one on
        mine = (numbers == 0) | (numbers > more) | (numbers < 0)
        assert found.timeline.start.tolist() == whole.start[mine].tolist()
        assert found.timeline.end.tolist() == whole.end[mine].tolist()

    check()
    tell(f"in a window: {dict(seen)}")
    assert seen[True] > examples(400) // 3


def pipeline(data: st.DataObject, order: str) -> tuple[evaluators.Evaluator, Strategy]:
    """One in many microbatches, some of which it may begin ahead."""
    known, plan = piped(data, st.integers(20, 40))
    return known, msgspec.structs.replace(plan, order=order, ahead=data.draw(st.integers(0, 2)))


def places(number: np.ndarray) -> np.ndarray:
    """Which of the tasks of its microbatch each is, of which those of none come last."""
    of = np.where(number < 0, number.max() + 1, number)
    return np.arange(len(of)) - np.searchsorted(of, of)


def drifting(count: int) -> tuple[evaluators.Evaluator, Strategy]:
    """A pipeline in so many microbatches of which no few are said to say what all take."""
    known = evaluator(tower(4, batch=2 * count), machine(2), microbatches=count)
    return known, seeds(known.lowering)["pipeline_2"]


# Processors that are written out whole in one order: what is told knows no processors that stand for others.
@pytest.mark.parametrize(("order", "folded_from"), [*((order, 1) for order in ORDERS), *rare((PATH, 64))])
def test_any_pipeline_is_told_of_through_a_window_as_where_all_of_it_is_written_out(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None], order: str, folded_from: int
) -> None:
    """To the picosecond and the byte, cause by cause: what processors do and wait for, the longest chain, and who owns
    what when a processor is fullest.
    """
    monkeypatch.setattr(evaluators, "FOLDED_FROM", folded_from)
    monkeypatch.setattr(repeats, "cycle", lambda *few: None)
    # as on a large machine, of so many tasks that no more than a window of them can be looked at
    monkeypatch.setattr(evaluators, "LARGE", 1)
    seen: Counter[str] = Counter()

    @settings(max_examples=FEWER, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        known, plan = pipeline(data, order)
        few = looked_at(known, plan, 4, most=known._num_tasks(plan.microbatches, plan) - 1)
        seen["in a window" if few.left else "all"] += 1
        if few.left:
            check_told_alike(known, few, looked_at(known, plan, 1000))

    def looked_at(known: evaluators.Evaluator, plan: Strategy, filling: int, most: int = 2**30) -> steps.SimulatedStep:
        monkeypatch.setattr(evaluators, "FILLING", filling)
        monkeypatch.setattr(evaluators, "MOST_TASKS", most)
        try:
            return known.remade("time", lowering=known.lowering).step_of(plan)
        except TooManyTransfers:
            reject()

    check()
    tell(f"told in windows by {order}: {', '.join(f'{what} {n}' for what, n in seen.items())}")
    assert seen["in a window"] > FEWER // (20 if order == PATH else 10)


def check_told_alike(known: evaluators.Evaluator, few: steps.SimulatedStep, whole: steps.SimulatedStep) -> None:
    (owners, working), (all_owners, all_working) = (looked_through(of, known.cost) for of in (few, whole))
    assert few.peak_bytes.tolist() == whole.peak_bytes.tolist()
    assert [*map(by_name, owners)] == [*map(by_name, all_owners)]
    assert working.tolist() == all_working.tolist()
    assert few.busy_seconds.tolist() == whole.busy_seconds.tolist()
    assert kinds(few, working) == kinds(whole, all_working)
    left_out = undrawn(few)
    assert left_out is not None and undrawn(whole) is None
    assert left_out.computes.tolist() == (whole.busy_seconds / whole.seconds)[whole.role].tolist()
    found, other = (account(of, label(of, known.cost), known.cost) for of in (few, whole))
    assert (found.makespan, found.causes) == (other.makespan, other.causes)
    for name in ("num_tasks", "moved_bytes", "total", "spent", "awaited", "idle", "chain"):
        assert getattr(found, name).tolist() == getattr(other, name).tolist(), name


def by_name(owners: Sequence[tuple[str, int]]) -> Counter[str]:
    """The bytes of owners, of whatever microbatch they are."""
    found = Counter[str]()
    for name, nbytes in owners:
        found[MICRO.sub("", name)] += nbytes
    return found


def test_what_cannot_be_written_out_is_evaluated_and_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks at it sees a part of it, which is told of as the whole step."""
    monkeypatch.setattr(repeats, "cycle", lambda *few: None)
    known, plan = drifting(100)
    monkeypatch.setattr(evaluators, "FILLING", 200)
    whole, arenas = known.evaluate(plan), known.pack(plan)
    monkeypatch.setattr(evaluators, "FILLING", 4)
    other, plan = drifting(100)
    assert other.evaluate(plan) == whole and other.pack(plan) == arenas
    monkeypatch.setattr(evaluators, "MOST_TASKS", whole.num_tasks // 2)
    monkeypatch.setattr(steps, "MOST_WRITTEN", whole.num_tasks // 2)
    other, plan = drifting(100)
    assert other.evaluate(plan) == whole
    live = np.array(whole.peak_bytes)
    assert (np.array(other.pack(plan)) >= live).all() and (np.array(other.arenas(plan)) < 2 * live).all()
    drawn = other.step_of(plan)
    assert drawn.seconds == whole.seconds and drawn.left == 100 - drawn.num_microbatches > 50
    # the first and the last are called what they are
    shown = {int(of) for task in drawn.tasks.tasks for of in re.findall(r"@(\d+)", task.name)}
    assert shown == {0, 1, 2, *range(3 + drawn.left, 100)}


def test_where_more_are_under_way_than_are_written_out_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where gradients of parameters are put off to the end."""
    loop = Loop(1, [((0, Lane.COMPUTE), 1, set(), set()), ((0, Lane.HOST), 2, {0}, set())], [None, None], [], [])
    tasks, number, durations = loop.written(6)
    own = range(NUM_LANES)
    those = alike(loop, tasks, number, 6)
    assert window.simulate_window(tasks, durations, own, those, 3, serving.serve_ready) is not None
    loop = Loop(1, [((0, Lane.HOST), 2, set(), set()), ((0, Lane.COMPUTE), 1, set(), set())], [None, None], [], [])
    tasks, number, durations = loop.written(6)
    assert window.simulate_window(tasks, durations, own, alike(loop, tasks, number, 6), 3, serving.serve_ready) is None
