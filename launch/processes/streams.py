"""Streams: words that come to nobody are lost, and what is done goes on; words beside are kept apart.

It does not know what is told.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

# What the system says where there is no room left, for anybody or for this user.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# And where words come to nobody: there, and where the terminal has gone.
UNHEARD = (*NO_ROOM, errno.EIO)

_here = threading.local()


@contextmanager
def beside() -> Iterator[None]:
    """What this thread writes to a `Parted` stream meanwhile goes to standard error; other threads may be at work."""
    before, _here.is_beside = getattr(_here, "is_beside", False), True
    try:
        yield
    finally:
        _here.is_beside = before


class Parted:
    """A stream such as standard output, which may be one JSON object, but for what is written `beside` it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if getattr(_here, "is_beside", False) else self._stream, name)


class Lossy:
    """A stream for words beside the work, such as standard error: what its disk or terminal does not take is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            _raise_unless_unheard(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            _raise_unless_unheard(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _raise_unless_unheard(error: OSError) -> None:
    if error.errno not in UNHEARD:
        raise error
