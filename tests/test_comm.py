"""Laws of the communicators: every collective form against numpy, on odd sizes, in any order of turns."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.runtime.comm.base import End
from castile.runtime.comm.local import LocalWorld
from castile.runtime.comm.processors import end_of, rank_of
from castile.runtime.task import AT_ONCE
from tests import standing
from tests.collective_cases import DTYPES, FORMS, Case, begin, draw, draw_together, prepare, random_case, turns
from tests.effort import examples
from tests.mpi import mpirun

CASES = Path(__file__).parent / "mpi_cases"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("form", FORMS)
def test_form_equals_its_definition(form: str, size: int) -> None:
    for seed, dtype in enumerate(DTYPES):
        case = random_case(np.random.default_rng([seed, size]), form, size, dtype)
        world = LocalWorld(size)
        turns([begin(world.communicators[rank], case, tag=seed) for rank in case.group], seed)
        case.check()
        assert world.quiet


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_outstanding_collectives_in_any_order_end(data: st.DataObject, seed: int) -> None:
    size = data.draw(st.integers(1, 5))
    cases = data.draw(st.lists(draw(size), min_size=1, max_size=5))
    world = LocalWorld(size)
    requests = []
    for rank in data.draw(st.permutations(range(size))):
        for tag in data.draw(st.permutations(range(len(cases)))):
            if rank in cases[tag].group:
                requests.append(begin(world.communicators[rank], cases[tag], tag))
    turns(requests, seed)
    for case in cases:
        case.check()
    assert world.quiet


def sharing(data: st.DataObject, most: int) -> tuple[LocalWorld, list[End]]:
    """A world of up to four ranks, and the ends of up to so many processors, of which a rank may have several."""
    num_procs, size = data.draw(st.integers(1, most)), data.draw(st.integers(1, 4))
    ranks = data.draw(st.lists(st.integers(0, size - 1), min_size=num_procs, max_size=num_procs))
    world = LocalWorld(size)
    return world, [end_of(world.communicators[ranks[proc]], proc, ranks) for proc in range(num_procs)]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_what_was_prepared_once_takes_what_lies_there_each_time(data: st.DataObject, seed: int) -> None:
    """On processors that share a rank too; several groups under way, of which each has one tag."""
    world, ends = sharing(data, 6)
    alone, together = draw(len(ends)).map(lambda case: [case]), draw_together(len(ends))
    groups = data.draw(st.lists(alone | together, min_size=1, max_size=3))
    calls = [prepare(ends[p], cases, tag) for tag, cases in enumerate(groups) for p in cases[0].group]
    for time in range(3):
        turns([call() for call in calls], seed)
        for case in itertools.chain.from_iterable(groups):
            case.check()
            case.renew(seed + time)
    assert world.quiet


@pytest.mark.parametrize("form", sorted(set(FORMS) - set(AT_ONCE)))
def test_what_sends_later_does_not_begin_together(form: str) -> None:
    case = random_case(np.random.default_rng(1), form, 2, "float32", (0, 1))
    with pytest.raises(AssertionError, match="out of order"):
        prepare(LocalWorld(2).communicators[0], [case, case], 0)


def test_sums_have_the_same_bits_everywhere_in_group_order() -> None:
    group = (2, 0, 1)
    case = random_case(np.random.default_rng(0), "all_reduce", 3, "float32", group)
    world = LocalWorld(3)
    turns([begin(world.communicators[rank], case, 0) for rank in group], 0)
    a, b, c = case.send
    for result in case.receive:
        assert result.tobytes() == ((a + b) + c).tobytes()
    assert ((a + b) + c).tobytes() != (a + (b + c)).tobytes(), "the case cannot tell the orders apart"


def test_a_move_within_a_processor_copies() -> None:
    end = LocalWorld(1).communicators[0]
    source, target = np.arange(5.0), np.zeros(5)
    assert end.collective("move", (0, 0), source, target, None, ((0, 5), (0, 0)), 0).poll()
    assert np.array_equal(source, target)


def test_messages_of_one_tag_keep_their_order() -> None:
    a, b = LocalWorld(2).communicators
    early, late = np.zeros(3), np.zeros(3)
    first = b.recv(early, 0, 7)
    a.send(np.full(3, 1.0), 1, 7)
    a.send(np.full(3, 2.0), 1, 7)
    second = b.recv(late, 0, 7)
    assert first.poll() and second.poll()
    assert early[0] == 1 and late[0] == 2


def test_words_between_ranks() -> None:
    ranks = LocalWorld(3).communicators
    assert [rank.bcast_bytes(b"plan" if rank.rank == 0 else None) for rank in ranks] == [b"plan"] * 3
    assert [rank.gather_bytes(bytes([rank.rank])) for rank in reversed(ranks)] == [None, None, [b"\0", b"\1", b"\2"]]


def test_waiting_alone_for_another_rank_is_refused() -> None:
    a, b = LocalWorld(2).communicators
    with pytest.raises(RuntimeError, match="take turns"):
        a.wait(a.recv(np.zeros(1), 1, 0))
    with pytest.raises(RuntimeError, match="rank 0 has not had its turn"):
        b.bcast_bytes(None)


def test_processors_are_spread_over_ranks() -> None:
    assert rank_of(4, 4) == (0, 1, 2, 3)
    assert rank_of(2, 5) == (0, 1)
    assert rank_of(5, 2) == (0, 0, 0, 1, 1)


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_under_mpirun(num_ranks: int) -> None:
    status, output, errors = standing.run(num_ranks, str(CASES / "collectives.py"))
    assert status == 0, errors
    assert output.count("collectives agree") == num_ranks


@pytest.mark.mpi
def test_hosts_have_their_ranks_side_by_side_and_one_time() -> None:
    status, output = mpirun(5, str(CASES / "hosts.py"))
    assert status == 0, output
    assert output.count("hosts agree") == 5


@pytest.mark.mpi
def test_abort_ends_all_ranks() -> None:
    program = (
        "import sys; from castile.runtime.comm.mpi import world; import numpy as np; c = world()\n"
        "print('last words', end='') if c.rank == 1 else None\n"
        "c.abort(5) if c.rank == 1 else c.wait(c.recv(np.zeros(1), 1, 0))"
    )
    status, output = mpirun(2, "-m", "mpi4py", "-c", program)
    assert status == 5 and "last words" in output, output


def test_cases_are_not_trivial() -> None:
    cases = [random_case(np.random.default_rng(seed), form, 3, "float64") for seed in range(20) for form in FORMS]
    assert all(isinstance(case, Case) for case in cases)
    counts = [np.array(case.counts) for case in cases]
    assert any((c == 0).any() and c.any() for c in counts) and any(len(set(c.ravel())) > 2 for c in counts)


@pytest.mark.mpi
def test_ranks_are_crowded_only_where_their_host_has_fewer_cores_for_them_than_there_are() -> None:
    """However they are bound: two ranks with a core each are not, and a quota counts."""
    program = """
from castile.runtime import cores
from castile.runtime.comm.mpi import MPI, MpiCommunicator
rank = MPI.COMM_WORLD.Get_rank()
for bound, quota in (({rank}, 9), ({0}, 9), ({0, 1}, 9), ({0, 1}, 1.5)):
    cores.affinity, cores.quota = lambda: frozenset(bound), lambda: quota
    comm = MpiCommunicator(MPI.COMM_WORLD.Dup())
    found = comm.gather_bytes(b"%d,%d " % (comm.crowded, comm._polls_before_sleep))
    if not rank:
        print(b"".join(found).decode(), flush=True)
"""
    status, output = mpirun(2, "-c", program)
    assert status == 0, output
    assert [line.split() for line in output.splitlines()] == [["0,500"] * 2, ["1,20"] * 2, ["0,500"] * 2, ["1,20"] * 2]
