"""Remembered: where what is measured is kept, on what it holds, and what was measured there before.

It does not know what is measured, nor what follows from it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from castile.launch.here import gpus, hosts, probe
from castile.launch.here.leading import from_leader
from castile.launch.processes.ranks import UserError
from castile.launch.typed import files
from castile.planner.costs import snapshot as snapshots
from castile.planner.costs.database import Database, Way
from castile.planner.costs.snapshot import Environment, Snapshot
from castile.runtime.comm.base import Communicator
from castile.runtime.machine import Machine


@contextmanager
def kept(profile: str | None) -> Iterator[None]:
    """A block that keeps what is learned. Raises ValueError where that fails, unless nobody asked for it: a job that
    can do without its user's own folder only says so.
    """
    try:
        yield
    except ValueError as error:
        if profile is not None:
            raise
        print(f"castile: what is learned here is not kept: {error}", file=sys.stderr, flush=True)


def database(profile: str | None) -> Database | None:
    """The database to learn from and into, as `kept` has it; None for a user's own that cannot be had."""
    with kept(profile):
        return opened(default_profile() if profile is None else profile)
    return None


def opened(profile: str) -> Database:
    """The profile database of that path, made if there is none. Raises UserError where that cannot be."""
    try:
        Path(profile).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"profile database {profile}: {error.strerror}; choose another path with --profile") from error
    return Database(profile)


def measured_before(
    comm: Communicator, database: Database | None, holds_for: Environment
) -> tuple[Snapshot, tuple[Way, ...]]:
    """What rank 0's database knows of this environment: what tasks took, and the ways that kernel calls were timed."""
    known = database.snapshot(holds_for) if database else Snapshot(holds_for)
    timed = database.ways(holds_for) if database else ()
    texts = from_leader(comm, lambda: snapshots.to_json(known)), from_leader(comm, lambda: msgspec.json.encode(timed))
    return snapshots.from_json(texts[0]), msgspec.json.decode(texts[1], type=tuple[Way, ...])


def environment_of(comm: Communicator, on: Machine) -> Environment:
    """The environment that measurements of this job belong to: rank 0's, on every rank."""
    mine = environment(on)
    return msgspec.json.decode(from_leader(comm, lambda: msgspec.json.encode(mine)), type=Environment)


def environment(on: Machine) -> Environment:
    """The environment that measurements of this process belong to, with a rank at work for each processor of a host."""
    measures = gpus.environment if gpus.is_on(on) and gpus.count() else probe.environment
    found = measures(kernels_hash(), hosts.each(on))
    # A part of a GPU takes its own time.
    return msgspec.structs.replace(found, device=f"part of {found.device}") if gpus.is_virtual(on) else found


@cache
def kernels_hash() -> str:
    """A hash of all sources in the kernels' package: measurements of other kernels are not used."""
    sources = sorted(Path(str(resources.files("castile.kernels"))).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def default_profile() -> str:
    """Where measurements are kept unless the user says otherwise. Raises UserError where this user has no folder."""
    return str(files.users("XDG_DATA_HOME", ".local/share") / "profile.db")
