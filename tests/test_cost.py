"""The cost model and learning: monotone, never without a source, and near the truth on sizes that nobody measured."""

import dataclasses
import math
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from castile.planner.cost import CostModel, isotonic
from castile.planner.costs.snapshot import Environment, Measured, Snapshot, from_json, snapshot_of, to_json
from castile.runtime.levels import level_name
from castile.runtime.machine import Level, Machine, Processor, parse, presets
from castile.runtime.task import CostKey, Kind, Lane
from castile.runtime.timeline import PICOSECONDS
from tests.graphs import Draft
from tests.prices import (
    CPU,
    FORMS,
    HERE,
    MACHINE,
    SOURCES,
    keys,
    measured,
    model,
    product,
    sized,
    sizes,
    transfer,
    truth,
)


def test_roofline_by_hand():
    price = CostModel(MACHINE).seconds
    assert price(sized(5 * 10**10, 1)) == (pytest.approx(1 + 5e-6), "roofline")
    assert price(sized(1, 10**10)) == (pytest.approx(1 + 5e-6), "roofline")
    assert price(CostKey("linear.F", "", "float64", 5 * 10**10, 1)).seconds == pytest.approx(2 + 5e-6)
    alpha, beta, task = 1e-5, 8 * 10**9, 5e-6
    # what comes from three others is read, with the sum until then, and that is written
    summed = 3 * 3 * beta / 4 / CPU.bytes_per_second
    expected = {"move": alpha + 1, "all_reduce": 6 * alpha + 1.5 + summed, "broadcast": 2 * (alpha + 1)}
    expected |= dict.fromkeys(["all_gather", "all_to_all"], 3 * alpha + 0.75)
    for form, seconds in (expected | {"reduce_scatter": 3 * alpha + 0.75 + summed}).items():
        members = 2 if form == "move" else 4
        assert price(transfer(form, beta, members)) == (pytest.approx(seconds + task), "roofline"), form


def test_what_attains_less_than_products_takes_longer_to_compute_and_as_long_to_read():
    slower = structs.replace(CPU, attained=(("linear.F", 0.25),))
    whole, price = CostModel(MACHINE).seconds, CostModel(Machine("m", (slower,), ())).seconds
    computing, reading = sized(5 * 10**10, 1), sized(1, 10**10)
    overhead = CPU.task_overhead_seconds
    assert price(computing).seconds - overhead == pytest.approx(4 * (whole(computing).seconds - overhead))
    assert price(reading).seconds == whole(reading).seconds


def test_rows_of_images_take_what_a_core_needs_to_bring_them_there_beside_the_sums():
    price = CostModel(Machine("m", (structs.replace(CPU, row_seconds=1e-3),), ())).seconds
    sums, rows = "|stride=(1, 1)", "|stride=(1, 1),rows=2000"
    for flops, nbytes, seconds in ((5 * 10**10, 1, 1 + 2.0), (1, 10**10, 2.0), (1, 5 * 10**10, 5.0)):
        keys = [CostKey("conv2d.F", shapes, "float32", flops, nbytes) for shapes in (sums, rows)]
        assert price(keys[1]).seconds == pytest.approx(seconds + 5e-6)
        assert price(keys[0]) == CostModel(MACHINE).seconds(keys[0]) == CostModel(MACHINE).seconds(keys[1])


def test_numbers_that_are_looked_for_take_a_core_as_long_as_it_says_each():
    looks, rows = structs.replace(CPU, look_seconds=1e-3), structs.replace(CPU, look_seconds=1e-3, row_seconds=2e-3)
    key = CostKey("max_pool2d.B", "8x8|stride=(2, 2),rows=500,looks=3000", "float32", 5 * 10**10, 1)
    for processor, seconds in ((CPU, 1.0), (looks, 1 + 3.0), (rows, 1 + 1.0 + 3.0)):
        assert CostModel(Machine("m", (processor,), ())).seconds(key).seconds == pytest.approx(seconds + 5e-6)
    assert (key.rows, key.looks) == (500, 3000)


def test_who_does_not_compute_while_it_reads_takes_both_one_after_the_other():
    one_by_one = CostModel(Machine("m", (structs.replace(CPU, overlaps=False),), ())).seconds
    assert one_by_one(sized(5 * 10**10, 3 * 10**10)) == (pytest.approx(1 + 3 + 5e-6), "roofline")
    assert CostModel(MACHINE).seconds(sized(5 * 10**10, 3 * 10**10)) == (pytest.approx(3 + 5e-6), "roofline")


