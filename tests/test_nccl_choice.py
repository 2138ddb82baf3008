"""Whether ranks transfer by NCCL, and what is said of it: on a stand-in, as no GPU is needed to choose."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from castile.runtime.comm.local import LocalCommunicator, LocalWorld
from tests.stand_in import nccl as fake


@pytest.fixture(autouse=True)
def stand_in() -> Iterator[None]:
    with fake.installed():
        yield


class Words(LocalCommunicator):
    """The first of several ranks, to which the others have said where they sit."""

    def gather_bytes(self, data: bytes, root: int = 0) -> list[bytes]:
        return [data, *self.others]

    def bcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        assert data is not None
        return data


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    from castile.runtime.comm import nccl, seats

    monkeypatch.delenv(seats.SHARING_SWITCH, raising=False)
    for others, is_nccl, words in (
        ([], False, "one rank"),
        (['["HOST", "1/0000:00:00.0", 22809, false]'], True, "NCCL 2.28.9, a GPU for each rank"),
        (['["b", "0/0000:00:00.0", 22809, false]'], False, "share a GPU, which NCCL 2.28.9 refuses"),
        (['["b", "1/0000:00:00.0", 0, false]'], False, "no NCCL on b"),
        (['["b", "1/0000:00:00.0", 23007, false]'], False, "differs between ranks (2.28.9, 2.30.7"),
    ):  # fmt: skip
        comm = Words(LocalWorld(1), 0)
        comm.others = [other.replace("HOST", comm.host).encode() for other in others]
        comm.crowded = True
        chosen, why = nccl.choose(comm)
        assert isinstance(chosen, nccl.NcclCommunicator) == is_nccl and (chosen is comm) != is_nccl
        assert chosen.crowded
        assert words in why


@pytest.mark.parametrize(
    ("version", "is_on", "is_nccl", "words"),
    [(22809, True, False, "refuses"), (23002, True, False, "refuses"), (23003, False, False, "with NCCL_MULTI_RANK"),
     (23003, True, True, "2.30.3"), (23203, True, True, "2.32.3")],
)  # fmt: skip
def test_shared_gpus(version: int, is_on: bool, is_nccl: bool, words: str) -> None:
    from castile.runtime.comm.seats import Seat, shared, verdict

    assert shared(version, is_on) == verdict([Seat("a", "0", version, is_on)] * 2)
    found, why = shared(version, is_on)
    assert found == is_nccl and words in why


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from castile.runtime.comm.nccl import NcclCommunicator

    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.delenv("NCCL_LAUNCH_ORDER_IMPLICIT", raising=False)
    NcclCommunicator(LocalWorld(1).communicators[0])
    assert os.environ["NCCL_ALGO"] == "Tree" and os.environ["NCCL_LAUNCH_ORDER_IMPLICIT"] == "1"


def test_settings_are_those_of_the_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ranks that add by other algorithms, or in other parts, each would wait for what nobody sends."""
    from castile.runtime.comm import nccl, seats

    first = {"NCCL_ALGO": "Tree", "NCCL_PROTO": None}
    told = json.dumps([True, "", seats.SETTINGS | first]).encode()
    comm = LocalCommunicator(LocalWorld(1), 0)
    # as on another rank
    monkeypatch.setattr(comm, "gather_bytes", lambda data, root=0: None)
    monkeypatch.setattr(comm, "bcast_bytes", lambda data, root=0: told)
    monkeypatch.setenv("NCCL_ALGO", "NVLS")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    nccl.choose(comm)
    assert os.environ["NCCL_ALGO"] == "Tree" and "NCCL_PROTO" not in os.environ
