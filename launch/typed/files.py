"""Files that commands write: there whole or not at all, and what the system refuses is told with the file's name.

It does not know what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from castile.launch.processes.ranks import UserError

# Bytes of the random part of a draft's name.
NUM_RANDOM = 4


def locked(descriptor: int) -> bool:
    """Keep others from a file until this process ends or closes it; False where another does. Where a file system
    keeps no locks, two that use one are the user's own affair.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def users(variable: str, otherwise: str) -> Path:
    """The user's own folder for what castile keeps: in the folder that a variable of the environment names, or in this
    one at home. Raises UserError where there is neither.
    """
    try:
        return Path(os.environ.get(variable) or Path.home() / otherwise) / "castile"
    except RuntimeError as error:
        raise UserError(f"this user has no home folder: set HOME or {variable} to one to keep things in") from error


def numbered(path: str, number: int) -> str:
    """The path of one of several files that stand for one: plan-2.json for plan.json."""
    whole = Path(path)
    return str(whole.with_name(f"{whole.stem}-{number}{whole.suffix}"))


def write(path: str | Path, data: bytes) -> None:
    """A file of these bytes, as `whole` makes it; to a stream they are added, as what it leads to may have others."""
    with whole(path) as draft, draft.open("ab") as file:
        file.write(data)


class Outputs:
    """What a command writes beside what it tells. What cannot be written keeps it from neither the others nor telling.

    paths     the files that were written, by what they hold
    removed   those of an earlier command that have no place beside them
    """

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        self.removed: list[str] = []
        self._refused: list[str] = []

    def write(self, what: str, path: str, make: Callable[[str], None]) -> None:
        """Have `make` write the file at that path; nothing where there is no path."""
        if path and self.attempt(lambda: make(path)):
            self.paths[what] = path

    def attempt(self, make: Callable[[], None]) -> bool:
        """Whether what is to be written was."""
        try:
            make()
        except UserError as error:
            self.refuse(str(error))
            return False
        return True

    def remove_beyond(self, path: str, count: int, check: Callable[[str], object]) -> None:
        """Of files that stand for one, now so many, remove those that follow in number, which an earlier command left:
        as far as there are such, and `check` raises no ValueError, as for what is another's.
        """
        for number in itertools.count(count + 1):
            try:
                check(numbered(path, number))
                os.unlink(numbered(path, number))
            except (ValueError, OSError):
                return
            self.removed.append(numbered(path, number))

    def refuse(self, why: str) -> None:
        """Remember what could not be written, "" for nothing."""
        self._refused += [why] if why else []

    def end(self) -> None:
        """Raises UserError for what could not be written, when all else is told."""
        if self._refused:
            raise UserError("; ".join(self._refused))


@contextlib.contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """The path to write to: a draft beside the file, which takes the file's place when the block ends well.

    Of several who write a file at the same time each has a draft of its own, and the last to end has the file. Missing
    folders are made. A device or a pipe, such as /dev/stdout, is never replaced: it is the path itself. Raises
    UserError where the system refuses; the file then is as it was before.
    """
    path = Path(path)
    try:
        if is_stream(path):
            yield path
            return
        # a link stays one: what it leads to is written
        file = Path(os.path.realpath(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(file)
        with _own_folder(file) as folder:
            draft = folder / file.name
            yield draft
            draft.replace(file)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; make room or choose another path") from error


@contextlib.contextmanager
def _own_folder(file: Path) -> Iterator[Path]:
    """An empty folder beside the file that nobody else writes to or removes; it goes away with all that is in it."""
    while True:
        folder = file.with_name(f"{file.name}.{secrets.token_hex(NUM_RANDOM)}.part")
        folder.mkdir()
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            # Some file systems keep no locks, and what is left there stays: nobody can tell that it is.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # another who removes what is left may have come before the lock
            if folder.exists():
                break
            os.close(descriptor)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_left(file: Path) -> None:
    """Remove drafts of processes that were killed: those whose folders nobody has locked."""
    for folder in file.parent.glob(f"{glob.escape(file.name)}.{'[0-9a-f]' * 2 * NUM_RANDOM}.part"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)


def is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe or the like: what is written there takes no file's place."""
    # /dev/stdout may lead to a file, which is not this command's to replace while others write to it
    folders = path.absolute().parents
    is_device = Path("/dev") in folders and Path("/dev/shm") not in folders
    return is_device or (path.exists() and not path.is_file())
