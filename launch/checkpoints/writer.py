"""Writing: a rank's file of tensors, the manifest over all files, and the rename that makes a checkpoint of them.

It does not know ranks' agreement nor threads. Until the rename a checkpoint is a folder `step-N.part`, which no reader
takes; each file, then the folder, lies on the disk before the next thing is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from castile.launch.checkpoints import manifest, words
from castile.launch.checkpoints.disk import Disk
from castile.launch.checkpoints.layout import Held, shapes_of
from castile.launch.checkpoints.manifest import File, Piece

PART = ".part"


def part_of(path: Path) -> Path:
    """The folder in which the checkpoint `path` is written, or taken apart."""
    return path.with_name(path.name + PART)


def write_share(
    disk: Disk, path: Path, rank: int, held: Sequence[Held], arrays: Sequence[np.ndarray], tells: bool = False
) -> File | None:
    """Write a rank's tensors for the checkpoint `path`; None where it has none. Raises OSError.

    tells   whether a word of it is left beside it, for ranks that may have to end the save without this one
    """
    disk.make_folder(part_of(path))
    if not held:
        return None
    hashes: list[str] = []
    name = manifest.file_name(rank)
    nbytes = disk.write_file(part_of(path) / name, _hashed(shapes_of(held), arrays, hashes))
    pieces = tuple(Piece(e.region, e.lo, e.hi, found) for e, found in zip(held, hashes, strict=True))
    file = File(name, nbytes, pieces)
    if tells:
        words.leave(disk, part_of(path), rank, file)
    return file


def write_tensors(disk: Disk, path: Path, shapes: Sequence[tuple[str, str, tuple[int, ...]]],
                  arrays: Iterable[np.ndarray]) -> int:  # fmt: skip
    """Write one new safetensors file of tensors (name, dtype, shape), an array each, taken when its turn comes.

    Returns the file's bytes. Raises OSError.
    """
    head, _ = manifest.header(shapes)

    def parts() -> Iterator[memoryview]:
        yield memoryview(head)
        for array in arrays:
            yield _bytes_of(array)

    return disk.write_file(path, parts())


def publish(disk: Disk, path: Path, sealed: bytes, files: Sequence[File]) -> bool:
    """Make a checkpoint of the files that all ranks have written; False where another rank does so, or has done it.
    Raises OSError, or ValueError where a file is not here.

    Killed at any moment it leaves `path` whole, or not there.
    """
    part = part_of(path)
    try:
        # of several who come to it the first to make this file has it
        disk.write_file(part / manifest.NAME, [memoryview(sealed)])
    except FileExistsError:
        return False
    except FileNotFoundError:
        if path.is_dir():
            return False
        raise
    for file in files:
        found = part / file.name
        if not found.is_file() or found.stat().st_size != file.nbytes:
            raise ValueError(f"{found} was written on its host, but is not seen here: all hosts must share the folder")
    words.remove(disk, part)
    disk.sync_folder(part)
    disk.rename(part, path)
    disk.sync_folder(path.parent)
    return True


def take_away(disk: Disk, path: Path) -> None:
    """Remove a checkpoint so that none ever sees half of it."""
    disk.rename(path, part_of(path))
    disk.remove_tree(part_of(path))


def _hashed(
    shapes: Sequence[tuple[str, str, tuple[int, ...]]], arrays: Sequence[np.ndarray], hashes: list[str]
) -> Iterator[memoryview]:
    """The bytes of a file of tensors; leaves the hash of each tensor in `hashes`."""
    yield memoryview(manifest.header(shapes)[0])
    for array in arrays:
        data = _bytes_of(array)
        hashes.append(manifest.digest(data))
        yield data


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
