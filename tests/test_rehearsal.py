"""Rehearsals: which rank tries what, when; and by what is known that loops were compiled before."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from castile.launch import models
from castile.launch.measuring import parallel_compiling
from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from castile.runtime.compiled import is_kept
from castile.runtime.region import Box
from tests.strategies import SGD

MACHINE = machines.parse("local:procs=3")
LOWERING = Lowering(models.parse("mlp:width=8").graph(6), MACHINE, SGD)


def tried(
    monkeypatch: pytest.MonkeyPatch,
    local_rank: int,
    host: int = 0,
    size: int = 3,
    backend: str = "numpy",
    is_compiled: bool = False,
    lowering: Lowering = LOWERING,
) -> tuple[set[str], int]:
    """The inputs of the graph that a rank feeds, and how often it searches; it has nobody to talk to."""
    comm = SimpleNamespace(local_rank=local_rank, local_size=size, host_index=host)
    job: Any = SimpleNamespace(
        comm=comm, backend=backend, machine=MACHINE, graph=lowering.graph, lowering=lowering, cost=CostModel(MACHINE)
    )
    fed, searches = set(), []

    def feed(name: str, box: Box) -> np.ndarray:
        fed.add(name)
        return np.zeros(box.shape, LOWERING.graph.tensors[name].dtype)

    def search() -> None:
        searches.append(1)
        raise ValueError("no plan fits")

    monkeypatch.setattr(parallel_compiling, "is_compiled", lambda: is_compiled)
    parallel_compiling.compile_in_parallel(job, search, feed, 0.1)
    return fed, len(searches)


def test_two_ranks_of_the_first_host_share_what_there_is_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(monkeypatch, 0) == (set(LOWERING.graph.inputs), 0)
    assert tried(monkeypatch, 1) == (set(), 1)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    "where", [{"host": 1}, {"backend": "cuda"}, {"is_compiled": True}, {"size": 1}], ids=lambda where: str(*where)
)
def test_others_and_who_gains_nothing_try_nothing(
    rank: int, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 0 if "size" in where else rank
    assert tried(monkeypatch, at, **where) == (set(), 0)
    assert tried(monkeypatch, 2) == (set(), 0)


def test_what_fits_on_no_processor_is_told_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = [msgspec.structs.replace(p, memory_bytes=p.reserved_bytes + 100) for p in MACHINE.processors]
    small = Lowering(models.parse("mlp:width=8").graph(6), replace(MACHINE, processors=tuple(tiny)), SGD)
    assert tried(monkeypatch, 0, lowering=small) == (set(), 0)


def test_a_loop_is_known_to_be_kept_once_it_was_compiled(tmp_path: Path) -> None:
    numba = pytest.importorskip("numba")
    (tmp_path / "loops_of_a_test.py").write_text("def doubled(x):\n    return x + x\n\ndef other(x):\n    return x\n")

    def made(name: str) -> Any:
        spec = importlib.util.spec_from_file_location("loops_of_a_test", tmp_path / "loops_of_a_test.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules["loops_of_a_test"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return numba.njit(cache=True)(getattr(module, name))

    try:
        assert not is_kept(made("doubled"))
        assert made("doubled")(2) == 4
        assert is_kept(made("doubled")) and not is_kept(made("other"))
    finally:
        del sys.modules["loops_of_a_test"]
