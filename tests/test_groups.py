"""Groups of transfers: who can join, and that they are as large as bytes and what they stand between allow."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.lowering.transfer_groups import END_TO_END, Joinable, _is_whole, _of, groups_of
from castile.runtime.region import Box, whole
from castile.runtime.task import AT_ONCE, Comm, CostKey, Kind, View
from castile.runtime.transfer import Pattern
from tests.effort import examples

FORMS = (END_TO_END, *AT_ONCE[:1])


KINDS = {"move": Kind.MOVE, "fold": Kind.FOLD}


def pattern(
    name: str, nbytes: int = 8, dtype: str = "float32", reads: tuple[int, ...] = (), writes: tuple[int, ...] = ()
) -> Pattern:
    key, view = CostKey(name, "", dtype, 0, nbytes), View(0, whole((1,)))
    return Pattern(KINDS.get(name, Kind.COLLECTIVE), name, (0, 1), key, reads, writes, (view, view))


@st.composite
def transfers(draw: st.DrawFn) -> list[Joinable]:
    """In the order of the program, of few keys, so that many could go together."""
    drawn = draw(st.lists(st.tuples(st.integers(-1, 5), st.integers(1, 3)), min_size=2, max_size=12))
    # What no step makes comes just before the first that reads it.
    ends = sorted((made if made >= 0 else later - 1, made, made + later) for made, later in drawn)
    kinds = [(form, dtype) for form in FORMS for dtype in ("float32", "bfloat16")]
    found = []
    for n, (at, made, read) in enumerate(ends):
        form, dtype = draw(st.sampled_from((kinds[0], kinds[0], *kinds)))
        nbytes, procs = draw(st.sampled_from((8, 8, 24, 100))), draw(st.sampled_from(((0, 1), (0, 1), (0, 2))))
        micro = draw(st.sampled_from((-1, -1, 0)))
        found.append(Joinable(n, 0, pattern(form, nbytes, dtype), procs, made, read, at, micro))
    return found


def kind(one: Joinable, every: Sequence[Joinable]) -> tuple[object, ...]:
    """What those of one group have in common."""
    latest = max(other.made for other in every if other.pattern.name == one.pattern.name)
    return one.pattern.name, one.pattern.key.dtype, one.procs, one.made < 0, one.read > latest, one.micro


@settings(max_examples=examples(400))
@given(transfers(), st.sampled_from((24, 32, 1000)))
def test_groups_are_as_large_as_bytes_and_what_they_stand_between_allow(ones: list[Joinable], size: int) -> None:
    """Those of which all are read after all are made are in as few as their bytes ask for, whatever others are not."""
    groups = groups_of(ones, size)
    joined = [one for group in groups for one in group]
    assert len(set(map(id, joined))) == len(joined) and all(len(group) > 1 for group in groups)
    assert [group[0].task for group in groups] == sorted(group[0].task for group in groups)
    alone = [[one] for one in ones if not any(one is other for other in joined)]
    small = [group for group in (*groups, *alone) if group[0].pattern.key.nbytes <= size]
    by_kind: dict[tuple[object, ...], list[list[Joinable]]] = {}
    for group in sorted(small, key=lambda group: group[0].task):
        assert len({kind(one, ones) for one in group}) == 1
        assert [one.task for one in group] == sorted(one.task for one in group)
        assert sum(one.pattern.key.nbytes for one in group) <= size
        assert max(one.made for one in group) < min(one.read for one in group)
        by_kind.setdefault(kind(group[0], ones), []).append(group)
    for each in by_kind.values():
        for group, (later, *_) in zip(each, each[1:]):
            held = sum(one.pattern.key.nbytes for one in (*group, later))
            assert held > size or later.made >= min(one.read for one in group)


@settings(max_examples=examples(400))
@given(st.data())
def test_transfers_that_wait_for_others_processors_do_not_join(data: st.DataObject) -> None:
    """Directly or through what lies between, such as a sum of what was brought."""
    names = st.sampled_from((*AT_ONCE, *AT_ONCE, "move", "fold"))
    drawn = data.draw(st.lists(st.tuples(names, st.sets(st.integers(0, 7), max_size=2)), min_size=1, max_size=6))
    patterns = [
        pattern(name, reads=tuple(b for b in reads if b < n), writes=(n,)) for n, (name, reads) in enumerate(drawn)
    ]
    brought = [False] * len(patterns)
    for n, one in enumerate(patterns):
        brought[n] = one.kind >= Kind.MOVE or any(brought[b] for b in one.reads)
    able = [n for n, one in enumerate(patterns) if one.name in AT_ONCE and not any(brought[b] for b in one.reads)]
    template: Any = SimpleNamespace(version=SimpleNamespace(patterns=patterns, is_strided=False), role="", procs=(5, 3))
    for is_read in (True, False):
        assert _of(template, is_read) == [(n, (5, 3)) for n in able if is_read]


@pytest.mark.parametrize("wrong", ["", "shared", "missing", "part", "empty"])
def test_only_sums_of_whole_arrays_each_of_its_own_go_end_to_end(wrong: str) -> None:
    box = whole((0,)) if wrong == "empty" else whole((4,))
    views: list[View | None] = [View(n, box) for n in range(4)]
    if wrong == "shared":
        views[3] = views[1]
    elif wrong == "missing":
        views[3] = None
    elif wrong == "part":
        views[2] = View(2, Box((0,), (3,)))
    comm = Comm(END_TO_END, (0, 1), tuple(views[:2]), tuple(views[2:]), (None, None), ((2, 2),) * 2)
    one = Pattern(Kind.COLLECTIVE, END_TO_END, (0, 1), CostKey("", "", "float32", 0, 16), (), (), comm)
    version: Any = SimpleNamespace(instances=[SimpleNamespace(box=box)] * 4)
    assert _is_whole(one, version) == (not wrong)
