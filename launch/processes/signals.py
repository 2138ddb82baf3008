"""Signals that ask a job to end, and what stands for them between a launcher and its ranks.

It does not know what they end.
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

from castile.launch.processes import last_words

Handler = Callable[[int, FrameType | None], object]
# What asks before it kills, as batch systems do and a terminal that closes. SIGUSR1 too, because Open MPI's mpirun
# passes SIGTERM on and kills the ranks a quarter of a second later.
# SIGXCPU comes of Linux, where a process has had most of the processor time that it may have.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGXCPU)
# So many seconds before the system kills for that the end begins, and at most this share of all.
SECONDS_TO_END, SHARE_TO_END = 30, 0.1
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
    return {number: signal.signal(number, _told_once(number, handler)) for number, handler in handlers.items()}


def _told_once(number: signal.Signals, handler: Handler) -> Handler:
    """Of a limit of processor time Linux tells again each second, which is no user who asks again."""
    if number != signal.SIGXCPU:
        return handler

    def tell(number: int, frame: FrameType | None) -> object:
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        return handler(number, frame)

    return tell


def meant(number: int) -> str:
    """The name of a signal, or of that which the launcher was given where it passed this one on in its place."""
    name = signal.Signals(number).name
    return (last_words.passed_on() or name) if number == signal.SIGUSR1 else name


def limit() -> None:
    """Hear of the limit of processor time some seconds before the system kills this process at it (`ulimit -t`)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY and soft == hard:
        left = max(1, min(SECONDS_TO_END, int(SHARE_TO_END * hard)))
        resource.setrlimit(resource.RLIMIT_CPU, (max(1, hard - left), hard))


def restore(before: Mapping[signal.Signals, Any]) -> None:
    """Give signals back what `handle` took from them."""
    for number, handler in before.items():
        signal.signal(number, handler)


def hear_no_more() -> None:
    """Let the system end this process where it is asked to end, as it does so already."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
