"""A table in a CSV file: columns of categories, columns of numbers and a label, as recommendation models take them.

    --data 'csv:file=flights.csv.zip,label=arr_delay,positive=>15,categories=carrier+dest,numbers=distance+dep_delay'

(in quotes, for > means something to a shell). It does not know what is learned from it.
"""

from __future__ import annotations

import csv
import gzip
import io
import operator
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

import numpy as np

from castile.launch.data import Arrays, Dataset, split
from castile.runtime.strict import suggestion

if TYPE_CHECKING:
    from _csv import Reader as _Reader

MISSING = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL"})
# Names of files that are meant where one stands for a data set.
READS = (".csv", ".csv.gz", ".csv.zip")
# Settings by which cells become numbers: with others what was trained does not know these.
FITTED = ("file", "label", "categories", "numbers", "rare", "held_out")
# cells become numbers so many rows at a time: whole columns of text would fill the memory
ROWS_AT_ONCE = 2**14
# so many of a column's cells are told where none is what was meant, and looked at for one like it
MOST_TOLD, MOST_LIKE = 8, 1000
Comparison = Callable[[np.ndarray, float], np.ndarray]
COMPARISONS: dict[str, Comparison] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def load(
    seed: int,
    *,
    file: str = "",
    label: str = "",
    positive: str = "",
    classes: bool = False,
    categories: str = "",
    numbers: str = "",
    rare: int = 2,
    held_out: float = 0.1,
    new: str = "",
) -> Dataset:
    """categories [n] int32, numbers [m] float32 and label: [1] float32, or () int32 where it names classes.

    file         .csv, .csv.gz or .csv.zip, with the columns' names in its first row
    label        a column: its number; with `positive` 1 or 0; with `classes` its value's number among all, in order
    positive     what makes the label 1: >15, >=15, <15, <=15 for a column of numbers, or the very text of the cell;
                 where no row has it nothing is trained
    categories   columns joined by +; a value's number is its rank by frequency among the rows to train on, from 1 on.
                 0 is for values seen there in fewer than `rare` rows, or never
    numbers      columns joined by +; each has mean 0 and deviation 1 over the rows to train on. Where neither is given
                 they are all columns but the label's: numbers those of which each cell is one, or missing
    classes      whether the label names classes, as a softmax tells them apart
    rare         in so many rows a value of a category is at least, or its number is 0
    held_out     the share of the rows to judge by, drawn by the seed
    new          another such file, whose rows are those to judge by or to predict instead, numbered and scaled as in
                 training with `file`; the label's column may be missing
    Rows where a used column is missing (empty, NA, N/A, NaN or null) are left out and counted in `num_dropped`. `sizes`
    holds, by column, how many numbers there are, 0 included.
    Raises ValueError in one sentence, with the line, for a file that is missing, damaged or not such a table.
    """
    _check(file, label, positive, classes, rare)
    named = _names(categories, "categories"), _names(numbers, "numbers")
    of_texts, of_figures = named if any(named) else _others(Path(file), label)
    texts, figures = {name: Texts() for name in of_texts}, {name: Figures() for name in of_figures}
    target = _Label.of(positive, classes)
    wanted: list[tuple[str, Texts | Figures]] = [*texts.items(), *figures.items(), (label, target.column)]
    rows, num_dropped = _read(Path(file), wanted)
    if len(rows) < 2:
        raise _too_few(file, len(rows), num_dropped, "fill at least 2, or name other columns")
    lack = target.lack()
    fault = f"data set csv: positive={positive}: in column {label!r} {lack}" if lack else ""
    added, num_dropped = _added(Path(new), wanted, classes) if new else (None, num_dropped)
    train, rest = split(seed, "csv", len(rows), held_out)
    sizes, columns = {}, {}
    if texts:
        coded = [column.numbered(train, rare) for column in texts.values()]
        sizes = dict(zip(texts, [size for _, size in coded], strict=True))
        columns["categories"] = np.stack([codes for codes, _ in coded], axis=1)
    if figures:
        columns["numbers"] = np.stack([column.standardised(train) for column in figures.values()], axis=1)
    columns["label"] = target.values()
    if classes:
        sizes[label] = int(columns["label"].max()) + 1
    own = Arrays({name: array[: len(rows)] for name, array in columns.items()}, train, numbers=rows)
    judged = replace(own, rows=rest)
    if added is not None:  # the label's column ends where it is not known
        judged = Arrays({n: a[len(rows) :] for n, a in columns.items() if len(a) > len(rows)}, numbers=added)
    return Dataset("csv", seed, own, judged, sizes=sizes, num_dropped=num_dropped, fault=fault)


