"""Composition: what alike instances have in common is laid out for each as if it were its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.lowering import ragged as plain
from castile.planner.lowering.catalogue import Catalogue, CostKeys, Kinds, Table
from castile.planner.lowering.ragged import to_csr
from castile.planner.lowering.versions import Versions
from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import local
from castile.runtime.task import CostKey
from tests import transfers
from tests.training import SGD

COSTS = [CostKey(name, "8", "float32", 0, 32) for name in "abcd"]
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


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=8))
def test_costs_are_numbered_as_they_are_met(rows: list[list[int]]) -> None:
    """Whatever sequences name them, of which each may be gone when the next comes."""
    known = CostKeys()
    for row in rows:
        found = known.numbered([COSTS[n] for n in row])
        assert [known.each[n] for n in found] == [COSTS[n] for n in row]
    assert known.each == list(dict.fromkeys(COSTS[n] for row in rows for n in row))


def test_private_bytes_are_those_of_the_body_of_each_task_whatever_it_adds_to() -> None:
    """Parts of two sizes, each on two processors, with results of different sizes."""
    g = Graph("attention", "float64")
    x = g.input("x", (3, 4, 6), "b s i")
    g.minimise(g.mean("loss", g.attention("first", x, g.linear("keys", x, features=6), x, heads=2)))
    cut = Config({"b": 2}, 2, (1, 0, 0, 1))
    steps, _ = Lowering(g, local(2), SGD).instances(Strategy(dict.fromkeys(g.nodes, cut)))
    catalogue = Catalogue()
    kinds, _ = catalogue.kinds(steps, [])
    for step, kind in zip(steps, kinds.tolist(), strict=True):
        for n, adds in enumerate(product((False, True), repeat=len(step.step.outputs))):
            tasks = range(step.num_tasks)
            wanted = [step.template.part(task // step.config.replicas).body(adds[::-1]).private_bytes for task in tasks]
            assert catalogue.private_adding(kind, n).tolist() == wanted


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**20))))
def test_rows_are_sorted_and_have_no_value_twice(pairs: list[tuple[int, int]]) -> None:
    rows, values = np.array(pairs, np.int64).reshape(-1, 2).T
    ptr, found = to_csr(rows, values, 6)
    each = [found[a:b].tolist() for a, b in zip(ptr, ptr[1:])]
    assert each == [sorted({value for row, value in pairs if row == n}) for n in range(6)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20))))
def test_rows_are_compiled_as_they_stand(pairs: list[tuple[int, int]]) -> None:
    rows, values = np.array(pairs, np.int64).reshape(-1, 2).T
    found, interpreted = to_csr(rows, values, 6), plain._to_csr(rows, values, 6, 21)
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


def test_a_node_of_many_results_may_add_to_each() -> None:
    """What is repeated more often than a whole number has bits: each piece's gradient is added to those before."""
    g = Graph("many")
    y = g.linear("linear", g.input("x", (4, 3), "b d"), features=2)
    g.minimise(g.mean("loss", g.tanh("bent", g.concat("joined", 1, *[y] * 65))))
    alone, apart = Config(), Config({"b": 4}, 1, (0, 1, 2, 3))
    cut = {name: apart if node.op.name == "concat" else alone for name, node in g.nodes.items()}
    tasks = Lowering(g, local(4), SGD).lower(Strategy(cut, num_procs=4))
    assert (tasks.private_bytes >= 0).all()
