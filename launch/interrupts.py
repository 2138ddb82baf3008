"""Ctrl-C where a user has waited for long: the first one ends the work with what there is, the next one ends all.

It does not know what the work is.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def ending_early(what: str) -> Iterator[Callable[[], bool]]:
    """Whether the user has asked to end what this block does; `what` there will be then is told at once.

    In another thread than the main one signals are left as they are, and so is one that this process is to ignore, as
    whatever a script starts in the background.
    """
    asked = threading.Event()

    def ask(number: int, frame: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)
        print(f"\ncastile: ending with {what}; Ctrl-C once more leaves it all", file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield asked.is_set
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
