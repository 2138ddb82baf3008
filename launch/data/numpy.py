"""Arrays of the user's own: an npz file, a folder of npy files or one npy file; their names are the graph's inputs.

It does not know what they hold.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Container, Mapping
from pathlib import Path

import numpy as np

from castile.launch.data import Arrays, Dataset, InputSpec, split

# What np.load raises for an archive that is damaged, or is none.
BROKEN = (
    OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

# Kinds of dtypes that inputs have.
NUMBERS = "biuf"

# Names of files that are meant where one stands for a data set.
READS = (".npz", ".npy")


def load(
    seed: int, *, file: str = "", train: str = "", held_out: str = "", share: float = 0.1,
    takes: Mapping[str, InputSpec] | None = None,
) -> Dataset:  # fmt: skip
    """An input for each array [n, ...], sample by sample: numbers or truth values, integers as int32.

    file       all samples, of which `share` are held out, drawn by the seed
    train      instead, a file of samples to train on; none where nothing is trained
    held_out   and one of samples to hold out
    Each is a file.npz; a folder of npy files, each named after its input; or one such NAME.npy. An npy file is mapped,
    so that it may be larger than the memory; an npz is read whole. Arrays that are not taken may lie beside the others,
    whatever they hold.
    Raises ValueError in one sentence for files that are missing, damaged or do not fit together.
    """
    if bool(file) == bool(train or held_out) or (train and not held_out):
        raise ValueError("data set numpy: give file=PATH, or both train=PATH and held_out=PATH (npz, npy or a folder)")
    if file:
        columns = _read(Path(file), takes or ())
        try:
            chosen, rest = split(seed, "numpy", len(next(iter(columns.values()))), share)
        except ValueError as error:
            raise ValueError(f"{error} ({file})") from error
        return Dataset("numpy", seed, Arrays(columns, chosen), Arrays(columns, rest))
    judged = Arrays(_read(Path(held_out), takes or ()))
    parts = Arrays(_read(Path(train), takes or ())) if train else Arrays(judged.columns, np.arange(0)), judged
    train_shapes, held_out_shapes = (
        {name: shape for name, shape in part.shapes.items() if not takes or name in takes} for part in parts
    )
    if train_shapes != held_out_shapes:
        raise ValueError(
            f"data set numpy: samples of {train} are {_words(parts[0])}, those of {held_out} {_words(parts[1])}"
        )
    return Dataset("numpy", seed, *parts)


def _words(samples: Arrays) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in sorted(samples.shapes.items()))


def _read(path: Path, taken: Container[str]) -> dict[str, np.ndarray]:
    """The arrays of a path by name, in the order of their names, checked: without those that are not taken, where they
    cannot be samples beside those that are, as names of classes.
    """
    arrays = _arrays(path, taken)
    meant = {len(array) for name, array in arrays.items() if name in taken and array.ndim}
    if meant:
        arrays = {name: array for name, array in arrays.items() if name in taken or _are_samples(array, meant)}
    if not arrays:
        raise ValueError(f"data set numpy: {path} holds no arrays")
    for name, array in arrays.items():
        if array.dtype.kind not in NUMBERS:
            raise ValueError(f"data set numpy: {path}: array {name!r} holds {array.dtype}; inputs are numbers")
        if not array.ndim or not len(array):
            raise ValueError(f"data set numpy: {path}: array {name!r} has shape {array.shape}; it holds no samples")
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        words = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"data set numpy: {path}: arrays hold different numbers of samples: {words}")
    return arrays


def _loaded(
    names: list[str], taken: Container[str], load: Callable[[str], np.ndarray]
) -> dict[str, np.ndarray]:
    """Arrays by name; where some are taken, without those others that NumPy loads from no file, as Python's objects."""
    arrays, is_any_taken = {}, any(name in taken for name in names)
    for name in names:
        try:
            arrays[name] = load(name)
        except ValueError:
            if name in taken or not is_any_taken:
                raise
    return arrays


def _are_samples(array: np.ndarray, lengths: Container[int]) -> bool:
    return array.dtype.kind in NUMBERS and array.ndim > 0 and len(array) in lengths


def _arrays(path: Path, taken: Container[str]) -> dict[str, np.ndarray]:
    if path.is_dir():
        named = {file.stem: file for file in sorted(path.glob("*.npy"))}
        return _loaded(list(named), taken, lambda name: _stored(named[name]))
    if path.suffix == ".npy":
        return {path.stem: _stored(path)}
    return _archive(path, taken)


def _stored(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise ValueError(f"data set numpy: {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise ValueError(f"data set numpy: {path} is damaged or not an npy file of numbers") from error


def _archive(path: Path, taken: Container[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return _loaded(sorted(stored), taken, stored.__getitem__)
    except FileNotFoundError as error:
        raise ValueError(f"data set numpy: {path}: {error.strerror}") from error
    except BROKEN as error:
        raise ValueError(f"data set numpy: {path} is damaged or not an npz file of numbers") from error
