"""Metrics: a line of JSON for each thing that happened while training, and event files for TensorBoard.

It does not know what is measured; who trains says what happened.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from castile.launch import installing
from castile.launch.ranks import UserError

# What a step's or an evaluation's record holds that is a name or a place, not a curve.
_NO_CURVE = ("kind", "step", "samples")


class Sink(Protocol):
    """Where records go."""

    def record(self, record: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Lines:
    """A file with a JSON object a line. Each is in the system's hands when `record` returns: a kill loses none."""

    def __init__(self, path: str, resume: bool) -> None:
        """Open for records to come: after those that are there when resuming, in place of them otherwise."""
        self.path = path
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if resume:
            mend(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if resume else os.O_TRUNC), 0o666)

    def record(self, record: Mapping[str, Any]) -> None:
        """Write one line. Raises UserError where the disk takes no more."""
        line = json.dumps(_without_nan(record), allow_nan=False).encode() + b"\n"
        try:
            # one call for a line: what another program reads meanwhile ends between lines
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise UserError(f"--metrics {self.path}: {error.strerror}; make room or choose another path") from error

    def close(self) -> None:
        os.close(self._file)


def mend(path: str) -> int:
    """Take away a last line that a dying process left unfinished; returns how many bytes that were.

    A whole record that lacks only its line's end gets it. A file that is not there is whole.
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


class Events:
    """TensorBoard's event files, written by tensorboardX or by TensorBoard itself, whichever is installed."""

    def __init__(self, folder: str, add: Callable[[str, float, int], None], close: Callable[[], None]) -> None:
        self.folder, self._add, self._close = folder, add, close

    def record(self, record: Mapping[str, Any]) -> None:
        """Every number of the record is a point of the curve KIND/NAME."""
        if "step" not in record:
            return
        for name, value in record.items():
            if name not in _NO_CURVE and isinstance(value, int | float) and not isinstance(value, bool):
                self._add(f"{record['kind']}/{name}", float(value), int(record["step"]))

    def close(self) -> None:
        self._close()


def events(folder: str) -> Events:
    """Event files in that folder. Raises UserError where nothing that writes them is installed."""
    check_installed(folder)
    with suppress(ImportError):
        return _with_tensorboardx(folder)
    return _with_tensorboard(folder)


def check_installed(folder: str) -> None:
    """Raises UserError where nothing is installed that could write event files into the folder."""
    if any(_is_there(name) for name in ("tensorboardX", "tensorboard")):
        return
    raise UserError(
        f"--tensorboard {folder}: neither tensorboardX nor tensorboard can be imported here: "
        f"`{installing.line('tensorboardX')}`, or take --metrics FILE.jsonl instead"
    )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:
        # it is imported already, and has no spec
        return sys.modules.get(module) is not None


def _with_tensorboardx(folder: str) -> Events:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(folder)

    def add(name: str, value: float, step: int) -> None:
        writer.add_scalar(name, value, step)

    return Events(folder, add, writer.close)


def _with_tensorboard(folder: str) -> Events:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(folder)

    def add(name: str, value: float, step: int) -> None:
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        writer.add_event(Event(step=step, summary=summary))

    return Events(folder, add, writer.close)


class Metrics:
    """All the places where a run's records go, none on ranks that do not lead; a context manager that closes them."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def record(self, kind: str, **facts: Any) -> None:
        """Write down that something happened: kind "run", "step", "evaluation", "checkpoint" or "end"."""
        record = {"kind": kind, **facts}
        for sink in self._sinks:
            sink.record(record)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._sinks:
            sink.close()


def start(path: str, folder: str, resume: bool) -> Metrics:
    """Records go to a file of lines and to a folder of event files; "" stands for neither."""
    # the folder first: nothing is written to the file when it turns out that the folder cannot be
    sinks: list[Sink] = [events(folder)] if folder else []
    if path:
        sinks.append(Lines(path, resume))
    return Metrics(*sinks)


def _without_nan(value: Any) -> Any:
    """The value with None for what JSON cannot say: infinities and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
