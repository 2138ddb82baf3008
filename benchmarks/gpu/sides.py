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
from typing import IO, Any

from benchmarks.gpu import cases

Row = dict[str, Any]

# With this status a side ends where its device has failed with the case that it told last.
LOST = 3
# Seconds in which a process tells nothing, neither a row nor that it is at work, after which it is taken to hang.
PATIENCE_SECONDS = 500
# So many processes in a row that tell nothing are enough.
FRUITLESS = 2
_REASON_BYTES = 2000


@dataclass
class _Process:
    """One run of a side: what it tells, and what ended it."""

    popen: subprocess.Popen[str]
    errors: IO[str]
    hangs: bool = False

    def rows(self, patience: float) -> Iterator[Row]:
        """The rows as they come, until it ends or tells nothing for so many seconds."""
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        while True:
            try:
                text = lines.get(timeout=patience)
            except queue.Empty:
                self.hangs = True
                return
            if text is None:
                return
            if text.startswith("{"):
                yield json.loads(text)

    def reason(self) -> str:
        """Why it ended."""
        if self.hangs:
            return "nothing was told for too long"
        self.errors.seek(0)
        said = self.errors.read()[-_REASON_BYTES:].strip().splitlines()
        return said[-1] if said else f"ended with status {self.popen.wait()}"

    def _read(self, lines: queue.Queue[str | None]) -> None:
        assert self.popen.stdout is not None
        for text in self.popen.stdout:
            lines.put(text)
        lines.put(None)


def told(side: str, kinds: Sequence[str], patience: float = PATIENCE_SECONDS) -> Iterator[Row]:
    """A side's row of each case of these kinds, in their order, each as soon as it is there.

    A case at which a process ends or hangs has a row that says so. Where processes tell nothing at all, as where a
    library is not there, the cases that are left have no row.
    """
    every = listed(kinds)
    done = fruitless = 0
    while done < len(every) and fruitless < FRUITLESS:
        before = done
        with _started(side, done, kinds) as process:
            for row in process.rows(patience):
                yield row
                done += 1
            status = None if process.hangs else process.popen.wait()
            if status == 0:
                return
            if status != LOST and done < len(every):
                kind, case = every[done]
                yield {"kind": kind, "name": case.name, "failed": f"{side}: {process.reason()}"[:300]}
                done += 1
                fruitless = fruitless + 1 if done == before + 1 else 0


def listed(kinds: Sequence[str]) -> list[tuple[str, Any]]:
    """All cases of these kinds, each with its kind, in the order in which they are told."""
    return [(kind, case) for kind in kinds for case in getattr(cases, kind)()]


def tell(
    kinds: Sequence[str],
    skip: int,
    measure: Callable[[Any], Row],
    settle: Callable[[], object],
    tidy: Callable[[], object],
) -> int:
    """A side's own part: print the row of each case but the first `skip`; the status to end with.

    settle  waits for the device, and raises where it has failed
    tidy    gives back memory after a case
    """
    for kind, case in listed(kinds)[skip:]:
        try:
            found = measure(case)
        except Exception as problem:
            # One case that fails costs its own figure only.
            found = {"failed": f"{type(problem).__name__}: {problem}"[:300]}
        print(json.dumps({"kind": kind, "name": case.name} | found), flush=True)
        try:
            settle()
        except Exception:
            return LOST
        tidy()
    return 0


def _command(side: str, skip: int, kinds: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.gpu.{side}", str(skip), *kinds]


@contextmanager
def _started(side: str, skip: int, kinds: Sequence[str]) -> Iterator[_Process]:
    """A process of a side that leaves out the first cases; it is gone afterwards, with all that it started."""
    words = _command(side, skip, kinds)
    with tempfile.TemporaryFile("w+") as errors:
        popen = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        try:
            yield _Process(popen, errors)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
