"""Recorded bodies: each result is what the body gives, whether or not it is added, and what others are the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from castile.kernels import reference
from castile.planner import rewrite
from castile.planner.bodies.trace import record
from castile.planner.graph import Graph
from castile.planner.op import available
from castile.runtime import machine
from tests.op_cases import Case, cases_of
from tests.op_laws import Whole, execute, passes, recorded, spec
from tests.strategies import Problem, batches, beginnings, whole_on
from tests.training import difference, train


def test_results_that_are_the_same_are_added_each_on_its_own() -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.full((2, 3), 7.0)]
    for numbers in product(range(3), repeat=3):

        def body(k, x, y, numbers=numbers):
            made = k.pointwise("x, y -> x * y", x, y), k.add(x, y), x
            return tuple(made[n] for n in numbers)

        recording = record(body, [spec(array) for array in arrays])
        for added in product((False, True), repeat=3):
            for one, other, adds in zip(
                execute(recording, arrays, "reference", added), body(reference, *arrays), added, strict=True
            ):
                assert np.array_equal(one, other + adds), f"{numbers} {added}"


# Calls of a body: each takes two of what there is by then, and products read all of a row before they write.
KERNELS = ("x * y", "x + y", "product")
bodies = st.lists(st.tuples(st.sampled_from(KERNELS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4)


@given(bodies, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=2, max_size=4), st.integers(0, 7))
def test_results_may_be_added_up_in_one_array(calls, results, adding) -> None:
    """As the gradients of operands that are one tensor: the first is written, or added, and the others are added."""

    def body(k, x, y):
        there = [x, y]
        for kernel, a, b in calls:
            one, other = there[a % len(there)], there[b % len(there)]
            product = kernel == "product"
            there.append(
                k.contract("ij,jk->ik", one, other) if product else k.pointwise(f"x, y -> {kernel}", one, other)
            )
        return tuple(there[n % len(there)] for n, _ in results)

    arrays = [np.arange(4.0).reshape(2, 2), np.array([[1.0, 2.0], [0.0, 1.0]])]
    places = [place for _, place in results]
    added = [place in places[:n] or bool(adding >> place & 1) for n, place in enumerate(places)]
    made = execute(record(body, [spec(array) for array in arrays]), arrays, "reference", added, places)
    expected = dict.fromkeys(places, np.zeros((2, 2)))
    for one, place in zip(body(reference, *arrays), places, strict=True):
        expected[place] = expected[place] + one
    for one, place in zip(made, places, strict=True):
        assert np.array_equal(one, expected[place] + (adding >> place & 1))


def test_terms_of_a_fused_sum_have_gradients_of_their_own() -> None:
    """Others have added to that of one of them, and none to that of the other."""
    g = Graph("terms", "float64")
    x = g.linear("first", g.input("x", (3, 4), "b i"), features=4)
    y = g.relu("bent", x)
    sums = [g.sum(f"{t.name}.sum", g.tanh(f"{t.name}.bound", t)) for t in (g.add("both", y, x), g.neg("apart", y))]
    g.minimise(g.add("loss", *sums))
    problem, on = Problem(g, {}), machine.local(1)
    data, values, fused = batches(problem, 1, False), beginnings(problem, False), rewrite.apply("fuse", g)
    one, other = (train(made, whole_on(made), on, data, values) for made in (g, fused))
    assert len(fused.nodes) < len(g.nodes)
    for name, expected in one.carried.items():
        assert difference(other.carried[name], expected) < 1e-12, name


def bodies(case: Case) -> list[object]:
    """What each pass of a case in one piece reads, and its calls."""
    whole, found = Whole(case), []
    for which in passes(case):
        part = whole.node.whole()
        recording, _ = recorded(case, which, part, *whole.local(part))
        dtypes = [made.dtype for made in recording.results if made is not None]
        turns = [()] * (len(recording.reads) + len(dtypes))
        found.append((recording.reads, recording.body([False] * len(dtypes), dtypes, turns)))
    return found


def test_bodies_are_the_same_whatever_settings_they_do_not_look_at() -> None:
    cases = [case for name in available() for case in cases_of(name) if case.op.unrecorded]
    # These are counted in elements, as positions are: the first of all is another.
    others = [replace(case, op=replace(case.op, **dict.fromkeys(case.op.unrecorded, 0))) for case in cases]
    assert any(one.op != other.op for one, other in zip(cases, others, strict=True))
    for one, other in zip(cases, others, strict=True):
        assert {*one.op.unrecorded} <= {*one.op.costless}
        assert one.op.recorded_settings == other.op.recorded_settings and bodies(one) == bodies(other), one
