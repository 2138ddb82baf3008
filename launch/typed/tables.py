"""Tables: rows of CSV files, a block at a time, however they are packed; what goes wrong is told with file and line.

It does not know what cells mean.
"""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

import numpy as np

from castile.runtime.strict import suggestion

if TYPE_CHECKING:
    from _csv import Reader

MISSING = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL"})
# Cells become numbers so many rows at a time: whole columns of text would fill the memory.
ROWS_AT_ONCE = 2**14


@contextmanager
def reading(path: Path) -> Iterator[Reader]:
    """The rows of a table, the names of its columns first. Raises ValueError in one sentence for what goes wrong."""
    with _opened(path) as stream:
        reader = csv.reader(stream, skipinitialspace=True, strict=True)
        with _wording_damage(path, reader):
            yield reader


def header(path: Path) -> list[str]:
    """The names of the columns."""
    with reading(path) as reader:
        return next(reader, [])


class Block(NamedTuple):
    """Rows with nothing missing that is needed: their lines, their numbers among all rows, their wanted cells; how many
    others.
    """

    lines: list[int]
    numbers: list[int]
    rows: list[tuple[str, ...]]
    lacking: int


def blocks(path: Path, reader: Reader, width: int, places: Sequence[int], needed: Sequence[int]) -> Iterator[Block]:
    """The rows of a table of so many columns, its header read before, so many at a time: the cells in these places, of
    rows where nothing is missing in those that are needed.
    """
    block, number = Block([], [], [], 0), -1
    for row in reader:
        if len(row) != width:
            if not row:
                continue
            raise ValueError(
                f"data set csv: {path}, line {reader.line_num}: {len(row)} cells in a table of {width} columns"
            )
        number += 1
        cells = tuple([row[n] for n in places])
        if MISSING.isdisjoint([row[n] for n in needed]):
            block.lines.append(reader.line_num)
            block.numbers.append(number)
            block.rows.append(cells)
        else:
            block = block._replace(lacking=block.lacking + 1)
        if len(block.rows) == ROWS_AT_ONCE:
            yield block
            block = Block([], [], [], 0)
    yield block


def is_number(cell: str) -> bool:
    """Whether a cell is a finite number."""
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def place(path: Path, header: Sequence[str], name: str) -> int:
    """Which column has that name. Raises ValueError where none has it, or several."""
    if not any(header):
        raise ValueError(f"data set csv: {path}: its first line should be the names of its columns, and is empty")
    if (count := header.count(name)) > 1:
        raise ValueError(f"data set csv: {path}: {count} columns are named {name!r}: rename all but one")
    if not count:
        near = suggestion(name, known := sorted(set(header))) or ": " + ", ".join(known)
        raise ValueError(f"data set csv: {path}: no column is named {name!r}{near}")
    return header.index(name)


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The file's text, unpacked as it is read."""
    try:
        with path.open("rb") as packed, _unpacked(path, packed) as plain:
            yield io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise ValueError(f"data set csv: {path}: {error.strerror or error}") from error
    except zipfile.BadZipFile as error:
        raise ValueError(f"data set csv: {path} is damaged or no zip file: {error}") from error


def _unpacked(path: Path, packed: IO[bytes]) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(packed))
    if path.suffix != ".zip":
        return packed
    archive = zipfile.ZipFile(packed)
    tables = [name for name in archive.namelist() if name.endswith(".csv")]
    if len(tables) != 1:
        raise ValueError(f"data set csv: {path} holds {len(tables)} files that end in .csv; it should be one")
    try:
        return archive.open(tables[0])
    except (RuntimeError, NotImplementedError) as error:
        raise ValueError(f"data set csv: {path} cannot be unpacked: {error}") from error


@contextmanager
def _wording_damage(path: Path, reader: Reader) -> Iterator[None]:
    """What goes wrong in reading, as one sentence with the line."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise ValueError(
            f"data set csv: {path} is damaged or cut short after line {reader.line_num}: {error}"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"data set csv: {path} is not UTF-8 text after line {reader.line_num}") from error
    except csv.Error as error:
        raise ValueError(f"data set csv: {path}, line {reader.line_num}: {error}") from error
