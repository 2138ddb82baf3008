"""Dependence: edges between tasks by brute force, versions by what they must hold, and programs by simple rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.runtime.dependence import complete, everywhere, filled, in_place, links, scan, version
from castile.runtime.machine import local, parse, presets
from castile.runtime.region import Box, contains, relative, slices, whole
from castile.runtime.task import NUM_LANES, Kind, Lane
from castile.runtime.transfer import Source
from tests import transfers
from tests.effort import examples
from tests.transfers import situations

few = st.lists(st.integers(0, 4), max_size=3, unique=True)
# Of what is no message from one processor to another.
_LANES = {Kind.PACK: Lane.COMPUTE, Kind.FOLD: Lane.COMPUTE, Kind.COLLECTIVE: Lane.COLLECTIVE}


def closure(num_tasks: int, edges) -> list[set[int]]:
    """All that comes before each task."""
    before: list[set[int]] = [set() for _ in range(num_tasks)]
    for a, b in sorted(edges, key=lambda edge: edge[1]):
        before[b] |= before[a] | {a}
    return before


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(few, few), max_size=12))
def test_edges_are_those_of_all_conflicting_pairs(touches) -> None:
    edges = [tuple(edge) for edge in scan(touches).tolist()]
    conflicts = []
    for b, (reads_b, writes_b) in enumerate(touches):
        for a, (reads_a, writes_a) in enumerate(touches[:b]):
            if {*writes_a} & {*reads_b, *writes_b} or {*reads_a} & {*writes_b}:
                conflicts.append((a, b))
    assert set(edges) <= set(conflicts) and edges == sorted(set(edges))
    assert closure(len(touches), edges) == closure(len(touches), conflicts)


def analysed(situation, **how):
    sources, reads, _ = situation
    return version(sources, reads, "float64", transfers.links(), **how)


@settings(max_examples=100)
@given(transfers.layouts((6, 4), 4), st.integers(0, 3), st.booleans(), st.booleans())
def test_what_is_read_where_it_is_made_needs_no_analysis(layout, num_readers, carried: bool, overwritten: bool) -> None:
    apart = list(dict(layout).items())
    held = [(proc, box) for box, procs in apart for proc in procs]
    contributions = [Source(box, procs) for box, procs in apart]
    known = transfers.links()
    found = in_place(held, num_readers, carried, overwritten)
    analysed = version(contributions, held * num_readers, "float64", known, carried, overwritten)
    assert_same(found, analysed)


def assert_same(found, analysed):
    """Versions of which nothing is moved."""
    assert found.instances == analysed.instances and found.patterns == analysed.patterns == ()
    assert found.frames == analysed.frames
    for name in ("made", "adds", "located", "edges", "touched", "first"):
        assert np.array_equal(getattr(found, name), getattr(analysed, name)), name


@settings(max_examples=50)
@given(st.sampled_from([(), (3,), (2, 4)]), st.integers(1, 4), st.lists(st.integers(0, 3), max_size=8))
def test_what_the_host_puts_everywhere_is_what_it_fills(shape, num_procs: int, more) -> None:
    located = [*range(num_procs), *(slot for slot in more if slot < num_procs)]
    found = everywhere(whole(shape), num_procs, np.array(located, np.int64))
    assert_same(found, filled([(slot, whole(shape)) for slot in located]))


@settings(max_examples=examples(200))
@given(situations(), st.booleans(), st.booleans())
def test_a_version_numbers_its_ports_in_one_row(situation, carried: bool, overwritten: bool) -> None:
    """Every reader finds its box in a piece on its processor, and what it reads with gaps is of that piece's shape."""
    sources, reads, _ = situation
    v = analysed(situation, carried=carried, overwritten=overwritten)
    makers = sum(len(s.procs) for s in sources)
    ports = (0 if carried else makers) + len(v.patterns) + len(reads) + (makers if overwritten else 0)
    assert len(v.made) == len(v.adds) == makers and len(v.located) == len(reads)
    assert {int(port) for port, _ in v.touched} == set(range(ports))
    where = [(Lane.SEND, Lane.RECEIVE) if p.kind == Kind.MOVE else (_LANES[p.kind],) * len(p.procs) for p in v.patterns]
    occupied = [n * NUM_LANES + lane for p, lanes in zip(v.patterns, where) for n, lane in zip(p.procs, lanes)]
    assert v.lanes[0].tolist() == [len(p.procs) for p in v.patterns] and v.lanes[1].tolist() == occupied
    assert (v.edges[:, 0] < v.edges[:, 1]).all() and v.edges.max(initial=0) < ports
    for (proc, box), piece, frame in zip(reads, v.located, v.frames, strict=True):
        held = v.instances[piece].box
        assert v.instances[piece].proc == proc and contains(held, box)
        read = np.zeros(held.shape)[slices(relative(box, held))]
        assert frame == (None if read.flags.c_contiguous else held.shape)


