"""Cores: which of this host's this process may use, which all ranks of the host together, how much of their time, and
for how long none was free.

It does not know what carries the ranks' words, nor what they compute.
"""

from __future__ import annotations

import os
from math import inf
from pathlib import Path
from typing import Protocol

import msgspec


class Words(Protocol):
    """As much of a communicator as ranks need to tell each other of their cores."""

    def bcast_bytes(self, data: bytes | None, root: int = 0) -> bytes: ...
    def gather_bytes(self, data: bytes, root: int = 0) -> list[bytes] | None: ...


def together(comm: Words | None) -> float:
    """How many cores these ranks of one host may use together, be each bound to its own or all free, and no more of
    their time than this process's quota; all of them call it. Without ranks those of this process.
    """
    found = affinity()
    if comm is not None:
        rows = comm.gather_bytes(msgspec.json.encode(sorted(found)))
        gathered = comm.bcast_bytes(None if rows is None else b"[%b]" % b",".join(rows))
        found = frozenset().union(*msgspec.json.decode(gathered, type=list[frozenset[int]]))
    return min(len(found), quota())


def affinity() -> frozenset[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def quota(root: Path = Path("/")) -> float:
    """How many cores' time the control groups of this process allow, infinite where they set no limit.

    root    where `proc` and `sys` are
    """
    least = inf
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = Path(path.lstrip("/"))
        # In a container the path may be the host's: then its own group is at the top.
        least = min(least, *(_limit(top / at) for at in (group, *group.parents)))
    return least


def delayed_ns(root: Path = Path("/")) -> int:
    """For how long the calling thread has been ready to run and no core took it up, in all; 0 where no system tells.

    root    where `proc` is
    """
    words = _text(root / "proc/thread-self/schedstat").split()
    return int(words[1]) if len(words) > 1 else 0


def _limit(group: Path) -> float:
    """The limit of one group, of the second version of control groups or of the first."""
    first = f"{_text(group / 'cpu.cfs_quota_us')} {_text(group / 'cpu.cfs_period_us')}"
    words = (_text(group / "cpu.max") or first).split()
    return int(words[0]) / int(words[1]) if words and words[0].isdecimal() else inf


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
