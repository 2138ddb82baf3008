"""Tokens that a text was turned into before, in one long array, as nanoGPT's train.bin; the target of each is the next.

It does not know what a token stands for.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from castile.launch.data import Arrays, Dataset, Shown, text

SHOWN: Shown = text.SHOWN

# Names of files that are meant where one stands for a data set.
READS = (".bin",)
# What numbers without a header may be.
STORED = ("uint8", "uint16", "uint32", "int32", "int64")


def load(
    seed: int, *, file: str = "", train: str = "", held_out: str = "", share: float = 0.05, seq: int = 128,
    stored: str = "uint16",
) -> Dataset:  # fmt: skip
    """tokens [seq] and targets [seq], whole numbers, from windows that lie side by side.

    file       all tokens; of their windows the last `share`, at least one, are held out
    train      instead, a file of tokens to train on; none where nothing is trained
    held_out   and one of tokens to hold out
    stored     what numbers a file holds that is no npy file: uint8, uint16, uint32, int32 or int64, in the order of
               this machine's bytes
    Files are mapped, so that they may be larger than the memory.
    Raises ValueError in one sentence for files that are missing, damaged or too short.
    """
    if bool(file) == bool(train or held_out) or (train and not held_out):
        raise ValueError("data set tokens: give file=PATH, or both train=PATH and held_out=PATH (bin or npy)")
    if seq < 1 or not 0 < share < 1 or stored not in STORED:
        raise ValueError(
            f"data set tokens: seq {seq} should be at least 1, share {share} between 0 and 1, and stored {stored!r} "
            f"one of {', '.join(STORED)}"
        )
    judged = _windows(file or held_out, seq, stored, 2 if file else 1)
    if file:
        return Dataset("tokens", seed, *text.parted(judged.columns, share))
    taught = _windows(train, seq, stored, 1) if train else Arrays(judged.columns, np.arange(0))
    return Dataset("tokens", seed, taught, judged)


def _windows(path: str, seq: int, stored: str, least: int) -> Arrays:
    """All whole windows of a file, at least so many."""
    tokens = _read(Path(path), np.dtype(stored))
    found = Arrays(text.windows(tokens, seq))
    if len(found) < least:
        few = f"{'two windows' if least > 1 else 'a window'} of {seq} and the token after"
        raise ValueError(f"data set tokens: {path} has {len(tokens)} tokens, too few for {few}")
    return found


def _read(path: Path, stored: np.dtype) -> np.ndarray:
    """The numbers of a file [n], mapped."""
    try:
        if path.suffix != ".npy":
            return np.memmap(path, stored, "r") if path.stat().st_size else np.zeros(0, stored)
        found = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise ValueError(f"data set tokens: {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        what = "an npy file of numbers" if path.suffix == ".npy" else f"a file of {stored}"
        raise ValueError(f"data set tokens: {path} is damaged or not {what}") from error
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(
            f"data set tokens: {path} has shape {found.shape} of {found.dtype}; tokens are whole numbers in one row"
        )
    return found