def test_unequal_processors_are_priced_by_the_slowest():
    slow = Processor("old", 1e9, 1e10, 2**30)
    machine = Machine("m", (CPU, slow), MACHINE.levels)
    assert CostModel(machine).seconds(sized(10**9, 1)).seconds == pytest.approx(1.0)


def test_a_shared_link_is_divided_among_those_who_cross_it():
    costs = CostModel(parse("p3.16xlarge:nodes=2"))
    rate = 2.66e9
    pair, sum_of_16 = transfer("move", 10**9, 2, "ethernet"), transfer("all_reduce", 10**9, 16, "ethernet")
    assert costs.seconds(pair).seconds == pytest.approx(8 * 1e9 / rate, rel=1e-3)
    way = costs.way(sum_of_16)
    assert costs.seconds(sum_of_16) == (pytest.approx(way.seconds), "roofline")
    assert (way.algorithm, way.stages[-1].level) == ("hierarchical", "ethernet")
    assert way.stages[-1].transfer_seconds == pytest.approx(1e9 / rate)


CLUSTER = parse("dgx-h100:nodes=4")
crossing = st.sampled_from([("infiniband", 32), ("infiniband", 4), ("infiniband:8x2", 16), ("nvlink", 8)])


@given(st.sampled_from(FORMS), crossing, sizes, sizes, st.lists(sizes, max_size=5, unique=True), st.integers(0, 9))
def test_corrections_choose_the_algorithm_and_stay_monotone(form, where, nbytes, more, known, seed):
    link, members = where if form != "move" else (level_name(where[0]), 2)
    rows = measured([transfer(form, n, members, link) for n in known], noise=1.0, seed=seed)
    costs = CostModel(CLUSTER, rows)
    small, large = transfer(form, nbytes, members, link), transfer(form, nbytes + more, members, link)
    assert costs.way(small).algorithm in ("direct", "ring", "tree", "hierarchical")
    low, high = costs.seconds(small), costs.seconds(large)
    assume(low.source == high.source != "measured")
    assert low.seconds <= high.seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("known", "source"),
    [([10**3, 10**4, 10**11], "learned"), ([int(1e6 * 1.4**k) for k in range(24)], "interpolated")],
)
def test_prices_rise_where_the_algorithm_changes(known, source):
    rate = CLUSTER.level("nvlink").bytes_per_second
    rows = [Measured(transfer("all_reduce", n, 8, "nvlink"), 2 * n / rate) for n in known]
    costs = CostModel(CLUSTER, snapshot_of(HERE, rows))
    uncorrected = CostModel(CLUSTER)
    asked = [transfer("all_reduce", int(n), 8, "nvlink") for n in np.geomspace(1e7 + 1, 1e9, 400)]
    assert {uncorrected.way(key).algorithm for key in asked} == {"tree", "ring"}
    prices = [costs.seconds(key) for key in asked]
    assert {price.source for price in prices} == {source}
    assert all(a.seconds <= b.seconds * (1 + 1e-12) for a, b in pairwise(prices))


def test_what_was_learned_on_a_level_holds_however_members_lie():
    known = [transfer("all_reduce", 4**n, 32, "infiniband") for n in range(5, 15)]
    costs = CostModel(CLUSTER, measured(known))
    price = costs.seconds(transfer("all_reduce", 10**8, 16, "infiniband:8x2"))
    uncorrected = CostModel(CLUSTER).seconds(transfer("all_reduce", 10**8, 16, "infiniband:8x2"))
    assert price.source == "learned" and price.seconds > uncorrected.seconds


SLOW = Processor("old", 1e10, 5e9, 2**30, task_overhead_seconds=5e-6)
MIXED = Machine("m", (CPU, SLOW, CPU, SLOW), MACHINE.levels)


@given(sizes, sizes)
def test_each_processor_is_priced_by_its_own_kind(flops, nbytes):
    costs, key = CostModel(MIXED), sized(flops, nbytes)
    alone = [CostModel(Machine("m", (p,), ())).seconds(key).seconds for p in (CPU, SLOW)]
    assert [costs.seconds(key, kind).seconds for kind in (0, 1)] == pytest.approx(alone)
    assert costs.seconds(key).seconds == pytest.approx(max(alone))
    assert costs.speeds(key) == pytest.approx([1, alone[0] / alone[1]] * 2)
    assert (CostModel(MACHINE).speeds(key) == 1).all()


