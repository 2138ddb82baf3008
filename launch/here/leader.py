"""The communicator of this job, and broadcasts from rank 0.

It does not know what is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable

from castile.launch.processes.ranks import this_world
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.local import LocalWorld


def communicator() -> Communicator:
    """The job's communicator; a single rank has one of its own."""
    return this_world().communicator or LocalWorld(1).communicators[0]


def from_leader(comm: Communicator, make: Callable[[], bytes]) -> bytes:
    """The bytes that rank 0 makes, on every rank; all ranks call it."""
    return comm.bcast_bytes(make() if comm.rank == 0 else None)
