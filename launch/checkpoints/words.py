"""Words: what each rank leaves beside its share of a save, so that any rank can end it when others come to it no more.

It does not know which ranks still run, nor what a checkpoint is made of.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from castile.launch.checkpoints.disk import Disk
from castile.launch.checkpoints.manifest import File

SUFFIX = ".word"


def leave(disk: Disk, part: Path, rank: int, file: File) -> None:
    """Tell in the folder `part` that the rank's file lies there, whole. Raises OSError."""
    disk.write_file(part / f"{rank}{SUFFIX}", [memoryview(msgspec.json.encode(file))])


def left(part: Path, ranks: Collection[int]) -> list[File] | None:
    """The files of these ranks, None as long as one of them has not told of it."""
    files = []
    for rank in ranks:
        try:
            files.append(msgspec.json.decode((part / f"{rank}{SUFFIX}").read_bytes(), type=File))
        except (OSError, msgspec.DecodeError):  # not there yet, or not whole
            return None
    return files


def remove(disk: Disk, part: Path) -> None:
    """Take all words out of a folder that is to become a checkpoint. Raises OSError."""
    for path in sorted(part.glob(f"*{SUFFIX}")):
        disk.remove(path)


def written(part: Path) -> dict[str, int]:
    """The bytes of each file that is there so far."""
    found = {}
    for path in part.glob("*"):
        try:
            found[path.name] = path.stat().st_size
        except OSError:  # it was renamed or removed meanwhile
            continue
    return found
