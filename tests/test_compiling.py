"""That compiling for long is told once, and a loop that is compiled already never."""

import subprocess
import sys

import pytest

from castile.launch import compiling

pytest.importorskip("numba")

SCRIPT = """
import sys, numba
from castile.launch import compiling
compiling.PATIENCE_SECONDS = float(sys.argv[1])
compiling.watch()
inner = numba.njit(lambda x: x + 1)
outer = numba.njit(lambda x: inner(x) * 2)
for _ in range(int(sys.argv[2])):
    for number in (1, 1.0):
        outer(number)
"""


@pytest.mark.parametrize(("patience", "rounds", "told"), [("0", "3", 1), ("1e6", "3", 0), ("0", "0", 0)])
def test_compiling_for_long_is_told_once(patience, rounds, told):
    command = [sys.executable, "-c", SCRIPT, patience, rounds]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, told * compiling.TEXT)
