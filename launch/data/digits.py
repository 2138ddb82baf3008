"""1,797 handwritten digits of 8x8 grey pixels (UCI, Alpaydin and Kaynak 1998; CC BY 4.0, see digits.txt beside it).

It does not know what is learned from them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from castile.launch.data import Arrays, Dataset
from castile.launch.data.numpy import BROKEN
from castile.runtime import rng

FILE = Path(__file__).with_name("digits.npz")
NUM_TRAIN = 1437
BRIGHTEST = 16


def load(seed: int, *, file: str = "") -> Dataset:
    """image [1, 8, 8] float32 in 0..1 and label () below 10; shuffled by the seed, 1,437 for training, 360 held out.

    file   an npz of the same arrays to read instead: image [n, 8, 8] uint8 in 0..16, label [n] uint8
    Raises ValueError where the file is missing or damaged.
    """
    images, labels = _read(Path(file) if file else FILE)
    order = rng.permutation(seed, "digits split", len(images))
    columns: dict[str, np.ndarray] = {
        "image": (images / np.float32(BRIGHTEST))[:, None],
        "label": labels.astype(np.int32),
    }
    return Dataset("digits", seed, Arrays(columns, order[:NUM_TRAIN]), Arrays(columns, order[NUM_TRAIN:]))


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            images, labels = stored["image"], stored["label"]
    except FileNotFoundError as error:
        raise ValueError(f"data set digits: no file {path}") from error
    except BROKEN as error:
        raise ValueError(f"data set digits: {path} is damaged or not an npz of images and labels") from error
    if images.shape[1:] != (8, 8) or labels.shape != images.shape[:1] or len(images) <= NUM_TRAIN:
        raise ValueError(f"data set digits: {path} should hold more than {NUM_TRAIN} images of 8x8 and as many labels")
    if images.dtype != np.uint8 or labels.dtype != np.uint8 or images.max() > BRIGHTEST or labels.max() > 9:
        raise ValueError(f"data set digits: {path} should hold uint8 pixels up to {BRIGHTEST} and labels up to 9")
    return images, labels
