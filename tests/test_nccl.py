"""Transfers between GPUs by NCCL, on a stand-in: every form, one order on all ranks, and what is said when it fails.

Nothing here has seen a GPU: that the real library adds and moves as the stand-in does is shown by tests marked gpu.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.runtime.comm.base import Side
from castile.runtime.comm.local import LocalWorld
from tests.collective_cases import DTYPES, FORMS, Case, draw, draw_together, random_case, side
from tests.effort import examples, rare
from tests.stand_in import cupy
from tests.stand_in import nccl as fake

SIZES = (1, 2, 3, 4)


class Ranks:
    """The ranks of a world, each with a device and a stream of its own."""

    def __init__(self, size: int) -> None:
        from castile.runtime.comm.nccl import NcclCommunicator

        self.world = LocalWorld(size)
        self.ends, self.streams = [], []
        # A call keeps addresses only: whoever makes it keeps the memory.
        self.kept: list[Any] = []
        for rank, comm in enumerate(self.world.communicators):
            cupy.cuda.Device(rank).use()
            self.ends.append(NcclCommunicator(comm))
            self.streams.append(cupy.cuda.Stream(non_blocking=True))

    def bound(self, rank: int, case: Case, tag: int) -> tuple[Callable[[], None], Any]:
        """The rank's part of the case as a call, and the array that is to hold its result."""
        call, (receive,) = self.bound_together(rank, [case], tag)
        return call, receive

    def bound_together(self, rank: int, cases: Sequence[Case], tag: int) -> tuple[Callable[[], None], list[Any]]:
        """The same for cases over one group, which begin together."""
        cupy.cuda.Device(rank).use()
        sides = []
        for case in cases:
            member = case.group.index(rank)
            send, receive = (self.on_device(rank, arrays[member]) for arrays in (case.send, case.receive))
            sides.append(side(case, send, receive, None))
        call = self.ends[rank].streamed(sides, tag, self.streams[rank])
        assert call is not None
        return call, [one.receive for one in sides]

    def on_device(self, rank: int, values: np.ndarray) -> Any:
        with self.streams[rank]:
            self.kept.append(cupy.asarray(values))
        return self.kept[-1]

    def found(self, rank: int, array: Any) -> np.ndarray:
        cupy.cuda.Device(rank).use()
        return array.get(stream=self.streams[rank])


def run(ranks: Ranks, cases: Sequence[Case], rng: random.Random) -> None:
    """Every rank takes its part in all cases, in their order, and its results are compared; which goes on is drawn."""
    run_together(ranks, [[case] for case in cases], rng)


def run_together(ranks: Ranks, groups: Sequence[Sequence[Case]], rng: random.Random) -> None:
    """The same where those of a list begin together."""
    todo: dict[int, list[Callable[[], None]]] = {}
    results = []
    for rank in range(ranks.world.size):
        todo[rank] = []
        for tag, cases in enumerate(groups, 1):
            if rank in cases[0].group:
                call, received = ranks.bound_together(rank, cases, tag)
                todo[rank].append(call)
                results += [(case, rank, receive) for case, receive in zip(cases, received, strict=True)]
    while any(todo.values()):
        rank = rng.choice([rank for rank, calls in todo.items() if calls])
        cupy.cuda.Device(rank).use()
        todo[rank].pop(0)()
    for case, rank, receive in results:
        if receive is not None:
            case.check_of(rank, ranks.found(rank, receive))
    # Who receives nothing ends no sooner.
    for rank, stream in enumerate(ranks.streams):
        cupy.cuda.Device(rank).use()
        stream.synchronize()
    assert ranks.world.quiet


@pytest.fixture
def journal() -> Iterator[fake.Journal]:
    with fake.installed() as made:
        yield made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", FORMS)
def test_form_equals_its_definition(form: str, size: int) -> None:
    for seed in (*range(len(DTYPES)), *rare(*range(len(DTYPES), 2 * len(DTYPES)))):
        rng = np.random.default_rng([seed, size])
        group = rng.permutation(size)[: 2 if form == "move" else size].tolist()
        case = random_case(rng, form, size, DTYPES[seed % len(DTYPES)], group)
        with fake.installed(seed):
            run(Ranks(size), [case], random.Random(seed))


