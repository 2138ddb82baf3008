"""Collective algorithms: closed forms, more bytes or members never cheaper, and the chosen way is the cheapest."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from castile.planner.costs.algorithms import WAYS, cheapest, ways
from castile.runtime.machine import ALGORITHMS, Level, Machine, Processor, parse
from castile.runtime.task import BEGUN_TOGETHER, CostKey
from tests.effort import examples

GPU = Processor("gpu", 1e12, 1e11, 2**30)
FORMS = ("move", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
GROUPED = FORMS[1:]
SMALL, LARGE = 100, 10**11


def key(form, nbytes, members, link):
    return CostKey(form, "", "float32", 0, nbytes, link, members)


@st.composite
def clusters(draw):
    """Machines of one to three levels, the farther never the faster for a processor; all algorithms."""
    made, group, latency, rate = [], 1, 0.0, 1e12
    for n in range(draw(st.integers(1, 3))):
        group *= draw(st.integers(2, 5))
        latency += draw(st.sampled_from((0.0, 1e-6, 1e-5)))
        rate /= draw(st.sampled_from((1, 2, 10)))
        shared = draw(st.sampled_from((1, 2, 4)))
        made.append(Level(f"l{n}", group, latency, rate, shared if not n or shared <= made[-1].group else 1))
        rate /= made[-1].shared_by
    return Machine("m", (GPU,) * group, tuple(made), algorithms=ALGORITHMS)


def by_name(machine, form, nbytes, members, link):
    return {way.algorithm: way for way in ways(machine, key(form, nbytes, members, link))}


def flat(members, latency=1e-6, rate=1e9):
    return Machine("flat", (GPU,) * members, (Level("link", members, latency, rate),), algorithms=ALGORITHMS)


def test_every_algorithm_that_a_machine_can_name_is_here():
    assert tuple(WAYS) == ALGORITHMS


@pytest.mark.parametrize("n", [2, 3, 4, 7, 64, 1000])
def test_closed_forms_on_one_level(n):
    of = {form: by_name(flat(n), form, 10**9, n, "link") for form in GROUPED}
    # members add up by themselves what NCCL's rings add up on their way
    for algorithm, summed in (("ring", 0.0), ("exchange", 3 * (n - 1) / n * 10**9 / GPU.bytes_per_second)):
        way = of["all_reduce"][algorithm]
        assert way.transfer_seconds == pytest.approx(2 * (n - 1) / n + summed)
        assert way.latency_seconds == pytest.approx(2 * (n - 1) * 1e-6)
        assert of["reduce_scatter"][algorithm].seconds == pytest.approx((n - 1) / n + summed + (n - 1) * 1e-6)
        for form in ("all_gather", "all_to_all"):
            assert of[form][algorithm].seconds == pytest.approx((n - 1) / n + (n - 1) * 1e-6)
    depth = math.ceil(math.log2(n))
    assert of["all_reduce"]["tree"].seconds == pytest.approx(2 + 2 * depth * 1e-6)
    for algorithm in ("tree", "exchange"):
        assert of["broadcast"][algorithm].seconds == pytest.approx(depth * (1 + 1e-6))
    assert of["broadcast"]["ring"].seconds == pytest.approx(1 + (n - 1) * 1e-6)
    assert not any("hierarchical" in found for found in of.values())
    assert [way.algorithm for way in ways(flat(n), key("move", 10**9, 2, "link"))] == ["direct"]


def test_closed_forms_on_two_levels():
    levels = (Level("near", 8, 1e-6, 1e11), Level("far", 32, 1e-5, 1e10))
    machine = Machine("m", (GPU,) * 32, levels, algorithms=ALGORITHMS)
    of = by_name(machine, "all_reduce", 10**9, 32, "far")
    # All 8 of a node send on links of their own: 1e11/8 of each byte's way out, as much as within.
    assert of["ring"].transfer_seconds == pytest.approx(2 * 31 / 32 * 1e9 / 8e10)
    assert of["ring"].latency_seconds == pytest.approx(2 * (28 * 1e-6 + 3 * 1e-5))
    assert [(s.level, s.members) for s in of["hierarchical"].stages] == [("near", 8), ("far", 4)]
    near, far = of["hierarchical"].stages
    assert near.transfer_seconds == pytest.approx(2 * 7 / 8 * 1e9 / 1e11)
    assert far.transfer_seconds == pytest.approx(2 * 3 / 4 * (1e9 / 8) / 1e10)
    assert (near.latency_seconds, far.latency_seconds) == pytest.approx((14e-6, 6e-5))
    assert of["tree"].latency_seconds == pytest.approx(2 * (3 * 1e-6 + 2 * 1e-5))
    gather = by_name(machine, "all_gather", 10**9, 32, "far")["hierarchical"]
    assert gather.seconds == pytest.approx(of["hierarchical"].seconds / 2)
    apart = by_name(machine, "all_to_all", 32 * 10**6, 32, "far")["ring"]
    assert [s.transfer_seconds for s in apart.stages] == pytest.approx([7e6 / 1e11, 24e6 / 1e10])
    # By way of the member in its own place there, what goes to another node passes both levels.
    by_way = by_name(machine, "all_to_all", 32 * 10**6, 32, "far")["hierarchical"]
    assert [s.transfer_seconds for s in by_way.stages] == pytest.approx([7 / 8 * 32e6 / 1e11, 3 / 4 * 32e6 / 1e10])
    assert [s.latency_seconds for s in by_way.stages] == pytest.approx([7e-6, 3e-5])
    sent = by_name(machine, "broadcast", 10**9, 32, "far")
    assert sent.keys() == {"exchange", "ring", "tree"}
    # One member of a node alone sends and receives: the links of the others are idle.
    assert sent["tree"].seconds == pytest.approx(3 * (1e-6 + 1e9 / 1e11) + 2 * (1e-5 + 1e9 / 1e10))


@given(
    st.sampled_from(GROUPED), st.integers(2, 64), st.integers(1, LARGE), st.floats(0, 1e-5), st.floats(0, 1e-5),
    st.integers(2, 40),
)  # fmt: skip
def test_members_that_send_by_themselves_are_occupied_with_rounds_and_messages(form, n, nbytes, message, once, num):
    """Of several that begin together with each; rings put all of them into the same messages."""
    machine = flat(n)
    level = structs.replace(machine.levels[0], message_seconds=message, collective_seconds=once)
    busy = replace(machine, levels=(level,))
    of, plain = (by_name(m, form, nbytes, n, "link") for m in (busy, machine))
    rounds = 1 + (form == "all_reduce")
    in_turn = math.ceil(math.log2(n)) if form == "broadcast" else (n - 1) * rounds
    longer = rounds * once + in_turn * 2 * message
    assert of["exchange"].seconds == pytest.approx(plain["exchange"].seconds + longer)
    several = structs.replace(key(form, nbytes, n, "link"), shapes=f"{num}{BEGUN_TOGETHER}")
    for way in ways(busy, several):
        more = (num - 1) * (once + 2 * (n - 1) * message) if way.algorithm == "exchange" else 0.0
        assert way.more_seconds == pytest.approx(more)
        assert way.seconds == pytest.approx(of[way.algorithm].seconds + more)


@pytest.mark.parametrize("form", FORMS)
def test_processors_that_send_by_themselves_have_a_task_of_it(form):
    """With what a task takes besides its work; a network card's rings are none of a processor's."""
    busy = structs.replace(GPU, task_overhead_seconds=3e-6)
    for algorithms in (("exchange",), ("ring", "tree")):
        plain, other = (replace(flat(2), processors=(p,) * 2, algorithms=algorithms) for p in (GPU, busy))
        short, long = (cheapest(machine, key(form, 1000, 2, "link")).seconds for machine in (plain, other))
        assert long - short == pytest.approx(3e-6 if algorithms == ("exchange",) else 0.0, abs=1e-15)


def test_a_shared_port_is_divided_and_a_lone_member_gets_its_share():
    machine = parse("p3.16xlarge:nodes=2")
    rate = machine.level("ethernet").bytes_per_second
    whole = by_name(machine, "all_reduce", 10**9, 16, "ethernet")
    assert whole["hierarchical"].stages[-1].transfer_seconds == pytest.approx(1e9 / rate)
    assert whole["ring"].transfer_seconds == pytest.approx(2 * 15 / 16 * 1e9 / rate)
    pairs = by_name(machine, "all_reduce", 10**9, 2, "ethernet")
    assert pairs["ring"].transfer_seconds == pytest.approx(8 * 1e9 / rate)
    alone = machine.link((0, 8), machine.users((0, 8))).name
    assert cheapest(machine, key("move", 10**9, 2, alone)).transfer_seconds == pytest.approx(1e9 / rate)
    assert cheapest(machine, key("move", 10**9, 2, "ethernet")).transfer_seconds == pytest.approx(8e9 / rate)


def test_small_sums_go_by_trees_and_large_ones_by_rings_or_hierarchies():
    machine = parse("dgx-h100:nodes=16")
    small, large = (cheapest(machine, key("all_reduce", n, 128, "infiniband")) for n in (1000, 10**11))
    assert small.algorithm == "tree" and large.algorithm == "ring"
    slow = parse("p3.16xlarge:nodes=2")
    assert cheapest(slow, key("all_reduce", 10**9, 16, "ethernet")).algorithm == "hierarchical"


@given(clusters(), st.sampled_from(FORMS), st.integers(0, LARGE), st.integers(0, LARGE), st.data())
def test_more_bytes_are_never_cheaper_and_the_chosen_way_is_the_least(machine, form, nbytes, more, data):
    link = data.draw(st.sampled_from(machine.levels))
    members = 2 if form == "move" else data.draw(st.integers(2, link.group))
    small, large = (by_name(machine, form, n, members, link.name) for n in (nbytes, nbytes + more))
    assert small.keys() == large.keys() and small
    for algorithm, way in small.items():
        assert 0 <= way.seconds <= large[algorithm].seconds and math.isfinite(way.seconds)
        assert way.seconds == pytest.approx(way.latency_seconds + way.transfer_seconds)
        parts = sum(stage.latency_seconds + stage.transfer_seconds for stage in way.stages)
        assert parts == pytest.approx(way.seconds) if not way.at_once else parts >= way.seconds * (1 - 1e-9)
    best = cheapest(machine, key(form, nbytes, members, link.name))
    assert best.seconds == min(way.seconds for way in small.values()) and best.algorithm in small


@given(clusters(), st.sampled_from(GROUPED), st.sampled_from((SMALL, 10**6, LARGE)), st.data())
def test_more_groups_are_never_cheaper_by_an_algorithm(machine, form, nbytes, data):
    """With as many members on each of the levels below: links of their own come with more members, too."""
    far = data.draw(st.integers(1, len(machine.levels)))
    sizes = [g.group // (machine.levels[k - 1].group if k else 1) for k, g in enumerate(machine.levels[:far])]
    counts = [data.draw(st.integers(1, size)) for size in sizes]
    counts[-1] = data.draw(st.integers(2, max(2, sizes[-1])))
    few, many = ((*counts[:-1], n) for n in (counts[-1], counts[-1] + data.draw(st.integers(1, 4))))
    name = machine.levels[far - 1].name
    less, more = (by_name(machine, form, nbytes, math.prod(c), f"{name}:{'x'.join(map(str, c))}") for c in (few, many))
    assert less.keys() == more.keys()
    for algorithm, way in less.items():
        assert way.seconds <= more[algorithm].seconds * (1 + 1e-9), algorithm


@settings(max_examples=examples(100))
@given(st.sampled_from(GROUPED), st.integers(2, 300), st.integers(1, 300), st.integers(1, LARGE))
def test_more_members_on_one_level_are_never_cheaper_by_an_algorithm(form, n, more, nbytes):
    less, most = (by_name(flat(600), form, nbytes, m, "link") for m in (n, n + more))
    assert less.keys() == most.keys()
    assert all(way.seconds <= most[algorithm].seconds * (1 + 1e-9) for algorithm, way in less.items())


@given(clusters(), st.sampled_from(GROUPED), st.integers(1, LARGE))
def test_no_way_is_faster_than_the_slowest_level_allows(machine, form, nbytes):
    """Half of the members must hear of the other half's data, over the links between them."""
    last = machine.levels[-1]
    inner = machine.levels[-2].group if len(machine.levels) > 1 else 1
    total = nbytes if form != "all_to_all" else nbytes / machine.num_procs
    for way in ways(machine, key(form, nbytes, machine.num_procs, last.name)):
        if way.algorithm != "exchange":
            least = total * (1 - inner / machine.num_procs) / (last.bytes_per_second * inner / last.shared_by)
            assert way.transfer_seconds >= least * (1 - 1e-9)


def test_links_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="no links 'nvlink'"):
        ways(flat(4), key("all_reduce", 1, 4, "nvlink"))
    with pytest.raises(ValueError, match="room for 9"):
        ways(flat(16), key("all_reduce", 1, 9, "link:8"))
