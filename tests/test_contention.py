"""Links that several use at once: what transfers of one version take together is what their bytes take on the link."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.cost import CostModel
from castile.planner.costs.algorithms import cheapest
from castile.runtime.dependence import links, version
from castile.runtime.levels import Level
from castile.runtime.machine import ALGORITHMS, Machine, Processor, parse
from castile.runtime.region import Box
from castile.runtime.task import CostKey, Kind
from castile.runtime.transfer import Source
from tests.effort import examples
from tests.test_algorithms import FORMS, GROUPED, clusters

GPU = Processor("gpu", 1e12, 1e12, 2**30)
RATE = 1e9


def nodes_of(each, nodes=2, latency=0.0):
    """Processors of a node leave by one port, and reach each other a thousand times as fast."""
    near, far = Level("near", each, latency, 1e3 * RATE), Level("far", nodes * each, latency, RATE, each)
    return Machine("m", (GPU,) * nodes * each, (near, far), algorithms=ALGORITHMS)


def way(machine, form, nbytes, procs, among):
    """The cheapest way of a transfer over processors, where `among` may use the links at once."""
    link = machine.link(procs, machine.users(among)).name
    return cheapest(machine, CostKey(form, "", "float32", 0, nbytes, link, len(procs)))


@given(st.integers(2, 5), st.integers(2, 8), st.sampled_from(FORMS), st.integers(1, 10**12), st.data())
def test_groups_that_share_a_port_take_together_what_they_take_one_after_another(nodes, each, form, nbytes, data):
    machine, num_groups = nodes_of(each, nodes), data.draw(st.integers(1, each))
    members = 2 if form == "move" else data.draw(st.integers(2, nodes))
    groups = [tuple(range(k, members * each, each)) for k in range(num_groups)]
    for group in groups:
        alone, together = (way(machine, form, nbytes, group, among).seconds for among in (group, sum(groups, ())))
        assert together == pytest.approx(num_groups * alone, rel=1e-5)


@given(clusters(), st.sampled_from(GROUPED), st.integers(0, 10**11), st.data())
def test_beside_others_nothing_is_cheaper_than_alone(machine, form, nbytes, data):
    every = st.integers(0, machine.num_procs - 1)
    procs = data.draw(st.lists(every, min_size=2, unique=True).map(tuple))
    others = data.draw(st.lists(every).map(tuple))
    alone, beside = (way(machine, form, nbytes, procs, among).seconds for among in (procs, (*procs, *others)))
    # names of links state widths in six digits
    assert alone <= beside * (1 + 1e-5)


def test_which_way_is_cheapest_may_change_beside_others():
    machine = nodes_of(each=8, nodes=16, latency=1e-5)
    column = tuple(range(0, 128, 8))
    assert way(machine, "all_reduce", 4 * 10**5, column, column).algorithm == "tree"
    assert way(machine, "all_reduce", 4 * 10**5, column, range(128)).algorithm == "ring"


@given(st.integers(1, 6), st.integers(1, 10**9), st.data())
def test_moves_of_one_version_leave_by_a_port_in_the_time_of_all_their_bytes(each, length, data):
    """Processors of a node send a piece each to their fellows of the other node, as that is planned and priced."""
    machine, procs = nodes_of(each + 1), data.draw(st.permutations(range(each)))
    boxes = [Box((k * length,), ((k + 1) * length,)) for k in range(each)]
    known = links(machine, (*procs, *(p + each + 1 for p in procs)))
    made, read = [Source(box, (k,)) for k, box in enumerate(boxes)], [(each + k, b) for k, b in enumerate(boxes)]
    patterns = version(made, read, "float32", known).patterns
    assert [p.kind for p in patterns] == [Kind.MOVE] * each
    for pattern in patterns:
        assert CostModel(machine).seconds(pattern.key).seconds == pytest.approx(each * 4 * length / RATE, rel=1e-5)


@pytest.mark.parametrize("name", ["flexflow-k80:nodes=3", "flexflow-p100:nodes=3", "p3.16xlarge:nodes=3"])
@settings(max_examples=examples(100))
@given(data=st.data())
def test_processors_that_lie_alike_see_the_same_links(name, data):
    """So that what was planned for some serves others; presets have switches and ports that several share."""
    machine = parse(name)
    node = machine.num_procs // 3
    procs = data.draw(st.lists(st.integers(0, machine.num_procs - 1), min_size=2, unique=True))
    # nodes in another order, and neighbours of a node swapped, are the same machine
    order, swap = data.draw(st.permutations(range(3))), data.draw(st.integers(0, 1))
    moved = [order[p // node] * node + (p % node ^ swap) for p in procs]
    slots = data.draw(st.lists(st.integers(0, len(procs) - 1), min_size=2, unique=True).map(tuple))
    assert links(machine, procs).level(slots) == links(machine, moved).level(slots)
