"""Snapshots: what cost keys took when they were measured, and the environment that this holds for.

It does not know how a measurement is made, kept on disk, or turned into a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from castile.runtime import strict
from castile.runtime.task import CostKey


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a measurement depends on besides its cost key: another one's figures are not comparable.

    device: the processor's model. threads: of each rank (0: not limited). active_ranks: those that share its memory, 0
    where none ran, and what tasks would take is told from their compiled kernels. kernels: a hash of the kernels'
    sources. libraries: names and versions of what the kernels call.
    """

    device: str
    threads: int = 1
    active_ranks: int = 1
    kernels: str = ""
    libraries: str = ""

    @property
    def was_run(self) -> bool:
        """Whether what it holds was measured."""
        return self.active_ranks > 0


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The median seconds of a cost key over `count` steps, and half the distance of its quartiles."""

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

    overhead_seconds: what passes between two tasks of a processor's compute lane though nothing is waited for.
    meeting_seconds: by how much a step is longer than its tasks make it, for each transfer of which it waits for the
    end; learned from `num_meetings` transfers.
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
    """A snapshot of the rows in the order of their keys, which knows of no meetings."""
    return with_rows(Snapshot(environment, overhead_seconds=overhead_seconds), rows)


def with_rows(snapshot: Snapshot, rows: Iterable[Measured]) -> Snapshot:
    """The snapshot with these rows in place of its own, in the order of their keys."""
    return msgspec.structs.replace(snapshot, rows=tuple(sorted(rows, key=lambda row: _order(row.key))))


def to_json(snapshot: Snapshot) -> bytes:
    """The snapshot as JSON text, for plans and for the other ranks."""
    return msgspec.json.encode(snapshot)


def from_json(data: bytes | str) -> Snapshot:
    """The snapshot that `to_json` wrote, to the last bit. Raises ValueError in one sentence where it is not one."""
    return strict.from_json(data, Snapshot, "cost snapshot")


def _order(key: CostKey) -> tuple[str, str, str, int, int, str, int]:
    return (key.name, key.shapes, key.dtype, key.flops, key.nbytes, key.link, key.members)
