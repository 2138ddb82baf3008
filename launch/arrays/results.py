"""Results: arrays that are written to a file batch by batch, so that they may be more than any memory holds.

The file's ending says its form. It does not know what the numbers say.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from castile.launch.checkpoints.disk import free_bytes
from castile.launch.processes.ranks import UserError
from castile.launch.typed import files
from castile.runtime.memory import written

# The array that says which row of the data each sample is; no node has a name with a slash.
ROW = "data/row"

Add = Callable[[Mapping[str, np.ndarray]], None]


@dataclass(frozen=True)
class Column:
    """An array of the file: `shape` of one sample, and what numbers (a NumPy name)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """What a sample takes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def check_ending(option: str, path: str) -> None:
    """Raises UserError where no form has such an ending; "" is no path."""
    if path and Path(path).suffix not in FORMS:
        raise UserError(
            f"{option} {path}: a name ends in .npz (an array for each output), .npy (one output) or .csv (a line for "
            "each sample)"
        )


def check(option: str, path: str, columns: Sequence[Column], num_samples: int) -> None:
    """Raises UserError where arrays of so many samples are none for the file's form, or more than there is room for."""
    ending, first = Path(path).suffix, columns[0]
    if ending == ".npy" and len(columns) > 1:
        raise UserError(f"{option} {path}: an npy file holds one array, and there are {len(columns)}: write a .npz")
    if ending == ".csv" and (deep := next((c for c in columns if len(c.shape) > 1), None)):
        shape = " x ".join(map(str, deep.shape))
        raise UserError(f"{option} {path}: {deep.name!r} has {shape} numbers a sample, no row of them: write a .npz")
    # all but the first lie beside the file until they are put into it
    each = [column.nbytes * num_samples for column in columns]
    total, most = sum(each), 2 * sum(each) - first.nbytes * num_samples
    free = free_bytes(next(folder for folder in Path(path).absolute().parents if folder.is_dir()))
    if free < most:
        raise UserError(
            f"{option} {path}: {num_samples} samples take {written(total)} there, and to write them {written(most)}; "
            f"only {written(free)} are free: write to another disk, or fewer samples"
        )


@contextmanager
def writing(path: str, columns: Sequence[Column], rows: np.ndarray) -> Iterator[Add]:
    """Write a file that is there whole or not at all; gives the function that takes the arrays of the next samples.

    columns   what each call brings, all of its samples in one order. rows: which rows of the data these are [n]
    Raises UserError where the system refuses.
    """
    with files.whole(path) as draft, FORMS[Path(path).suffix](draft, columns, rows) as add:
        yield add


@contextmanager
def _npz(path: Path, columns: Sequence[Column], rows: np.ndarray) -> Iterator[Add]:
    """An archive of arrays. It takes one after the other: all but the first wait in files of their own."""
    with ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path, "w"))
        sinks: dict[str, IO[bytes]] = {}
        for column in columns:
            is_first = not sinks
            sink = _entry(archive, column.name) if is_first else tempfile.TemporaryFile(dir=path.parent)
            sinks[column.name] = stack.enter_context(sink)
            _head(sink, column, len(rows))

        def add(arrays: Mapping[str, np.ndarray]) -> None:
            for column in columns:
                sinks[column.name].write(_bytes(arrays[column.name], column))

        yield add
        sinks[columns[0].name].close()
        for column in columns[1:]:
            waiting = sinks[column.name]
            waiting.seek(0)
            with _entry(archive, column.name) as entry:
                shutil.copyfileobj(waiting, entry)
        with _entry(archive, ROW) as entry:
            _head(entry, Column(ROW, (), "int64"), len(rows))
            entry.write(_bytes(rows, Column(ROW, (), "int64")))


def _entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    # without a date, so that equal numbers are equal files
    return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)


@contextmanager
def _npy(path: Path, columns: Sequence[Column], rows: np.ndarray) -> Iterator[Add]:
    """One array."""
    (column,) = columns
    with open(path, "wb") as sink:
        _head(sink, column, len(rows))
        yield lambda arrays: _write(sink, _bytes(arrays[column.name], column))


def _write(sink: IO[Any], data: bytes) -> None:
    sink.write(data)


def _head(sink: IO[bytes], column: Column, num_samples: int) -> None:
    """How an npy file begins."""
    descr, shape = np.lib.format.dtype_to_descr(np.dtype(column.dtype)), (num_samples, *column.shape)
    np.lib.format.write_array_header_1_0(sink, {"descr": descr, "fortran_order": False, "shape": shape})


def _bytes(array: np.ndarray, column: Column) -> bytes:
    return np.ascontiguousarray(array, np.dtype(column.dtype)).tobytes()


@contextmanager
def _csv(path: Path, columns: Sequence[Column], rows: np.ndarray) -> Iterator[Add]:
    """A line for each sample: its row, then the numbers of each column, in as few digits as tell them apart."""
    with open(path, "w", newline="", encoding="utf-8") as sink:
        lines, at = csv.writer(sink), iter(rows)
        lines.writerow(["row", *(name for column in columns for name in _names(column))])

        def add(arrays: Mapping[str, np.ndarray]) -> None:
            texts = [arrays[c.name].astype(c.dtype).reshape(len(arrays[c.name]), -1).astype(str) for c in columns]
            for numbers in np.concatenate(texts, axis=1).tolist():
                lines.writerow([next(at), *numbers])

        yield add


def _names(column: Column) -> list[str]:
    return [f"{column.name}.{n}" for n in range(column.shape[0])] if column.shape else [column.name]


FORMS = {".npz": _npz, ".npy": _npy, ".csv": _csv}