@settings(max_examples=examples(100))
@given(st.data(), st.integers(0, 2**32 - 1))
def test_transfers_in_one_order_end_whoever_goes_first(data: st.DataObject, seed: int) -> None:
    size = data.draw(st.integers(2, 4))
    cases = data.draw(st.lists(draw(size), min_size=2, max_size=8))
    with fake.installed(seed) as journal:
        run(Ranks(size), cases, random.Random(seed))
        assert is_one_order(journal) and not journal.hanging_ends


@settings(max_examples=examples(60))
@given(st.data(), st.integers(0, 2**32 - 1))
def test_transfers_that_begin_together_are_one_call_of_a_stream(data: st.DataObject, seed: int) -> None:
    size = data.draw(st.integers(2, 4))
    groups = data.draw(st.lists(draw_together(size), min_size=1, max_size=4))
    with fake.installed(seed) as journal:
        ranks = Ranks(size)
        run_together(ranks, groups, random.Random(seed))
        assert is_one_order(journal) and not journal.hanging_ends
        for rank, stream in enumerate(ranks.streams):
            launched = [words for on, *_, words in journal.calls if on == stream.ptr]
            # what has no elements is not launched
            assert len(launched) <= sum(rank in cases[0].group for cases in groups)


def is_one_order(journal: fake.Journal) -> bool:
    """Whether all calls of all ranks fit into one order, in which each communicator's are the same for its members; and
    so do their meetings, in each of which they wait for all others.
    """
    events: list[tuple[int, tuple[int, int]]] = []
    seen: dict[tuple[int, int], int] = {}
    for stream, number, rank, _ in journal.calls:
        nth = seen[number, rank] = seen.get((number, rank), -1) + 1
        events.append((stream, (number, nth)))
    return _fit(events) and _fit([(device, (number, 0)) for device, number in journal.meetings])


def _fit(events: Sequence[tuple[int, tuple[int, int]]]) -> bool:
    """Whether (place, event), as they came at each place, fit into one order of all events."""
    after: dict[tuple[int, int], set[tuple[int, int]]] = {event: set() for _, event in events}
    last: dict[int, tuple[int, int]] = {}
    for place, event in events:
        if place in last:
            after[last[place]].add(event)
        last[place] = event
    while free := [e for e in after if not any(e in others for others in after.values())]:
        for event in free:
            del after[event]
    return not after


def test_groups_that_meet_crosswise_are_noticed(journal: fake.Journal) -> None:
    """Here nobody waits in a meeting; there each would wait for the next."""
    ranks, pairs = Ranks(3), ((0, 1), (1, 2), (0, 2))
    cases = {pair: random_case(np.random.default_rng(1), "all_reduce", 2, "float32", pair) for pair in pairs}
    identities: dict[tuple[int, ...], bytes] = {}

    def meet(rank: int, pair: tuple[int, int]) -> None:
        cupy.cuda.Device(rank).use()
        if pair not in identities:
            identities[pair] = fake.get_unique_id()
        fake.NcclCommunicator(2, identities[pair], pair.index(rank))

    for pair in pairs:
        for rank in pair:
            ranks.bound(rank, cases[pair], 1)
    assert is_one_order(journal)
    for rank, first, second in ((0, 0, 2), (1, 1, 0), (2, 2, 1)):
        meet(rank, pairs[first])
        meet(rank, pairs[second])
    assert not is_one_order(journal)


def test_another_order_on_one_rank_is_noticed(journal: fake.Journal) -> None:
    ranks = Ranks(2)
    cases = [random_case(np.random.default_rng(n), "all_reduce", 2, "float32", (0, 1)) for n in (1, 2)]
    calls = [[ranks.bound(rank, case, tag)[0] for tag, case in enumerate(cases, 1)] for rank in range(2)]
    assert sum(cases[0].counts[0]) != sum(cases[1].counts[0])
    with pytest.raises(fake.Refused, match="rank 1 calls"):
        for rank, mine in enumerate((calls[0], calls[1][::-1])):
            cupy.cuda.Device(rank).use()
            for call in mine:
                call()
        cupy.cuda.Device().synchronize()


