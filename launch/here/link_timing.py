"""Times links between ranks: latency and bandwidth of messages, and the time that messages and collectives occupy the
cores that send them, from messages there and back and from many at once.

It does not know what links these are, nor where the figures are kept.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from math import isfinite

import msgspec
import numpy as np

from castile.planner.costs.learn import DELAYED
from castile.runtime import cores
from castile.runtime.comm.base import Communicator, Side
from castile.runtime.comm.messages import Request

PING_BYTES = (8, 1024, 16384, 262144, 2097152)
PING_SECONDS = 0.06
PING_TAG = 1_000_000
# So many messages or gathers begin together: what each takes more than one by itself is no latency.
AT_ONCE = 16
# Of each kind it comes to so many rounds at most: the first of each waits for a rank that still asks for how long it
# had no core.
PING_ROUNDS = 8
# In a ping both ends are at work at once. Those of a step come to a transfer one after the other, each does its part
# while the other works or waits, and polling beside kernels hides none of it.
ONE_AFTER_THE_OTHER = 2.0

# Does once what is measured, and tells its seconds.
Once = Callable[[], float]


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link's figures, as `Level` has them."""

    latency_seconds: float
    bytes_per_second: float
    message_seconds: float
    collective_seconds: float
    step_factor: float

    def __post_init__(self) -> None:
        check(self, "bytes_per_second")
        check(self, "latency_seconds", "message_seconds", "collective_seconds", least=0.0)
        check(self, "step_factor", least=1.0)

    def shared(self, share: float) -> Link:
        """The link within a host where all ranks send at once, and each has that share of a core: of two ranks that
        share a core and ping each other one works, as in steps.
        """
        busy = (self.message_seconds / share, self.collective_seconds / share)
        factor = max(1.0, ONE_AFTER_THE_OTHER * share)
        return Link(self.latency_seconds / share, self.bytes_per_second * share, *busy, factor)


def link(comm: Communicator, ends: Sequence[int], guess: tuple[float, float], is_crowded: bool) -> Link | None:
    """The link between the first two of these ranks while each next pair does the same, on rank 0, which is the first;
    None elsewhere.

    guess   about the latency and rate, to choose how many messages fit the time All ranks of `comm` call it. Messages
            that other programs delayed do not count, unless all were, or there are more ranks than cores.
    """
    at = ends.index(comm.rank) if comm.rank in ends else len(ends)
    # of an odd number the last has nobody to send to
    has_peer = at ^ 1 < len(ends)
    mine = _measured(comm, ends[at ^ 1], *guess) if has_peer else []
    waits = comm.gather_bytes(np.concatenate([np.zeros(0), *(waited for _, waited in mine)]).tobytes())
    if waits is None:
        return None
    # a message waits for whichever end has no core
    waited = np.maximum(*(np.frombuffer(waits[end]) for end in ends[:2])) * (not is_crowded)
    each = np.split(waited, np.cumsum([len(lasted) for lasted, _ in mine])[:-1])
    medians = [_free(lasted, waited) for (lasted, _), waited in zip(mine, each, strict=True)]
    latency, rate = fit(np.array(PING_BYTES, float), np.array(medians[:-4]))
    message, messages, gather, gathers = medians[-4:]
    passed, gathered = max(0.0, messages - message) / (AT_ONCE - 1), max(0.0, gathers - gather) / (AT_ONCE - 1)
    # one that is sent, and one that is received: a gather of two has as many
    return Link(latency, rate, passed / 2, max(0.0, gathered - passed), 1.0)


