"""Text as bytes, cut into windows: each byte is a token, and the target of each is the byte after it.

It does not know what is learned from it.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from castile.launch.data import Arrays, Dataset, Shown, num_to_train_on

SHOWN: Shown = {"seq": ("tokens", 0)}

# the standard library's own tests are no text that anyone wrote to be read
SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3", "ensurepip"}

# Names of files that are meant where one stands for a data set.
READS = (".txt",)


def load(seed: int, *, file: str = "", seq: int = 128, most_bytes: int = 4 * 2**20, held_out: float = 0.05) -> Dataset:
    """tokens [seq] and targets [seq], integers below 256, from windows that lie side by side; the tail is held out.

    file         a file to read; by default the running Python's standard library, its files in order of their names
    most_bytes   what is read at most
    held_out     the share of the windows, at least one
    Raises ValueError where the file cannot be read or holds fewer than two windows.
    """
    if seq < 1 or not 0 < held_out < 1:
        raise ValueError(f"data set text: seq {seq} should be at least 1 and held_out {held_out} between 0 and 1")
    if most_bytes < 1:
        raise ValueError(f"data set text: most_bytes {most_bytes} should be at least 1")
    data = np.frombuffer(_file(Path(file), most_bytes) if file else _library(most_bytes), np.uint8)
    arrays = windows(data, seq)
    number = len(arrays["tokens"])
    if number < 2:
        raise ValueError(
            f"data set text: {file or 'the library'} has {len(data)} bytes, too few for two windows of {seq}"
        )
    there = Path(file).stat().st_size if file else 0
    return Dataset("text", seed, *parted(arrays, held_out), read=(len(data), there) if there > len(data) else None)


def windows(data: np.ndarray, seq: int) -> dict[str, np.ndarray]:
    """Tokens [n] in windows side by side, and what comes after each, both [windows, seq], without what is left over."""
    number = max(0, len(data) - 1) // seq
    return {name: data[n : n + number * seq].reshape(number, seq) for n, name in enumerate(("tokens", "targets"))}


def parted(arrays: Mapping[str, np.ndarray], share: float) -> tuple[Arrays, Arrays]:
    """Of two windows or more those to train on, and the last ones, that share of all, which are held out."""
    number = len(arrays["tokens"])
    split = num_to_train_on(number, share)
    return Arrays(arrays, np.arange(split)), Arrays(arrays, np.arange(split, number))


def _file(path: Path, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(most_bytes)
    except OSError as error:
        raise ValueError(f"data set text: {path}: {error.strerror}") from error


def _library(most_bytes: int) -> bytes:
    root = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in _sources(root):
        text += path.read_bytes()
        if len(text) >= most_bytes:
            break
    if not text:
        raise ValueError(f"data set text: this Python has no source files under {root}; give file=PATH")
    return bytes(text[:most_bytes])


def _sources(folder: Path) -> Iterator[Path]:
    """The Python files of a folder and its folders, in the order of their names."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in SKIPPED:
            yield from _sources(path)
        elif path.suffix == ".py" and path.is_file():
            yield path
