"""Starts a benchmark again on several MPI ranks of this host, with one thread each.

It does not know what the benchmark does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from castile.launch import launch
from castile.launch.processes import mpirun

CHECKOUT = Path(__file__).resolve().parents[1]


def start(script: str, num_ranks: int, options: Sequence[str]) -> int:
    """Run `python script *options` on the ranks to its end and return its exit status; a rank that fails ends all."""
    program = [sys.executable, "-m", "mpi4py", script, *options]
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    environment = {**launch.variables(), **os.environ, "PYTHONPATH": path}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return mpirun.run(launch.mpirun_words(num_ranks, None, program), environment).status