def test_moves_in_another_order_wait_for_ever(journal: fake.Journal) -> None:
    ranks = Ranks(2)
    there, back = (random_case(np.random.default_rng(1), "move", 2, "float32", group) for group in ((0, 1), (1, 0)))
    calls = [[ranks.bound(rank, case, tag)[0] for tag, case in enumerate((there, back), 1)] for rank in range(2)]
    for rank, mine in enumerate((calls[0], calls[1][::-1])):
        cupy.cuda.Device(rank).use()
        for call in mine:
            call()
    with pytest.raises(RuntimeError, match="wait for ever"):
        cupy.cuda.Device().synchronize()


def test_a_group_meets_once_whatever_its_order(journal: fake.Journal) -> None:
    ranks = Ranks(3)
    cases = [random_case(np.random.default_rng(n), form, len(group), "float32", group)
             for n, (form, group) in enumerate([("move", (0, 1)), ("move", (1, 0)), ("all_gather", (0, 1)),
                                                ("all_reduce", (2, 1, 0)), ("all_to_all", (0, 1, 2))])]  # fmt: skip
    run(ranks, cases, random.Random(0))
    assert len({number for _, number, _, _ in journal.calls}) == 2


def test_a_captured_transfer_is_made_at_every_launch(journal: fake.Journal) -> None:
    ranks = Ranks(2)
    case = random_case(np.random.default_rng(3), "all_reduce", 2, "int64", (0, 1))
    graphs, results = [], []
    for rank in range(2):
        call, receive = ranks.bound(rank, case, 1)
        ranks.found(rank, receive)
        ranks.streams[rank].begin_capture()
        call()
        graphs.append(ranks.streams[rank].end_capture())
        results.append(receive)
    for _ in range(3):
        for rank in range(2):
            cupy.cuda.Device(rank).use()
            results[rank].data.memset_async(0, results[rank].nbytes, ranks.streams[rank])
            graphs[rank].launch(ranks.streams[rank])
        for rank in range(2):
            case.check_of(rank, ranks.found(rank, results[rank]))


def test_numbers_that_nccl_does_not_add_are_refused_in_words(journal: fake.Journal) -> None:
    end, stream = Ranks(1).ends[0], cupy.cuda.Stream()
    cupy.cuda.Device(0).use()
    array = cupy.asarray(np.zeros(3, np.int16))
    with pytest.raises(ValueError, match=r"does not add int16: all_reduce of int16 over ranks 0 \(transfer 7\)"):
        end.streamed([Side("all_reduce", (0,), array, array, None, ((3,),))], 7, stream)
    assert end.streamed([Side("all_gather", (0,), array, array, None, ((3,),))], 7, stream)


# What fails.


def transfers(journal: fake.Journal, form: str) -> None:
    """Two ranks, a transfer twice each, and a look for errors."""
    ranks = Ranks(2)
    case = random_case(np.random.default_rng(5), form, 2, "float32", (1, 0))
    calls = [ranks.bound(rank, case, 9)[0] for rank in range(2)]
    for _ in range(2):
        for rank, call in enumerate(calls):
            cupy.cuda.Device(rank).use()
            call()
    for end in ranks.ends:
        end.check()
    cupy.cuda.Device().synchronize()


@pytest.mark.parametrize("form", FORMS)
def test_a_fault_at_any_call_is_told_with_rank_and_group(form: str) -> None:
    with fake.installed() as journal:
        transfers(journal, form)
        num_calls = journal.num_calls
    assert num_calls >= 8
    for at in range(1, num_calls + 1):
        with fake.installed() as journal:
            from castile.runtime.comm.nccl import TransferError

            journal.fails_at = at
            with pytest.raises(
                TransferError, match=r"^rank [01]: .*ranks (0, 1|1, 0).* failed: NCCL_ERROR_SYSTEM_ERROR"
            ):
                transfers(journal, form)


def test_after_a_fault_the_devices_are_free_and_every_call_says_the_same(journal: fake.Journal) -> None:
    from castile.runtime.comm.nccl import TransferError

    ranks = Ranks(2)
    case = random_case(np.random.default_rng(1), "all_gather", 2, "float32", (0, 1))
    calls = [ranks.bound(rank, case, 4)[0] for rank in range(2)]
    cupy.cuda.Device(0).use()
    calls[0]()
    # Rank 0 waits for rank 1, which never comes.
    assert not [cupy.cuda.take_turns() for _ in range(50)][-1] and ranks.streams[0].queue
    ranks.ends[0]._groups[0, 1]._error = fake.REMOTE_ERROR
    with pytest.raises(TransferError, match=r"a transfer over ranks 0, 1 failed: .*REMOTE_ERROR") as caught:
        ranks.ends[0].check()
    assert (caught.value.which, caught.value.late) == ((0, 1), True)
    ranks.streams[0].synchronize()
    for again in (calls[0], ranks.ends[0].check):
        with pytest.raises(TransferError, match="REMOTE_ERROR"):
            again()


