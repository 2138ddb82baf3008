"""The delta simulation against the full one: over random sequences of changes to any graph, ties included."""

import random
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.simulate import simulate
from castile.planner.simulation import delta_state, retime
from castile.planner.simulation.delta import Change, Delta, max_picoseconds
from castile.runtime.task import NUM_LANES, Kind, Lane
from castile.runtime.timeline import PICOSECONDS
from tests import flexflow
from tests.effort import examples
from tests.graphs import Draft, engine_maps, flat

FORMS = ("auto", "plain")


@dataclass(frozen=True)
class Item:
    """A task; needs are numbers."""

    order: int
    lasts: int
    lanes: tuple[int, ...]
    needs: tuple[int, ...]


@dataclass
class Sketch:
    """A graph that changes at random: its tasks by number, each before those that need it.

    near   whether tasks need only those shortly before them, as the layers of a network do
    """

    rng: random.Random
    num_procs: int
    longest: int
    near: bool
    items: dict[int, Item] = field(default_factory=dict)
    num_orders: int = 0

    def grow(self, count: int) -> None:
        for number in range(count):
            self.items[number] = self.drawn(list(self.items))

    def drawn(self, earlier: list[int]) -> Item:
        """Any task after these; orders have nothing to do with needs."""
        rng, self.num_orders = self.rng, self.num_orders + 1
        procs = rng.sample(range(self.num_procs), rng.randint(1, min(3, self.num_procs)))
        lanes = [(p, Lane.COLLECTIVE) for p in procs]
        if len(procs) == 1:
            lanes = [(procs[0], rng.choice([Lane.COMPUTE, Lane.COMPUTE, Lane.HOST]))]
        elif rng.random() < 0.5:
            lanes = [(p, Lane.SEND if n == 0 else Lane.RECEIVE) for n, p in enumerate(procs)]
        pool = earlier[-4:] if self.near else earlier
        needs = rng.sample(pool, min(len(pool), rng.randint(0, 3)))
        order = self.num_orders + 1000 * rng.randint(-9, 9)
        return Item(order, rng.randint(1, self.longest), tuple(p * NUM_LANES + l for p, l in lanes), tuple(needs))

    def changed(self) -> dict[int, Item]:
        """Some tasks anew, some with other durations, some gone, some more, and others that come to need those."""
        rng, line, items = self.rng, list(self.items), dict(self.items)
        for number in rng.sample(line, min(len(line), rng.randint(0, 3))):
            at = line.index(number)
            if rng.random() < 0.3:
                line.remove(number)
            elif rng.random() < 0.5:
                items[number] = self.drawn(line[:at])
            else:
                old = items[number]
                items[number] = Item(old.order, rng.randint(1, self.longest), old.lanes, old.needs)
        for _ in range(rng.randint(0, 3)):
            number, at = rng.choice([n for n in range(len(self.items) + 9) if n not in line]), rng.randint(0, len(line))
            items[number] = self.drawn(line[:at])
            line.insert(at, number)
            for user in rng.sample(line[at + 1 :], min(2, len(line) - at - 1)):
                old = items[user]
                items[user] = Item(old.order, old.lasts, old.lanes, (*old.needs, number))
        # what has gone, or comes later now, is needed no more
        place = {number: n for n, number in enumerate(line)}
        result = {}
        for n, number in enumerate(line):
            old = items[number]
            needs = tuple(m for m in dict.fromkeys(old.needs) if place.get(m, n) < n)
            result[number] = Item(old.order, old.lasts, old.lanes, needs)
        return result


def change(old, new):
    """What makes one graph into the other."""
    come = [n for n, item in new.items() if old.get(n) != item]
    gone = [n for n, item in old.items() if new.get(n) != item]
    lane_ptr, lanes = flat([list(new[n].lanes) for n in come])
    need_ptr, needs = flat([list(new[n].needs) for n in come])
    order, lasts = (np.array([getattr(new[n], name) for n in come], np.int64) for name in ("order", "lasts"))
    return Change(np.array(gone, np.int64), np.array(come, np.int64), order, lasts, lane_ptr, lanes, need_ptr, needs)


def full(items, num_procs, engines):
    """Start and end of each task, by number, and the seconds of all."""
    draft, index = Draft(num_procs), {number: n for n, number in enumerate(items)}
    for item in items.values():
        lanes = [divmod(lane, NUM_LANES) for lane in item.lanes]
        draft.task(lanes, [index[n] for n in item.needs], item.lasts, order=item.order)
    graph = draft.graph()
    durations = np.array([int(key.name[1:]) for key in graph.cost_keys], np.int64)
    result = simulate(graph, durations, engines)
    spans = zip(result.timeline.start.tolist(), result.timeline.end.tolist())
    return dict(zip(items, spans, strict=True)), result.seconds


def spans(delta):
    times = delta.timeline
    return {n: (a, b) for n, a, b in zip(times.task.tolist(), times.start.tolist(), times.end.tolist())}


