"""Where measurements are kept, the environment that they hold for, and what was measured there before.

It does not know what is measured, nor how it is used.
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
from castile.launch.here.leader import from_leader
from castile.launch.processes.ranks import UserError
from castile.launch.typed import files
from castile.planner.costs import snapshot as snapshots
from castile.planner.costs.database import Database, Way
from castile.planner.costs.snapshot import Environment, Snapshot
from castile.runtime.comm.base import Communicator
from castile.runtime.machine import Machine


@contextmanager
def kept(profile: str | None) -> Iterator[None]:
    """A block that stores what is learned. Raises ValueError where that fails, unless the user did not ask for it: a
    job that can do without its default file only warns.
    """
    try:
        yield
    except ValueError as error:
        if profile is not None:
            raise
        print(f"castile: what is learned here is not kept: {error}", file=sys.stderr, flush=True)


def database(profile: str | None) -> Database | None:
    """The database to learn from and to store in, as in `kept`; None for a default one that cannot be opened."""
    with kept(profile):
        return opened(default_profile() if profile is None else profile)
    return None


def opened(profile: str) -> Database:
    """The profile database at that path, created if missing. Raises UserError where that is impossible."""
    try:
        Path(profile).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"profile database {profile}: {error.strerror}; choose another path with --profile") from error
    return Database(profile)


def measured_before(
    comm: Communicator, database: Database | None, holds_for: Environment
) -> tuple[Snapshot, tuple[Way, ...]]:
    """What rank 0's database has for this environment: times of tasks, and timed choices for kernel calls."""
    known = database.snapshot(holds_for) if database else Snapshot(holds_for)
    timed = database.ways(holds_for) if database else ()
    texts = from_leader(comm, lambda: snapshots.to_json(known)), from_leader(comm, lambda: msgspec.json.encode(timed))
    return snapshots.from_json(texts[0]), msgspec.json.decode(texts[1], type=tuple[Way, ...])


def environment_of(comm: Communicator, on: Machine) -> Environment:
    """The environment of this job's measurements: rank 0's, on every rank."""
    mine = environment(on)
    return msgspec.json.decode(from_leader(comm, lambda: msgspec.json.encode(mine)), type=Environment)


def environment(on: Machine) -> Environment:
    """The environment of this process's measurements, with a rank at work for each processor of a host."""
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
    """The default path of measurements. Raises UserError where this user has no folder for it."""
    return str(files.users("XDG_DATA_HOME", ".local/share") / "profile.db")
