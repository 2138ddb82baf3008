"""Open MPI's launcher from its start to its end, with the signals and the sentences that go through.

It does not know what the ranks run.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any, Self

from castile.launch.processes import last_words, notes
from castile.launch.processes.signals import PASSED_ON, SIGNALS, handle, heard, restore

# How long mpirun may take to end its ranks after a signal. Killed outright, it would leave them behind.
GRACE_SECONDS = 10.0
# So many files mpirun holds open, and so many more for each rank of its host. Of the usual limit, which many ranks
# reach, it gets so much more as this user may have, but not millions: some programs close each that there might be.
OWN_FILES, RANK_FILES, MOST_FILES = 28, 4, 2**16
# <linux/prctl.h>: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
STDOUT = 1
# What is passed on for a signal: to ranks, which end as they end on it alone, and to mpirun, which ends them at once.
_AT_FIRST: dict[int, int] = {signal.SIGINT: PASSED_ON, **dict.fromkeys(SIGNALS, signal.SIGUSR1)}
_AGAIN: dict[int, int] = {signal.SIGTERM: signal.SIGINT}


@dataclass(frozen=True)
class End:
    """How a job ended.

    status    as a shell would have it
    failed    whether a rank, a host or the network failed: not for a mistake of the user's, nor for a signal to end
    hosts     those to which the way has ended
    left      the ranks' last words
    """

    status: int
    failed: bool = False
    hosts: tuple[str, ...] = ()
    left: str = ""


def run(words: Sequence[str], environment: Mapping[str, str]) -> End:
    """Runs mpirun to its end; a signal that ends us is passed on to it first.

    Ranks' output passes through; of what mpirun itself says of their end no more than `notes` tells.
    """
    said: list[str] = []
    hosts: list[str] = []
    unreached: list[str] = []
    with ExitStack() as stack:
        # from before mpirun is there until all is said
        left = stack.enter_context(last_words.awaited())
        passing = stack.enter_context(_Passing(left))
        passed = passing.passed
        process, output, errors = _started(words, {**environment, last_words.VARIABLE: left.address})
        for one in (process, output, errors):
            stack.enter_context(one)
        passing.to(process)
        relays = [
            threading.Thread(target=_relay, args=(errors, left, passed, said, hosts), daemon=True),
            threading.Thread(target=_pass_on, args=(output, process, unreached), daemon=True),
        ]
        for relay in relays:
            relay.start()
        status = process.wait()
        # The pipes stay open for as long as any rank lives.
        until = time.monotonic() + GRACE_SECONDS
        for relay in relays:
            relay.join(max(0.0, until - time.monotonic()))
        return _end(status, passed, said, hosts, unreached, left.read())


def _end(
    status: int, passed: Sequence[int], said: Sequence[str], hosts: Sequence[str], unreached: Sequence[str], last: str
) -> End:
    """What mpirun's status means, and the words that nobody has said yet.

    passed      signals that were passed on
    said        by ranks, and by mpirun of who reads it
    hosts       where ranks were lost, as others saw
    unreached   hosts that mpirun says it has lost, or never had
    last        the ranks' last words
    """
    # mpirun may have ended the ranks before they could say it
    if passed and status and last and not any(last in text for text in said):
        print(f"castile: {last}", file=sys.stderr)
    # of a host that it has lost mpirun says that it never had it, and ends with 0
    gone = tuple(dict.fromkeys([*hosts, *(unreached if last or not status else ())]))
    was_killed = any(notes.KILLED in text for text in said)
    is_lost = bool(gone) and not passed and not _is_ours(status)
    if is_lost:
        if not was_killed:
            print(notes.lost(gone[0], last), file=sys.stderr)
        status = status or 1
    if status > 0 and any(map(notes.is_unread, said)):
        return End(128 + signal.SIGPIPE)
    if status and passed:
        # mpirun ends with 1, as after any failure, or as what it was given in place of the signal; a shell that runs us
        # in a loop is to see that it was Ctrl-C
        return End(128 + passed[0])
    # of what mpirun itself refuses no rank has said anything
    failed = not passed and (was_killed or is_lost or (status == 1 and bool(said)))
    return End(128 - status if status < 0 else status, failed, gone if is_lost else (), last)


def _started(
    words: Sequence[str], environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
    """mpirun, and where its and the ranks' output and errors are read from.

    It has these ends too: it would end before its ranks if it met a pipe that nobody reads when we are gone.
    """
    pipes = [os.pipe(), os.pipe()]
    output, errors = (open(read, "rb") for read, _ in pipes)
    with open(pipes[0][1], "wb") as saying, open(pipes[1][1], "wb") as telling:
        # A group of its own, so that Ctrl-C reaches it through us alone; such a group must not read the terminal.
        process = subprocess.Popen(
            words, env=dict(environment), stdin=subprocess.DEVNULL, stdout=saying, stderr=telling,
            pass_fds=(output.fileno(), errors.fileno()), process_group=0, preexec_fn=_ending_with_parent(),
        )  # fmt: skip
    return process, output, errors


def _ending_with_parent() -> Callable[[], None] | None:
    """What mpirun does first: it asks Linux for a SIGHUP, on which it ends its ranks, should this process end before
    it. A process that is killed outright passes nothing on. None where there is no such thing to ask for.

    It hears no SIGTERM: batch systems send that to every process of a job, and ranks are to have the time until they
    kill. What it starts hears it.
    """
    if sys.platform != "linux":
        return None
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def ask() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MOST_FILES)), hard))
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGHUP))
        # it may have ended before it could be asked
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return ask


class _Passing:
    """While it is entered signals are noted, and passed on to mpirun as soon as that is there: at first as what it
    gives its ranks without killing them after it.
    """

    def __init__(self, left: last_words.Awaited) -> None:
        self._left = left
        self.passed: list[int] = []
        self._waiting: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = handle(dict.fromkeys(heard(), self._note))
        return self

    def __exit__(self, *_: object) -> None:
        restore(self._before)

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on to this process what has come and what comes."""
        self._process = process
        self._pass()

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_again = number in self.passed or signal.SIGINT in self.passed
        self.passed.append(number)
        self._left.pass_on(signal.Signals(number).name)
        self._waiting.append((_AGAIN if is_again else _AT_FIRST).get(number, number))
        self._pass()

    def _pass(self) -> None:
        while self._waiting and self._process is not None:
            self._process.send_signal(self._waiting.pop(0))


