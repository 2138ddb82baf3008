"""Transfers between GPUs by way of the host, on a stand-in: every form to the last bit, and no copy made too early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.runtime.comm.base import Side
from castile.runtime.comm.local import LocalWorld
from castile.runtime.comm.processors import end_of
from tests import stand_in, standing
from tests.collective_cases import DTYPES, FORMS, Case, draw, draw_together, random_case, side, turns
from tests.stand_in import cupy

CASES = Path(__file__).parent / "mpi_cases"
# Copies of the device take polls of their own.
MOST_POLLS = 20_000


class Staged:
    """Processors on ranks of one process, all on one device, with two streams each."""

    def __init__(self, ranks: list[int], size: int) -> None:
        from castile.runtime.comm.staged import StagedEnd

        self.world = LocalWorld(size)
        self.compute, self.traffic = ([cupy.cuda.Stream(non_blocking=True) for _ in ranks] for _ in range(2))
        self.ends = [
            StagedEnd(end_of(self.world.communicators[rank], proc, ranks), self.compute[proc], self.traffic[proc])
            for proc, rank in enumerate(ranks)
        ]
        self.results: list[tuple[Case, int, Any]] = []

    def begin(self, proc: int, cases: Sequence[Case], tag: int) -> Any:
        """Begins the processor's part in cases; what it sends is written late, by a kernel before it on `compute`."""
        sides = [self.side(proc, case) for case in cases]
        return self.ends[proc].prepared(sides, tag)()

    def side(self, proc: int, case: Case) -> Side:
        member, stream = case.group.index(proc), self.compute[proc]
        arrays = []
        for values in (case.send[member], case.receive[member], case.scratch[member]):
            array = None if values is None else cupy.empty(values.shape, values.dtype)
            if array is not None:
                array.data.memset_async(0xFF, array.nbytes, stream)
                with stream:
                    array[...] = late(values, stream)
            arrays.append(array)
        found = side(case, *arrays)
        self.results.append((case, member, found.receive))
        return found

    def check(self) -> None:
        for case, member, receive in self.results:
            if receive is not None:
                assert receive.on_device.tobytes() == case.expected[member].tobytes(), (case.form, case.group, member)
        assert self.world.quiet


def late(values: np.ndarray, stream: Any) -> Any:
    """The numbers on the device, when the stream comes to it."""
    with stream:
        return cupy.asarray(values)


@pytest.fixture
def installed() -> Iterator[None]:
    with stand_in.installed():
        yield


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_form_equals_its_definition_to_the_last_bit(form: str, size: int) -> None:
    for seed, dtype in enumerate(DTYPES):
        case = random_case(np.random.default_rng([seed, size]), form, size, dtype)
        with stand_in.installed(seed):
            staged = Staged(list(range(size)), size)
            turns([staged.begin(proc, [case], 1) for proc in case.group], seed, MOST_POLLS)
            staged.check()


@settings(max_examples=60)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_many_outstanding_on_processors_that_share_ranks(data: st.DataObject, seed: int) -> None:
    num_procs, size = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 4))
    ranks = data.draw(st.lists(st.integers(0, size - 1), min_size=num_procs, max_size=num_procs))
    one, several = draw(num_procs).map(lambda case: [case]), draw_together(num_procs)
    groups = data.draw(st.lists(one | several, min_size=1, max_size=4))
    with stand_in.installed(seed % 1000):
        staged = Staged(ranks, size)
        turns(
            [staged.begin(proc, cases, tag) for tag, cases in enumerate(groups, 1) for proc in cases[0].group],
            seed,
            MOST_POLLS,
        )
        staged.check()


def test_nothing_lands_before_kernels_that_were_issued_earlier_have_read(installed: None) -> None:
    staged = Staged([0, 1], 2)
    old, kept = cupy.asarray(np.full(5, 7.0)), cupy.empty(5, "float64")
    cupy.cuda.get_current_stream().synchronize()
    for _ in range(30):
        staged.compute[1].enqueue(lambda: None, "a kernel")
    with staged.compute[1]:
        kept[...] = old
    sent = late(np.arange(5.0), staged.compute[0])
    counts = ((0, 5), (0, 0))
    requests = [
        staged.ends[0].prepared([Side("move", (0, 1), sent, None, None, counts)], 1)(),
        staged.ends[1].prepared([Side("move", (0, 1), None, old, None, counts)], 1)(),
    ]
    turns(requests, 0, MOST_POLLS)
    assert kept.on_device.tolist() == [7.0] * 5 and old.on_device.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_transfer_can_be_made_again(installed: None) -> None:
    staged = Staged([0, 1], 2)
    array = [late(np.zeros(3), stream) for stream in staged.compute]
    counts = ((0, 3), (0, 0))
    calls = [
        staged.ends[0].prepared([Side("move", (0, 1), array[0], None, None, counts)], 1),
        staged.ends[1].prepared([Side("move", (0, 1), None, array[1], None, counts)], 1),
    ]
    for step in range(4):
        with staged.compute[0]:
            array[0][...] = late(np.full(3, step + 1.0), staged.compute[0])
        turns([call() for call in calls], step, MOST_POLLS)
        assert array[1].on_device.tolist() == [step + 1.0] * 3


def test_polling_never_waits(installed: None) -> None:
    staged = Staged([0, 1], 2)
    array = late(np.zeros(3), staged.compute[1])
    request = staged.ends[1].collective("move", (0, 1), None, array, None, ((0, 3), (0, 0)), 1)
    assert not any(request.poll() for _ in range(100))


def test_messages_of_the_host_and_faults_are_the_inner_ends(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = Staged([0, 1], 2)
    here = np.zeros(2)
    request = staged.ends[1].recv(here, 0, 5)
    staged.ends[0].send(np.ones(2), 1, 5)
    assert request.poll() and here.tolist() == [1.0, 1.0]
    monkeypatch.setattr(type(staged.world.communicators[0]), "check", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        staged.ends[0].check()


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_under_mpirun(num_ranks: int) -> None:
    status, output, errors = standing.run(num_ranks, str(CASES / "staged.py"))
    assert status == 0, errors
    assert output.count("staged transfers agree") == num_ranks
