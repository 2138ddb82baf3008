"""A user's first search: when loops are compiled by another process too, which says nothing, and what it compiles."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from castile.launch.__main__ import main
from castile.launch.jobs import background_compiling, plan_search
from castile.runtime.compiled import can_compile
from tests.effort import rare
from tests.mpi import CHECKOUT


@pytest.mark.parametrize(
    ("is_compiled", "cores", "is_begun"), [(False, 2, True), (True, 2, False), (False, 1, False)]
)  # fmt: skip
def test_another_process_compiles_while_this_one_searches(
    is_compiled: bool, cores: int, is_begun: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(background_compiling, "is_compiled", lambda: is_compiled)
    monkeypatch.setattr(background_compiling, "num_cores", lambda: cores)
    begun = tmp_path / "begun"

    def compile_for_long(model: str) -> None:
        print("compiling", file=sys.stderr, flush=True)
        begun.write_text(str(os.getpid()))
        time.sleep(60)

    monkeypatch.setattr(background_compiling, "_compile_simulation", compile_for_long)
    with background_compiling.compiling_in_background():
        deadline = time.monotonic() + 20
        while is_begun and not (begun.exists() and begun.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert begun.exists() == is_begun
    if is_begun:
        with pytest.raises(ProcessLookupError):
            os.kill(int(begun.read_text()), 0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("search", "budget", "is_begun"), [("mcmc", "5000", True), ("mcmc", "5", False), ("fsdp", "", False)]
)
def test_only_a_search_that_walks_through_sketches_has_loops_compiled_beside_it(
    search: str, budget: str, is_begun: bool, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[bool]()

    @contextmanager
    def noted() -> Iterator[None]:
        begun.append(True)
        yield

    monkeypatch.setattr(plan_search, "compiling_in_background", noted)
    words = ["plan", "mlp", "--machine", "local:procs=2", "--search", search, *(["--budget", budget] if budget else [])]
    assert main(words) == 0 and bool(begun) == is_begun


COLD = """
from numba.core import event
compiled = set()
class Listener(event.Listener):
    def on_start(self, started):
        body = started.data["dispatcher"].py_func
        compiled.add((body.__module__, body.__name__))
    def on_end(self, ended): pass
event.register("numba:compile", Listener())
from castile.launch.jobs import background_compiling
background_compiling._compile_simulation(background_compiling.MODEL)
beside = {*compiled}
from castile.launch.__main__ import main
assert main(["plan", "gpt", "--machine", "dgx-h100:nodes=1", "--budget", "200", "--json"]) == 0
here = {module for module, _ in compiled - beside}
assert "castile.planner.sketch.metropolis" in here and not [one for one in here if "simulat" in one], compiled - beside
"""


@pytest.mark.skipif(not can_compile(), reason="numba is not installed")
@pytest.mark.parametrize("model", rare("mlp"))
def test_loops_of_simulating_and_packing_are_compiled_there(model: str, tmp_path: Path) -> None:
    variables = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(CHECKOUT), "HOME": str(tmp_path)}
    words = [sys.executable, "-c", COLD]
    ended = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
