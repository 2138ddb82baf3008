"""Training as users start it: alone, launched, under a bare mpirun; with plans, profiles and traces that last."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from castile.launch import launch
from castile.launch.__main__ import main
from castile.launch.here import link_timing, probe
from castile.launch.processes import mpi_settings
from castile.planner import strategy as strategies
from castile.runtime import debug
from tests import homes, standing
from tests.mpi import CHECKOUT

SLOW = probe.Figures(5e8, 2.5e8, 1e8, 5e-5, 1e-7, 1e-8, link_timing.Link(1e-3, 5e7, 1e-4, 1e-4, 2.0))
STEP_LINE = (
    r"step +20  loss \d+\.\d{4} \| [\d.]+ ms \(sim [\d.]+, [+-][\d.]+ %\) \| [\d.]+k samples/s \| "
    r"mem [\d.]+ [KMG]iB/[\d.]+ GiB"
)


def told(capsys, *words):
    assert main(["train", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def started(*words, environment):
    """A process outside the launchers of the tests."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PRTE_", "PMIX_"))}
    program = [str(word) for word in words]
    environment = {**clean, "PYTHONPATH": str(CHECKOUT), **environment}
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)


def check_run(facts, num_ranks, num_steps):
    assert (facts["num_ranks"], facts["num_steps"], len(facts["losses"])) == (num_ranks, num_steps, num_steps)
    assert facts["losses"][-1] < facts["losses"][0] - 0.1
    assert facts["step_seconds"] > 0 and facts["simulated_step_seconds"] > 0
    assert facts["error_before_learning"] >= 0 and facts["error_after_learning"] >= 0
    assert 0 <= facts["held_out_accuracy"] <= 1 and facts["num_held_out"] == 360


def test_python_m_castile_train(home):
    done = started(sys.executable, "-m", "castile", "train", "mlp", "--steps", "20", "--json", environment=home)
    assert (done.returncode, homes.but_for_compiling(done.stderr)) == (0, "")
    check_run(json.loads(done.stdout), 1, 20)


def test_the_installed_command(home):
    command = Path(sys.executable).with_name("castile")
    if not command.exists():
        pytest.skip("castile is not installed in this environment")
    done = started(command, "train", "mlp", "--steps", "20", "--json", environment=home)
    assert (done.returncode, homes.but_for_compiling(done.stderr)) == (0, "")
    check_run(json.loads(done.stdout), 1, 20)


@pytest.mark.mpi
def test_castile_launch(home):
    words = ["launch", "-n", "2", "train", "mlp", "--steps", "20", "--budget", "50", "--json"]
    done = started(sys.executable, "-m", "castile", *words, environment=home)
    assert (done.returncode, homes.but_for_compiling(done.stderr)) == (0, "")
    check_run(json.loads(done.stdout), 2, 20)


@pytest.mark.mpi
def test_a_bare_mpirun_with_more_ranks_than_cores(home):
    if missing := mpi_settings.missing_settings(mpi_settings.folder()):
        pytest.skip(f"this environment's parameter files lack {missing[0]}: castile doctor --write-mpi-settings")
    num_ranks = (os.cpu_count() or 1) + 1
    homes.make(Path(home["XDG_CACHE_HOME"]).parent, num_ranks)
    root = dict.fromkeys(mpi_settings.ROOT_VARIABLES, "1") if os.geteuid() == 0 else {}
    words = [launch.mpirun_path(), "-n", num_ranks, sys.executable, "-m", "castile", "train", "mlp:width=32"]
    words += ["--search", "data_parallel", "--steps", "20", "--json"]
    done = started(*words, environment=home | root)
    assert done.returncode == 0, done.stderr
    check_run(json.loads(done.stdout), num_ranks, 20)


