"""That a compiled loop kept on disk is not taken when a file changes from which its own has what it calls."""

import multiprocessing
import sys
from collections import namedtuple
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType

import pytest

from castile.runtime.compiled import assembled, compiled

numba = pytest.importorskip("numba")

CALLED = "from castile.kernels.numpy.jit import {form}\n@{form}\ndef number(x):\n    return x + {value}\n"
BETWEEN = "from folder.called import number\n"
CALLING = (
    "from castile.kernels.numpy.jit import compiled\nfrom folder{between} import number\n"
    "@compiled\ndef loop(x):\n    return number(x)\n"
)


def called_once() -> tuple[int, int]:
    """What the loop gives, and whether it was found on disk."""
    invalidate_caches()
    loop = import_module("folder.calling").loop
    return loop(1), sum(loop.stats.cache_hits.values())


@pytest.mark.parametrize(
    ("form", "between"), [("compiled", ".called"), ("inlined", ".called"), ("inlined", ".between")]
)
def test_a_loop_is_compiled_anew_when_what_it_calls_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, between: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    fork = multiprocessing.get_context("fork")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "between.py").write_text(BETWEEN)
    (folder / "calling.py").write_text(CALLING.format(between=between))
    shown = []
    for value in (10, 10, 200):
        (folder / "called.py").write_text(CALLED.format(form=form, value=value))
        with fork.Pool(1) as another:
            shown.append(another.apply(called_once))
    assert shown == [(11, 0), (11, 1), (201, 0)]


LOOPS = (
    "def loop(x, y):\n    return number(x) + NUMBER * y.one\n"
    "def alone(x):\n    return [x + NUMBER for _ in range(2)][1]\n"
)
ELSEWHERE = {"NUMBER": 2, "INNER": 3, "number": "x * INNER", "fields": "one two"}


@pytest.mark.parametrize("changed", [{}, {"NUMBER": 5}, {"INNER": 5}, {"number": "x - INNER"}, {"fields": "two one"}])
def test_a_loop_is_compiled_anew_when_what_it_knows_from_elsewhere_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    path = tmp_path / "calling.py"
    path.write_text(LOOPS)
    hits = []
    for known in (ELSEWHERE, ELSEWHERE | changed):
        calling = ModuleType("calling")
        monkeypatch.setitem(sys.modules, "calling", calling)
        vars(calling).update(known, Fields=namedtuple("Fields", known["fields"], module="calling"))
        exec(f"def number(x):\n    return {known['number']}", vars(calling))
        exec(compile(path.read_text(), path, "exec"), vars(calling))
        (loop,) = assembled([calling.loop], [calling.number], [], records=[calling.Fields])
        alone, fields = compiled(calling.alone), calling.Fields(one=7, two=11)
        assert (loop(13, fields), alone(13)) == (calling.loop(13, fields), calling.alone(13))
        hits.append([sum(made.stats.cache_hits.values()) for made in (loop, alone)])
    assert hits == [[0, 0], [not changed, "NUMBER" not in changed]]


AT_ONCE = """
from castile.kernels.numpy import jit
from castile.runtime import compiled

def number(x):
    for n in range(9):
        x += n
    return x

def planned():
    loop = compiled.compiled(number)
    return loop(5), sum(loop.stats.cache_hits.values())

def computed():
    loop = jit.compiled(number)
    return loop(5), sum(loop.stats.cache_hits.values())

def by_its_address():
    loop = jit.addressed(jit.compiled(number), "int64(int64)")
    return loop.ctypes(5), loop.cache_hits
"""


@pytest.mark.parametrize("way", ["planned", "computed", "by_its_address"])
def test_of_processes_that_need_a_loop_at_once_one_compiles_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (tmp_path / f"at_once_{way}.py").write_text(AT_ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    asked, fork = getattr(import_module(f"at_once_{way}"), way), multiprocessing.get_context("fork")
    begin, told = fork.Barrier(3), fork.Queue()

    def ask() -> None:
        begin.wait(60)
        told.put(asked())

    others = [fork.Process(target=ask) for _ in range(3)]
    for one in others:
        one.start()
    found = sorted(told.get(timeout=60) for _ in others)
    for one in others:
        one.join()
    assert found == [(41, 0), (41, 1), (41, 1)]
