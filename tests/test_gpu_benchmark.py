"""`python -m benchmarks.gpu` as far as it goes without a GPU: its own side on NumPy, its figures on rows made up."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from benchmarks.gpu import __main__ as benchmark
from benchmarks.gpu import cases

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{HERE / 'numpy_as_cupy'}:{HERE.parent}"}
    command = [sys.executable, "-m", "tests.gpu_benchmark"]
    ran = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_every_case_is_measured_and_is_right(rows: list[dict[str, Any]]) -> None:
    measured = [row for row in rows if "kind" in row]
    assert {row["kind"] for row in measured} == set(cases.KINDS)
    for row in measured:
        assert "failed" not in row and row["seconds"] > 0, row
        assert row.get("error", 0.0) < 1e-2, row
    compared = {row["kind"] for row in measured if "error" in row}
    assert compared == {"products", "attentions", "losses"}
    besides = {row["kind"] for row in measured if "library_seconds" in row}
    assert besides == {"products", "streams"}, "copies of as many bytes, and products of cuBLAS"


def test_every_case_at_its_full_size_has_a_form(rows: list[dict[str, Any]]) -> None:
    found = [row for row in rows if "call" in row]
    names = {case.name for kind in cases.KINDS for case in getattr(cases, kind)()}
    assert {row["call"].rpartition(": ")[0] for row in found} == names
    for row in found:
        # There is nothing to choose from where there is one.
        assert row["settings"] > 0 and (row["ways"] >= row["settings"] or row["settings"] == 1), row


def _rows(share: float) -> list[dict[str, Any]]:
    """As many rows as there are cases, each of which reaches this share of what is beside it."""
    ways = ("library", "cudnn", "flash", "nchw", "nhwc", "compiled", "fused")
    return [
        {"kind": kind, "name": case.name, "seconds": 1.0} | {f"{way}_seconds": share for way in ways}
        for kind in cases.KINDS
        for case in getattr(cases, kind)()
    ]


def test_figures_are_shares_of_what_is_beside() -> None:
    good, bad = (benchmark.figures(_rows(share)) for share in (1.0, 0.5))
    assert len(good) == len(bad) == 11 and all(figure.met for figure in good)
    assert not any(figure.met for figure in bad) and {figure.value for figure in bad} == {0.5}
    every = _rows(1.0)
    every[0] = every[0] | {"library_seconds": 0.2, "cudnn_seconds": 0.2}
    (worst,) = [figure for figure in benchmark.figures(every) if figure.name.startswith("product")]
    assert worst.value == 0.2 and every[0]["name"] in worst.note


@pytest.mark.parametrize("lost", ["seconds", "peers"])
def test_what_was_not_measured_has_no_value(lost: str) -> None:
    """A case that failed, and libraries that are not there: neither is a share of nothing."""
    gone = {"seconds"} if lost == "seconds" else {key for row in _rows(1.0) for key in row if key.endswith("_seconds")}
    found = benchmark.figures([{key: x for key, x in row.items() if key not in gone} for row in _rows(1.0)])
    assert found and all(figure.value is None and figure.note for figure in found)
    assert all(figure.met is None for figure in found)
    assert all(replace(figure, value=0.0).met is False for figure in found)


def test_sides_are_merged_and_failures_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(side: str, kinds: list[str]) -> list[dict[str, Any]]:
        row = {"kind": "losses", "name": "one"}
        return [
            row | ({"seconds": 2.0, "error": 1e-3} if side == "ours" else {"failed": "no room", "cudnn_seconds": 1.0})
        ]

    monkeypatch.setattr(benchmark, "_told", told)
    (row,) = benchmark.measured(["losses"])
    assert row["seconds"] == 2.0 and row["cudnn_seconds"] == 1.0
    assert "0.50" in benchmark.line(row) and "no room" in benchmark.line(row)
