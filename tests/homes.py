"""A user's folder for tests of commands: where figures and profiles lie, with this host already measured.

It does not know commands. The figures are invented, so that no test waits for a measurement or depends on one.
"""

import os
from pathlib import Path

import pytest

from castile.launch.here import compiling, link_timing, probe

FIGURES = probe.Figures(5e10, 2.5e10, 1e10, 5e-6, 1e-8, 1e-9, link_timing.Link(2e-6, 5e9, 1e-6, 6e-6, 2.0))
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def make(folder: Path, most_ranks: int = 4, figures: probe.Figures = FIGURES) -> dict[str, str]:
    """The variables under which commands find this folder; figures for up to so many ranks lie in it."""
    variables = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data"), **THREADS}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        for procs in range(1, most_ranks + 1):
            probe.keep(probe.cache_path(procs), figures)
    return variables


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder, with what is in it; what Python keeps of modules that it compiled is none."""
    found = [Path(base) / name for base, _, names in os.walk(folder) if "__pycache__" not in base for name in names]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def but_for_compiling(said: str) -> str:
    """What a process says on stderr, but for what it says only where its loops were not compiled before."""
    return said.replace(compiling.TEXT, "")
