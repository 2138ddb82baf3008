"""Neighbours: what was measured prices what does the same work, reads in strides, or is of the same pass."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Environment, Measured, snapshot_of
from castile.runtime.machine import Processor
from castile.runtime.task import CostKey
from tests.prices import CPU, HERE, MACHINE, measured, product, sized, transfer

SLOW = Processor("old", 1e10, 5e9, 2**30, task_overhead_seconds=5e-6)
factors = st.floats(0.2, 5.0)


def other(key: CostKey) -> CostKey:
    """The same work with arrays of other shapes, which nobody measured."""
    return structs.replace(key, shapes=f"{key.shapes};other")


@settings(max_examples=40)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6, unique=True))
def test_as_much_work_takes_as_long(known: list[int]) -> None:
    """Also as much as the least and the most that was measured. What has nothing to do is no neighbour."""
    keys = [sized(1000 * n, 1000 * n) for n in known]
    costs = CostModel(MACHINE, measured([*keys, sized(0, 0)]))
    for key in keys:
        assert costs.seconds(other(key)) == (pytest.approx(costs.seconds(key).seconds), "interpolated")


@settings(max_examples=40)
@given(st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=5), st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=5))
def test_every_measurement_counts_alike(less: list[float], more: list[float]) -> None:
    """Where less work was seen to take longer, both are taken to take the mean of all."""
    low, high = sized(10**7, 10**7), sized(2 * 10**7, 2 * 10**7)
    rows = [(low, seconds) for seconds in less] + [(high, seconds) for seconds in more]
    named = [Measured(structs.replace(key, shapes=str(n)), seconds) for n, (key, seconds) in enumerate(rows)]
    costs = CostModel(MACHINE, snapshot_of(HERE, named))
    means = [math.exp(np.log(of).mean()) for of in (less, more)]
    if means[0] > means[1]:
        means = [math.exp(np.log([*less, *more]).mean())] * 2
    assert [costs.seconds(other(key)).seconds for key in (low, high)] == pytest.approx(means)


@settings(max_examples=30)
@given(factors)
def test_what_strides_cost_a_family_they_cost_all_of_it(factor: float) -> None:
    known, asked = product(8, 64, 64), product(9, 64, 64)
    rows = list(measured([known]).rows)
    strides = [key.strided({0: (n, 128)}) for key, n in ((known, 8), (asked, 9))]
    rows.append(Measured(strides[0], factor * rows[0].seconds))
    costs = CostModel(MACHINE, snapshot_of(HERE, rows))
    assert costs.seconds(strides[1]) == (pytest.approx(factor * costs.seconds(asked).seconds), "learned")
    # Also where what does the same on unbroken arrays was measured.
    beside = CostModel(MACHINE, snapshot_of(HERE, [*rows, Measured(asked, 1e-3)]))
    assert beside.seconds(strides[1]) == (pytest.approx(factor * 1e-3), "learned")


@settings(max_examples=30)
@given(factors, factors)
def test_a_pass_says_more_of_its_kernels_than_all_kernels_do(forward: float, backward: float) -> None:
    plain = CostModel(MACHINE)
    keys = {name: product(8, 64, 64, f"linear.{name}") for name in "FB"}
    rows = [Measured(keys[name], f * plain.roofline(keys[name])) for name, f in (("F", forward), ("B", backward))]
    costs = CostModel(MACHINE, snapshot_of(HERE, rows))
    both = math.sqrt(forward * backward)
    for name, factor in (("F", forward), ("B", backward), ("W", both)):
        key = product(8, 64, 64, f"conv.{name}")
        assert costs.seconds(key) == (pytest.approx(max(factor, 0.1) * plain.roofline(key)), "learned")


@pytest.mark.parametrize("device", ["cpu", "old"])
def test_what_lies_between_tasks_is_added_on_every_kind_of_processor(device: str) -> None:
    """To kernels as they are slower there, to transfers as it is."""
    machine = replace(MACHINE, processors=(CPU, SLOW) * (MACHINE.num_procs // 2))
    rows = measured([product(8, 64, 64), transfer("move", 1000)]).rows
    plain = snapshot_of(Environment(device), rows)
    loaded = structs.replace(plain, overhead_seconds=1e-3, meeting_seconds=1e-2)
    without, including = CostModel(machine, plain), CostModel(machine, loaded)
    for kind in (None, 0, 1):
        for key in (product(8, 64, 64), product(9, 64, 64)):
            here = without.seconds(key, int(device == "old")).seconds
            ratio = without.seconds(key, kind).seconds / here
            more = including.seconds(key, kind).seconds - without.seconds(key, kind).seconds
            assert more == pytest.approx(ratio * 1e-3)
        key = transfer("move", 1000)
        assert including.seconds(key, kind).seconds - without.seconds(key, kind).seconds == pytest.approx(1e-2)
