"""Estimates of many kernel calls, by worker processes: each takes seconds to compile and to count.

It does not know which calls are worth asking for.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os import sched_getaffinity
from typing import Any, NamedTuple

from castile.kernels import worker_pool
from castile.kernels.estimates.chips import KINDS

# A process takes a second to begin.
MOST_PROCESSES, LEAST_CALLS = 8, 4


class Estimate(NamedTuple):
    """What a kernel call would take.

    least_seconds   what memory or arithmetic alone would take
    binds           what the longest of its launches waits for most
    """

    seconds: float
    least_seconds: float
    binds: str


def estimates(calls: Sequence[str], kind: str) -> Iterator[tuple[str, Estimate | None]]:
    """What calls of these names, each once, would take on a kind of processor, one after the other.

    None for those that are left to their definitions, and for those that Triton cannot compile for it.
    """
    num_processes = min(MOST_PROCESSES, len(sched_getaffinity(0)), -(-len(calls) // LEAST_CALLS))
    with worker_pool.worker_pool([__name__, kind], max(1, num_processes)) as ask:
        for name, answer in zip(calls, ask(calls), strict=True):
            yield name, Estimate(*answer) if answer else None


def estimate(name: str, kind: str) -> Estimate | None:
    """The same of one, by this process, which compiles for that chip from now on."""
    # Triton takes a second to import, and is not everywhere.
    from castile.kernels.estimates.estimate import of_call

    found = of_call(name, KINDS[kind])
    if not found:
        return None
    longest = max(found, key=lambda one: one.seconds)
    return Estimate(sum(one.seconds for one in found), sum(one.least for one in found), longest.binds)


def _answer(name: str, kind: str) -> Any:
    # Errors of a kernel are reported where it is to run.
    with suppress(Exception):
        return estimate(name, kind)
    return None


if __name__ == "__main__":
    worker_pool.serve(lambda name: _answer(name, sys.argv[1]))
