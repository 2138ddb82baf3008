"""Images and labels in the idx files of MNIST, as Fashion-MNIST, KMNIST and many others have them, gzipped or not.

The format is that of LeCun, Cortes and Burges: two zero bytes, the type (8: bytes), the number of dims, each dim's
length as four bytes with the highest first, and the bytes. It does not know what the images show.
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np

from castile.launch.data import Arrays, Dataset

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
ADVICE = (
    "give folder=PATH of a folder of idx files (train-images-idx3-ubyte and so on, gzipped or not), or get "
    "Fashion-MNIST by `apt-get install dataset-fashion-mnist`, without root by `apt-get download "
    "dataset-fashion-mnist && dpkg-deb -x dataset-fashion-mnist_*.deb .` and folder=usr/share/datasets/fashion-mnist"
)
BYTES = 8
# bytes are looked at a megabyte at a time, so that wide numbers of a whole data set never lie in memory
LOOKED_AT = 2**20


def load(seed: int, *, folder: str = "") -> Dataset:
    """image [1, h, w] float32 with the training images' mean taken off, in their deviations; label () int32.

    folder   holds {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, each with .gz or without; by
             default the one that Debian's package dataset-fashion-mnist installs. t10k is held out
    Raises ValueError in one sentence for files that are missing or damaged.
    """
    place = Path(folder) if folder else DEBIAN
    if not place.is_dir():
        raise ValueError(f"data set idx: no folder {place}: {ADVICE}")
    train, held_out = _part(place, "train"), _part(place, "t10k")
    if train["image"].shape[1:] != held_out["image"].shape[1:]:
        shapes = " and ".join("x".join(map(str, part["image"].shape[2:])) for part in (train, held_out))
        raise ValueError(f"data set idx: {place} has images of two sizes, for training and held out: {shapes}")
    convert = {"image": Standard.of(train["image"])}
    return Dataset("idx", seed, Arrays(train, convert=convert), Arrays(held_out, convert=convert))


class Standard:
    """Bytes to float32 with mean 0 and deviation 1 over the images that it was made of."""

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean = np.float32(mean)
        self.scale = np.float32(1 / deviation if deviation else 1)

    @classmethod
    def of(cls, images: np.ndarray) -> Standard:
        """The conversion under which these images have mean 0 and deviation 1."""
        flat = images.reshape(-1)
        counts = sum(np.bincount(flat[n : n + LOOKED_AT], minlength=256) for n in range(0, len(flat), LOOKED_AT))
        values = np.arange(256)
        mean = np.average(values, weights=counts)
        return cls(mean, np.sqrt(np.average((values - mean) ** 2, weights=counts)))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        wide = np.subtract(rows, self.mean, dtype=np.float32)
        return np.multiply(wide, self.scale, out=wide)


def _part(folder: Path, part: str) -> dict[str, np.ndarray]:
    images = _read(_find(folder, f"{part}-images", 3), 3)
    path = _find(folder, f"{part}-labels", 1)
    labels = _read(path, 1)
    if len(labels) != len(images):
        raise ValueError(f"data set idx: {path} has {len(labels)} labels for {len(images)} images")
    return {"image": images[:, None], "label": labels}


def _find(folder: Path, name: str, dims: int) -> Path:
    """The file of these images or labels; some unpack it with a point in its name."""
    plain = [f"{name}-idx{dims}-ubyte", f"{name}.idx{dims}-ubyte"]
    for path in (folder / f"{file}{end}" for file in plain for end in ("", ".gz")):
        if path.is_file():
            return path
    raise ValueError(f"data set idx: {folder} has no file {plain[0]}, gzipped or not: {ADVICE}")


def _read(path: Path, dims: int) -> np.ndarray:
    """The array of an idx file of bytes with that many dims; a plain file is mapped, a gzipped one unpacked."""
    try:
        content = _unpacked(path) if path.suffix == ".gz" else np.asarray(np.memmap(path, np.uint8, "r"))
    except OSError as error:
        raise ValueError(f"data set idx: {path}: {error.strerror}") from error
    except (EOFError, zlib.error) as error:
        raise ValueError(f"data set idx: {path} is damaged or cut short: {error}") from error
    except ValueError as error:
        raise ValueError(f"data set idx: {path} is empty") from error
    start = 4 + 4 * dims
    if len(content) < start or tuple(content[:4]) != (0, 0, BYTES, dims):
        first = bytes(content[:4]).hex(" ") or "nothing"
        raise ValueError(f"data set idx: {path} begins with {first}; an idx file of these begins with 00 00 08 0{dims}")
    shape = tuple(int(n) for n in np.frombuffer(content[4:start].tobytes(), ">u4"))
    if prod(shape) != len(content) - start or not prod(shape):
        words = f"says {'x'.join(map(str, shape))} bytes and {len(content) - start} follow"
        raise ValueError(f"data set idx: {path} is damaged or cut short: its header {words}")
    return content[start:].reshape(shape)


def _unpacked(path: Path) -> np.ndarray:
    try:
        with gzip.open(path) as stream:
            return np.frombuffer(stream.read(), np.uint8)
    except gzip.BadGzipFile as error:
        raise EOFError(str(error)) from error
