"""Streams: words for which there is no room are lost, and what is done goes on.

It does not know what is told.
"""

from __future__ import annotations

import errno
from typing import Any, TextIO

# What the system says where there is no room left, for anybody or for this user.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Lossy:
    """A stream for words beside the work, such as standard error: what its disk does not take is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            _raise_unless_full(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            _raise_unless_full(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _raise_unless_full(error: OSError) -> None:
    if error.errno not in NO_ROOM:
        raise error
