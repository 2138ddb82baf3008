"""A table in a CSV file: columns of categories, columns of numbers and a label, as recommendation models take them.

    --data 'csv:file=flights.csv.zip,label=arr_delay,positive=>15,categories=carrier+dest,numbers=distance+dep_delay'

(in quotes, for > means something to a shell). It does not know what is learned from it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from castile.launch.data import Arrays, Dataset, split
from castile.launch.typed import tables
from castile.launch.typed.tables import MISSING
from castile.runtime.strict import suggestion

# Names of files that are meant where one stands for a data set.
READS = (".csv", ".csv.gz", ".csv.zip")
# Settings by which cells become numbers: with others what was trained does not know these.
FITTED = ("file", "label", "categories", "numbers", "rare", "filled", "held_out")
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
    filled: bool = False,
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
    filled       whether rows stay where something other than the label is missing: a number is then the mean of those
                 that are there, a category is 0
    held_out     the share of the rows to judge by, drawn by the seed
    new          another such file, whose rows are those to judge by or to predict instead, numbered and scaled as in
                 training with `file`; the label's column may be missing
    Other rows where a used column is missing (empty, NA, N/A, NaN or null) are left out, and counted in `num_dropped`.
    `sizes` holds, by column, how many numbers there are, 0 included.
    Raises ValueError in one sentence, with the line, for a file that is missing, damaged or not such a table.
    """
    _check(file, label, positive, classes, rare)
    named = _names(categories, "categories"), _names(numbers, "numbers")
    of_texts, of_figures = named if any(named) else _others(Path(file), label)
    texts, figures = {name: Texts() for name in of_texts}, {name: Figures() for name in of_figures}
    target = _Label.of(positive, classes)
    wanted: list[tuple[str, Texts | Figures]] = [*texts.items(), *figures.items(), (label, target.column)]
    fill = frozenset([*texts, *figures] if filled else ())
    rows, num_dropped = _read(Path(file), wanted, fill)
    if len(rows) < 2:
        raise _too_few(file, len(rows), num_dropped, "fill at least 2, or name other columns")
    lack = target.lack()
    fault = f"data set csv: positive={positive}: in column {label!r} {lack}" if lack else ""
    added, num_dropped = _added(Path(new), wanted, classes, fill) if new else (None, num_dropped)
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


def _added(
    path: Path, wanted: Sequence[tuple[str, Texts | Figures]], classes: bool, fill: Collection[str]
) -> tuple[np.ndarray, int]:
    """Read rows behind those that were read before; the label, wanted last, may be missing. As `_read`.

    Raises ValueError where none has all that is used, and for a class that no row had before.
    """
    label, target = wanted[-1]
    known = len(target.codes) if isinstance(target, Texts) else 0
    rows, num_dropped = _read(path, wanted if label in tables.header(path) else wanted[:-1], fill)
    if not len(rows):
        raise _too_few(str(path), 0, num_dropped, f"leave out the column {label!r} where it is not known")
    if classes and isinstance(target, Texts) and (strange := list(target.codes)[known:]):
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

    codes: dict[str, int] = field(default_factory=dict)
    parts: list[np.ndarray] = field(default_factory=list)

    def add(self, cells: Sequence[str]) -> None:
        """Take in the cells of some more rows."""
        codes = (self.codes.setdefault(cell, len(self.codes)) for cell in cells)
        self.parts.append(np.fromiter(codes, np.int32, len(cells)))

    def numbered(self, train: np.ndarray, rare: int) -> tuple[np.ndarray, int]:
        """Each row's number by rank of frequency among the rows `train`, rare and unseen ones 0; how many there are."""
        codes = np.concatenate(self.parts)
        counts = np.bincount(codes[train], minlength=len(self.codes))
        # what is missing is no value
        counts[[code for cell, code in self.codes.items() if cell in MISSING]] = -1
        # a stable order: of equally frequent values the one that appears first in the file
        order = np.argsort(-counts, kind="stable")
        kept = int((counts >= rare).sum())
        ranks = np.zeros(len(self.codes), np.int32)
        ranks[order[:kept]] = np.arange(1, kept + 1)
        return ranks[codes], kept + 1

    def in_order(self) -> np.ndarray:
        """Each row's number of its value among all values, in order: of numbers if all are, else of texts; int32."""
        try:
            ordered = sorted(self.codes, key=lambda text: (float(text), text))
        except ValueError:
            ordered = sorted(self.codes)
        ranks = {text: rank for rank, text in enumerate(ordered)}
        return np.array([ranks[text] for text in self.codes], np.int32)[np.concatenate(self.parts)]

    def equal(self, text: str) -> np.ndarray:
        """Where the cell is this very text."""
        return np.concatenate(self.parts) == self.codes.get(text, -1)

    def lack(self, text: str) -> str:
        """That no cell is this very text, and what cells there are; "" where one is."""
        if text in self.codes:
            return ""
        some = ", ".join(map(repr, islice(self.codes, MOST_TOLD))) + (", ..." if len(self.codes) > MOST_TOLD else "")
        near = suggestion(text, list(islice(self.codes, MOST_LIKE)))
        return f"no cell is {text!r}{near or f': there are {some}'}"


