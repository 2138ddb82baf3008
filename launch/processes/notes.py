"""Notes: what Open MPI's launcher says of a job's end, left out or in castile's words.

It does not know how a job is started.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence

# Words of the sentence on a rank that was killed.
KILLED = "was ended by"
# It stands between two rules of dashes, wrapped.
_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)")
# What ranks that wait for another, or the launcher, say when the way to it has ended: it, its host or the network.
_LOST = re.compile(r"unexpectedly disconnected.* Peer host: (\S+)|lost communication with a remote.* on node (\S+)")
_NEVER = re.compile(r"daemon failed to report back after being spawned.* Remote host: (\S+)")
# Lines besides that say no more: of ranks to which the way has ended, and of the launcher while it starts others.
_NOISE = re.compile(
    r"\[\S+:\d+\] (\*\*\* +(An error occurred in Socket closed|reported by process|on a NULL communicator|Unknown error"
    r"|MPI_ERRORS_ARE_FATAL|and MPI will try)|plm:ssh: Warning: setpgid|pmix_ptl_base: send_msg: write failed)"
    r"|\[warn\] Epoll MOD"
    # to a second Ctrl-C, or to one more word that nobody reads it, with an empty line behind it
    r"|Abort is in progress\.\.\.hit ctrl-c again|\w+: abort is already in progress\.\.\.hit ctrl-c again"
)
# The launcher itself writes what ranks print, and ends them where nobody reads it any more.
_UNREAD = re.compile(r"\[\S+:\d+\] \w+: SIGPIPE detected - aborting")
# What most often is behind a signal that nobody sent by hand.
_CAUSES = {
    signal.SIGKILL: "by hand, or by the system where memory ran out",
    **dict.fromkeys((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT), "by a fault of a "
                    "library or of the machine; `castile doctor` tells which libraries these are"),
}  # fmt: skip


def plain(lines: Iterable[bytes], last_words: Callable[[], str | None], hosts: list[str]) -> Iterator[str]:
    """The lines of a launcher and its ranks, without its boxes on a rank that ended the job: the rank has said why.

    A rank that was killed has not: which it was, by which signal, and what the ranks left to be told then, is one
    sentence. There is none where that is None. Where others only saw that it was gone, `hosts` gets the host's name,
    as the rank may yet have said why; `lost` is the sentence where it has not.
    """
    was_noise = False
    for part in _parts(lines):
        if len(part) > 1:
            yield from _in_our_words(part, last_words, hosts)
            continue
        was_noise = bool(_NOISE.match(part[0])) or (was_noise and not part[0].strip())
        if part[0] and not was_noise:
            yield part[0]


def lost_hosts(lines: Iterable[bytes]) -> list[str]:
    """The hosts of which a launcher says among these lines that it has lost them, or never had them."""
    texts = (_unwrapped(part) for part in _parts(lines) if len(part) > 1)
    found = (_LOST.search(text) or _NEVER.search(text) for text in texts)
    return [one[one.lastindex or 0] for one in found if one]


def _parts(lines: Iterable[bytes]) -> Iterator[list[str]]:
    """Each line, and those of a box of the launcher's together."""
    box: list[str] = []
    for line in lines:
        # the boxes end with a zero byte
        text = line.decode(errors="replace").replace("\0", "")
        rule = text.startswith("-" * 60)
        if not box and not rule:
            yield [text]
            continue
        box.append(text)
        if rule and len(box) > 1:
            yield box
            box = []
    yield from ([text] for text in box)


def _unwrapped(box: Sequence[str]) -> str:
    return " ".join(" ".join(box).split())


def is_unread(line: str) -> bool:
    """Whether the launcher says that the reader of its output has gone."""
    return _UNREAD.match(line) is not None


def lost(host: str, last_words: str) -> str:
    """The sentence for a rank of which nothing is known but that it is gone."""
    why = "it was killed, or its host or the network failed"
    return f"castile: a rank on {host} was lost ({why}), and the job with it{f': {last_words}' if last_words else ''}"


def _in_our_words(box: Sequence[str], last_words: Callable[[], str | None], hosts: list[str]) -> Sequence[str]:
    text = _unwrapped(box)
    if found := _LOST.search(text):
        hosts.append(found[1] or found[2])
        return []
    # the launcher says of a host that it lost that it never had it
    if last_words() and (found := _NEVER.search(text)):
        hosts.append(found[1])
        return []
    if found := _KILLED.search(text):
        words = last_words()
        return [] if words is None else [f"castile: {_killed(*found.groups())}{f': {words}' if words else ''}\n"]
    is_note = "MPI_ABORT was invoked" in text or 'calling "abort"' in text or "exited with non-zero status" in text
    return [] if is_note else box


def _killed(rank: str, host: str, number: str) -> str:
    try:
        name, cause = signal.Signals(int(number)).name, _CAUSES.get(signal.Signals(int(number)), "")
    except ValueError:
        name, cause = f"signal {number}", ""
    return f"rank {rank} on {host} {KILLED} {name}{f' ({cause})' if cause else ''}, and the job with it"
