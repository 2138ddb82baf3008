"""What Open MPI needs so that ranks may outnumber cores, start fast and wait politely: as files and as variables.

Knows no command line and starts nothing.
"""

import os
import sys
from pathlib import Path

# The ofi transport probes networks for a second at every start; waiting ranks give their core to the working ones.
_LIBRARY = {"btl": "^ofi", "mpi_yield_when_idle": "1"}
_LAUNCHER = {"rmaps_default_mapping_policy": ":oversubscribe", "hwloc_default_binding_policy": "none"}
_FILES = {"openmpi-mca-params.conf": _LIBRARY, "prte-mca-params.conf": _LAUNCHER}
_MARK = "# written by `castile doctor --write-mpi-settings`"

# Open MPI refuses to start ranks as root unless both of these say so; no file can say it.
ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def process_variables() -> dict[str, str]:
    """What a rank's own MPI library reads, whether or not a launcher started it."""
    return {f"OMPI_MCA_{key}": value for key, value in _LIBRARY.items()}


def variables() -> dict[str, str]:
    """The same settings as the files hold, as environment variables for `mpirun` and its ranks."""
    launcher = {f"PRTE_MCA_{key}": value for key, value in _LAUNCHER.items()}
    # Open MPI 4 has other names for what the launcher reads.
    older = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
    root = dict.fromkeys(ROOT_VARIABLES, "1") if os.geteuid() == 0 else {}
    return process_variables() | launcher | older | root


def folder() -> Path:
    """Where the Open MPI of this Python environment reads its parameter files."""
    return Path(sys.prefix) / "etc"


def missing_settings(etc: Path) -> list[str]:
    """`file: key` of each setting that the parameter files in `etc` do not hold, whatever value they give it."""
    return [f"{name}: {key}" for name, wanted in _FILES.items() for key in wanted if key not in _keys(etc / name)]


def write_settings(etc: Path) -> list[Path]:
    """Adds the missing settings to the parameter files in `etc` and returns the files changed.

    A setting that stands there already is kept as it is. Raises ValueError when the folder cannot be written.
    """
    changed = []
    for name, wanted in _FILES.items():
        path = etc / name
        lines = [f"{key} = {value}" for key, value in wanted.items() if key not in _keys(path)]
        if lines:
            _append(path, [_MARK, *lines])
            changed.append(path)
    return changed


def _keys(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    lines = (line.split("#")[0] for line in path.read_text(encoding="utf-8").splitlines())
    return {line.split("=")[0].strip() for line in lines if "=" in line}


def _append(path: Path, lines: list[str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("\n".join(["", *lines, ""]))
    except OSError as error:
        raise ValueError(
            f"cannot write Open MPI's settings to {path} ({error.strerror}): use an environment of your own, "
            "or `castile launch`, which sets them for one run"
        ) from error
