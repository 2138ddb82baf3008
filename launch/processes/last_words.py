"""Last words: what the ranks of a job leave with whoever launched them, told where one of them is killed.

A rank that is killed says nothing, and those that wait for it in MPI do not hear of it. What is left lies in memory of
the launcher, so that nothing is where that is killed, too. There the launcher tells which signal it was that it passes
on as another. It does not know what is left.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Names memory of the launcher: PATH NAME, a link of this system's and what it leads to. Ranks elsewhere, where another
# process may have such a link, and ranks of other launchers leave nothing.
VARIABLE = "CASTILE_LAST_WORDS"
# What stands behind the words, as shorter ones take the place of longer ones in one call: a kill leaves no half.
_END = b"\0"
# In front of the words: as long as any signal's name and what ends it.
_HEAD_BYTES = 16

_left = ""
_after = ""


def latest() -> str:
    """The words that this process left last, "" where there are none."""
    return _left


def leave(text: str) -> None:
    """Leave these words in place of those before."""
    global _left
    _left = text
    # to leave none is no reason to stop
    with suppress(OSError), _opened(os.O_WRONLY) as descriptor:
        if descriptor is not None:
            os.pwrite(descriptor, text.encode() + _END, _HEAD_BYTES)


def passed_on() -> str:
    """The name of the signal that the launcher was given and passed on last, "" where none is known."""
    with suppress(OSError), _opened(os.O_RDONLY) as descriptor:
        if descriptor is not None:
            return os.pread(descriptor, _HEAD_BYTES, 0).partition(_END)[0].decode(errors="replace")
    return ""


@contextmanager
def _opened(flags: int) -> Iterator[int | None]:
    """The launcher's memory; None where there is none, or another process's."""
    path, _, name = os.environ.get(VARIABLE, "").partition(" ")
    if not path or os.readlink(path) != name:
        yield None
        return
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def follow(text: str) -> None:
    """Say this after what this process says should it fail now, "" for nothing: what it leaves all the same."""
    global _after
    _after = text


def following() -> str:
    """What is to be said after a failure, "" for nothing."""
    return _after


class Awaited:
    """Where ranks leave their words. address: what they are given as VARIABLE, "" where there is no such place."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self.address = ""
        if descriptor is not None:
            link = f"fd/{descriptor}"
            self.address = f"/proc/{os.getpid()}/{link} {os.readlink(f'/proc/self/{link}')}"

    def read(self) -> str:
        """The words that were left last, "" where there are none."""
        if self._descriptor is None:
            return ""
        size = os.fstat(self._descriptor).st_size
        return os.pread(self._descriptor, size, _HEAD_BYTES).partition(_END)[0].decode(errors="replace")

    def pass_on(self, signal_name: str) -> None:
        """Say which signal it was that ranks are about to get as another."""
        if self._descriptor is not None:
            os.pwrite(self._descriptor, signal_name.encode() + _END, 0)


@contextmanager
def awaited() -> Iterator[Awaited]:
    """A place for words, as long as the block lasts."""
    descriptor = None
    # it is Linux that has such memory
    with suppress(OSError, AttributeError):
        descriptor = os.memfd_create(f"castile-{secrets.token_hex(8)}")
    try:
        yield Awaited(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)
