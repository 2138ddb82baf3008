"""`python -m benchmarks.gpu` as far as it goes without a GPU: its own side on NumPy and on a stand-in, figures of rows
that are made up, processes that fail.
"""

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("triton")

from benchmarks.gpu import __main__ as benchmark
from benchmarks.gpu import cases, sides, steps
from castile.kernels import tuning
from castile.launch.here import gpus
from tests.effort import rare
from tests.test_gpus import host_with_gpus

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{HERE / 'numpy_as_cupy'}:{HERE.parent}"}
    command = [sys.executable, "-m", "tests.gpu_benchmark"]
    ran = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_every_case_is_measured_and_is_right(rows: list[dict[str, Any]]) -> None:
    """By default settings, and tuned."""
    begins = [number for number, row in enumerate(rows) if "errand" in row]
    by_default, tuned = rows[begins[0] + 1 : begins[1]], rows[begins[1] + 1 :]
    assert by_default and [row["name"] for row in by_default] == [row["name"] for row in tuned]
    for measured in (by_default, tuned):
        for row in measured:
            assert "failed" not in row and row["seconds"] > 0, row
            assert row.get("error", 0.0) < 1e-2, row
            of_triton = [[took for form, _, took in ways if form == "triton"] for ways in row["ways"]]
            assert not all(of_triton) or row["seconds"] == pytest.approx(sum(map(min, of_triton)))
            assert all(ways == sorted(ways, key=lambda way: way[2]) for ways in row["ways"])
        compared = {row["name"].split()[0] for row in measured if "error" in row}
        assert compared == {"product", "attention", "cross_entropy"}
        besides = {row["name"].split()[0] for row in measured if "library_seconds" in row}
        assert besides == {"product", "gelu", "softmax"}, "copies of as many bytes, and products of cuBLAS"
    assert max(len(ways) for row in tuned for ways in row["ways"]) > 2


def test_every_case_at_its_full_size_has_a_form(rows: list[dict[str, Any]]) -> None:
    found = [row for row in rows if "call" in row]
    names = {case.name for kind in cases.KERNELS for case in getattr(cases, kind)()}
    assert {row["call"].rpartition(": ")[0] for row in found} == names
    for row in found:
        # There is nothing to choose from where there is one.
        assert row["settings"] > 0 and (row["ways"] >= row["settings"] or row["settings"] == 1), row


