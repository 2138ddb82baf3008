"""What Open MPI needs so that ranks may outnumber cores, start fast and wait politely: as files and as variables.

Knows no command line and starts nothing.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

# The ofi transport probes networks for a second at every start; waiting ranks give their core to the working ones; so
# many bytes go through shared memory at once, as to ask their receiver first takes longer than to copy them.
_LIBRARY = {"btl": "^ofi", "mpi_yield_when_idle": "1", "btl_sm_eager_limit": "65536"}
# Without the word `slot` Open MPI puts all ranks on the first of several hosts.
_LAUNCHER = {"rmaps_default_mapping_policy": "slot:oversubscribe", "hwloc_default_binding_policy": "none"}
# A host that no longer answers is given up after 45 s, where it would be minutes: seconds, seconds, and how often.
_LAUNCHER |= {"oob_tcp_keepalive_time": "15", "oob_tcp_keepalive_intvl": "5", "oob_tcp_keepalive_probes": "6"}
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
    """`file: key` of each setting that the parameter files in `etc` do not hold, whatever value the user gives it."""
    return [f"{name}: {key}" for name, wanted in _FILES.items() for key in _missing(_read(etc / name), wanted)]


def write_settings(etc: Path) -> list[Path]:
    """Adds the missing settings to the parameter files in `etc` and returns the files changed.

    A setting that stands there already is kept as it is, unless an older castile wrote it. Raises ValueError when the
    folder cannot be written.
    """
    changed = []
    for name, wanted in _FILES.items():
        path = etc / name
        text = _read(path)
        if _missing(text, wanted):
            theirs, _ = _split(text)
            lines = [f"{key} = {value}" for key, value in wanted.items() if key not in _settings(theirs)]
            _write(path, [*theirs, "", _MARK, *lines] if theirs else [_MARK, *lines])
            changed.append(path)
    return changed


def _missing(text: str, wanted: dict[str, str]) -> list[str]:
    theirs, ours = map(_settings, _split(text))
    return [key for key, value in wanted.items() if key not in theirs and ours.get(key) != value]


def _split(text: str) -> tuple[list[str], list[str]]:
    """The lines of a parameter file that are the user's, and those that castile wrote: its mark and what follows it."""
    theirs: list[str] = []
    ours: list[str] = []
    known, is_ours = {key for wanted in _FILES.values() for key in wanted}, False
    for line in text.splitlines():
        is_ours = line == _MARK or (is_ours and not known.isdisjoint(_settings([line])))
        (ours if is_ours else theirs).append(line)
    while theirs and not theirs[-1].strip():
        theirs.pop()
    return theirs, ours


def _settings(lines: Iterable[str]) -> dict[str, str]:
    pairs = (line.split("#")[0].partition("=") for line in lines)
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write(path: Path, lines: list[str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write Open MPI's settings to {path} ({error.strerror}): use an environment of your own, "
            "or `castile launch`, which sets them for one run"
        ) from error
