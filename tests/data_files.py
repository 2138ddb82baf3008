"""Small files for the tests of data sets: one of each kind, as a user would name it."""

from pathlib import Path

import numpy as np

from castile.launch import data

ITERATOR = """
import numpy as np
def samples(seed, epoch):
    for n in range(50):
        yield {"x": np.full((2, 3), n + 1000 * epoch, np.float32), "label": n}
def held_out(seed):
    return ({"x": np.zeros((2, 3), np.float32), "label": n} for n in range(7))
"""


def idx_bytes(array: np.ndarray) -> bytes:
    """An idx file of bytes, by the definition of the format."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def idx_files(num_train: int = 40, num_held_out: int = 12, seed: int = 0) -> dict[str, np.ndarray]:
    """The four arrays of a small folder of idx files, by the names of the files."""
    draw = np.random.default_rng(seed)
    return {
        f"{part}-{kind}": draw.integers(0, top, (count, *shape), np.uint8)
        for part, count in (("train", num_train), ("t10k", num_held_out))
        for kind, top, shape in (("images-idx3-ubyte", 256, (5, 4)), ("labels-idx1-ubyte", 10, ()))
    }


def small(name: str, folder: Path) -> str:
    """A small data set of that name, as a user writes it, its files in `folder`."""
    if name == "idx":
        for file, array in idx_files().items():
            (folder / file).write_bytes(idx_bytes(array))
        return f"idx:folder={folder}"
    if name == "numpy":
        np.savez(folder / "all.npz", x=np.arange(120, dtype=np.float32).reshape(40, 3), label=np.arange(40))
        return f"numpy:file={folder / 'all.npz'}"
    if name == "csv":
        rows = "\n".join(f"{'abc'[n % 3]},{n},{n % 2}" for n in range(40))
        (folder / "table.csv").write_text(f"kind,size,label\n{rows}\n")
        return f"csv:file={folder / 'table.csv'},label=label,categories=kind,numbers=size"
    if name == "tokens":
        (np.arange(600) ** 2 % 251).astype(np.uint16).tofile(folder / "all.bin")
        return f"tokens:file={folder / 'all.bin'},seq=8"
    if name == "iterator":
        (folder / "mine.py").write_text(ITERATOR)
        return f"iterator:file={folder / 'mine.py'}"
    if name == "growth":
        return "growth:cell=3,descriptors=4,fingerprints=2,samples=60"
    if name == "masked":
        return "masked:seq=16,most_bytes=2000"
    if name == "noise":
        return "noise:size=3,channels=2,classes=4,samples=60"
    return name


def everything(samples: data.Samples) -> dict[str, np.ndarray]:
    """All samples in the order of their numbers."""
    return samples.take(dict.fromkeys(samples.shapes, np.arange(len(samples))))