@pytest.mark.parametrize(
    "case",
    [
        cases.Step("mlp:layers=1,width=16", 4, False, dtype="float32"),
        cases.Step("mlp:layers=1,width=16", 4, True, dtype="float32", machine="virtual:procs=2"),
        *rare(cases.Step("gpt:layers=1,width=16,heads=2,seq=8", 2, True, dtype="float32")),
    ],
)
def test_steps_are_measured_and_told(
    case: cases.Step, home: dict[str, str], set_aside: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a stand-in, whose kernels are the definitions: its times mean nothing."""
    timed: list[str] = []

    def tune(table: Any, name: str, meter: object) -> dict[Any, float]:
        timed.append(name)
        return dict.fromkeys(tuning.choices(table, name), 1.0)

    for name, value in home.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tuning, "gpu", lambda: None)
    monkeypatch.setattr(tuning, "precompile", lambda calls, tell: None)
    monkeypatch.setattr(tuning, "tune", tune)
    with host_with_gpus(), patch.object(gpus, "version", lambda name: "1.0"):
        row = steps.measure(case, str(tmp_path / "kept"))
        again = steps.measure(case, str(tmp_path / "kept"))
    # What tuning found is found once and kept.
    assert again["own"]["num_tuned_calls"] == row["own"]["num_tuned_calls"]
    assert len(timed) == row["own"]["num_tuned_calls"]
    own = row["own"]
    assert row["seconds"] > 0 and own["host_seconds"] > 0 and own["nbytes"] > 0 and own["remarks"] == []
    assert len(own["losses"]) == steps.NUM_LOSSES and own["losses"][-1] < own["losses"][0]
    assert (own["num_tuned_calls"] > 0) == case.tuned
    assert own["prediction_error"] == abs(own["predicted_seconds"] / row["seconds"] - 1)
    assert json.loads(json.dumps(row)) == row


def test_pytorch_has_a_call_for_each_operator_of_steps() -> None:
    source = ast.parse((HERE.parent / "benchmarks" / "torch_model.py").read_text())
    (calls,) = (part for part in source.body if isinstance(part, ast.ClassDef) and part.name == "Calls")
    known = {part.name for part in calls.body if isinstance(part, ast.FunctionDef)}
    for case in cases.steps():
        assert {node.op.name for node in steps.graph(case, "float32").nodes.values()} <= known, case.name


def _rows(good: bool) -> list[dict[str, Any]]:
    """As many rows as there are cases, each of which reaches all or half of what is beside it."""
    ways = ("library", "cudnn", "flash", "nchw", "nhwc", "compiled", "eager", "fused")
    beside = {f"{way}_seconds": 1.0 if good else 0.5 for way in ways} | {"compiled_nbytes": 2}
    own = {"own": {"host_seconds": 1e-5 if good else 0.5, "prediction_error": 0.02 if good else 0.5, "nbytes": 1}}
    return [
        {"kind": kind, "name": case.name, "seconds": 1.0} | beside | (own if kind in cases.WHOLE else {})
        for kind in cases.KINDS
        for case in getattr(cases, kind)()
    ]


def test_figures_are_shares_of_what_is_beside() -> None:
    good, bad = (benchmark.figures(_rows(is_good)) for is_good in (True, False))
    aims = [figure.name for figure in good if figure.target]
    assert len(good) == len(bad) == 17 and len(aims) == 16
    assert all(figure.met for figure in good if figure.name in aims)
    assert not any(figure.met for figure in bad) and {figure.value for figure in bad} == {0.5}
    every = _rows(True)
    every[0] = every[0] | {"library_seconds": 0.2, "cudnn_seconds": 0.2}
    (worst,) = [figure for figure in benchmark.figures(every) if figure.name.startswith("product")]
    assert worst.value == 0.2 and every[0]["name"] in worst.note


@pytest.mark.parametrize("lost", ["seconds", "peers"])
def test_what_was_not_measured_has_no_value(lost: str) -> None:
    """A case that failed, and libraries that are not there: neither is a share of nothing."""
    every, own = _rows(True), ("seconds", "own")
    gone = own if lost == "seconds" else set(every[0]) - {"kind", "name", *own}
    alone = {"step_host_seconds", "step_prediction_error", "virtual_step_prediction_error"}
    found = benchmark.figures([{key: x for key, x in row.items() if key not in gone} for row in every])
    found = [figure for figure in found if lost == "seconds" or figure.name not in alone]
    assert found and all(figure.value is None and figure.note for figure in found)
    assert all(figure.met is None for figure in found)
    assert not any(replace(figure, value=0.0 if figure.least else inf).met for figure in found)


SMI = """#!/bin/sh
case "$*" in
    *"-i 7"*) echo "NVIDIA H100 PCIe, 570.86.15, 81559"; exit;;
    *"-i 9"*) echo "No devices were found"; exit 6;;
