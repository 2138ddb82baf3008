"""Signals that ask a job to end, and what stands for them between a launcher and its ranks.

It does not know what they end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], object]
# What asks before it kills, as batch systems do and a terminal that closes. SIGUSR1 too, because Open MPI's mpirun
# passes SIGTERM on and kills the ranks a quarter of a second later.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# What a launcher passes on in place of Ctrl-C: mpirun, given that itself, ends its ranks and leaves them no second.
PASSED_ON = signal.SIGUSR2


def heard(among: Iterable[signal.Signals] = (signal.SIGINT, *SIGNALS)) -> tuple[signal.Signals, ...]:
    """Those of these signals that get handlers: none in another thread than the main one, which alone may set them, and
    none that this process is to ignore (nohup; Ctrl-C for what a script starts in the background).
    """
    if threading.current_thread() is not threading.main_thread():
        return ()
    return tuple(number for number in among if signal.getsignal(number) is not signal.SIG_IGN)


def handle(handlers: Mapping[signal.Signals, Handler]) -> dict[signal.Signals, Any]:
    """Give signals these handlers; what they had before, for `restore`."""
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}


def restore(before: Mapping[signal.Signals, Any]) -> None:
    """Give signals back what `handle` took from them."""
    for number, handler in before.items():
        signal.signal(number, handler)


def hear_no_more() -> None:
    """Let the system end this process where it is asked to end, as it does so already."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
