"""Calls without arguments: one that does nothing, and several as one.

It does not know what they do.
"""

from collections.abc import Callable, Iterable
from typing import Any

Call = Callable[[], Any]


def nothing() -> None:
    """The work of a kernel on empty arrays."""


def chain(calls: Iterable[Call]) -> Call:
    """One call that makes them all, in order."""
    frozen = tuple(calls)
    if len(frozen) == 1:
        return frozen[0]

    def run() -> None:
        for call in frozen:
            call()

    return run


def chain_all(calls: Iterable[Call | None]) -> Call | None:
    """The same, or None where one of them is."""
    every = list(calls)
    made = [call for call in every if call is not None]
    return chain(made) if len(made) == len(every) else None
