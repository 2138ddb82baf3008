"""Pings: what a message between ranks takes and how many bytes go in a second, from messages there and back.

It does not know what links these are, nor where the figures are kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np

from castile.planner.costs.learn import DELAYED
from castile.runtime import cores
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.messages import Request

PING_BYTES = (8, 1024, 16384, 262144, 2097152)
PING_SECONDS = 0.06
PING_TAG = 1_000_000
# Messages of one size come in so many rounds at most: the first of each waits for a rank that still asks for how long
# it had no core.
PING_ROUNDS = 8


def link(comm: Communicator, ends: Sequence[int], guess: tuple[float, float], is_crowded: bool) -> tuple[float, float]:
    """(latency in seconds, bytes per second) between the first two of these ranks while each next pair does the same;
    figures hold on rank 0, which is the first.

    guess   about what they are: it decides how many messages fit the time. All ranks of `comm` call it.
    What other programs held up does not count, unless all was or ranks are too many for the cores themselves.
    """
    at = ends.index(comm.rank) if comm.rank in ends else len(ends)
    # of an odd number the last has nobody to send to
    has_peer = at ^ 1 < len(ends)
    mine = [_pings(comm, ends[at ^ 1], nbytes, guess) for nbytes in PING_BYTES] if has_peer else []
    told = comm.gather_bytes(np.concatenate([np.zeros(0), *(held for _, held in mine)]).tobytes())
    if told is None:
        return guess
    # a message waits for whichever end has no core
    delayed = np.maximum(*(np.frombuffer(told[end]) for end in ends[:2])) * (not is_crowded)
    each = np.split(delayed, np.cumsum([len(lasted) for lasted, _ in mine])[:-1])
    medians = [_free(lasted, held) for (lasted, _), held in zip(mine, each, strict=True)]
    return fit(np.array(PING_BYTES, float), np.array(medians))


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


def positive(seconds: float, what: str) -> float:
    """The seconds. Raises RuntimeError where they are no duration."""
    if not (np.isfinite(seconds) and seconds > 0):
        raise RuntimeError(f"measuring this host: {what} took {seconds} seconds; the clock cannot be trusted")
    return seconds


def _free(lasted: np.ndarray, delayed: np.ndarray) -> float:
    """The median of messages in rounds of which little was waiting for a core, or of all where there are none."""
    is_free = delayed <= DELAYED * lasted.sum(axis=1)
    return positive(float(np.median(lasted[is_free] if is_free.any() else lasted)), "a message")


def _wait(*requests: Request) -> None:
    """Poll until all are done; every rank must come to the core, also where there are more ranks than cores."""
    while not all(request.poll() for request in requests):
        os.sched_yield()


def _pings(comm: Communicator, peer: int, nbytes: int, guess: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Rounds of messages: what each took one way, half of there and back, seconds[rounds, messages]; and half of the
    seconds for which in each round this rank was ready to run and had no core, seconds[rounds].
    """
    array = np.zeros(nbytes, np.uint8)
    lasted = np.zeros(_num_rounds(nbytes, *guess))
    delayed = np.zeros(len(lasted))
    for number, messages in enumerate(lasted):
        delayed_ns = cores.delayed_ns()
        for message in range(len(messages)):
            begin = time.perf_counter()
            if comm.rank < peer:
                _wait(comm.send(array, peer, PING_TAG))
                _wait(comm.recv(array, peer, PING_TAG))
            else:
                _wait(comm.recv(array, peer, PING_TAG))
                _wait(comm.send(array, peer, PING_TAG))
            messages[message] = (time.perf_counter() - begin) / 2
        delayed[number] = (cores.delayed_ns() - delayed_ns) / 2e9
    return lasted, delayed


def _num_rounds(nbytes: int, latency: float, rate: float) -> tuple[int, int]:
    """Rounds, and messages in each, that fit the time if they take what is guessed; fixed, so that both ends agree."""
    num_messages = max(5, int(PING_SECONDS / 2 / (latency + nbytes / rate)))
    num_rounds = min(num_messages, PING_ROUNDS)
    return num_rounds, num_messages // num_rounds
