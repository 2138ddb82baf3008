"""Cases of the options of `castile doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from castile.launch.processes import mpi_settings
from tests import homes
from tests.option_cases import Case, Ran, becomes, json_of


def in_this_folder(patch: pytest.MonkeyPatch) -> None:
    """Open MPI's parameter files lie where the test runs and not in the environment that it runs in."""
    patch.setattr(mpi_settings, "folder", lambda: Path("etc").absolute())


def in_a_home_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """This host's rates are measured, and are not those of other tests."""
    for name, value in homes.make(Path("home").absolute()).items():
        patch.setenv(name, value)


def started(ran: Ran) -> int:
    """How many ranks were started."""
    return int(ran.facts.get("start-up", {}).get("num_ranks", 0))


CASES = {
    "ranks": Case("doctor --json", "doctor --json --ranks 2", started, becomes(2), mpi=True),
    "write_mpi_settings": Case("doctor --json", "doctor --json --write-mpi-settings",
                               lambda ran: sorted(Path(name).name for name in ran.files if name.startswith("etc/")),
                               becomes(["openmpi-mca-params.conf", "prte-mca-params.conf"]), patch=in_this_folder),
    "measure_again": Case("doctor --json", "doctor --json --measure-again",
                          lambda ran: sorted(ran.facts["rates"]["of_procs"]), becomes([]),
                          patch=in_a_home_of_its_own),
    "json": json_of("doctor"),
}  # fmt: skip
