"""Last words: what the ranks of a job leave with whoever launched them, told where one of them is killed.

A rank that is killed says nothing, and those that wait for it in MPI do not hear of it. It does not know what is left.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# Names a file on the launcher's host; ranks elsewhere, and ranks of other launchers, leave nothing.
VARIABLE = "CASTILE_LAST_WORDS"

_left = ""
_after = ""


def latest() -> str:
    """The words that this process left last, "" where there are none."""
    return _left


def leave(text: str) -> None:
    """Leave these words in place of those before."""
    global _left
    _left = text
    if path := os.environ.get(VARIABLE):
        # to leave none is no reason to stop
        with suppress(OSError):
            draft = Path(f"{path}.{os.getpid()}.part")
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)


def follow(text: str) -> None:
    """Say this after what this process says should it fail now, "" for nothing: what it leaves all the same."""
    global _after
    _after = text


def following() -> str:
    """What is to be said after a failure, "" for nothing."""
    return _after


@contextmanager
def awaited() -> Iterator[Path]:
    """A path whose name the ranks are to be given by VARIABLE; `read` tells what was left there."""
    with ExitStack() as stack:
        folder = os.devnull
        # a host without room for it is told of by what needs the room
        with suppress(OSError):
            made = tempfile.TemporaryDirectory(prefix="castile-launch-", ignore_cleanup_errors=True)
            folder = stack.enter_context(made)
        yield Path(folder) / "words"


def read(path: Path) -> str:
    """The words that were left last, "" where there are none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
