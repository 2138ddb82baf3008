"""Compiles kernels ahead of time: worker processes fill Triton's disk cache before anything is bound.

A worker is told a call's name and a setting, nothing else. Errors are ignored here: whoever binds the call compiles it
again and sees them. It knows no kernel.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from os import sched_getaffinity
from typing import Any

from triton import knobs

from castile.kernels import choice, worker_pool
from castile.kernels.choice import Choice
from castile.kernels.table import Table
from castile.kernels.triton import chip
from castile.kernels.tuning import dataless, operands

# Ranks that share a host may be bound to no cores, and then each starts as many.
MOST_PROCESSES = 8
# A process takes about as long to begin as one takes to compile so many calls.
LEAST_CALLS = 8

# The name of a call, and a setting of its form, "" for the first.
Launched = tuple[str, str]

# What this process has looked at, by chip.
_seen: set[tuple[int, Launched]] = set()


def compile_all(wanted: Sequence[Launched], capability: int, tell: Callable[[int, int], object]) -> None:
    """Compile what these calls launch, for the chip that Triton is used with.

    capability  the chip's compute capability, times ten
    tell        called with the number of new calls that were looked at, and their number in all
    No process is started as long as everything is found in the cache.
    """
    calls = [one for one in wanted if (capability, one) not in _seen]
    _seen.update((capability, one) for one in calls)
    for done, one in enumerate(calls):
        tell(done, len(calls))
        if not _is_kept(one):
            break
    else:
        return
    rest = calls[done + 1 :]
    num_processes = min(MOST_PROCESSES, len(sched_getaffinity(0)), len(rest) // LEAST_CALLS)
    if num_processes < 2:
        return
    with worker_pool.worker_pool([__name__, str(capability)], num_processes) as ask:
        for number, _ in enumerate(ask(rest), done + 2):
            tell(number, len(calls))


def _compile(name: str, setting: str) -> None:
    # Whoever binds it reports its errors.
    with suppress(Exception):
        call = choice.call_of(name)
        outs, args = operands(call, lambda x: dataless(x).view(chip.AbsentArray))
        _table().bind(call.kernel, args, outs, call.params, None, call.accumulate, Choice("triton", setting))


def _is_kept(one: Launched) -> bool:
    """Whether the cache has all that a call launches; it has it afterwards."""
    missed: list[bool] = []

    def listen(cache_hit: bool, **_: Any) -> None:
        missed.append(not cache_hit)

    with knobs.compilation.scope():
        knobs.compilation.listener = listen
        _compile(*one)
    return not any(missed)


@cache
def _table() -> Table:
    return Table("triton")


if __name__ == "__main__":
    chip.activate(int(sys.argv[1]))
    worker_pool.serve(lambda one: _compile(*one))