@pytest.mark.parametrize("before", [False, True])
def test_a_call_that_tells_of_a_transfer_before_it_does_not_take_the_blame(journal: fake.Journal, before: bool) -> None:
    from castile.runtime.comm.nccl import TransferError

    ranks = Ranks(2)
    case = random_case(np.random.default_rng(1), "all_gather", 2, "float32", (0, 1))
    calls = [ranks.bound(0, case, tag)[0] for tag in (4, 5)]
    cupy.cuda.Device(0).use()
    calls[0]()
    if before:
        ranks.ends[0]._groups[0, 1]._error = fake.REMOTE_ERROR
    else:
        journal.fails_at = journal.num_calls + 1
    words = r"\(transfer 5\)" + ", or one before it over these ranks," * before + " failed"
    with pytest.raises(TransferError, match=words) as caught:
        calls[1]()
    assert (caught.value.which, caught.value.late) == (5, before)


def test_a_status_that_cupy_has_no_name_for_is_told_too(journal: fake.Journal) -> None:
    from castile.runtime.comm.nccl import TransferError

    ranks = Ranks(1)
    call, _ = ranks.bound(0, random_case(np.random.default_rng(1), "all_gather", 1, "float32", (0,)), 4)
    journal.fails_at, journal.status = journal.num_calls + 1, 8
    with pytest.raises(TransferError, match="failed: NCCL status 8"):
        call()


def test_an_open_group_is_closed_when_a_call_in_it_fails(journal: fake.Journal) -> None:
    from castile.runtime.comm.nccl import TransferError

    ranks = Ranks(2)
    cupy.cuda.Device(0).use()
    one = ranks.on_device(0, np.zeros(16, np.float32))
    mine = Side("all_to_all", (0, 1), one[:3], one[8:12], None, ((1, 2), (3, 4)))
    begin = ranks.ends[0].streamed([mine], 1, ranks.streams[0])
    journal.fails_at = journal.num_calls + 3
    with pytest.raises(TransferError, match="all_to_all"):
        begin()
    fake.groupStart()


def test_ending_the_job_ends_the_transfers_first(journal: fake.Journal) -> None:
    ranks = Ranks(2)
    call, _ = ranks.bound(0, random_case(np.random.default_rng(1), "broadcast", 2, "float32", (0, 1)), 4)
    call()
    with pytest.raises(SystemExit):
        ranks.ends[0].abort(1)
    ranks.streams[0].synchronize()


@pytest.mark.parametrize("captured", [False, True])
def test_all_groups_are_told_to_end_before_any_is_waited_for(captured: bool, journal: fake.Journal) -> None:
    """NCCL waits for a group's calls, which here come after that of another, for which nobody else comes."""
    ranks, rng = Ranks(3), np.random.default_rng(1)
    cases = [random_case(rng, "all_gather", 2, "float32", group) for group in ((0, 1), (0, 2))]
    first, second = (ranks.bound(0, case, tag)[0] for tag, case in enumerate(cases, 1))
    stream = ranks.streams[0]
    if captured:
        stream.begin_capture()
    second()
    first()
    if captured:
        stream.end_capture().launch(stream)
    with pytest.raises(SystemExit):
        ranks.ends[0].abort(1)
    stream.synchronize()
    assert not journal.hanging_ends


