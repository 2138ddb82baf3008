"""That compiling for long is told once, a loop that is compiled already never, and that no search pays for it; how it
is done.
"""

import contextlib
import gc
import subprocess
import sys
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch.here import compiling
from castile.planner.evaluation.budget import clock
from castile.runtime.compiled import assembled, compiled, compiling_seconds
from tests.effort import rare

numba = pytest.importorskip("numba")
compiler = pytest.importorskip("castile.kernels.compiler")

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


def twice(x):
    return x * 2


def more(x):
    return twice(x) + 1


def total(x):
    found = twice(x)
    for k in range(x):
        found += more(k) * twice(k)
    return found


def unknown(x):
    return more(x).unknown


@pytest.mark.parametrize("inlined", [[], [twice], [twice, more]])
def test_parts_become_machine_code_only_with_the_loop_that_calls_them(tmp_path, monkeypatch, inlined):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    (loop,), engine = assembled([total], {twice, more} - {*inlined}, inlined), numba.core.codegen.JitEngine
    with mock.patch.object(engine, "add_module", autospec=True, side_effect=engine.add_module) as added:
        assert loop(5) == total(5)
    assert added.call_count == 1


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("body", [total, unknown])
def test_garbage_is_looked_for_after_compiling_as_before_and_not_meanwhile(tmp_path, monkeypatch, body, looks):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    (loop,), met = assembled([body], [twice, more], []), []
    pipelines = compiler.Loop.define_pipelines

    def noted(self):
        met.append(gc.isenabled())
        return pipelines(self)

    monkeypatch.setattr(compiler.Loop, "define_pipelines", noted)
    usual, switch = gc.isenabled(), {True: gc.enable, False: gc.disable}
    switch[looks]()
    try:
        with pytest.raises(numba.core.errors.TypingError) if body is unknown else contextlib.nullcontext():
            loop(5)
        assert gc.isenabled() == looks
    finally:
        switch[usual]()
    assert met == [False] * 3


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.booleans() for name in ("nrt", "release_gil", "forceinline", "no_cpython_wrapper", "boundscheck")},
        "error_model": st.sampled_from(["python", "numpy"]),
        "fastmath": st.sampled_from([False, True, {"contract"}, {"contract", "reassoc"}]),
    },
)


@given(OPTIONS, OPTIONS)
def test_options_that_numba_tells_apart_are_told_apart(one, other):
    mine, theirs = [], []
    for values in (one, other):
        flags = numba.core.compiler.Flags()
        for name, value in values.items():
            setattr(flags, name, value)
        theirs.append(flags)
        mine.append(compiler._Options(flags))
    assert mine[0] == mine[0].copy() and hash(mine[0]) == hash(mine[0].copy())
    if mine[0] == mine[1]:
        assert theirs[0] == theirs[1] and hash(mine[0]) == hash(mine[1])
    if one == other:
        assert mine[0] == mine[1]
