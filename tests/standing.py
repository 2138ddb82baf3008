"""Ranks that stay: started once for all tests that want as many, as to start them takes longer than most tests do.

For what is no law about processes. Knows no test.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from castile.launch import launch
from tests.mpi import CHECKOUT, end, environment_with

_RANK = CHECKOUT / "tests" / "mpi_cases" / "standing.py"
_START_SECONDS, _END_SECONDS = 60.0, 10.0


def run(num_ranks: int, *words: str, timeout: float = 60, **environment: str) -> tuple[int, str, str]:
    """As `tests.mpi.mpirun_apart`, of `-m castile ...` or a script that has its ranks from `this_world` or `world`.

    A rank that ends the job ends it for whoever comes next, too: others are started then. The output is rank by rank.
    """
    if num_ranks not in _STANDING or not _STANDING[num_ranks].is_running:
        _STANDING[num_ranks] = _Standing(num_ranks)
    return _STANDING[num_ranks].run(words, timeout, environment)


class _Standing:
    """Ranks that wait for words at a socket each, without taking a core, until this process ends."""

    def __init__(self, num_ranks: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="standing-")
        program = [sys.executable, str(_RANK), self._folder.name]
        with socket.socket(socket.AF_UNIX) as door, open(f"{self._folder.name}/mpirun.err", "w") as output:
            door.bind(f"{self._folder.name}/door")
            door.listen(num_ranks)
            door.settimeout(_START_SECONDS)
            self._process = subprocess.Popen(
                launch.mpirun_words(num_ranks, None, program),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0, env=environment_with({}),
            )  # fmt: skip
            atexit.register(end, self._process)
            self._ranks = [door.accept()[0] for _ in range(num_ranks)]
        atexit.register(self._dismiss)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def run(self, words: Sequence[str], timeout: float, environment: dict[str, str]) -> tuple[int, str, str]:
        do = {"words": words, "folder": os.getcwd(), "environment": environment_with(environment)}
        for rank in self._ranks:
            rank.settimeout(timeout)
            rank.sendall(f"{json.dumps(do)}\n".encode())
        try:
            told = [rank.recv(8) for rank in self._ranks]
        except TimeoutError:
            end(self._process)
            said = self._said("out") + self._said("err")
            raise TimeoutError(f"{words} did not end within {timeout} s:\n{said}") from None
        # who ended the job told nobody
        status = max(map(int, told)) if all(told) else self._process.wait(timeout)
        return status, self._said("out"), self._said("err")

    def _dismiss(self) -> None:
        for rank in self._ranks:
            rank.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def _said(self, stream: str) -> str:
        """What came meanwhile."""
        files = sorted(Path(self._folder.name).glob(f"*.{stream}"))
        said = "".join(file.read_text() for file in files)
        for file in files:
            os.truncate(file, 0)
        return said


_STANDING: dict[int, _Standing] = {}