@pytest.mark.parametrize(("device", "slower"), [("test", 1.0), ("cpu", 5.0), ("old", 1.0)])
def test_what_was_measured_holds_for_its_kind_and_stands_for_the_others(device, slower):
    key = sized(10**12, 1)
    costs = CostModel(MIXED, snapshot_of(Environment(device), [Measured(key, 7.0)]))
    fast, slow = costs.seconds(key, 0), costs.seconds(key, 1)
    assert slow.seconds / fast.seconds == pytest.approx(5.0, rel=1e-3)
    assert slow.seconds == costs.seconds(key).seconds == pytest.approx(7.0 * slower, rel=1e-3)
    assert {fast.source, slow.source} == {"measured", "learned"}
    assert (fast.source == "measured") == (device == "cpu")


def test_a_graph_is_timed_by_kind():
    draft = Draft(4)
    for proc in range(4):
        draft.task([(proc, Lane.COMPUTE)], cost=1)
    draft.task([(1, Lane.SEND), (2, Lane.RECEIVE)], cost=2, kind=Kind.MOVE)
    graph, costs = draft.graph(), CostModel(MIXED)
    keys = tuple(
        transfer("move", 10**6) if n == graph.cost[4] else sized(10**9, 1) for n in range(len(graph.cost_keys))
    )
    graph = replace(graph, cost_keys=keys)
    timed, durations = costs.by_kind(graph)
    expected = [costs.seconds(keys[graph.cost[t]], t % 2).seconds * PICOSECONDS for t in range(4)]
    assert durations[timed.cost[:4]] == pytest.approx(expected) and len(durations) == len(timed.cost_keys)
    assert durations[timed.cost[4]] == pytest.approx(costs.seconds(transfer("move", 10**6)).seconds * PICOSECONDS)
    assert [timed.cost_keys[c] for c in timed.cost] == [keys[c] for c in graph.cost]
    same, plain = CostModel(MACHINE).by_kind(graph)
    assert same is graph and (plain == CostModel(MACHINE).picoseconds(keys)).all()


def test_an_unknown_link_is_refused():
    with pytest.raises(ValueError, match="no links 'nvlink'"):
        CostModel(MACHINE).seconds(transfer("move", 1, 2, "nvlink"))


@given(st.lists(keys, max_size=12, unique=True), st.lists(keys, min_size=1, max_size=8))
def test_every_price_is_positive_and_says_its_source(known, asked):
    costs = model(known, noise=0.5)
    for key in asked + known:
        price = costs.seconds(key)
        assert price.source in SOURCES and math.isfinite(price.seconds) and price.seconds > 0
        assert (price.source == "measured") == (key in known)
        if price.source == "learned":
            assert price.seconds >= costs.roofline(key) / 10
    assert sum(costs.sources(asked).values()) == len(asked)
    picoseconds = costs.picoseconds(asked)
    assert picoseconds.dtype == np.int64 and (picoseconds >= 1).all()
    assert picoseconds == pytest.approx([costs.seconds(key).seconds * PICOSECONDS for key in asked], abs=1)


@settings(max_examples=200)
@given(st.lists(st.tuples(sizes, sizes), max_size=10, unique=True), sizes, sizes, sizes, sizes)
def test_more_work_never_costs_less_within_a_source(known, flops, nbytes, more_flops, more_bytes):
    costs = model([sized(*size) for size in known], noise=1.0)
    small = costs.seconds(sized(flops, nbytes))
    large = costs.seconds(sized(flops + more_flops, nbytes + more_bytes))
    assume(small.source == large.source != "measured")
    assert small.seconds <= large.seconds * (1 + 1e-9)


@given(st.lists(st.integers(10**6, 2 * 10**6), min_size=2, max_size=8, unique=True), st.integers(0, 9))
def test_interpolation_never_falls_however_noisy(known, seed):
    costs = model([sized(n, n) for n in known], noise=1.0, seed=seed)
    between = [costs.seconds(sized(n, n)) for n in np.linspace(min(known), max(known), 40).astype(int).tolist()]
    prices = [price.seconds for price in between if price.source == "interpolated"]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(prices))
    assert {price.source for price in between} <= {"measured", "interpolated"}


