"""Levels: how members lie is told by a link's name, and shared links are divided among those that use them."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from castile.runtime import levels
from castile.runtime.levels import Level, level_name
from castile.runtime.machine import parse


@st.composite
def hierarchies(draw):
    """One to three levels of links, some of them shared."""
    made, group = [], 1
    for n in range(draw(st.integers(1, 3))):
        group *= draw(st.integers(2, 4))
        shared = draw(st.sampled_from((1, 1, 2, 4)))
        latency, rate = draw(st.sampled_from((0.0, 1e-6, 1e-5))), draw(st.sampled_from((1e9, 2.5e8, 6e7)))
        made.append(Level(f"l{n}", group, latency, rate, shared))
    return tuple(made)


def groups(of, most=None):
    return st.lists(st.integers(0, of[-1].group - 1), min_size=2, max_size=most, unique=True).map(tuple)


@given(hierarchies(), st.data())
def test_the_name_tells_how_members_lie(made, data):
    procs = data.draw(groups(made))
    among = data.draw(st.none() | groups(made).map(lambda more: levels.users(made, (*procs, *more))))
    link = levels.link(made, procs, among)
    far = [level.name for level in made].index(level_name(link.name)) + 1
    read = levels.spread(made[:far], link.name, len(procs))
    inner = 1
    for k, level in enumerate(read.levels):
        held = {p // inner for p in procs}
        most = max(sum(g * inner // level.group == outer for g in held) for outer in {p // level.group for p in procs})
        assert read.counts[k] == most
        least = min(sum(p // inner == g for p in procs) for g in held)
        if level.shared_by == 1:
            assert read.widths[k] == pytest.approx(least)
        assert least / level.shared_by * (1 - 1e-5) <= read.widths[k] <= least * (1 + 1e-5)
        inner = level.group
    # What joins no two of the members carries nothing, however slow it is.
    used = [s.bytes_per_second * width for s, width, count in zip(read.levels, read.widths, read.counts) if count > 1]
    assert link.bytes_per_second == pytest.approx(min(used), rel=1e-5)


@given(hierarchies(), st.data())
def test_more_users_never_leave_more_of_a_link(made, data):
    procs, more = data.draw(groups(made)), data.draw(groups(made))
    alone, beside, everyone = (
        levels.link(made, procs, among).bytes_per_second
        for among in (levels.users(made, procs), levels.users(made, (*procs, *more)), None)
    )
    assert alone >= beside * (1 - 1e-9) >= everyone * (1 - 1e-9)
    full = range(made[-1].group)
    if all(level.shared_by <= (made[k - 1].group if k else level.group) for k, level in enumerate(made)):
        assert levels.link(made, procs, levels.users(made, full)).bytes_per_second == pytest.approx(everyone)


def test_one_transfer_alone_has_the_whole_link():
    machine = parse("flexflow-p100")
    rate = machine.level("infiniband").bytes_per_second
    shared, alone = machine.link((0, 4)), machine.link((0, 4), machine.users((0, 4)))
    assert (shared.name, shared.bytes_per_second) == ("infiniband", rate / 4)
    assert (alone.name, alone.bytes_per_second) == ("infiniband:1x2@1,1", rate)
    half = machine.link((0, 4), machine.users((0, 1, 4, 5)))
    assert half.bytes_per_second == rate / 2 and machine.spread(half.name, 2).widths == (1.0, 0.5)


def test_bare_names_are_of_groups_that_lie_evenly():
    machine = parse("dgx-h100:nodes=16")
    assert machine.link(tuple(range(128))).name == machine.link(tuple(range(0, 128, 8))).name == "infiniband"
    assert machine.link(tuple(range(16))).name == "infiniband:8x2"
    assert machine.link(tuple(range(0, 64, 4))).name == "infiniband:2x8"
    assert machine.spread("infiniband", 128).counts == (8, 16) and machine.spread("infiniband", 16).counts == (1, 16)


def test_a_group_sees_a_link_as_a_ring_through_it_does():
    machine = parse("dgx-h100:nodes=2")
    inside, outside = machine.levels
    seen = machine.link(tuple(range(16)))
    # Each node's ring leaves by 8 ports; of 15 hops one is between the nodes.
    assert seen.bytes_per_second == min(inside.bytes_per_second, 8 * outside.bytes_per_second)
    assert seen.latency_seconds == pytest.approx((14 * inside.latency_seconds + outside.latency_seconds) / 15)


@given(hierarchies(), st.data())
def test_a_group_never_sees_less_than_its_slowest_share(made, data):
    procs = data.draw(groups(made))
    link = levels.link(made, procs)
    crossed = [level for level in made if level.group <= made[-1].group]
    assert link.bytes_per_second >= min(level.bytes_per_second / level.shared_by for level in crossed) * (1 - 1e-9)
    assert 0 <= link.latency_seconds <= max(level.latency_seconds for level in crossed) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["infiniband:8", "infiniband:8x2x1", "infiniband:0x2", "infiniband:axb",
                                  "infiniband:8x2@1", "infiniband:8x2@0,1", "infiniband:1x2"])  # fmt: skip
def test_names_that_say_nothing_are_refused(name):
    with pytest.raises(ValueError, match=r"link 'infiniband:.*'"):
        parse("dgx-h100:nodes=2").spread(name, 16)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 64))
def test_members_lie_on_as_many_groups_as_they_can(nodes, each, members):
    assume(nodes * each > 1)
    made = tuple(Level(f"l{g}", g, 0.0, 1.0) for g in sorted({each, nodes * each} - {1}))
    counts = levels.spread(made, made[-1].name, members).counts
    assert math.prod(counts) >= members and counts[-1] == min(members, nodes if len(made) > 1 else members)
