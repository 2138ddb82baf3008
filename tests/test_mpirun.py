"""Open MPI's launcher, and programs in its place: how a job ended, and that all that its ranks write passes through."""

from __future__ import annotations

import os
import resource
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch.processes import mpirun
from castile.launch.processes.mpirun import End
from tests.test_notes import DISCONNECTED, RULE, UNKNOWN, UNREACHED

SAYING = """
import sys
from castile.launch.processes import last_words
output, times, errors, words, status = sys.argv[1:]
if words:
    last_words.leave(words)
sys.stdout.buffer.write(bytes.fromhex(output) * int(times))
sys.stderr.buffer.write(bytes.fromhex(errors))
sys.exit(int(status))
"""


def ended(output: bytes = b"", times: int = 1, errors: bytes = b"", left: str = "", status: int = 0) -> End:
    """How a job ends whose launcher says so much, and whose ranks leave these words."""
    words = [sys.executable, "-c", SAYING, output.hex(), str(times), errors.hex(), left, str(status)]
    return mpirun.run(words, os.environ)


@pytest.mark.skipif(sys.platform != "linux", reason="limits are raised on Linux")
def test_what_is_started_may_open_as_many_files_as_the_user_may(capfd: pytest.CaptureFixture[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A few more than other tests have left open.
    few = max(int(one) for one in os.listdir("/proc/self/fd")) + 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, few), hard))
    try:
        asked = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
        assert mpirun.run([sys.executable, "-c", asked], os.environ) == End(0)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(soft, few)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    raised, kept = map(int, capfd.readouterr().out.split())
    assert raised == max(min(soft, few), min(hard, mpirun.MOST_FILES)) and kept == hard


def boxed(text: str) -> bytes:
    return f"{RULE}{text}{RULE}".encode()


@pytest.mark.parametrize("box", [DISCONNECTED, UNREACHED, UNKNOWN])
def test_a_host_that_is_lost_ends_no_job_with_0_wherever_mpirun_says_it(
    box: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Open MPI 5 tells of a daemon on the output, as if it had never been there, and ends with 0."""
    for left, status in (("step 4", 0), ("step 4", 255), ("", 0)):
        assert ended(boxed(box), left=left, status=status) == End(status or 1, True, ("b",), left)
        told = capfd.readouterr()
        assert told.err.startswith("castile: a rank on b was lost") and told.out.encode() == boxed(box)


def test_a_host_that_never_was_there_is_told_as_mpirun_tells_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert ended(boxed(UNKNOWN), status=255) == End(255)
    assert capfd.readouterr() == (boxed(UNKNOWN).decode(), "")


@pytest.mark.parametrize(
    ("errors", "status", "failed"),
    [
        (b"castile: rank 1 of 2 on here failed\nTraceback", 1, True),
        (b"castile: name a model\n", 2, False),
        # what mpirun itself refuses
        (b"There are not enough slots\n", 1, False),
        (b"castile: stopped\n", 143, False),
        (b"", 0, False),
    ],
)
def test_what_a_job_failed_of(errors: bytes, status: int, failed: bool) -> None:
    assert ended(errors=errors, status=status) == End(status, failed)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(output=st.binary(min_size=1, max_size=200), times=st.sampled_from([1, 2000]))
def test_output_passes_through_as_it_is(output: bytes, times: int, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert ended(output, times) == End(0)
    assert capfdbinary.readouterr() == (output * times, b"")
