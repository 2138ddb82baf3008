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
