"""What is sent from far to several that are near each other: each byte comes the long way once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.runtime.collectives import plan
from castile.runtime.forms import SPECIAL_FORMS
from castile.runtime.region import Box, blocks, whole
from castile.runtime.transfer import Source, Transfer
from tests.transfers import links, results

GROUP = 8
SHAPE = (24, 5)


def far(t: Transfer) -> list[int]:
    """The elements of each array that comes from one group of processors to another; sums stay within one."""
    found = []
    for comm in (pattern.comm for pattern in t.patterns if pattern.comm):
        away = [proc for proc in comm.group if proc // GROUP != comm.group[0] // GROUP]
        assert comm.form in ("move", "broadcast") or not away
        found += [comm.counts[0][1]] * len(away)
    return found


@settings(max_examples=50)
@given(st.integers(2, GROUP), st.integers(0, 1), st.permutations(range(GROUP)), st.permutations(range(GROUP)))
def test_what_all_of_another_group_want_comes_there_once(n: int, dim: int, held_by, wanted_by) -> None:
    n = min(n, SHAPE[dim])
    tiles = [
        Box((lo, 0), (hi, SHAPE[1])) if dim == 0 else Box((0, lo), (SHAPE[0], hi)) for lo, hi in blocks(SHAPE[dim], n)
    ]
    sources = [Source(box, (proc,)) for box, proc in zip(tiles, held_by)]
    reads = [(GROUP + proc, whole(SHAPE)) for proc in wanted_by[:n]]
    held = [np.random.default_rng(i).normal(size=box.shape) for i, box in enumerate(tiles)]
    t, general = (plan(sources, reads, "float64", links(group=GROUP), forms) for forms in (SPECIAL_FORMS, ()))
    assert sorted(far(t)) == sorted(box.volume for box in tiles)
    assert sum(far(general)) == n * whole(SHAPE).volume
    for a, b in zip(results(t, held, reads), results(general, held, reads), strict=True):
        assert a.tobytes() == b.tobytes()


@settings(max_examples=50)
@given(st.integers(2, GROUP), st.integers(0, GROUP), st.integers(1, GROUP), st.booleans())
def test_a_sum_that_others_want_is_made_where_it_comes_from(n: int, mine: int, others: int, has_trees: bool) -> None:
    """Whether all, some or none of those who contribute to it want it themselves."""
    sources = [Source(whole(SHAPE), (p,)) for p in range(n)]
    reads = [(p, whole(SHAPE)) for p in (*range(min(mine, n)), *range(GROUP, GROUP + others))]
    held = [np.random.default_rng(i).normal(size=SHAPE) for i in range(n)]
    known = links(task_seconds=1e-12, group=GROUP, has_trees=has_trees)
    t, general = (plan(sources, reads, "float64", known, forms) for forms in (SPECIAL_FORMS, ()))
    assert [p.comm.group for p in t.patterns if p.name == "all_reduce"] == [tuple(range(n))]
    assert sum(far(general)) == n * others * whole(SHAPE).volume and sum(far(t)) <= others * whole(SHAPE).volume
    for a, b in zip(results(t, held, reads), results(general, held, reads), strict=True):
        assert a.tobytes() == b.tobytes()


@settings(max_examples=50)
@given(st.integers(2, GROUP), st.permutations(range(GROUP)), st.permutations(range(GROUP)))
def test_what_some_want_whole_and_others_in_pieces_is_gathered_where_it_is_wanted_whole(n: int, held_by, wanted_by):
    """As the gradient of a matrix in one stage of a pipeline and of what goes round it in the one before."""
    tiles = [Box((lo, 0), (hi, SHAPE[1])) for lo, hi in blocks(SHAPE[0], n)]
    sources = [Source(box, (proc,)) for box, proc in zip(tiles, held_by)]
    reads = [(proc, whole(SHAPE)) for proc in held_by[:n]]
    reads += [(GROUP + proc, box) for proc, box in zip(wanted_by, tiles)]
    held = [np.random.default_rng(i).normal(size=box.shape) for i, box in enumerate(tiles)]
    known = links(task_seconds=1e-12, group=GROUP)
    t, general = (plan(sources, reads, "float64", known, forms) for forms in (SPECIAL_FORMS, ()))
    assert sorted(p.comm.form for p in t.patterns if p.comm) == ["all_gather", *["move"] * n]
    assert sorted(far(t)) == sorted(box.volume for box in tiles)
    for a, b in zip(results(t, held, reads), results(general, held, reads), strict=True):
        assert a.tobytes() == b.tobytes()


@settings(max_examples=50)
@given(st.integers(1, GROUP), st.integers(1, GROUP // 2))
def test_as_many_holders_are_asked_as_there_are_readers(num_tiles: int, copies: int) -> None:
    """Each of several who have the same is asked by one of those who want it, not one of them by all."""
    tiles = [Box((lo, 0), (hi, SHAPE[1])) for lo, hi in blocks(SHAPE[0], num_tiles)]
    sources = [Source(box, tuple(range(n, num_tiles * copies, num_tiles))) for n, box in enumerate(tiles)]
    first = GROUP * GROUP
    reads = [(first + n, tiles[n % num_tiles]) for n in range(num_tiles * copies)]
    t = plan(sources, reads, "float64", links(group=first), SPECIAL_FORMS)
    assert [p.comm.group for p in t.patterns if p.comm] == [(n, first + n) for n in range(num_tiles * copies)]


@settings(max_examples=50)
@given(st.integers(2, GROUP), st.permutations(range(GROUP)), st.booleans())
def test_a_sum_is_scattered_to_some_of_those_who_contribute(wanting: int, order, has_trees: bool) -> None:
    """As gradients of a parameter of two stages of a pipeline to pieces of its update in one of them."""
    num = min(GROUP, 2 * wanting)
    sources = [Source(whole(SHAPE), (p,)) for p in range(num)]
    pieces = [Box((lo, 0), (hi, SHAPE[1])) for lo, hi in blocks(SHAPE[0], wanting)]
    reads = list(zip([p for p in order if p < num], pieces))
    held = [np.random.default_rng(i).normal(size=SHAPE) for i in range(num)]
    known = links(task_seconds=1e-12, group=GROUP, has_trees=has_trees)
    t, general = (plan(sources, reads, "float64", known, forms) for forms in (SPECIAL_FORMS, ()))
    comms = [p.comm for p in t.patterns if p.comm]
    assert [(comm.form, comm.group) for comm in comms] == [("reduce_scatter", tuple(range(num)))]
    assert sum(view is None for view in comms[0].receive) == num - wanting
    for a, b in zip(results(t, held, reads), results(general, held, reads), strict=True):
        assert a.tobytes() == b.tobytes()


@settings(max_examples=50)
@given(st.integers(2, GROUP), st.integers(2, SHAPE[1]))
def test_many_send_to_many_in_rounds_in_each_of_which_nobody_waits(senders: int, receivers: int) -> None:
    """Each of several to each of several others, who hold rows and want columns: as many at a time as there can be."""
    rows = [Box((lo, 0), (hi, SHAPE[1])) for lo, hi in blocks(SHAPE[0], senders)]
    wanted = [Box((0, lo), (SHAPE[0], hi)) for lo, hi in blocks(SHAPE[1], receivers)]
    sources, reads = [Source(box, (n,)) for n, box in enumerate(rows)], [(GROUP + n, b) for n, b in enumerate(wanted)]
    t = plan(sources, reads, "float64", links(group=GROUP), ())
    pairs = [p.comm.group for p in t.patterns if p.comm]
    assert sorted(pairs) == [(n, GROUP + m) for n in range(len(rows)) for m in range(len(wanted))]
    fewer = min(len(rows), len(wanted))
    for begin in range(0, len(pairs), fewer):
        some = pairs[begin : begin + fewer]
        assert len({src for src, _ in some}) == len({dst for _, dst in some}) == len(some)