def test_a_failure_is_told_though_nccl_waits_for_others_to_end(
    journal: fake.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others of this host hold connections to it, do not know of the failure, and wait for it."""
    from castile.runtime.comm import nccl

    others_end = threading.Event()
    monkeypatch.setattr(fake.NcclCommunicator, "_end", lambda self: others_end.wait())
    monkeypatch.setattr(nccl, "ENDING_SECONDS", 0.01)
    ranks = Ranks(2)
    call, _ = ranks.bound(0, random_case(np.random.default_rng(1), "all_gather", 2, "float32", (0, 1)), 4)
    journal.fails_at = journal.num_calls + 1
    try:
        for again in (call, call, ranks.ends[0].check):
            with pytest.raises(nccl.TransferError, match=r"rank 0: all_gather of float32 over ranks 0, 1"):
                again()
        # nor do they meet anew
        with pytest.raises(nccl.TransferError):
            ranks.bound(0, random_case(np.random.default_rng(1), "all_gather", 2, "float32", (0, 1)), 5)
        with pytest.raises(SystemExit):
            ranks.ends[0].abort(1)
    finally:
        others_end.set()


def test_a_meeting_that_takes_long_is_told_by_its_first(journal: fake.Journal) -> None:
    """Hosts may have networks that do not join them, which NCCL tries for an hour."""
    from castile.runtime.comm import nccl

    ranks, case = Ranks(2), random_case(np.random.default_rng(1), "all_gather", 2, "float32", (0, 1))
    with patch.object(nccl.threading, "Timer") as timer:
        for rank in range(2):
            ranks.bound(rank, case, 4)
    timer().start.assert_called_once()
    seconds, tell, (text,) = timer.call_args_list[0].args
    assert (seconds, tell) == (nccl.MEETING_SECONDS, nccl.say) and timer().cancel.call_count == 2
    assert "rank 0 has waited" in text and "with ranks 1:" in text and "NCCL_SOCKET_IFNAME" in text


def test_destroyed_with_their_owner(journal: fake.Journal) -> None:
    ranks = Ranks(2)
    [run(ranks, [random_case(np.random.default_rng(1), "all_gather", 2, "int32", (0, 1))], random.Random(1))]
    comm = ranks.ends[0]._groups[0, 1]
    ranks.ends.clear()
    with pytest.raises(fake.NcclError, match="INVALID_ARGUMENT"):
        comm.check_async_error()


# What the stand-in refuses.


def test_the_stand_in_refuses_what_nccl_refuses(journal: fake.Journal) -> None:
    ranks = Ranks(2)
    cupy.cuda.Device(0).use()
    array, stream = cupy.asarray(np.zeros(64, np.float32)), cupy.cuda.Stream()
    comm = fake.NcclCommunicator(2, fake.get_unique_id(), 0)
    at, s = array.data.ptr, stream.ptr
    f4, add = fake.NCCL_FLOAT32, fake.NCCL_SUM
    other = ranks.streams[1].ptr
    for call, status in (
        (lambda: comm.allReduce(at, at, 4, 99, add, s), 4),
        (lambda: comm.allReduce(at, at, 4, f4, 99, s), 4),
        (lambda: comm.broadcast(at, at, 4, f4, 2, s), 4),
        (lambda: comm.send(at, 4, f4, 5, s), 4),
        (lambda: comm.send(at, 4, f4, 0, s), 5),
        (lambda: comm.allGather(at, at, 4, f4, other), 1),
        (lambda: comm.allReduce(0, at, 4, f4, add, s), 1),
        (fake.groupEnd, 5),
        (lambda: fake.NcclCommunicator(2, fake.get_unique_id(), 2), 4),
    ):
        with pytest.raises(fake.NcclError) as caught:
            call()
        assert caught.value.status == status
    with pytest.raises(OverflowError):
        comm.allReduce(at, at, -1, f4, add, s)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="not allocated"):
        comm.allReduce(at, at + 4 * 63, 4, f4, add, s)
    with pytest.raises(fake.Refused, match="overlap"):
        comm.allReduce(at, at + 8, 4, f4, add, s)
    identity = fake.get_unique_id()
    fake.NcclCommunicator(2, identity, 0)
    with pytest.raises(fake.NcclError, match="INVALID_USAGE"):
        # a second rank on the same device
        fake.NcclCommunicator(2, identity, 1)
    comm.abort()
    with pytest.raises(fake.NcclError, match="INVALID_ARGUMENT"):
        comm.allReduce(at, at, 4, f4, add, s)


def test_numbers_are_added_as_what_they_are(journal: fake.Journal) -> None:
    from castile.runtime.comm.nccl import SUMMED

    for name, word in SUMMED.items():
        assert fake.DTYPES[getattr(fake, f"NCCL_{word}")] == np.dtype(name), name
