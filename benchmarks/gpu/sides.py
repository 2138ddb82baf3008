"""Both sides of the benchmark, each in processes of its own: rows come as they are measured, whatever a process does.

A kernel that fails ends all that its process has on the device, and one that hangs ends nothing: the process is started
anew behind the case. It does not know what is measured.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from time import time
from typing import IO, Any

from benchmarks.gpu import cases
from castile.runtime import cores

Row = dict[str, Any]

# With this status a side ends where its device has failed with the case that it told last.
LOST = 3
# Seconds in which a process tells nothing, neither a row nor that it is at work, after which it is taken to hang.
PATIENCE_SECONDS = 240.0
# Where time is up, a case that has been at it for this share of them is taken to hang too, so that no run waits again.
LATE = 0.5
# So many processes in a row that tell nothing are enough.
FRUITLESS = 2
# So many processes use the device at once at most, be there hundreds of cores: each takes half a gigabyte of it, and
# arrays.
MOST_AT_ONCE = 16
_REASON_BYTES = 2000


@dataclass
class _Process:
    """One run of a side: what it tells, and what ended it; `silent` is for how many seconds it told nothing then."""

    popen: subprocess.Popen[str]
    errors: IO[str]
    silent: float = 0.0
    is_stopped: bool = False

    def rows(self, patience: float, until: float) -> Iterator[Row]:
        """The rows as they come, until it ends, tells nothing for so many seconds, or time is up."""
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        while True:
            began = time()
            try:
                text = lines.get(timeout=max(0.0, min(patience, until - began)))
            except queue.Empty:
                self.silent, self.is_stopped = time() - began, True
                return
            if text is None:
                return
            if text.startswith("{"):
                yield json.loads(text)

    def reason(self) -> str:
        """Why it ended."""
        if self.is_stopped:
            return f"nothing was told for {self.silent:.0f} seconds, which is too long"
        self.errors.seek(0)
        said = self.errors.read()[-_REASON_BYTES:].strip().splitlines()
        return said[-1] if said else f"ended with status {self.popen.wait()}"

    def _read(self, lines: queue.Queue[str | None]) -> None:
        assert self.popen.stdout is not None
        for text in self.popen.stdout:
            lines.put(text)
        lines.put(None)


def rows(
    side: str, errand: str, kept: str, names: Sequence[str], until: float, patience: float = PATIENCE_SECONDS
) -> Iterator[Row]:
    """A side's row of each case of these names, in their order, each as soon as it is there.

    A case at which a process ends or hangs has a row that says so. Where processes tell nothing at all, as where a
    library is not there, the cases that are left have no row, nor have those for which there was no time.

    kept   begins the names of files in which it keeps what it finds on its way
    until  what `time.time` says when time is up
    """
    left = list(names)
    fruitless = 0
    while left and fruitless < FRUITLESS and time() < until:
        before = len(left)
        with _started(_command(side, errand, kept, left)) as process:
            for row in process.rows(patience, until):
                left.remove(row["name"])
                yield row
            status = None if process.is_stopped else process.popen.wait()
            if status == 0 or (process.is_stopped and process.silent < min(patience, LATE * PATIENCE_SECONDS)):
                return
            if status != LOST and left:
                yield {"name": left.pop(0), "failed": f"{side}: {process.reason()}"[:300]}
                fruitless = fruitless + 1 if len(left) == before - 1 else 0


def num_at_once() -> int:
    """How many processes may use the device side by side."""
    return int(min(MOST_AT_ONCE, len(cores.affinity()), max(1, cores.quota())))


def is_there(side: str) -> bool:
    """Whether a side has the library that it is about."""
    return side != "theirs" or find_spec("torch") is not None


def tell(
    names: Sequence[str],
    measure: Callable[[Any], Row],
    settle: Callable[[], object],
    tidy: Callable[[], object],
) -> int:
    """A side's own part: print the row of each case of these names; the status to end with.

    settle  waits for the device, and raises where it has failed
    tidy    gives back memory after a case
    """
    every = cases.named()
    for name in names:
        try:
            found = measure(every[name])
        except Exception as problem:
            # One case that fails costs its own figure only.
            found = {"failed": f"{type(problem).__name__}: {problem}"[:300]}
        print(json.dumps({"name": name} | found), flush=True)
        try:
            settle()
        except Exception:
            return LOST
        tidy()
    return 0


def _command(side: str, errand: str, kept: str, names: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.gpu.{side}", errand, kept, *names]


@contextmanager
def _started(words: Sequence[str]) -> Iterator[_Process]:
    """A process of a side; it is gone afterwards, with all that it started."""
    with tempfile.TemporaryFile("w+") as errors:
        popen = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        try:
            yield _Process(popen, errors)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
