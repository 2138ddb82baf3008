"""Composition: what alike instances have in common is laid out for each as if it were its own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from castile.planner.compose import _Alike
from castile.planner.rows import compressed

words = st.lists(st.text("ab", max_size=3), max_size=12)


@given(words)
def test_what_kinds_have_is_there_for_each_of_its_things_in_their_order(things: list[str]) -> None:
    alike = _Alike(things, things)
    assert alike.kinds == list(dict.fromkeys(things))
    letters = {thing: np.array([ord(letter) for letter in thing], np.int64) for thing in things}
    assert alike.joined(lambda kind: letters[kind]).tolist() == [ord(letter) for thing in things for letter in thing]
    kind, rows = alike.together(lambda kind: letters[kind])
    row, thing = alike.rows(kind[rows == ord("b")])
    assert thing.tolist() == [n for n, each in enumerate(things) for letter in each if letter == "b"]
    assert (kind[rows == ord("b")][row] == alike.which[thing]).all()
    assert alike.where(lambda kind: kind == "a") == [n for n, each in enumerate(things) if each == "a"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**20))))
def test_rows_are_sorted_and_have_no_value_twice(pairs: list[tuple[int, int]]) -> None:
    rows, values = np.array(pairs, np.int64).reshape(-1, 2).T
    ptr, found = compressed(rows, values, 6)
    each = [found[a:b].tolist() for a, b in zip(ptr, ptr[1:])]
    assert each == [sorted({value for row, value in pairs if row == n}) for n in range(6)]
