"""Nearness: who is nearest by groups of links is nearest by distance, and those who have the same near take turns."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from castile.runtime.levels import Level
from castile.runtime.machine import Machine, Processor
from castile.runtime.nearness import Nearness
from tests.effort import examples

PROCESSOR = Processor("p", 1e9, 1e9, 2**30)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Of up to three levels, whose last groups need not be full."""
    groups = [draw(st.integers(2, 3))]
    for _ in range(draw(st.integers(0, 2))):
        groups.append(groups[-1] * draw(st.integers(2, 3)))
    num_procs = draw(st.integers(2, groups[-1]))
    levels = [Level(f"level{n}", group, 0.0, 1e9) for n, group in enumerate(groups)]
    return Machine("drawn", (PROCESSOR,) * num_procs, tuple(levels))


def holders(machine: Machine) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, machine.num_procs - 1), min_size=1, unique=True).map(tuple)


@settings(max_examples=examples(100))
@given(st.data())
def test_who_is_nearest_by_groups_is_so_by_distance(data) -> None:
    machine = data.draw(machines())
    procs = data.draw(holders(machine))
    held = Nearness(machine.groups).holders(procs)
    for proc in range(machine.num_procs):
        far = [machine.distance(proc, other) for other in procs]
        assert held.nearest(proc).procs == tuple(p for p, d in zip(procs, far, strict=True) if d == min(far))


@settings(max_examples=examples(100))
@given(st.data())
def test_who_have_the_same_near_take_them_in_turn(data) -> None:
    """Also of several things, as long as the same are near; and who asks again is told the same."""
    machine = data.draw(machines())
    nearness = Nearness(machine.groups)
    every = [nearness.holders(data.draw(holders(machine))) for _ in range(2)]
    rows = data.draw(st.lists(st.tuples(st.integers(0, machine.num_procs - 1), st.sampled_from(every))))
    told = {(proc, id(held)): held.asked(proc, None) for proc, held in rows}
    asked = Counter[tuple[tuple[int, ...], int]]()
    for proc, held in dict.fromkeys(rows):
        found, near = told[proc, id(held)], held.nearest(proc).procs
        assert found == held.asked(proc, None) and found in near
        asked[near, found] += 1
    for near, _ in asked:
        counts = [asked[near, proc] for proc in near]
        assert counts == sorted(counts, reverse=True) and max(counts) <= min(counts) + 1


@settings(max_examples=examples(100))
@given(st.data())
def test_who_holds_something_else_asks_who_is_there_where_that_is_near(data) -> None:
    machine = data.draw(machines())
    procs, anyone = data.draw(holders(machine)), st.integers(0, machine.num_procs - 1)
    proc, at = data.draw(anyone), data.draw(anyone)
    held = Nearness(machine.groups).holders(procs)
    near = held.nearest(proc).procs
    assert held.asked(proc, at) == (procs[at] if at < len(procs) and procs[at] in near else near[0])
