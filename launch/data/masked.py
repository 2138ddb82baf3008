"""Text to pre-train encoders on as BERT is (Devlin et al., 2019): some of its bytes are masked, and the second half of
a window is in half of the cases that of another.

It does not know what is learned from it.
"""

from __future__ import annotations

import numpy as np

from castile.launch.data import Arrays, Dataset, Samples, text
from castile.runtime import rng

SHOWN = text.SHOWN

MASK = 256
# of all places those that are to be found out; of these masked, or another byte; the rest are as they were
CHOSEN, MASKED, CHANGED = 0.15, 0.8, 0.1


def load(seed: int, *, file: str = "", seq: int = 512, most_bytes: int = 2**21, held_out: float = 0.05) -> Dataset:
    """tokens [seq], bytes or 256 for a mask; targets [seq], the bytes; segments [seq], the half; follows (), 0 or 1.

    file, most_bytes, held_out   as of the data set text
    Raises ValueError where the file cannot be read or holds fewer than two windows.
    """
    if seq < 2:
        raise ValueError(f"data set masked: seq {seq} should be at least 2, for a window has two halves")
    plain = text.load(seed, file=file, seq=seq, most_bytes=most_bytes, held_out=held_out)
    parts = (_masked(seed, "train", plain.train), _masked(seed, "held_out", plain.held_out))
    return Dataset("masked", seed, *parts, read=plain.read)


def _masked(seed: int, name: str, plain: Samples) -> Arrays:
    windows = plain.take({"tokens": np.arange(len(plain))})["tokens"]
    num, seq = windows.shape
    segments = np.broadcast_to(np.arange(seq) >= seq // 2, (num, seq))
    # one window alone has no other
    follows = (rng.uniform(seed, f"masked {name} follows", (num,)) < 0.5) | (num == 1)
    targets = np.where(segments & ~follows[:, None], np.roll(windows, 1, axis=0), windows)
    chosen, how, other = (rng.uniform(seed, f"masked {name} {what}", (num, seq)) for what in ("at", "how", "other"))
    changed = np.where(how < MASKED + CHANGED, np.floor(other * MASK), targets)
    tokens = np.where(chosen < CHOSEN, np.where(how < MASKED, MASK, changed), targets)
    arrays = {"tokens": tokens, "targets": targets, "segments": segments, "follows": follows}
    return Arrays({key: array.astype(np.int16) for key, array in arrays.items()})