@settings(max_examples=examples(200))
@given(situations())
def test_what_is_there_before_begins_with_no_port_and_all_else_with_its_first(situation) -> None:
    for carried in (False, True):
        v = analysed(situation, carried=carried)
        for number, instance in enumerate(v.instances):
            users = [int(port) for port, piece in v.touched if piece == number]
            if carried and instance.kind == "source":
                assert v.first[number] == -1
            elif users:
                assert v.first[number] == min(users)


@settings(max_examples=examples(200))
@given(situations())
def test_overwriters_wait_for_all_who_read_what_they_write(situation) -> None:
    v = analysed(situation, carried=True, overwritten=True)
    over = range(int(v.touched[:, 0].max()) + 1 - len(v.made), int(v.touched[:, 0].max()) + 1)
    before = closure(over[-1] + 1, [tuple(edge) for edge in v.edges.tolist()])
    for port, piece in zip(over, v.made, strict=True):
        readers = {int(user) for user, touched in v.touched if touched == piece and user < over[0]}
        assert readers <= before[port]


def test_a_sum_of_many_is_ordered_without_comparing_each_with_each() -> None:
    compared = []

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return int(self) == other

        __hash__ = int.__hash__

    count = 200
    reads, writes = (tuple(map(Counted, range(begin, begin + count))) for begin in (0, count))
    assert scan([((), reads), (reads, writes), (writes, ())]).tolist() == [[0, 1], [1, 2]]
    assert len(compared) < 10 * count


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 3)), st.data())
def test_those_that_only_write_are_ordered_as_any_other(made: list[int], data) -> None:
    buffers = st.lists(st.integers(0, 3), max_size=3, unique=True).map(tuple)
    touches = data.draw(st.lists(st.tuples(buffers, buffers)))
    first = [((buffer,) * data.draw(st.integers(0, 1)), (buffer,)) for buffer in made]
    assert scan(touches, made).tolist() == scan([*first, *touches]).tolist()


def test_contributions_to_one_box_share_it_and_those_that_overlap_are_added_on_the_way() -> None:
    rows, half = Box((0,), (4,)), Box((2,), (4,))
    made = [Source(rows, (0,)), Source(rows, (0,)), Source(half, (0,))]
    v = version(made, [(0, rows)], "float64", links(local(1), (0,)))
    assert v.made.tolist() == [0, 0, 1] and v.adds.tolist() == [False, True, False]
    assert {p.procs for p in v.patterns} == {(0,)} and v.patterns[-1].name == "fold"


def test_a_hole_is_named() -> None:
    complete((4,), [Box((0,), (2,)), Box((2,), (4,))], "x")
    with pytest.raises(ValueError, match=r"x: nobody writes \[2:3\]"):
        complete((4,), [Box((0,), (2,)), Box((3,), (4,))], "x")


def test_links_follow_the_processors_of_the_slots() -> None:
    known = links(local(3), (2, 0))
    assert known.groups(0) == local(3).groups(2) and known.groups(1) == local(3).groups(0)
    assert known.level((0, 1)) == local(3).link((2, 0))


@given(st.sampled_from(presets()), st.data())
def test_levels_are_the_machines_for_those_who_use_its_links_at_once(name: str, data) -> None:
    machine = parse(name)
    procs = data.draw(st.permutations(range(machine.num_procs)))[:6]
    known, users = links(machine, procs), machine.users(procs)
    for slots in ([(a, b) for a in range(len(procs)) for b in range(a)] + [tuple(range(len(procs)))]) * (
        len(procs) > 1
    ):
        group = [procs[slot] for slot in slots]
        assert known.level(slots) == machine.link(group, users if any(users) else None)
