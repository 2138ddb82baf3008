"""Composition: what alike instances have in common is laid out for each as if it were its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from castile.planner.lowering import rows as plain
from castile.planner.lowering.catalogue import Kinds, Table
from castile.planner.lowering.rows import compressed
from castile.planner.lowering.versions import Versions
from castile.planner.strategy import Config
from castile.runtime.machine import local
from tests import transfers

words = st.lists(st.text("ab", max_size=3), max_size=12)


@given(st.lists(words, max_size=4))
def test_what_kinds_have_is_there_for_each_of_its_things_in_their_order(plans: list[list[str]]) -> None:
    kinds = Kinds[str]()
    letters = Table(
        kinds, 2, lambda new: rows_of(new, [[(ord(letter), n) for n, letter in enumerate(of)] for of in new])
    )
    for things in plans:
        which = kinds.numbers(things, things)
        assert [kinds.each[n] for n in which] == things
        rows, thing = letters.of(which)
        told = [(ord(letter), place, n) for n, each in enumerate(things) for place, letter in enumerate(each)]
        assert list(zip(*rows.tolist(), thing.tolist(), strict=True)) == told
    assert kinds.each == list(dict.fromkeys(thing for things in plans for thing in things))
    assert letters.num_rows == sum(map(len, kinds.each)) * bool(plans)


def rows_of(kinds: Sequence[str], each: list[list[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray]:
    kind = np.repeat(np.arange(len(kinds)), [len(rows) for rows in each])
    return kind, np.array([row for rows in each for row in rows], np.int64).reshape(-1, 2).T


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**20))))
def test_rows_are_sorted_and_have_no_value_twice(pairs: list[tuple[int, int]]) -> None:
    rows, values = np.array(pairs, np.int64).reshape(-1, 2).T
    ptr, found = compressed(rows, values, 6)
    each = [found[a:b].tolist() for a, b in zip(ptr, ptr[1:])]
    assert each == [sorted({value for row, value in pairs if row == n}) for n in range(6)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20))))
def test_rows_are_compiled_as_they_stand(pairs: list[tuple[int, int]]) -> None:
    rows, values = np.array(pairs, np.int64).reshape(-1, 2).T
    found, interpreted = compressed(rows, values, 6), plain._compressed(rows, values, 6, 21)
    for one, other in zip(found, interpreted, strict=True):
        assert one.tolist() == other[: len(one)].tolist()


@given(st.lists(transfers.layouts((6, 4), 4), max_size=4))
def test_what_lies_alike_is_one_object(layouts) -> None:
    versions = Versions(local(4))
    rows = [
        (tuple(box for box, _ in each), Config(procs=tuple(p for _, procs in each for p in procs))) for each in layouts
    ]
    placed = [versions.placed(*row) for row in rows * 2]
    for one, row in zip(placed, rows * 2, strict=True):
        assert (one.boxes, one.config) == row
        assert [one is other for other in placed] == [row == other for other in rows * 2]