@dataclass
class Figures:
    """A column of numbers."""

    parts: list[np.ndarray] = field(default_factory=list)

    def add(self, cells: Sequence[str]) -> None:
        """Take in the cells of some more rows. Raises ValueError where one is no finite number, and not missing."""
        part = np.fromiter((np.nan if cell in MISSING else float(cell) for cell in cells), np.float64, len(cells))
        if any(cells[n] not in MISSING for n in np.flatnonzero(~np.isfinite(part)).tolist()):
            raise ValueError("not finite")
        self.parts.append(part)

    def values(self) -> np.ndarray:
        return np.concatenate(self.parts)

    def lack(self, compare: Comparison, bound: float) -> str:
        """That a comparison with this holds for no cell, and how far they go; "" where it does for one."""
        values = self.values()
        return "" if compare(values, bound).any() else f"no cell is: they go from {values.min():g} to {values.max():g}"

    def standardised(self, train: np.ndarray) -> np.ndarray:
        """The numbers with mean 0 and deviation 1 over the rows `train`, 0 where those are all the same, and where one
        is missing; float32.
        """
        values = self.values()
        known = values[train][~np.isnan(values[train])]
        mean, deviation = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
        return np.nan_to_num((values - mean) / (deviation or 1), nan=0.0).astype(np.float32)


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


def _read(path: Path, wanted: Sequence[tuple[str, Texts | Figures]], fill: Collection[str]) -> tuple[np.ndarray, int]:
    """Read the wanted columns; which rows were kept, counted from 0, and how many others there are, where something is
    missing of a column that is not to be filled.
    """
    kept: list[int] = []
    num_dropped = 0
    with tables.reading(path) as reader:
        header = next(reader, [])
        places = [tables.place(path, header, name) for name, _ in wanted]
        needed = [place for place, (name, _) in zip(places, wanted, strict=True) if name not in fill]
        for block in tables.blocks(path, reader, len(header), places, needed):
            kept, num_dropped = kept + block.numbers, num_dropped + block.lacking
            for (name, column), cells in zip(wanted, zip(*block.rows, strict=True), strict=bool(block.rows)):
                _add(path, name, column, cells, block.lines)
    return np.array(kept, np.int64), num_dropped


def _others(path: Path, label: str) -> tuple[list[str], list[str]]:
    """The columns beside the label: those with a cell that is no number, and those of numbers alone."""
    with tables.reading(path) as reader:
        header = next(reader, [])
        tables.place(path, header, label)
        cells = ((name, cell) for row in reader for name, cell in zip(header, row))
        texts = {name for name, cell in cells if not (cell in MISSING or tables.is_number(cell))}
    others = [name for name in header if name != label]
    return [name for name in others if name in texts], [name for name in others if name not in texts]


def _add(path: Path, name: str, column: Texts | Figures, cells: Sequence[str], lines: Sequence[int]) -> None:
    try:
        column.add(cells)
    except ValueError as error:
        there = ((line, cell) for line, cell in zip(lines, cells, strict=True) if cell not in MISSING)
        line, cell = next((line, cell) for line, cell in there if not tables.is_number(cell))
        raise ValueError(
            f"data set csv: {path}, line {line}: column {name!r} has {cell!r}, not a number: name "
            "a column of words among categories, or say classes=true of the label"
        ) from error
