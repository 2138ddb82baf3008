"""Where checks run: this checkout, a scratch folder of their own, and a fresh clone as a newcomer has it.

It does not know what is checked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.figures import Figure, read
from castile.launch import launch

CHECKOUT = Path(__file__).resolve().parents[1]
# mpirun needs time to end its ranks after it was told to.
GRACE_SECONDS = 15.0
TAIL = 400


class CheckFailed(Exception):
    """What a check runs did not come to its end as it must."""


@dataclass(frozen=True)
class Ran:
    """A command that came to its end."""

    words: tuple[str, ...]
    status: int
    out: str
    err: str
    seconds: float

    @property
    def tail(self) -> str:
        """The last it said, in one line."""
        return " | ".join((self.err.strip() or self.out.strip())[-TAIL:].splitlines())

    def ok(self) -> Ran:
        """The command itself, if it ended well. Raises CheckFailed."""
        if self.status != 0:
            raise CheckFailed(f"{' '.join(self.words)} ended with status {self.status}: {self.tail}")
        return self

    def object(self) -> dict[str, Any]:
        """The one JSON object that it printed. Raises CheckFailed."""
        try:
            found = json.loads(self.ok().out)
        except json.JSONDecodeError as error:
            words = " ".join(self.words)
            raise CheckFailed(f"{words} printed no single JSON object: {self.out[:TAIL]!r}") from error
        if not isinstance(found, dict):
            raise CheckFailed(f"{' '.join(self.words)} printed JSON, but no object")
        return found


@dataclass(frozen=True)
class Place:
    """The checkout, and a scratch folder that is deleted in the end; `with_tests`: the suite runs too."""

    scratch: Path
    with_tests: bool = False

    @property
    def castile(self) -> str:
        """The command of the environment that runs the checks."""
        return str(Path(sys.executable).with_name("castile"))

    def environment(self, name: str) -> dict[str, str]:
        """The environment of a user who has never run castile: no caches, no profile, one thread a rank.

        The same name means the same user.
        """
        home = self.scratch / "users" / name
        own = {"XDG_CACHE_HOME": "cache", "XDG_DATA_HOME": "data", "NUMBA_CACHE_DIR": "compiled"}
        folders = {variable: str(home / folder) for variable, folder in own.items()}
        return {**os.environ, **launch.variables(), **folders}

    def run(
        self, *words: str, user: str = "anyone", timeout: float = 300, cwd: Path = CHECKOUT, **variables: str
    ) -> Ran:
        """Run a command to its end. Raises CheckFailed where it takes longer than `timeout` seconds."""
        return run(words, {**self.environment(user), **variables}, timeout, cwd)

    def benchmark(self, name: str, *words: str, user: str = "benchmarks", timeout: float = 600) -> list[Figure]:
        """The figures of a benchmark, a file or a folder beside this one. Raises CheckFailed and ValueError."""
        path = CHECKOUT / "benchmarks" / name
        script = path if path.is_dir() else path.with_suffix(".py")
        return read(self.run(sys.executable, str(script), *words, user=user, timeout=timeout).ok().out)

    @cached_property
    def clone(self) -> Clone:
        """A fresh clone of what is committed, with `make`'s own environment in it."""
        folder = self.scratch / "clone"
        self.run("git", "clone", "--quiet", str(CHECKOUT), str(folder)).ok()
        # without PYTHON its Makefile takes the user's python3, which may be this environment's own
        python = str(Path(sys.base_prefix) / "bin" / "python3")
        made = self.run("make", ".venv/.castile-mpi", f"PYTHON={python}", cwd=folder).ok()
        return Clone(folder, python, made.seconds)


@dataclass(frozen=True)
class Clone:
    """A fresh clone: its folder, the Python its environment was made with, and how long `make` installed."""

    folder: Path
    python: str
    installation_seconds: float


def run(words: Sequence[str], environment: Mapping[str, str], timeout: float, cwd: Path) -> Ran:
    """Run a command to its end; what does not end in time is told to, with all that it started."""
    began = perf_counter()
    process = subprocess.Popen(
        words,
        text=True,
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a group of its own, so that ending it reaches nobody else
        process_group=0,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"{' '.join(words)} did not end within {timeout:g} s") from None
    finally:
        if process.poll() is None:
            _end(process)
    return Ran(tuple(words), process.returncode, out, err, perf_counter() - began)


def _end(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
