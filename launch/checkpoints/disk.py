"""The few operations by which checkpoints reach a disk, each a method, so that a test can end the process at any.

It does not know what is written, nor in which order it must be.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from castile.launch.processes.streams import NO_ROOM

# What hinders a save and may pass: want of room, which somebody may make, and a file system that takes no more until it
# is mounted anew, as after a fault, or that the network has lost.
PASSING = (
    *NO_ROOM, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
)  # fmt: skip
CHUNK_BYTES = 8 * 2**20


class Disk:
    """Operations on files; each raises OSError where the system refuses."""

    def create(self, path: Path) -> int:
        """A descriptor of a new file; it must not be there."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def write(self, descriptor: int, data: memoryview) -> int:
        """How many of the bytes were taken."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Returns when what was written lies on the disk."""
        os.fsync(descriptor)

    def make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def rename(self, path: Path, to: Path) -> None:
        path.rename(to)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        path.rmdir()

    def write_file(self, path: Path, parts: Iterable[memoryview]) -> int:
        """Write and sync a new file of these bytes; how many there were."""
        descriptor = self.create(path)
        total = 0
        try:
            for part in parts:
                while part:
                    taken = self.write(descriptor, part[:CHUNK_BYTES])
                    part, total = part[taken:], total + taken
            self.sync(descriptor)
        finally:
            os.close(descriptor)
        return total

    def sync_folder(self, path: Path) -> None:
        """Returns when the names in the folder lie on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and all in it, or what else has its name; what is gone already is no matter."""
        if path.is_dir() and not path.is_symlink():
            for entry in sorted(path.iterdir()):
                self.remove_tree(entry)
            self.remove_folder(path)
        elif os.path.lexists(path):
            self.remove(path)


def free_bytes(folder: Path) -> int:
    """What a user may still write to the file system of the folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