def test_people_are_told_the_plan_the_steps_and_where_things_are(alone, capsys):
    assert main(["train", "mlp", "--steps", "20", "--out", "new/plan.json", "--trace", "new/trace.json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"mlp on local:procs=1: batch 64, \d+ tasks a step", out)
    assert "which is the known plan data_parallel" in out
    assert re.search(STEP_LINE, out), out
    assert len(re.findall(r"^step ", out, re.MULTILINE)) == 20
    assert re.search(r"prediction error over 20 steps .* before learning, [\d.]+ % after", out)
    assert re.search(r"held out: [\d.]+ % of 360 samples right", out)
    for name in ("plan: new/plan.json", "trace: new/trace.json", "profile: "):
        assert f"\n{name}" in out


def test_what_of_the_data_is_left_out_is_told(alone, capsys):
    (alone / "a.csv").write_text("x,n,y\n" + "1,5,0\n2,7,1\n" * 20 + "NA,5,1\n3,,1\n")
    words = ["dlrm", "--batch", "4", "--steps", "1", "--search", "data_parallel", "--data"]
    assert main(["train", *words, "csv:file=a.csv,label=y,categories=x,numbers=n"]) == 0
    assert "36 samples to train on and 4 held out, 2 samples left out, of which" in capsys.readouterr().out
    (alone / "a.txt").write_bytes(b"ab" * 5000)
    words = ["gpt:layers=1,width=8,heads=1,seq=16", "--batch", "4", "--steps", "1", "--search", "data_parallel"]
    for most, read in ((",most_bytes=6000", {"bytes_read": 6000, "bytes_there": 10000}), ("", {})):
        assert main(["train", *words, "--data", f"text:file=a.txt{most}", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["samples"].items() >= read.items() and len(facts["samples"]) == 3 + len(read)


def test_training_learns_the_digits(alone, capsys):
    facts = told(capsys, "mlp", "--epochs", "8")
    assert facts["held_out_accuracy"] > 0.9
    assert facts["num_steps"] == 8 * 1437 // 64


@pytest.mark.mpi
def test_a_written_plan_is_trained_again_to_the_same_bits(home, tmp_path):
    path = tmp_path / "folder" / "plan.json"
    words = ["-m", "castile", "train", "mlp", "--steps", "12", "--json"]
    status, out, err = standing.run(2, *words, "--search", "data_parallel", "--out", str(path), **home)
    assert status == 0, err
    first = json.loads(out)
    plan = strategies.read(path)
    assert plan.num_procs == 2 and plan.model == "mlp"
    assert first["equals_seed"] == "data_parallel" and plan.configs["fc1"].split == {"b": 2}
    assert first["files"]["plan"] == str(path)
    runs = []
    for number in range(2):
        status, out, err = standing.run(2, *words, "--plan", str(path), "--profile", f"{path}.{number}", **home)
        assert status == 0, err
        runs.append(json.loads(out)["losses"])
    assert runs[0] == runs[1] == first["losses"]


@pytest.mark.mpi
def test_every_rank_count_trains_the_same(alone, capsys):
    # The same samples and initial numbers everywhere: losses agree to float32's rounding.
    words = ["mlp", "--steps", "5", "--search", "data_parallel"]
    one = told(capsys, *words)
    status, out, err = standing.run(3, "-m", "castile", "train", *words, "--json")
    assert status == 0, err
    three = json.loads(out)
    assert (one["num_ranks"], three["num_ranks"]) == (1, 3)
    assert one["equals_seed"] == three["equals_seed"] == "data_parallel"
    assert one["losses"] == pytest.approx(three["losses"], rel=1e-4)


def test_a_profile_that_is_resumed_predicts_better(tmp_path, monkeypatch, capsys):
    # Figures far from this host's leave much to learn, whatever else runs here.
    for name, value in homes.make(tmp_path, figures=SLOW).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    told(capsys, "mlp", "--steps", "1", "--out", "plan.json", "--profile", "other.db")
    words = ("mlp", "--steps", "40", "--plan", "plan.json", "--profile", "mine.db")
    first, second = told(capsys, *words), told(capsys, *words)
    assert first["error_before_learning"] == first["error_after_learning"] > 1
    assert second["error_after_learning"] < second["error_before_learning"] / 2
    assert second["simulated_step_seconds"] < first["simulated_step_seconds"]


@pytest.mark.mpi
def test_a_trace_has_simulated_and_measured_lanes(home, tmp_path):
    path = tmp_path / "trace.json"
    words = ["train", "mlp", "--steps", "4", "--search", "data_parallel", "--trace", str(path), "--json"]
    plan = tmp_path / "plan.json"
    status, out, err = standing.run(2, "-m", "castile", *words, "--out", str(plan), **home)
    assert status == 0, err
    events = json.loads(path.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert sorted(processes.values()) == ["measured", "simulated"]
    spans = {name: [e for e in events if e["ph"] == "X" and processes[e["pid"]] == name] for name in processes.values()}
    counts = {name: sorted(e["name"] for e in found) for name, found in spans.items()}
    # One graph: what is simulated is what is executed.
    assert counts["simulated"] == counts["measured"]
    assert {"compute", "collective"} <= {e["cat"] for e in spans["measured"]}
    assert len({e["args"]["task"] for e in spans["measured"]}) == json.loads(out)["num_tasks"]
    assert all(e["dur"] > 0 and e["ts"] >= 0 for found in spans.values() for e in found)


@pytest.mark.parametrize("command", ["train", "profile", "validate"])
def test_help_speaks_to_people(command, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: castile {command}" in out and "MODEL" in out and "FILE" in out
    # Types and empty defaults are words of the program, not of its user.
    assert not re.search(r"\bSTR\b|\bINT\b|\bFLOAT\b|None|''", out)


@pytest.mark.parametrize(
    ("rung", "shown", "hidden"),
    [
        ("1", "whole on 0", "GFLOP/s"),
        ("2", "GFLOP/s", "after 0"),
        ("3", "update.F[0]", "def relu("),
        ("4", "def relu(", "Traceback"),
    ],
)
def test_the_debug_ladder_shows_more_at_each_rung(alone, read_anew, rung, shown, hidden, monkeypatch, capsys):
    monkeypatch.setenv("DEBUG", rung)
    assert main(["train", "mlp", "--steps", "1", "--budget", "5"]) == 0
    err = capsys.readouterr().err
    assert shown in err and hidden not in err


def test_a_rung_that_is_none_is_refused(alone, read_anew, monkeypatch, capsys):
    monkeypatch.setenv("DEBUG", "9")
    assert main(["train", "mlp", "--steps", "1"]) == 2
    err = capsys.readouterr().err
    assert "DEBUG='9'" in err and err.count("\n") == 1


@pytest.fixture
def read_anew():
    """What DEBUG asks for, which a process reads once."""
    debug.level.cache_clear()
    yield
    debug.level.cache_clear()
