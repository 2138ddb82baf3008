"""What real training needs, by the command line: data, models, checkpoints; the figures are those the benchmarks tell.

It does not know what they measure.
"""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.place import Place


def fashion(place: Place) -> list[Figure]:
    """resnet (small) on Fashion-MNIST, on two ranks."""
    return place.benchmark("fashion", user="fashion", timeout=1200)


def torch_parity(place: Place) -> list[Figure]:
    """gpt and lstm after 200 steps against PyTorch."""
    return place.benchmark("torch_parity", user="torch_parity", timeout=900)


def flights(place: Place) -> list[Figure]:
    """dlrm on a real table."""
    return place.benchmark("flights", user="flights", timeout=900)


def resume(place: Place) -> list[Figure]:
    """A run on 4, 2, 3 and 1 ranks in turn against the unbroken one."""
    return place.benchmark("resume", user="resume", timeout=600)


def kill_safety(place: Place) -> list[Figure]:
    """A random rank killed at a random step, 100 times."""
    return place.benchmark("kill_safety", user="kill_safety", timeout=3000)


def task_bench(place: Place) -> list[Figure]:
    """METG(50 %) of Task Bench's patterns on castile, by hand in mpi4py and in Dask."""
    return place.benchmark("task_bench", user="task_bench", timeout=300)
