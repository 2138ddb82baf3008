"""That compiling for long is told once, a loop that is compiled already never, and that no search pays for it."""

import subprocess
import sys
from unittest import mock

import pytest

from castile.launch.here import compiling
from castile.planner.evaluation.budget import clock
from castile.runtime.compiled import compiled, compiling_seconds
from tests.effort import rare

numba = pytest.importorskip("numba")

SCRIPT = """
import sys, numba
from castile.launch.here import compiling
from castile.planner.evaluation.budget import clock
from castile.runtime.compiled import compiled, compiling_seconds
compiling.PATIENCE_SECONDS = float(sys.argv[1])
compiling.watch()
inner = numba.njit(lambda x: x + 1)
outer = numba.njit(lambda x: inner(x) * 2)
for _ in range(int(sys.argv[2])):
    for number in (1, 1.0):
        outer(number)
"""


@pytest.mark.parametrize(("patience", "rounds", "told"), [("0", "3", 1), ("0", "0", 0), *rare(("1e6", "3", 0))])
def test_compiling_for_long_is_told_once(patience, rounds, told):
    command = [sys.executable, "-c", SCRIPT, patience, rounds]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, told * compiling.TEXT)


def test_a_search_s_clock_stands_still_while_loops_are_compiled(tmp_path, monkeypatch):
    def count(x):
        return x + 1

    # Where nothing is that was compiled before.
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    loop, before = compiled(count), compiling_seconds()
    for number in (1, 1.0):
        loop(number)
        spent = compiling_seconds()
        assert spent > before, "what compiles counts"
        loop(number)
        assert compiling_seconds() == spent, "what is compiled does not"
        before = spent
    with mock.patch("time.perf_counter", return_value=1000.0):
        assert clock() == 1000.0 - before


THREADS = """
import sys, threading
from castile.runtime.compiled import assembled
def inner(x):
    return x + 1
def outer(x):
    return inner(x) * 2
def make():
    together.wait()
    made.append(assembled([outer], [inner], [])[0](1))
sys.setswitchinterval(1e-6)
made, together = [], threading.Barrier(4)
threads = [threading.Thread(target=make) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert made == [4, 4, 4, 4], made
"""


def test_threads_may_be_the_first_of_a_process_to_make_a_loop(tmp_path):
    (script := tmp_path / "threads.py").write_text(THREADS)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
