"""Files that commands write: there whole or not at all, and what the system refuses is told with the file's name.

It does not know what is in them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from castile.launch.ranks import UserError


def write(path: str | Path, data: bytes) -> None:
    """A file of these bytes, as `whole` makes it."""
    with whole(path) as draft:
        draft.write_bytes(data)


@contextlib.contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """The path to write to: a draft in the file's folder, which takes the file's place when the block ends well.

    Missing folders are made. A device or a pipe, such as /dev/stdout, is never replaced: it is the path itself. Raises
    UserError where the system refuses; the file then is as it was before.
    """
    path = Path(path)
    try:
        if _is_stream(path):
            yield path
            return
        # a link stays one: what it leads to is written
        file = path.resolve()
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.part")
        try:
            draft.unlink(missing_ok=True)
            yield draft
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; make room or choose another path") from error


def _is_stream(path: Path) -> bool:
    # /dev/stdout may lead to a file, which is not this command's to replace while others write to it
    return Path("/dev") in path.absolute().parents or (path.exists() and not path.is_file())