esac
for gpu in 0 1 2 3 4 5 6 7; do echo "NVIDIA H100 80GB HBM3, 580.95.05, 81559"; done
"""


@pytest.mark.parametrize(("shown", "name"), [(None, "80GB HBM3"), ("7,6", "PCIe"), ("MIG-1b", "80GB HBM3"), ("9", "")])
def test_the_device_is_the_one_in_use_of_several(
    shown: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "count", lambda: 8)
    if shown:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    if name:
        found = benchmark.device()
        assert found["name"] == f"NVIDIA H100 {name}" and found["memory_bytes"] == 81559 * 2**20
    else:
        with pytest.raises(SystemExit, match="No devices were found"):
            benchmark.device()


def test_a_device_that_cannot_be_used_ends_it_before_any_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "unused", lambda: "the driver is old")
    with pytest.raises(SystemExit, match="no GPU can be used here: the driver is old"):
        benchmark.device()


def test_a_device_has_its_own_word_in_the_name_of_a_file() -> None:
    names = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA A100-SXM4-80GB": "a100",
             "NVIDIA GH200 480GB": "gh200", "NVIDIA GeForce RTX 4090": "nvidia-geforce-rtx-4090"}  # fmt: skip
    assert {name: benchmark.short(name) for name in names} == names


def test_a_host_of_many_cores_has_no_more_processes_on_its_gpu_than_that_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for num, quota, wanted in ((224, inf, sides.MOST_AT_ONCE), (4, inf, 4), (224, 2.5, 2), (224, 0.5, 1)):
        monkeypatch.setattr(sides.cores, "affinity", lambda num=num: frozenset(range(num)))
        monkeypatch.setattr(sides.cores, "quota", lambda quota=quota: quota)
        assert sides.num_at_once() == wanted


# What a case may do to its process, and a side of such cases.
SIDE = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from benchmarks.gpu import cases, sides
fates = {fates!r}
lost = []
def measure(fate):
    if fate == "hangs": time.sleep(1000)
    if fate == "dies": sys.exit("it died")
    if fate == "is killed": os.kill(os.getpid(), signal.SIGKILL)
    if fate == "loses": lost.append(1)
    if fate in ("loses", "fails"): raise RuntimeError("it failed")
    return {{"seconds": 1.0}}
def settle():
    if lost: raise RuntimeError
cases.named = lambda: dict(zip(map(str, range(len(fates))), fates))
sys.exit(sides.tell(sys.argv[1:], measure, settle, lambda: None))
"""


def _fated(fates: Sequence[str], patience: float = 300, seconds: float = 600) -> list[dict[str, Any]]:
    """The rows of cases with these fates."""
    source = SIDE.format(root=str(HERE.parent), fates=list(fates))
    with patch.object(sides, "_command", lambda side, errand, kept, names: [sys.executable, "-c", source, *names]):
        names = list(map(str, range(len(fates))))
        return list(sides.rows("ours", "default", "", names, time.time() + seconds, patience))


def test_a_case_that_ends_its_process_costs_its_own_row() -> None:
    # Two processes in a row that tell nothing are taken to be able to tell nothing.
    for fates in (("well", "fails", "loses", "well", "dies", "is killed"), ("well", "is killed", "loses", "well")):
        rows = _fated(fates)
        assert [row["name"] for row in rows] == [str(n) for n in range(len(fates))], fates
        for row, fate in zip(rows, fates, strict=True):
            assert ("seconds" in row) == (fate == "well") and ("failed" in row) == (fate != "well"), (row, fate)
            assert {"fails": "it failed", "loses": "it failed", "dies": "it died"}.get(fate, "") in row.get(
                "failed", ""
            )


def test_a_case_that_hangs_costs_its_own_row() -> None:
    first, second, third = _fated(["well", "hangs", "well"], 3)
    assert "seconds" in first and "too long" in second["failed"] and "seconds" in third


def test_what_time_cuts_off_has_no_row_and_can_be_tried_again() -> None:
    (row,) = _fated(["well", "hangs", "well"], seconds=4)
    assert row == {"name": "0", "seconds": 1.0}
    assert _fated(["well"], seconds=0) == []


def test_a_case_that_was_at_it_for_long_when_time_was_up_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "PATIENCE_SECONDS", 2.0)
    rows = _fated(["hangs", "well"], seconds=3)
    assert [row["name"] for row in rows] == ["0"] and "too long" in rows[0]["failed"]


def test_a_side_that_cannot_begin_is_not_begun_for_each_case() -> None:
    rows = _fated(["dies"] * 9)
    assert len(rows) == sides.FRUITLESS and all("it died" in row["failed"] for row in rows)
