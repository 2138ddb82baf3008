"""Metrics: a line of JSON for each event of a training, and event files for TensorBoard.

It does not know what is measured; training says what happened.
"""

from __future__ import annotations

import json
import math
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from castile.launch.processes.ranks import UserError
from castile.launch.training import tensorboard
from castile.launch.typed import files

# What a step's or an evaluation's record holds that is a name or a place, not a curve.
_NO_CURVE = ("kind", "step", "samples")


class Sink:
    """A file where records go, one after another. Each is in the system's hands once written: a kill loses none."""

    def __init__(self, path: Path, option: str) -> None:
        """Open for records, after those that are there. Raises UserError where that is impossible, e.g. as another run
        writes there.
        """
        self.option = option
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise UserError(f"{option}: {error.strerror}; make room or choose another path") from error
        if not files.locked(self._file):
            os.close(self._file)
            raise UserError(f"{option}: another run writes there; wait for its end or choose another path")

    def record(self, record: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Write a record completely or not at all. Raises OSError where the disk is full."""
        size = self.num_bytes
        try:
            # one call for a record: what another program reads meanwhile ends between records
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            # what is no file on a disk is not cut
            with suppress(OSError):
                os.ftruncate(self._file, size)
            raise

    @property
    def num_bytes(self) -> int:
        """The length of the file; 0 for what is no regular file."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Close, and let others write there."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)


class Lines(Sink):
    """A file with a JSON object a line, left as it is until `begin`."""

    def __init__(self, path: str) -> None:
        self.path, self.is_new = path, not os.path.lexists(path)
        super().__init__(Path(path), f"--metrics {path}")

    def begin(self, resume: bool) -> None:
        """When resuming, append to the existing lines; otherwise replace them."""
        # What is no file on a disk has nothing to mend or to cut.
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            return
        if resume:
            mend(self.path)
        else:
            with suppress(OSError):
                os.ftruncate(self._file, 0)

    def record(self, record: Mapping[str, Any]) -> None:
        self.write(json.dumps(_without_nan(record), allow_nan=False).encode() + b"\n")


@contextmanager
def held(path: str) -> Iterator[Lines]:
    """The file of lines, locked against other runs until the block ends. A file that the block created and left empty
    is removed.

    Raises UserError where it cannot be opened, e.g. as another run writes there.
    """
    lines = Lines(path)
    try:
        yield lines
    finally:
        if lines.is_new and os.path.isfile(path) and not os.path.getsize(path):
            Path(path).unlink()
        lines.close()


def mend(path: str) -> int:
    """Remove an incomplete last line that a dying process left; returns the number of bytes removed.

    A complete record that lacks only its newline gets it. A missing file is complete.
    """
    with suppress(FileNotFoundError), open(path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        begin = _last_line(file, size)
        file.seek(begin)
        rest = file.read()
        if not rest:
            return 0
        with suppress(ValueError):
            json.loads(rest)
            file.write(b"\n")
            return 0
        file.truncate(begin)
        return len(rest)
    return 0


def _last_line(file: Any, size: int) -> int:
    """Where the bytes after the last line's end begin."""
    position, block = size, 4096
    while position > 0:
        start = max(0, position - block)
        file.seek(start)
        found = file.read(position - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


class Events(Sink):
    """A TensorBoard file in a folder: a curve for each number of steps and evaluations."""

    def __init__(self, folder: str) -> None:
        # as TensorBoard calls them: it reads all whose names hold the third word, in the order of the fourth
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        super().__init__(Path(folder) / name, f"--tensorboard {folder}")

    def record(self, record: Mapping[str, Any]) -> None:
        """Add every number of the record to the curve KIND/NAME; nested numbers have longer names."""
        if "step" not in record:
            return
        values = list(_numbers(record["kind"], {n: value for n, value in record.items() if n not in _NO_CURVE}))
        if values:
            begin = b"" if self.num_bytes else tensorboard.record(tensorboard.first(time.time()))
            self.write(begin + tensorboard.record(tensorboard.scalars(time.time(), int(record["step"]), values)))


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """All numbers of a value that may be nested, by name."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _numbers(f"{name}/{key}", one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


class Metrics:
    """All places where a run's records go, none on ranks other than 0; a context manager that closes them.

    warn   called once for each place that takes no more records, which does not end a training
    """

    def __init__(self, *sinks: Sink, warn: Callable[[str], None] = lambda text: None) -> None:
        self._sinks, self._warn = sinks, warn
        self._full: set[Sink] = set()

    def record(self, kind: str, **facts: Any) -> None:
        """Record an event: kind "run", "step", "evaluation", "checkpoint" or "end"."""
        record = {"kind": kind, **facts}
        for sink in self._sinks:
            try:
                sink.record(record)
            except OSError as error:
                if sink not in self._full:
                    self._full.add(sink)
                    why = f"{sink.option}: {error.strerror}"
                    self._warn(f"{why}; training goes on, and records are lost until you make room")

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._sinks:
            # a file system may tell only here that it had no room
            with suppress(OSError):
                sink.close()


def start(
    lines: Lines | None, folder: str, resume: bool, warn: Callable[[str], None] = lambda text: None
) -> Metrics:
    """Metrics that go to a file of lines, if any, and to a folder of event files; "" stands for none.

    warn   called once for each of the two that takes no more records
    Raises UserError where one of them cannot be opened.
    """
    # the folder first: nothing is written to the file when it turns out that the folder cannot be
    sinks: list[Sink] = [Events(folder)] if folder else []
    if lines is not None:
        lines.begin(resume)
        sinks.append(lines)
    return Metrics(*sinks, warn=warn)


def _without_nan(value: Any) -> Any:
    """The value with None in place of infinities and NaN, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
