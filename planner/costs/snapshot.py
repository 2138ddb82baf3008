"""Snapshots: measured seconds of cost keys, and the environment in which they were measured.

It does not know how a measurement is made, stored on disk, or turned into a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from castile.runtime import strict
from castile.runtime.task import CostKey


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a measurement depends on besides its cost key; measurements of different environments are not comparable.

    device         the processor's model
    threads        of each rank, 0 for no limit
    active_ranks   the ranks that share its memory; 0 where none ran and times are estimated from compiled kernels
    kernels        a hash of the kernels' sources
    libraries      names and versions of the libraries that kernels call
    """

    device: str
    threads: int = 1
    active_ranks: int = 1
    kernels: str = ""
    libraries: str = ""

    @property
    def was_run(self) -> bool:
        """Whether its times were measured, not estimated."""
        return self.active_ranks > 0


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The median seconds of a cost key over `count` steps, and half of their interquartile range."""

    key: CostKey
    seconds: float
    spread_seconds: float = 0.0
    count: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"measurement of {self.key.name!r} ({self.key.shapes}) is {self.seconds} seconds; "
                             "a failed measurement is not a cost")  # fmt: skip
        if not (math.isfinite(self.spread_seconds) and self.spread_seconds >= 0) or self.count < 1:
            raise ValueError(f"measurement of {self.key.name!r} ({self.key.shapes}): spread {self.spread_seconds} "
                             f"seconds over {self.count} steps")  # fmt: skip


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of one environment, sorted by key, at most one a key; plain data, the same on every rank.

    overhead_seconds   the gap between two tasks of a processor's compute lane where neither waits
    meeting_seconds    what each transfer for which a step waits adds to it beyond the spans of tasks, learned from
                       `num_meetings` transfers
    """

    environment: Environment
    rows: tuple[Measured, ...] = ()
    overhead_seconds: float = 0.0
    meeting_seconds: float = 0.0
    num_meetings: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.overhead_seconds) and self.overhead_seconds >= 0):
            raise ValueError(f"snapshot: overhead of {self.overhead_seconds} seconds a task")
        if not (math.isfinite(self.meeting_seconds) and self.meeting_seconds >= 0) or self.num_meetings < 0:
            raise ValueError(f"snapshot: {self.num_meetings} meetings of {self.meeting_seconds} seconds")
        if len({row.key for row in self.rows}) < len(self.rows):
            raise ValueError("snapshot: a cost key occurs twice")


def snapshot_of(environment: Environment, rows: Iterable[Measured], overhead_seconds: float = 0.0) -> Snapshot:
    """A snapshot of the rows in the order of their keys, without meetings."""
    return with_rows(Snapshot(environment, overhead_seconds=overhead_seconds), rows)


def with_rows(snapshot: Snapshot, rows: Iterable[Measured]) -> Snapshot:
    """The snapshot with its rows replaced by these, in the order of their keys."""
    return msgspec.structs.replace(snapshot, rows=tuple(sorted(rows, key=lambda row: _order(row.key))))


def to_json(snapshot: Snapshot) -> bytes:
    """Encode the snapshot as JSON, for plans and for the other ranks."""
    return msgspec.json.encode(snapshot)


def from_json(data: bytes | str) -> Snapshot:
    """Decode what `to_json` wrote, exact to the last bit. Raises ValueError in one sentence for anything else."""
    return strict.from_json(data, Snapshot, "cost snapshot")


def _order(key: CostKey) -> tuple[str, str, str, int, int, str, int]:
    return (key.name, key.shapes, key.dtype, key.flops, key.nbytes, key.link, key.members)
