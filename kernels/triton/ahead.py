"""Kernels compiled ahead, side by side: processes of their own fill Triton's cache on disk before anything is bound.

A call is known by its name and a setting, which is all that a process is told. What none has compiled is compiled when
it is bound, where what is wrong with it is told too. It knows no kernel.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from os import sched_getaffinity
from typing import Any

from triton import knobs

from castile.kernels import choice, side_by_side
from castile.kernels.choice import Choice
from castile.kernels.table import Table
from castile.kernels.triton import chip
from castile.kernels.tuning import hollow, operands

# Ranks that share a host may be bound to no cores, and then each starts as many.
MOST_PROCESSES = 8
# A process takes about as long to begin as one takes to compile so many calls.
LEAST_CALLS = 8

# The name of a call, and a setting of its form, "" for the first.
Launched = tuple[str, str]

# What this process has looked at, by chip.
_seen: set[tuple[int, Launched]] = set()


def compile_all(wanted: Sequence[Launched], capability: int, tell: Callable[[int, int], object]) -> None:
    """Compile what these calls launch for the chip that Triton is used with, of that compute capability (times ten).

    tell  hears how many of those that are new here have been looked at, and how many there are. As long as all are
          found in the cache no process is started.
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
    with side_by_side.worker_pool([__name__, str(capability)], num_processes) as ask:
        for number, _ in enumerate(ask(rest), done + 2):
            tell(number, len(calls))


def _compile(name: str, setting: str) -> None:
    # What is wrong with it is told by whoever binds it.
    with suppress(Exception):
        call = choice.call_of(name)
        outs, args = operands(call, lambda x: hollow(x).view(chip.Absent))
        _table().bind(call.kernel, args, outs, call.params, None, call.accumulate, Choice("triton", setting))


def _is_kept(one: Launched) -> bool:
    """Whether all that a call launches is in the cache; it is afterwards."""
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
    chip.use(int(sys.argv[1]))
    side_by_side.serve(lambda one: _compile(*one))
