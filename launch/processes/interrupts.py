"""Signals where a user has waited for long: those that end the work with what there is, and words for an end of all.

It does not know what the work is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from castile.launch.processes import last_words
from castile.launch.processes.ranks import Ended, interrupt
from castile.launch.processes.signals import handle, heard, meant, restore


@contextlib.contextmanager
def ending_early(what: str) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C, or a signal that asks for an end, is to end what this block does; `what` there will be then is
    told at once.

    A block asks for it, in this thread, when it has something and before it goes on. Until it does so for the first
    time there is nothing to end with, and a signal ends all, as a second one does: what is compiled on first use takes
    half a minute.

    In another thread than the main one signals are left as they are, and so is one that this process is to ignore, as
    whatever a script starts in the background.
    """
    asked, has_some, ours = threading.Event(), threading.Event(), os.getpid()

    def is_over() -> bool:
        if threading.current_thread() is threading.main_thread():
            has_some.set()
        return asked.is_set()

    def ask(number: int, frame: FrameType | None) -> None:
        restore(before)
        if not has_some.is_set():
            signal.raise_signal(number)
            return
        asked.set()
        # processes that a search began hear Ctrl-C on a terminal too
        if os.getpid() == ours:
            name = "Ctrl-C" if number == signal.SIGINT else meant(number)
            print(f"\ncastile: ending with {what}; {name} once more leaves it all", file=sys.stderr, flush=True)

    before = handle(dict.fromkeys(heard(), ask))
    try:
        yield is_over
    finally:
        restore(before)


@contextlib.contextmanager
def ending_with(text: str) -> Iterator[None]:
    """Where Ctrl-C or a signal that asks to stop ends what this block does, `text` says what there is of it; so it
    does where a rank is killed.

    Raises Ended there. In another thread than the main one, and where they are to be ignored, signals are left alone.
    """

    def end(number: int, frame: FrameType | None) -> None:
        interrupt(Ended(number, text), frame)

    before = handle(dict.fromkeys(heard(), end))
    last_words.leave(text)
    try:
        yield
        last_words.leave("")
    finally:
        restore(before)