def _too_few(file: str, count: int, num_dropped: int, mend: str) -> ValueError:
    whole = f"{count} of {count + num_dropped} rows have nothing missing in the columns that are used"
    return ValueError(f"data set csv: {file}: {whole}: {mend}")


def _added(path: Path, wanted: Sequence[tuple[str, Texts | Figures]], classes: bool) -> tuple[np.ndarray, int]:
    """Read rows behind those that were read before; the label, wanted last, may be missing. As `_read`.

    Raises ValueError where none has all that is used, and for a class that no row had before.
    """
    label, target = wanted[-1]
    known = len(target.seen) if isinstance(target, Texts) else 0
    rows, num_dropped = _read(path, wanted if label in _header(path) else wanted[:-1])
    if not len(rows):
        raise _too_few(str(path), 0, num_dropped, f"leave out the column {label!r} where it is not known")
    if classes and isinstance(target, Texts) and (strange := list(target.seen)[known:]):
        raise ValueError(f"data set csv: {path}: column {label!r} has {strange[0]!r}, a class that `file` lacks")
    return rows, num_dropped


def _check(file: str, label: str, positive: str, classes: bool, rare: int) -> None:
    if not file or not label:
        raise ValueError(
            "data set csv: give file=PATH, label=COLUMN, and categories=A+B or numbers=C+D for some columns"
        )
    if positive and classes:
        raise ValueError(f"data set csv: positive={positive} makes label {label!r} 0 or 1; leave out classes, or it")
    if rare < 1:
        raise ValueError(
            f"data set csv: rare counts the rows that a value must at least be in; it is 1 or more, not {rare}"
        )


def _names(joined: str, setting: str) -> list[str]:
    names = joined.split("+") if joined else []
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"data set csv: {setting} names column {twice[0]!r} twice")
    return names


@dataclass
class Texts:
    """A column of texts, each as a number of its value in the order of first appearance."""

    seen: dict[str, int] = field(default_factory=dict)
    parts: list[np.ndarray] = field(default_factory=list)

    def add(self, cells: Sequence[str]) -> None:
        """Take in the cells of some more rows."""
        codes = (self.seen.setdefault(cell, len(self.seen)) for cell in cells)
        self.parts.append(np.fromiter(codes, np.int32, len(cells)))

    def numbered(self, train: np.ndarray, rare: int) -> tuple[np.ndarray, int]:
        """Each row's number by rank of frequency among the rows `train`, rare and unseen ones 0; how many there are."""
        codes = np.concatenate(self.parts)
        counts = np.bincount(codes[train], minlength=len(self.seen))
        # a stable order: of equally frequent values the one that appears first in the file
        order = np.argsort(-counts, kind="stable")
        kept = int((counts >= rare).sum())
        ranks = np.zeros(len(self.seen), np.int32)
        ranks[order[:kept]] = np.arange(1, kept + 1)
        return ranks[codes], kept + 1

    def in_order(self) -> np.ndarray:
        """Each row's number of its value among all values, in order: of numbers if all are, else of texts; int32."""
        try:
            ordered = sorted(self.seen, key=lambda text: (float(text), text))
        except ValueError:
            ordered = sorted(self.seen)
        ranks = {text: rank for rank, text in enumerate(ordered)}
        return np.array([ranks[text] for text in self.seen], np.int32)[np.concatenate(self.parts)]

    def equal(self, text: str) -> np.ndarray:
        """Where the cell is this very text."""
        return np.concatenate(self.parts) == self.seen.get(text, -1)

    def lack(self, text: str) -> str:
        """That no cell is this very text, and what cells there are; "" where one is."""
        if text in self.seen:
            return ""
        some = ", ".join(map(repr, islice(self.seen, MOST_TOLD))) + (", ..." if len(self.seen) > MOST_TOLD else "")
        near = suggestion(text, list(islice(self.seen, MOST_LIKE)))
        return f"no cell is {text!r}{near or f': there are {some}'}"


@dataclass
class Figures:
    """A column of numbers."""

    parts: list[np.ndarray] = field(default_factory=list)

    def add(self, cells: Sequence[str]) -> None:
        """Take in the cells of some more rows. Raises ValueError where one is no finite number."""
        part = np.fromiter(map(float, cells), np.float64, len(cells))
        if not np.isfinite(part).all():
            raise ValueError("not finite")
        self.parts.append(part)

    def values(self) -> np.ndarray:
        return np.concatenate(self.parts)

    def lack(self, compare: Comparison, bound: float) -> str:
        """That a comparison with this holds for no cell, and how far they go; "" where it does for one."""
        values = self.values()
        return "" if compare(values, bound).any() else f"no cell is: they go from {values.min():g} to {values.max():g}"

    def standardised(self, train: np.ndarray) -> np.ndarray:
        """The numbers with mean 0 and deviation 1 over the rows `train`, 0 where those are all the same; float32."""
        values = self.values()
        mean, deviation = values[train].mean(), values[train].std()
        return ((values - mean) / (deviation or 1)).astype(np.float32)


