"""The ranks of this job, and what the first of them says to all.

It does not know what that is about.
"""

from __future__ import annotations

from collections.abc import Callable

from castile.launch.processes.ranks import this_world
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.local import LocalWorld


def communicator() -> Communicator:
    """The job's communicator; a rank alone talks to itself."""
    return this_world().communicator or LocalWorld(1).communicators[0]


def from_leader(comm: Communicator, make: Callable[[], bytes]) -> bytes:
    """The bytes that rank 0 makes, on every rank; all ranks call it."""
    return comm.bcast_bytes(make() if comm.rank == 0 else None)