def fit(nbytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """(latency, bytes per second) of seconds = latency + nbytes / rate, by least squares of relative errors."""
    # slow to import, and a host is measured once
    from scipy.optimize import nnls

    rows = np.stack([np.ones(len(nbytes)), nbytes], axis=1) / seconds[:, None]
    # Columns of one size, or the solver takes the bytes' tiny coefficients for zero.
    scale = rows.max(axis=0)
    latency, per_byte = nnls(rows / scale, np.ones(len(nbytes)))[0] / scale
    # On a busy host small messages may have taken as long as large ones: then the largest alone says what a byte costs.
    largest = seconds[-1] / nbytes[-1]
    return float(latency), 1.0 / positive(float(per_byte or largest), "a byte over the link")


def check(figures: msgspec.Struct, *names: str, least: float = sys.float_info.min) -> None:
    """Raises ValueError where one of these figures is not positive, or less than `least`."""
    for name in names:
        if not (isfinite(value := getattr(figures, name)) and value >= least):
            raise ValueError(f"{name} is {value}")


def positive(seconds: float, what: str) -> float:
    """The seconds. Raises RuntimeError where they are not positive."""
    if not (np.isfinite(seconds) and seconds > 0):
        raise RuntimeError(f"measuring this host: {what} took {seconds} seconds; the clock cannot be trusted")
    return seconds


def _measured(comm: Communicator, peer: int, latency: float, rate: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rounds of messages of each of PING_BYTES; then of one message each way and of AT_ONCE; then of gathers."""
    pings = [_rounds(_ping(comm, peer, nbytes), latency + nbytes / rate) for nbytes in PING_BYTES]
    together = [(many, number) for many in (_passing, _gathering) for number in (1, AT_ONCE)]
    return pings + [_rounds(many(comm, peer, number), number * latency) for many, number in together]


def _free(lasted: np.ndarray, waited: np.ndarray) -> float:
    """The median of messages in rounds with little waiting for a core, or of all where there are none."""
    is_free = waited <= DELAYED
    return positive(float(np.median(lasted[is_free] if is_free.any() else lasted)), "a message")


def _wait(request: Request) -> None:
    """Poll until it is done; every rank must get the core, also where there are more ranks than cores."""
    while not request.poll():
        os.sched_yield()


def _rounds(once: Once, guess: float) -> tuple[np.ndarray, np.ndarray]:
    """As many rounds as fit the time if each takes what is guessed: seconds[rounds, messages], and the share of each
    round in which this rank was ready to run and had no core, [rounds].
    """
    lasted = np.zeros(_num_rounds(guess))
    waited = np.zeros(len(lasted))
    for number, messages in enumerate(lasted):
        begin, delayed_ns = time.perf_counter(), cores.delayed_ns()
        messages[:] = [once() for _ in messages]
        waited[number] = (cores.delayed_ns() - delayed_ns) / 1e9 / (time.perf_counter() - begin)
    return lasted, waited


def _num_rounds(guess: float) -> tuple[int, int]:
    """The number of rounds, and of messages in each: fixed, so that both ends agree."""
    num_messages = max(5, int(PING_SECONDS / 2 / guess))
    num_rounds = min(num_messages, PING_ROUNDS)
    return num_rounds, num_messages // num_rounds


def _ping(comm: Communicator, peer: int, nbytes: int) -> Once:
    """A message one way, half of there and back, as steps send it: from memory that was just written, into other
    memory.

    Memory that both ends write and read in turns goes from core to core several times as slowly.
    """
    sent, received, note = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8), np.zeros(8, np.uint8)
    leads = comm.rank < peer
    send, receive = comm.sender(sent, peer, PING_TAG), comm.receiver(received, peer, PING_TAG)
    # what the second has to write is no part of it
    ready = comm.receiver(note, peer, PING_TAG) if leads else comm.sender(note, peer, PING_TAG)

    def once() -> float:
        sent.fill(1)
        _wait(ready())
        begin = time.perf_counter()
        for call in (send, receive) if leads else (receive, send):
            _wait(call())
        return (time.perf_counter() - begin) / 2

    return once


def _passing(comm: Communicator, peer: int, number: int) -> Once:
    """`number` messages of next to nothing each way: the time that this rank's core is occupied."""
    calls = [comm.receiver(array, peer, PING_TAG) for array in np.zeros((number, 1))]
    calls += [comm.sender(array, peer, PING_TAG) for array in np.zeros((number, 1))]

    def once() -> float:
        begin = time.thread_time()
        for request in [call() for call in calls]:
            _wait(request)
        return time.thread_time() - begin

    return once


def _gathering(comm: Communicator, peer: int, number: int) -> Once:
    """`number` gathers of next to nothing that begin together: the time that this rank's core is occupied."""
    group, counts = tuple(sorted((comm.rank, peer))), ((1, 1), (1, 1))
    sides = [Side("all_gather", group, np.zeros(1), np.zeros(2), None, counts) for _ in range(number)]
    begin_all = comm.prepared(sides, PING_TAG)

    def once() -> float:
        begin = time.thread_time()
        _wait(begin_all())
        return time.thread_time() - begin

    return once
