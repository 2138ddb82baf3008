"""What real training needs, by the command line: data, models, checkpoints; the figures are those the benchmarks tell.

It does not know what they measure.
"""

from __future__ import annotations

import sys

from benchmarks.figures import Figure, read
from benchmarks.place import CHECKOUT, Place


def fashion(place: Place) -> list[Figure]:
    """resnet (small) on Fashion-MNIST, on two ranks."""
    return _benchmark(place, "fashion", timeout=1200)


def torch_parity(place: Place) -> list[Figure]:
    """gpt and lstm after 200 steps against PyTorch."""
    return _benchmark(place, "torch_parity", timeout=900)


def flights(place: Place) -> list[Figure]:
    """dlrm on a real table."""
    return _benchmark(place, "flights", timeout=900)


def resume(place: Place) -> list[Figure]:
    """A run on 4, 2, 3 and 1 ranks in turn against the unbroken one."""
    return _benchmark(place, "resume", timeout=600)


def kill_safety(place: Place) -> list[Figure]:
    """A random rank killed at a random step, 100 times."""
    return _benchmark(place, "kill_safety", timeout=3000)


def task_bench(place: Place) -> list[Figure]:
    """METG(50 %) of Task Bench's patterns on castile, by hand in mpi4py and in Dask."""
    return _benchmark(place, "task_bench", timeout=300)


def _benchmark(place: Place, name: str, timeout: float) -> list[Figure]:
    script = CHECKOUT / "benchmarks" / name
    script = script if script.is_dir() else script.with_suffix(".py")
    return read(place.run(sys.executable, str(script), user=name, timeout=timeout).ok().out)