@pytest.mark.parametrize("form", (*FORMS, "loads between"))
@settings(max_examples=examples(100))
@given(
    seed=st.integers(0, 2**32),
    num_tasks=st.integers(0, 60),
    num_procs=st.integers(1, 4),
    longest=st.sampled_from([1, 2, 5, 50]),
    near=st.booleans(),
    engines=engine_maps,
)
def test_changes_one_after_the_other_equal_the_full_simulation(
    seed, num_tasks, num_procs, longest, near, engines, form
):
    """Also where what engines have done is known between too, as of thousands of tasks; compiled, numbers are fixed."""
    if form == "loads between":
        with mock.patch.object(delta_state, "STRIDE", 1), mock.patch.object(retime, "STRIDE", 1):
            assert_alike(seed, num_tasks, num_procs, longest, near, engines, "plain")
    else:
        assert_alike(seed, num_tasks, num_procs, longest, near, engines, form)


def assert_alike(seed, num_tasks, num_procs, longest, near, engines, form):
    rng = random.Random(seed)
    sketch = Sketch(rng, num_procs, longest, near)
    sketch.grow(num_tasks)
    delta = Delta(num_procs, engines, form)
    assert delta.propose(change({}, sketch.items)) is not None
    delta.accept()
    for _ in range(6):
        items = sketch.changed()
        expected, seconds = full(items, num_procs, engines)
        before = spans(delta), delta.seconds
        limit = seconds + rng.choice([-1, 0, 1, 3]) * 1e-12
        found = delta.propose(change(sketch.items, items), limit)
        assert found == (seconds if seconds <= limit else None)
        assert (spans(delta), delta.seconds) == before
        if rng.random() < 0.8:
            assert delta.propose(change(sketch.items, items)) == seconds
            delta.accept()
            sketch.items = items
            assert spans(delta) == expected
            assert delta.seconds == seconds


def of_example(example):
    """Tasks by their numbers in the figure before the change."""
    graph, durations, number = example.graph
    known = {name: n for n, name in enumerate(flexflow.before().exe)}
    named = {n: known[name] for name, n in number.items()}
    items = {}
    for n in range(graph.num_tasks):
        lasts = int(durations[graph.cost[n]])
        needs = tuple(named[m] for m in graph.needs_of(n).tolist())
        items[named[n]] = Item(named[n], lasts, tuple(graph.lanes_of(n).tolist()), needs)
    return items, known


@pytest.mark.parametrize("form", FORMS)
def test_flexflow_worked_example(form):
    """Figure 4 of Jia, Zaharia, Aiken, MLSys 2019: operator o3 drops to degree 1, number for number."""
    before, after = flexflow.before(), flexflow.after()
    (old, number), (new, _) = of_example(before), of_example(after)
    delta = Delta(5, tuple(Lane), form)
    delta.propose(change({}, old))
    delta.accept()
    for items, example in ((old, before), (new, after)):
        found = delta.propose(change(old, items))
        assert found == example.makespan / 10**12
        delta.accept()
        for name, (ready, start) in example.expected.items():
            times = spans(delta)
            assert max((times[n][1] for n in items[number[name]].needs), default=0) == ready
            assert times[number[name]][0] == start
        old = items


def chain(length, num_procs=2):
    """Tasks one after the other, each on the next processor."""
    return {n: Item(n, 3, (n % num_procs * NUM_LANES,), (n - 1,) if n else ()) for n in range(length)}


@pytest.mark.parametrize("form", FORMS)
def test_what_only_moves_is_not_timed_one_by_one(form):
    """All after the change begins later, all by as much: a few tasks around the two places are looked at."""
    old = chain(500)
    delta = Delta(2, tuple(Lane), form)
    delta.propose(change({}, old))
    delta.accept()
    assert delta.num_timed == 500
    new = dict(old)
    for n in (100, 400):
        new[n] = Item(n, 5, old[n].lanes, old[n].needs)
    assert delta.propose(change(old, new)) == (3 * 500 + 2 * 2) * 1e-12
    assert delta.num_timed < 20
    delta.accept()
    assert spans(delta) == full(new, 2, tuple(Lane))[0]


def test_graph_as_a_whole():
    graph, durations, _ = flexflow.before().graph
    times = simulate(graph, durations, tuple(Lane)).timeline
    found = Delta.of(graph, durations, tuple(Lane)).timeline
    assert found.task.tolist() == times.task.tolist()
    assert found.start.tolist() == times.start.tolist()
    assert found.end.tolist() == times.end.tolist()


def test_task_lasts_a_picosecond_at_least():
    draft = Draft(1)
    draft.task([(0, Lane.COMPUTE)], kind=Kind.COMPUTE)
    assert Delta.of(draft.graph(), np.array([0]), tuple(Lane)).seconds == 1e-12


def test_cycle_and_missing_needs_are_our_fault():
    old = chain(3)
    delta = Delta(2, tuple(Lane), "plain")
    delta.propose(change({}, old))
    delta.accept()
    cycle = {**old, 0: Item(0, 3, old[0].lanes, (2,))}
    with pytest.raises(AssertionError, match="cycle"):
        delta.propose(change(old, cycle))


def test_unknown_form_is_refused():
    with pytest.raises(ValueError, match="'cuda'"):
        Delta(1, tuple(Lane), "cuda")


@given(st.floats(0, 1e6), st.integers(-2000, 2000))
def test_limit_in_picoseconds_is_the_last_that_does_not_pass_it(limit, away):
    most = max_picoseconds(limit)
    assert most / PICOSECONDS <= limit < (most + 1) / PICOSECONDS
    assert (most + away) / PICOSECONDS <= limit if away <= 0 else (most + away) / PICOSECONDS > limit
