"""Patience: a run ends when evaluations bring nothing better, and the best checkpoint stays, on any ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from castile.launch.__main__ import main
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints.manifest import Judged
from tests import standing

# What is learned of the labels makes those held out, which are others, less likely with every step.
LINE = ("train", "mlp:width=8", "--data", "numpy:train=a.npz,held_out=b.npz", "--batch", "8", "--lr", "0.5",
        "--search", "data_parallel", "--evaluate-every", "5")  # fmt: skip
SAVED = (*LINE, "--checkpoint", "run", "--best", "--keep", "1")


@pytest.fixture
def worse(alone: Path) -> Path:
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(40, 1, 8, 8)).astype(np.float32), np.arange(40) % 10
    np.savez("a.npz", image=images, label=labels)
    np.savez("b.npz", image=images, label=(labels + 1) % 10)
    return alone


def run(capsys, *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_counts_evaluations_without_a_lower_loss() -> None:
    judged, since = Judged(), []
    for n, loss in enumerate([float("nan"), 3.0, 2.0, 2.0, 1.5, float("inf"), 1.5]):
        judged = judged.after(5 * n, loss)
        since.append(judged.since)
    assert since == [1, 0, 0, 1, 0, 1, 2]
    assert judged == Judged(last=30, loss=1.5, step=20, since=2)


def test_a_run_ends_and_the_best_stays(worse: Path, capsys) -> None:
    facts = run(capsys, *SAVED, "--steps", "60", "--patience", "2", "--metrics", "m.jsonl")
    assert [found["step"] for found in facts["evaluations"]] == [5, 10, 15]
    assert facts["best"] == {"step": 5, "loss": facts["evaluations"][0]["loss"]} and facts["is_out_of_patience"]
    assert list(folders.checkpoints("run")) == [5, 15]
    assert json.loads(Path("m.jsonl").read_text().splitlines()[-1])["reason"] == "patience"
    rows = run(capsys, "checkpoint", "ls", "run")["checkpoints"]
    assert [row["held_out_loss"] for row in rows] == [facts["best"]["loss"], None]
    assert main(["checkpoint", "verify", "run"]) == 0
    capsys.readouterr()
    said = run(capsys, "predict", "mlp:width=8", "--checkpoint", "run/step-00000005", "--data", LINE[3])
    assert said["quality"]["loss"] == pytest.approx(facts["best"]["loss"], rel=1e-5)


def test_who_goes_on_has_the_patience_that_is_left(worse: Path, capsys) -> None:
    """The evaluation of the last step came when it was saved, so that it is made again where it decides something."""
    run(capsys, *SAVED, "--steps", "10", "--patience", "2")
    facts = run(capsys, *SAVED, "--steps", "60", "--patience", "2", "--resume")
    assert [found["step"] for found in facts["evaluations"]] == [10, 15] and facts["best"]["step"] == 5
    assert list(folders.checkpoints("run")) == [5, 15]


@pytest.mark.parametrize("broken_at", [7, 10])
def test_so_has_who_keeps_no_best_one(worse: Path, capsys, broken_at: int) -> None:
    """A checkpoint says what evaluations were until it, that of its own step too."""
    saved = (*LINE, "--checkpoint", "run", "--keep", "9", "--checkpoint-every", str(broken_at))
    unbroken = run(capsys, *saved, "--steps", "60", "--patience", "2")
    for step, path in folders.checkpoints("run").items():
        if step > broken_at:
            shutil.rmtree(path)
    facts = run(capsys, *saved, "--steps", "60", "--patience", "2", "--resume")
    assert unbroken["num_steps"] == 15 and facts["first_step"] == broken_at and facts["num_steps"] == 15 - broken_at
    assert facts["best"] == unbroken["best"] and facts["is_out_of_patience"]
    told = [found for found in unbroken["evaluations"] if found["step"] > broken_at]
    assert facts["evaluations"] == told


def test_who_has_none_left_trains_no_more(worse: Path, capsys) -> None:
    saved = (*LINE, "--checkpoint", "run", "--steps", "60", "--resume", "--metrics", "m.jsonl")
    run(capsys, *saved, "--patience", "2")
    metrics = Path("m.jsonl").read_bytes()
    assert main([*saved, "--patience", "2"]) == 0
    told = capsys.readouterr().out
    assert "nothing to train: 15 steps are done and 2 evaluations brought nothing better than that of step 5" in told
    assert Path("m.jsonl").read_bytes() == metrics and list(folders.checkpoints("run")) == [15]
    assert run(capsys, *saved, "--patience", "3")["num_steps"] == 5


def test_one_that_gets_better_ends_with_its_last(alone: Path, capsys) -> None:
    words = ("train", "mlp", "--search", "data_parallel", "--evaluate-every", "10", "--steps", "30")
    facts = run(capsys, *words, "--checkpoint", "run", "--best", "--keep", "1", "--patience", "2")
    assert facts["best"] == {"step": 30, "loss": facts["evaluations"][-1]["loss"]} and not facts["is_out_of_patience"]
    assert list(folders.checkpoints("run")) == [30] and folders.best("run") == (30, facts["best"]["loss"])


@pytest.mark.mpi
def test_ranks_end_together(worse: Path) -> None:
    words = ("-m", "castile", *SAVED, "--steps", "60", "--patience", "2", "--json")
    status, out, err = standing.run(2, *words, timeout=300)
    assert status == 0, err
    facts = json.loads(out)
    assert facts["num_steps"] == 15 and facts["best"]["step"] == 5 and list(folders.checkpoints("run")) == [5, 15]


def test_nothing_to_judge_by_is_refused(alone: Path, capsys) -> None:
    (alone / "mine.py").write_text(
        "import numpy as np\n"
        "def samples(seed, epoch):\n"
        "    return [{'image': np.zeros((1, 8, 8)), 'label': n % 10} for n in range(24)]\n"
    )
    words = ("train", "mlp:width=8", "--batch", "8", "--search", "data_parallel", "--data", "iterator:file=mine.py")
    for option in (("--patience", "2"), ("--best", "--checkpoint", "run")):
        assert main([*words, *option, "--evaluate-every", "2"]) == 2
        assert "no held-out samples have labels to judge by" in capsys.readouterr().err
        assert main([*words, *option]) == 2
        assert "means nothing without --evaluate-every" in capsys.readouterr().err
