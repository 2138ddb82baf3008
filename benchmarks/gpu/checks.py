"""The tests that need a GPU, run by pytest: side by side, those that start ranks alone; what fails or hangs is told.

It does not know what they test, but for the kernel that a test is of.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from benchmarks.gpu import sides, sources, verdicts
from benchmarks.gpu.record import Finding, Record

# Compilers are waited for, so as many cores are at work as the device has room for.
_SIDE_BY_SIDE = ("-n", str(sides.num_at_once()), "--dist", "worksteal")
RUNS = (("-m", "gpu and not mpi", *_SIDE_BY_SIDE), ("-m", "gpu and mpi"))
# Seconds without a test that begins or ends, after which those that have begun are taken to hang.
PATIENCE_SECONDS = 100.0
# So long a test may take that has begun when time is up.
GRACE_SECONDS = 20.0
_LOOK_SECONDS = 0.2
_ENDS = ("failed", "skipped")
# How pytest ends that has tested: all passed, some failed, or none was left.
_TESTED = (0, 1, 5)


class Verdict(NamedTuple):
    """What is known of tests: how many passed, why others failed or were skipped, by name, and how many there was no
    time for.

    kernels  those of which a test failed
    """

    num_passed: int
    failed: dict[str, str]
    skipped: dict[str, str]
    num_left: int
    kernels: frozenset[str]

    def __str__(self) -> str:
        told = [f"checks: {self.num_passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"]
        told += [f"{self.num_left} left for want of time"] * bool(self.num_left)
        return ", ".join(told) + "".join(f"\n  {name}: {why}" for name, why in (self.failed | self.skipped).items())


def run(record: Record, until: float) -> None:
    """Test what is not known yet; findings are in the record. until: what `time.time` says when time is up."""
    for words in RUNS:
        while time.time() < until and not _ran(record, words, until):
            pass


def verdict(record: Record) -> Verdict:
    """What is known of the tests as they and their sources are now."""
    found = {
        name: one for (errand, name, digest), one in record.read().items()
        if errand == verdicts.ERRAND and digest == _digest(name, one["kernel"])
    }  # fmt: skip
    ended = {name: one for name, one in found.items() if "failed" in one}
    failed, skipped = ({name: str(one[word]) for name, one in ended.items() if one[word]} for word in _ENDS)
    kernels = frozenset(ended[name]["kernel"] for name in failed) - {""}
    num_passed = sum(name not in failed and name not in skipped for name in ended)
    return Verdict(num_passed, failed, skipped, len(found) - len(ended), kernels)


def _digest(name: str, kernel: str) -> str:
    """Of what is behind a test now; "" where its file is gone."""
    path = name.split("::")[0]
    return sources.of_test(path, kernel) if (sources.ROOT / path).is_file() else ""


def _ran(record: Record, words: Sequence[str], until: float) -> bool:
    """Whether pytest came to its end; what had begun by then, or long before it was ended as nothing moved, failed.

    That it could not test at all is kept as if it were a test, until it can.
    """
    begun = time.time()
    with _pytest(record, words, until) as process:
        size, moved = record.path.stat().st_size, begun
        while process.poll() is None:
            now = time.time()
            if (length := record.path.stat().st_size) != size:
                size, moved = length, now
            if now > until + GRACE_SECONDS or now > moved + PATIENCE_SECONDS:
                break
            time.sleep(_LOOK_SECONDS)
        status = process.poll()
    ended, fell = time.time(), False
    for (errand, name, digest), found in record.read().items():
        lasted = ended - found.get("begun", ended)
        late = status is not None or lasted > GRACE_SECONDS
        if errand == verdicts.ERRAND and found.get("begun", 0.0) > begun and late:
            why = f"had not ended after {lasted:.0f} seconds" if status is None else "ended its process"
            record.add(Finding(errand, name, digest, {"kernel": found["kernel"], "failed": why, "skipped": ""}))
            fell = True
    if status is None or status == verdicts.LOST or (fell and status not in _TESTED):
        return False
    _keep_status(record, words, status)
    return True


def _keep_status(record: Record, words: Sequence[str], status: int) -> None:
    """Adds how pytest ended, if it tested nothing, or had done so before."""
    name, why = f"pytest {' '.join(words)}", "" if status in _TESTED else f"ended with status {status}, and said why"
    if why or (verdicts.ERRAND, name, "") in record.read():
        record.add(Finding(verdicts.ERRAND, name, "", {"kernel": "", "failed": why, "skipped": ""}))


@contextmanager
def _pytest(record: Record, words: Sequence[str], until: float) -> Iterator[subprocess.Popen[bytes]]:
    files = [path for path in sorted((sources.ROOT / "tests").glob("test_*.py")) if "mark.gpu" in path.read_text()]
    options = ("--record", record.path, "--lines", record.num_lines, "--until", until)
    command = [sys.executable, "-m", "pytest", "-q", "-p", verdicts.__name__, *options, *words, *files]
    process = subprocess.Popen(list(map(str, command)), cwd=sources.ROOT, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