@dataclass(frozen=True)
class _Label:
    """The label's column, what becomes of it, and in words that no cell of it makes it 1."""

    column: Texts | Figures
    values: Callable[[], np.ndarray]
    lack: Callable[[], str] = str

    @classmethod
    def of(cls, positive: str, classes: bool) -> _Label:
        if classes:
            texts = Texts()
            return cls(texts, texts.in_order)
        compared = re.fullmatch(r"([<>]=?)(.*)", positive)
        if positive and not compared:
            texts = Texts()
            return cls(texts, lambda: _as_label(texts.equal(positive)), lambda: texts.lack(positive))
        figures = Figures()
        if not compared:
            return cls(figures, lambda: _as_label(figures.values()))
        compare, bound = COMPARISONS[compared[1]], _bound(compared[2], positive)
        return cls(figures, lambda: _as_label(compare(figures.values(), bound)), lambda: figures.lack(compare, bound))


def _as_label(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)[:, None]


def _bound(text: str, positive: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"data set csv: positive={positive}: {text!r} is not a number") from error


def _read(path: Path, wanted: Sequence[tuple[str, Texts | Figures]]) -> tuple[np.ndarray, int]:
    """Read the wanted columns; which rows were kept, counted from 0, and how many others there are."""
    kept: list[int] = []
    num_dropped = 0
    with _opened(path) as stream:
        reader = csv.reader(stream, skipinitialspace=True, strict=True)
        with _wording_damage(path, reader):
            header = next(reader, [])
            places = [_place(path, header, name) for name, _ in wanted]
            for block in _blocks(path, reader, len(header), places):
                kept, num_dropped = kept + block.numbers, num_dropped + block.lacking
                for (name, column), cells in zip(wanted, zip(*block.rows, strict=True), strict=bool(block.rows)):
                    _add(path, name, column, cells, block.lines)
    return np.array(kept, np.int64), num_dropped


def _header(path: Path) -> list[str]:
    """The names of the columns."""
    with _opened(path) as stream:
        reader = csv.reader(stream, skipinitialspace=True, strict=True)
        with _wording_damage(path, reader):
            return next(reader, [])


def _others(path: Path, label: str) -> tuple[list[str], list[str]]:
    """The columns beside the label: those with a cell that is no number, and those of numbers alone."""
    with _opened(path) as stream:
        reader = csv.reader(stream, skipinitialspace=True, strict=True)
        with _wording_damage(path, reader):
            header = next(reader, [])
            _place(path, header, label)
            texts = {
                name for row in reader for name, cell in zip(header, row) if not (cell in MISSING or _is_number(cell))
            }
    others = [name for name in header if name != label]
    return [name for name in others if name in texts], [name for name in others if name not in texts]


class _Block(NamedTuple):
    """Rows with nothing missing: their lines, their numbers among all rows, their wanted cells; how many others."""

    lines: list[int]
    numbers: list[int]
    rows: list[tuple[str, ...]]
    lacking: int


def _blocks(path: Path, reader: _Reader, width: int, places: Sequence[int]) -> Iterator[_Block]:
    """The rows of a table, so many at a time."""
    block, number = _Block([], [], [], 0), -1
    for row in reader:
        if len(row) != width:
            if not row:
                continue
            raise ValueError(
                f"data set csv: {path}, line {reader.line_num}: {len(row)} cells in a table of {width} columns"
            )
        number += 1
        cells = tuple([row[place] for place in places])
        if MISSING.isdisjoint(cells):
            block.lines.append(reader.line_num)
            block.numbers.append(number)
            block.rows.append(cells)
        else:
            block = block._replace(lacking=block.lacking + 1)
        if len(block.rows) == ROWS_AT_ONCE:
            yield block
            block = _Block([], [], [], 0)
    yield block


def _add(path: Path, name: str, column: Texts | Figures, cells: Sequence[str], lines: Sequence[int]) -> None:
    try:
        column.add(cells)
    except ValueError as error:
        line, cell = next((line, cell) for line, cell in zip(lines, cells, strict=True) if not _is_number(cell))
        raise ValueError(
            f"data set csv: {path}, line {line}: column {name!r} has {cell!r}, not a number: name "
            "a column of words among categories, or say classes=true of the label"
        ) from error


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _place(path: Path, header: Sequence[str], name: str) -> int:
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
def _wording_damage(path: Path, reader: _Reader) -> Iterator[None]:
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