def _is_ours(status: int) -> bool:
    """Whether a rank of castile has ended the job with that status, and said why; MPI has other numbers."""
    return status in (1, 2) or 128 < status < 128 + signal.NSIG


def _relay(
    stream: IO[bytes], left: last_words.Awaited, passed: Sequence[int], said: list[str], hosts: list[str]
) -> None:
    """Writes what is told, the ranks' last words once, whoever says them first; notes in `said` what castile says, and
    in `hosts` where ranks were lost.
    """

    def is_said(last: str) -> bool:
        return any(last in text for text in said)

    def unsaid() -> str:
        return "" if is_said(last := left.read()) else last

    # who was asked to end has not died
    for text in notes.plain(stream, lambda: None if passed else unsaid(), hosts):
        is_again = text == f"castile: {(last := left.read())}\n" and is_said(last)
        said += [text] if text.startswith("castile: ") or notes.is_unread(text) else []
        if is_again or notes.is_unread(text):
            continue
        # ranks would stand still, should nobody read on
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _pass_on(stream: IO[bytes], process: subprocess.Popen[bytes], unreached: list[str]) -> None:
    """Passes output on as it comes, and to mpirun that nobody reads it any more; `unreached` gets the hosts that mpirun
    says there that it has lost, or never had.
    """

    def passed_on() -> Iterator[bytes]:
        for line in stream:
            try:
                _write(line)
            except BrokenPipeError:
                process.send_signal(signal.SIGPIPE)
            except OSError:
                # ranks would stand still, should nobody read on
                pass
            yield line

    unreached += notes.lost_hosts(passed_on())


def _write(line: bytes) -> None:
    rest = memoryview(line if sys.__stdout__ is not None else b"")
    while rest:
        rest = rest[os.write(STDOUT, rest) :]
