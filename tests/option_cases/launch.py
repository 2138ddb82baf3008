"""Cases of the options of `castile launch`."""

from __future__ import annotations

import shlex

import pytest

from castile.launch import launch
from castile.launch.processes import mpirun
from castile.launch.processes.mpirun import End
from tests.option_cases import Case, Ran, becomes

DRY = "launch -n 2 --dry-run doctor"


def started(ran: Ran) -> list[str]:
    """The line that would be started, without the variables before it."""
    words = shlex.split(ran.out)
    return words[next(n for n, word in enumerate(words) if "=" not in word) :]


def failing(patch: pytest.MonkeyPatch) -> None:
    """Each job loses a rank."""
    patch.setattr(mpirun, "run", lambda words, environment: End(137, True))
    patch.setattr(launch, "PAUSE_SECONDS", 0)


CASES = {
    "ranks": Case(DRY, "launch -n 3 --dry-run doctor", lambda ran: started(ran)[1:3], becomes(["-n", "3"])),
    "command": Case(DRY, "launch -n 2 --dry-run simulate mlp", lambda ran: started(ran)[-2:],
                    becomes(["simulate", "mlp"])),
    "hostfile": Case(DRY, "launch -n 2 --hostfile hosts --dry-run doctor", lambda ran: started(ran)[3:5],
                     becomes(["--hostfile", "hosts"])),
    "restarts": Case("launch -n 1 doctor", "launch -n 1 --restarts 2 doctor", lambda ran: ran.err.count("restart "),
                     becomes(2), patch=failing, mpi=True),
    # What a rank says is not what would start it.
    "dry_run": Case("launch -n 1 doctor", DRY.replace("-n 2", "-n 1"), lambda ran: "mpirun -n 1" in ran.out,
                    becomes(True), mpi=True),
    "json": Case(DRY, "launch -n 2 --dry-run --json doctor", lambda ran: ran.is_json, becomes(True)),
}  # fmt: skip
