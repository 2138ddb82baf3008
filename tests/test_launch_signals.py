"""Signals that `castile launch` gets: whatever ends it ends its ranks too."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.mpi import CHECKOUT, is_running

SLEEPER = """
import os, sys
from castile.launch import launch
program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
words = launch.mpirun_words(2, None, [sys.executable, "-c", program])
sys.exit(launch.start(words, os.environ | launch.variables()))
"""
PATIENCE_SECONDS = 20


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_ranks_too(number):
    """Ranks that have not met in MPI yet, and so see nothing of each other's end."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER],
        text=True,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert process.stdout is not None
    with process:
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.send_signal(number)
        status = process.wait(PATIENCE_SECONDS)
    assert status == 130 if number == signal.SIGINT else status != 0
    # Who is killed outright ends nothing any more: mpirun is told of it when that is gone.
    end = time.monotonic() + (PATIENCE_SECONDS if number == signal.SIGKILL else 0)
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