@given(st.sampled_from(FORMS), sizes, sizes, st.lists(sizes, max_size=5, unique=True))
def test_more_bytes_never_travel_faster_within_a_source(form, nbytes, more, known):
    costs = model([transfer(form, n) for n in known], noise=1.0)
    small, large = costs.seconds(transfer(form, nbytes)), costs.seconds(transfer(form, nbytes + more))
    assume(small.source == large.source != "measured")
    assert small.seconds <= large.seconds * (1 + 1e-9)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 5)), min_size=1, max_size=12))
def test_isotonic_never_falls_and_keeps_the_mean(points):
    values, weights = np.array(points).T
    fitted = isotonic(values, weights)
    assert (np.diff(fitted) >= -1e-12).all()
    assert np.average(fitted, weights=weights) == pytest.approx(np.average(values, weights=weights), abs=1e-9)
    ascending = np.sort(values)
    assert isotonic(ascending, weights) == pytest.approx(ascending)


def test_order_of_the_sources():
    costs = model([product(8, 64, 64), product(16, 64, 64), product(8, 64, 64, "relu.B")])
    assert costs.seconds(product(8, 64, 64)) == (pytest.approx(truth(product(8, 64, 64))), "measured")
    assert costs.seconds(product(12, 64, 64)).source == "interpolated"
    assert costs.seconds(product(64, 64, 64)).source == "learned"  # the family's
    assert costs.seconds(product(8, 64, 64, "conv.B")).source == "learned"  # the pass's
    assert costs.seconds(product(8, 64, 64, "conv.W")).source == "learned"  # all kernels'
    assert costs.seconds(transfer("move", 1000)).source == "roofline"
    assert costs.seconds(product(8, 64, 64, "relu.B")).source == "measured"


def test_a_transfer_is_priced_by_the_curve_of_those_measured_around_it():
    costs = model([transfer(form, 3**k) for form in FORMS for k in range(6, 16)])
    for form in FORMS:
        for nbytes in (3000, 70_000, 9_000_000):
            price = costs.seconds(transfer(form, nbytes))
            assert price.source == "interpolated"
            assert abs(price.seconds / truth(transfer(form, nbytes)) - 1) < 0.25, (form, nbytes)


def test_far_or_unlike_neighbours_are_not_interpolated():
    assert model([sized(10**6, 10**6), sized(10**9, 10**9)]).seconds(sized(10**8, 10**8)).source == "learned"
    assert model([sized(10**6, 10**7), sized(10**6, 10**7 + 9)]).seconds(sized(6 * 10**7, 1)).source == "learned"


