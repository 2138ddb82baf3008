"""Folders of checkpoints: which there are, the latest that is whole, and what a writer that died has left.

It does not know how a checkpoint is written. Nothing goes by the times of files: a later step is a later checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from castile.launch.checkpoints import manifest, writer
from castile.launch.checkpoints.disk import Disk
from castile.launch.checkpoints.reader import Damaged, Gone, Reader, open_checkpoint
from castile.launch.checkpoints.writer import PART
from castile.launch.processes.ranks import UserError
from castile.launch.typed import files

LOCK = ".lock"
DAMAGED = ".damaged"
# The file beside a checkpoint's own that tells the loss of held-out samples, where the best is to be known.
NOTE = "held_out.json"
_NAME = re.compile(r"step-(\d{8,18})")
_LEFT = re.compile(_NAME.pattern + re.escape(PART))


class _Note(msgspec.Struct, frozen=True):
    loss: float


@dataclass(frozen=True)
class Latest:
    """The latest checkpoint that is whole, and a sentence for each later one that is not, told to the user."""

    path: Path
    step: int
    warnings: tuple[str, ...] = ()

    def open(self) -> Reader:
        """Its reader."""
        return open_checkpoint(self.path)


def name_of(step: int) -> str:
    """The folder of the checkpoint of that step."""
    return f"step-{step:08d}"


def checkpoints(folder: str | Path) -> dict[int, Path]:
    """All checkpoints of a folder, whole or not, by step in ascending order."""
    if not Path(folder).is_dir():
        return {}
    names = [_NAME.fullmatch(path.name) for path in Path(folder).iterdir()]
    return {step: Path(folder) / name for step, name in sorted((int(m[1]), m[0]) for m in names if m)}


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is one checkpoint, by its name or its manifest."""
    return _NAME.fullmatch(path.absolute().name) is not None or (path / manifest.NAME).exists()


def latest(folder: str | Path) -> Latest | None:
    """The highest step whose manifest is whole and whose hashes hold, all of it read; None in a folder without any.

    Raises UserError where there are checkpoints and not one of them is whole, or another castile wrote the latest.
    """
    while True:
        try:
            found, failures = _latest(folder)
        except Gone as error:
            # a run that saves there took it away, and has a later one
            if not error.is_taken_away:
                raise
            continue
        if found is None and failures:
            raise UserError(f"{failures[0]}; {folder} holds no checkpoint that is whole: begin anew in another folder")
        return found


def whole(folder: Path) -> Path | None:
    """The latest checkpoint of a folder that is whole, from which a run that is resumed there goes on."""
    found, _ = _latest(folder)
    return None if found is None else found.path


def _latest(folder: str | Path) -> tuple[Latest | None, list[Damaged]]:
    """The latest that is whole, and what is wrong with later ones."""
    failures: list[Damaged] = []
    for step, path in reversed(checkpoints(folder).items()):
        try:
            open_checkpoint(path).verify()
        except Damaged as error:
            failures.append(error)
        else:
            warnings = tuple(f"{error}; {path.name} before it is whole" for error in failures)
            return Latest(path, step, warnings), failures
    return None, failures


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other runs from writing to a folder, made where there is none, until the block or this process ends.

    Raises UserError where it cannot be made, or where another run writes there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as refused:
        raise UserError(f"--checkpoint {folder}: {refused.strerror}; choose another folder") from refused
    try:
        if not files.locked(descriptor):
            raise UserError(
                f"--checkpoint {folder}: another run writes there now; wait for its end or choose another folder"
            )
        yield
    finally:
        os.close(descriptor)


def clean(disk: Disk, folder: Path, step: int) -> None:
    """Make the folder ready for a run that goes on after `step`, 0 for one that begins; the caller holds the lock.

    What dead writers left is removed; later checkpoints that are damaged are set aside as `step-N.damaged`.
    Raises UserError for a later one that is whole: this run would write another of its name.
    """
    for left in sorted(path for path in folder.iterdir() if _LEFT.fullmatch(path.name)):
        disk.remove_tree(left)
    for path in _damaged(folder, step):
        aside = path.with_name(path.name + DAMAGED)
        disk.remove_tree(aside)
        disk.rename(path, aside)


def check_free(folder: Path) -> None:
    """Raises UserError as `clean` does for a run that begins: asked before what takes long. Nothing is changed."""
    list(_damaged(folder, 0))


def _damaged(folder: Path, step: int) -> Iterator[Path]:
    """Later checkpoints that are damaged. Raises UserError at one that is whole."""
    for path in [path for later, path in checkpoints(folder).items() if later > step]:
        try:
            open_checkpoint(path).verify()
        except Damaged:
            yield path
        else:
            raise UserError(
                f"--checkpoint {path.parent}: {path.name} is there, and this run begins after step {step}: "
                "go on from it with --resume, or choose another folder"
            )


def note(disk: Disk, path: Path, loss: float) -> None:
    """Put the loss of held-out samples beside a checkpoint's own files. Raises OSError."""
    part = path / (NOTE + PART)
    disk.remove_tree(part)
    disk.write_file(part, [memoryview(msgspec.json.encode(_Note(loss)))])
    disk.rename(part, path / NOTE)


def noted(path: Path) -> float | None:
    """The loss of held-out samples that was put beside a checkpoint, None for none that can be read."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((path / NOTE).read_bytes(), type=_Note).loss
    return None


def best(folder: str | Path) -> tuple[int, float] | None:
    """The step of the checkpoint with the lowest noted loss, the earliest of equal ones, and that loss."""
    found = [(loss, step) for step, path in checkpoints(folder).items() if (loss := noted(path)) is not None]
    loss, step = min(found, default=(None, 0))
    return (step, loss) if loss is not None else None


def retire(disk: Disk, folder: Path, keep: int) -> None:
    """Remove all but the `keep` latest checkpoints, and the best of those with a noted loss. Raises OSError."""
    chosen = best(folder)
    for step, path in list(checkpoints(folder).items())[:-keep]:
        if chosen is None or step != chosen[0]:
            writer.take_away(disk, path)
