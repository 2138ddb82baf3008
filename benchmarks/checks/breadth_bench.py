"""Task Bench on two ranks: the smallest tasks that the runtime still keeps half busy.

It does not know how granularity is measured.
"""

from __future__ import annotations

import sys

from benchmarks.figures import Figure, read
from benchmarks.place import CHECKOUT, Place


def task_bench(place: Place) -> list[Figure]:
    """METG(50 %) of each pattern on castile, by hand in mpi4py and in Dask."""
    script = str(CHECKOUT / "benchmarks" / "task_bench")
    return read(place.run(sys.executable, script, user="task bench", timeout=300).ok().out)
