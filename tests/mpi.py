"""Starts Python on several MPI ranks for a test, so that a failure or a timeout leaves no rank behind.

Knows no test. A script that uses mpi4py itself runs under `-m mpi4py`, which ends all ranks when one raises.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from castile.launch import launch

CHECKOUT = Path(__file__).resolve().parent.parent
# Open MPI ends its ranks this long after it was told to, at most.
_GRACE_SECONDS = 10.0


def mpirun(num_ranks: int, *words: str, timeout: float = 60, **environment: str) -> tuple[int, str]:
    """Exit status and output (both streams) of `python *words` on `num_ranks` ranks; raises TimeoutError."""
    status, output, _ = _run(num_ranks, words, timeout, environment, subprocess.STDOUT)
    return status, output


def mpirun_apart(num_ranks: int, *words: str, timeout: float = 60, **environment: str) -> tuple[int, str, str]:
    """As `mpirun`, with stdout and stderr apart."""
    return _run(num_ranks, words, timeout, environment, subprocess.PIPE)


def environment_with(more: dict[str, str]) -> dict[str, str]:
    """The variables of what is started: this process's, what `castile launch` sets, and more."""
    return {**os.environ, **launch.variables(), "PYTHONPATH": str(CHECKOUT), **more}


def is_running(pid: int) -> bool:
    """Whether the process runs: an ended rank may stay as a zombie for two seconds, and does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def end(process: subprocess.Popen) -> None:
    """Ends mpirun and its ranks: asks first, because mpirun killed outright leaves its ranks running."""
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def _run(
    num_ranks: int, words: Sequence[str], timeout: float, environment: dict[str, str], errors: int
) -> tuple[int, str, str]:
    program = [sys.executable, *(words if words[0] == "-m" else ["-m", "mpi4py", *words])]
    process = subprocess.Popen(
        launch.mpirun_words(num_ranks, None, program),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        # A group of its own, so that ending it reaches nobody else.
        process_group=0,
        env=environment_with(environment),
    )
    try:
        output, apart = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end(process)
        output, apart = process.communicate()
        raise TimeoutError(f"{num_ranks} ranks did not end within {timeout} s:\n{output}{apart or ''}") from None
    finally:
        if process.poll() is None:
            end(process)
    return process.returncode, output, apart or ""