def several(num, nbytes, form="all_gather"):
    """So many transfers that begin together, of so many bytes in all."""
    return transfer(form, nbytes // num).begun_with([transfer(form, nbytes // num)] * (num - 2) + [
        transfer(form, nbytes - nbytes // num * (num - 1))])  # fmt: skip


@given(st.lists(sizes, max_size=6, unique=True), st.integers(2, 64), st.integers(10**3, 10**10))
def test_several_of_which_none_was_measured_cost_as_one_of_all_their_bytes(known, num, nbytes):
    costs = model([transfer("all_gather", n) for n in known if n != nbytes], noise=1.0)
    assert several(num, nbytes).num_begun == num
    assert costs.seconds(several(num, nbytes)) == costs.seconds(transfer("all_gather", nbytes))


# A gather between two occupies a processor for 16 microseconds, of which 10 are its messages.
LEVEL = structs.replace(MACHINE.levels[0], message_seconds=5e-6, collective_seconds=6e-6)
BUSY = dataclasses.replace(MACHINE, levels=(LEVEL,))


@given(sizes, st.integers(2, 64), st.sampled_from([2, 3, 4]), st.floats(0.2, 5))
def test_each_more_of_several_takes_what_occupies_its_members_until_such_were_measured(nbytes, num, members, factor):
    """With messages from and to each other; where all that was measured takes `factor` as long, so do these."""
    one = transfer("all_gather", nbytes, members)
    together = structs.replace(one, shapes=several(num, num).shapes)
    told, more = CostModel(BUSY), (num - 1) * (6e-6 + 2 * (members - 1) * 5e-6)
    assert told.seconds(together).seconds == pytest.approx(told.seconds(one).seconds + more)
    for form in ("all_gather", "reduce_scatter"):
        known = [transfer(form, 4**n, members) for n in range(3, 12)]
        rows = [Measured(key, factor * told.roofline(key)) for key in known if key != one]
        learned = CostModel(BUSY, snapshot_of(HERE, rows))
        between = learned.seconds(one).seconds
        assert learned.seconds(together).seconds == pytest.approx(between + factor * more, rel=1e-3)


@given(st.floats(0.5, 5), st.floats(0.5, 5))
def test_messages_of_several_that_were_measured_are_not_counted_twice(factor, share):
    """Nor is what each transfer takes besides (0105)."""
    told, each = CostModel(BUSY), share * factor * 16e-6
    known = [several(num, 4**n) for n in range(4, 12) for num in (2, 16)]

    def lasts(key):
        return factor * told.roofline(structs.replace(key, shapes="")) + each * (key.num_begun - 1)

    found = snapshot_of(HERE, [Measured(key, lasts(key)) for key in known])
    for besides in (0.0, 3e-5):
        learned = CostModel(BUSY, structs.replace(found, meeting_seconds=besides))
        for key in (several(4, 10**5), several(16, 10**4), several(30, 10**6)):
            assert learned.seconds(key).seconds == pytest.approx(lasts(key) + besides, rel=0.05)


@pytest.mark.parametrize("machine", [MACHINE, BUSY])
@pytest.mark.parametrize("each", [0.0, 2e-6, 3e-5])
@pytest.mark.parametrize("seed", range(3))
def test_what_several_take_is_learned_by_their_number_and_their_bytes(seed, each, machine):
    """Alone, where only they were measured, and beside single ones, which are as if there were no others."""
    rng, noise = np.random.default_rng(seed), 0.02

    def lasts(key):
        return truth(key) + each * (key.num_begun - 1)

    def learned(keys):
        rows = [Measured(key, lasts(key) * math.exp(rng.normal(0, noise))) for key in keys]
        return CostModel(machine, snapshot_of(HERE, rows))

    together = [several(num, 3**n) for n in range(7, 17) for num in (2, 4, 16)]
    alone = [transfer("all_gather", 3**n) for n in range(7, 16)]
    asked = [several(num, nbytes) for nbytes in (9000, 150_000, 2 * 10**6, 3 * 10**7) for num in (2, 3, 9, 16)]
    for known in (together, together + alone):
        costs = learned(known)
        errors = [abs(costs.seconds(key).seconds / lasts(key) - 1) for key in asked]
        assert np.mean(errors) < 0.1 and max(errors) < 0.3
        prices = [costs.seconds(several(num, 10**6 + 1)).seconds for num in range(2, 40)]
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(prices))
        between = [costs.seconds(several(5, n)) for n in (3**12 + 1, 3**13 - 1, 3**13 + 1, 3**14 - 1)]
        assert {price.source for price in between} == {"interpolated"}
        assert all(a.seconds <= b.seconds for a, b in pairwise(between))
    both, single = learned(together + alone), learned(alone)
    for nbytes in (3000, 70_000, 9 * 10**6):
        price, other = (c.seconds(transfer("all_gather", nbytes)) for c in (both, single))
        assert price.source == other.source and price.seconds == pytest.approx(other.seconds, rel=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_learning_predicts_sizes_that_were_not_measured(seed):
    noise = 0.04
    shapes = [(b, i, o) for b in (4, 8, 16, 32) for i, o in ((64, 64), (64, 256), (256, 64), (256, 256))]
    known = [product(*s) for s in shapes] + [transfer("all_reduce", 4**k) for k in range(6, 12)]
    costs = model(known, noise=noise, seed=seed)
    unseen = [product(b, i, o) for b in (2, 6, 24, 64, 128) for i, o in ((64, 128), (128, 128), (256, 512))]
    unseen += [transfer("all_reduce", n) for n in (2000, 10**5, 10**6, 10**8)]
    errors = [costs.seconds(key).seconds / truth(key) - 1 for key in unseen]
    assert np.abs(errors).mean() < 2 * noise and np.abs(errors).max() < 6 * noise
    uncorrected = [CostModel(MACHINE).seconds(key).seconds / truth(key) - 1 for key in unseen]
    assert np.abs(errors).mean() < np.abs(uncorrected).mean() / 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["move", "pack"])
def test_what_a_byte_takes_is_not_learned_from_the_noise_of_tasks_that_have_hardly_any(name, seed):
    told, rng = CostModel(MACHINE), np.random.default_rng(seed)

    def of(nbytes):
        return transfer(name, nbytes) if name == "move" else sized(0, nbytes, name)

    rows = [Measured(of(n), 2 * told.roofline(of(n)) * math.exp(rng.normal(0, 0.3))) for n in range(64, 1000, 128)]
    learned = CostModel(MACHINE, snapshot_of(HERE, rows))
    for large in (of(10**6), of(10**8)):
        price = learned.seconds(large)
        assert price.source == "learned" and 2 / 1.3 < price.seconds / told.roofline(large) < 2 * 1.3


def test_sums_and_rows_are_corrected_each_by_a_factor_of_its_own():
    machine = Machine("m", (structs.replace(CPU, row_seconds=1e-8, overlaps=False),), ())

    def convolution(flops, rows):
        return CostKey("conv2d.F", f"{flops}|stride=(1, 1),rows={rows}", "float32", flops, flops // 50)

    def lasts(key):
        return 5e-6 + 1.5 * key.flops / 5e10 + 0.5 * key.rows * 1e-8 + key.nbytes / 1e10

    known = [convolution(n * 10**7, rows) for n in (1, 3, 9) for rows in (10**4, 10**5)]
    learned = CostModel(machine, snapshot_of(HERE, [Measured(key, lasts(key)) for key in known]))
    for few_rows, many_rows in ((10**3, 10**7), (0, 10**8)):
        for key in (convolution(10**9, few_rows), convolution(10**6, many_rows)):
            assert learned.seconds(key).source == "learned"
            assert learned.seconds(key).seconds == pytest.approx(lasts(key), rel=0.1)


def test_one_measurement_corrects_its_family():
    key, other = product(32, 256, 256), product(64, 256, 256)
    wrong, right = CostModel(MACHINE).seconds(other).seconds, model([key]).seconds(other).seconds
    assert abs(right / truth(other) - 1) < 0.1 < abs(wrong / truth(other) - 1)


def test_a_machine_without_stated_overhead_learns_one():
    machine = Machine("m", (Processor("cpu", 5e10, 1e10, 2**30),), ())
    known = [sized(1000 * k, 10) for k in (1, 2, 4, 100000)]
    costs = CostModel(machine, measured(known))
    assert costs.seconds(sized(10, 1)).seconds == pytest.approx(3e-6, rel=0.05)


def test_overhead_is_added_to_kernels_and_what_meetings_take_to_transfers():
    dense = product(8, 64, 64)
    known = [dense, dense.strided({0: (8, 128)}), transfer("move", 1000)]
    plain = measured(known)
    loaded = structs.replace(plain, overhead_seconds=1e-3, meeting_seconds=1e-2)
    without, including = CostModel(MACHINE, plain), CostModel(MACHINE, loaded)
    other = product(9, 64, 64)
    for key in [*known, other, other.strided({0: (9, 128)}), transfer("move", 10**6)]:
        more = including.seconds(key).seconds - without.seconds(key).seconds
        assert more == pytest.approx(1e-2 if key.link else 1e-3, abs=1e-12)
    nothing = CostModel(MACHINE, Snapshot(HERE, (), 1e-3, 1e-2, 1))
    assert all(nothing.seconds(key).seconds == nothing.roofline(key) for key in known)


@given(keys, st.floats(1, 5))
def test_what_was_not_measured_takes_longer_in_a_step_where_its_level_says_so(key, factor):
    in_steps = CostModel(dataclasses.replace(MACHINE, levels=_longer(MACHINE.levels, factor)))
    alone, longer = CostModel(MACHINE), factor if key.link else 1.0
    assert in_steps.roofline(key) == alone.roofline(key)
    assert in_steps.seconds(key) == (pytest.approx(longer * alone.roofline(key)), "roofline")


@given(st.lists(keys, min_size=1, max_size=6, unique=True), keys, st.floats(1, 5))
def test_what_was_learned_of_a_level_is_not_counted_twice(known, key, factor):
    """Neither of transfers that were measured, nor of others on their level, which have what meetings take."""
    snapshot = structs.replace(measured(known), meeting_seconds=1e-5)
    assume(not key.link or any(level_name(one.link) == level_name(key.link) for one in known))
    longer = dataclasses.replace(MACHINE, levels=_longer(MACHINE.levels, factor))
    assert CostModel(longer, snapshot).seconds(key) == CostModel(MACHINE, snapshot).seconds(key)


def test_between_ranks_of_this_host_transfers_take_longer_in_steps_and_on_gpus_as_long():
    gpus = [level for name in presets() if name != "local" for level in parse(name).levels]
    assert gpus and all(level.step_factor == 1.0 for level in gpus)
    assert [level.step_factor for level in parse("local:procs=2,nodes=2").levels] == [2.0, 1.0]


def _longer(levels, factor):
    return tuple(structs.replace(level, step_factor=factor) for level in levels)


def test_measurements_over_links_that_are_not_here_do_no_harm():
    snapshot = measured([transfer("move", 1000, 2, "nvlink"), product(8, 8, 8)])
    assert CostModel(MACHINE, snapshot).seconds(transfer("move", 1000)).source == "roofline"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_failed_measurement_never_becomes_a_cost(seconds):
    with pytest.raises(ValueError, match="not a cost"):
        Measured(product(1, 1, 1), seconds)


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_what_cannot_have_been_measured_is_in_no_snapshot(seconds):
    for field in ("overhead_seconds", "meeting_seconds"):
        with pytest.raises(ValueError, match=f"{seconds} seconds"):
            Snapshot(HERE, **{field: seconds})
    with pytest.raises(ValueError, match=f"spread {seconds}"):
        Measured(product(1, 1, 1), 1.0, seconds)
    with pytest.raises(ValueError, match="over 0 steps"):
        Measured(product(1, 1, 1), 1.0, 0.0, 0)
    with pytest.raises(ValueError, match="-1 meetings"):
        Snapshot(HERE, num_meetings=-1)


@given(st.lists(st.tuples(keys, st.floats(1e-9, 1e3)), max_size=6, unique_by=lambda pair: pair[0]))
def test_snapshot_travels_as_json_and_does_not_depend_on_order(pairs):
    rows = [Measured(key, seconds, seconds / 7, 3) for key, seconds in pairs]
    snapshot = snapshot_of(HERE, rows, 1e-6)
    assert from_json(to_json(snapshot)) == snapshot == snapshot_of(HERE, rows[::-1], 1e-6)
    assert snapshot.overhead_seconds == 1e-6


def test_faulty_snapshots_are_refused():
    row = Measured(product(1, 1, 1), 1.0)
    with pytest.raises(ValueError, match="twice"):
        Snapshot(HERE, (row, row))
    text = to_json(Snapshot(HERE, (row,))).decode()
    for fault in (text[:-5], text.replace('"seconds"', '"second"'), text.replace("1.0", "-1.0", 1)):
        with pytest.raises(ValueError, match="cost snapshot"):
            from_json(fault)


@settings(deadline=None, max_examples=60)
@given(st.integers(-320, 300), st.integers(-320, 300), st.integers(-20, 300), st.integers(-20, 300))
def test_a_machine_of_any_figures_has_true_durations_or_is_refused(flops, nbytes, overhead, latency):
    figures = [10.0**e for e in (flops, nbytes, overhead, latency)]
    slow = Processor("cpu", max(figures[0], 5e-324), max(figures[1], 5e-324), 2**30, task_overhead_seconds=figures[2])
    cost = CostModel(Machine("m", (slow,) * 4, (Level("host", 4, figures[3], 8e9),), (0,) * 5))
    keys = [product(8, 16, 32), sized(0, 64, "relu.F"), transfer("move", 100), transfer("all_reduce", 4096, 4)]
    for key in keys:
        true = cost.seconds(key).seconds * PICOSECONDS
        try:
            (lasts,) = cost.picoseconds([key])
        except ValueError as refused:
            assert true > 1e5 * PICOSECONDS and re.match(f"{key.name} would take .* s on machine 'm'", str(refused))
        else:
            assert 1 <= lasts <= 1e5 * PICOSECONDS and abs(lasts - true) <= max(1, 1e-15 * true)
