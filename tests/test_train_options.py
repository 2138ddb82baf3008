"""Options of training: what is refused, in one sentence and before anything is measured, and what a run file does."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from safetensors.numpy import save_file

from castile.launch import train
from castile.launch.__main__ import main
from castile.launch.train import Train
from castile.launch.typed import optimizers
from tests import homes
from tests.mpi import CHECKOUT, mpirun_apart
from tests.runs import MLP, told


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return homes.make(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    (folder / "file.txt").write_text("no folder")
    (folder / "empty").mkdir()
    (folder / "unknown.toml").write_text('model = "mlp"\nbath = 3\n')
    (folder / "twice.toml").write_text('model = "mlp"\nevaluate-every = 3\nevaluate_every = 4\n')
    (folder / "kind.toml").write_text('model = "mlp"\nsteps = "many"\n')
    (folder / "nothing.toml").write_text("steps = 3\n")
    (folder / "cut.toml").write_text('model = "ml')
    (folder / "bad.toml").write_text('model = "mlp"\nlr = -1.0\n')
    (folder / "cut.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
    save_file({"fc1.weight": np.zeros((128, 64), np.float32)}, folder / "some.safetensors")
    save_file({"fc1.weight": np.zeros((1, 1), np.float32)}, folder / "shape.safetensors")
    return folder


CASES = [
    # run files
    ("train unknown.toml", r"run file unknown.toml: unknown field 'bath' \(did you mean 'batch'"),
    ("train twice.toml", r"run file twice.toml: 'evaluate-every' and 'evaluate_every' are one option, given twice"),
    ("train kind.toml", r"run file kind.toml: steps: expected a whole number"),
    ("train nothing.toml", r"run file nothing.toml: the field 'model' is missing"),
    ("train cut.toml", r"run file cut.toml is not TOML"),
    ("train missing.toml", r"run file missing.toml: No such file"),
    ("train bad.toml", r"--lr -1.0: give a number above 0"),
    ("train bad.toml --lr 0.1 --optimizer sdg", r"no optimizer 'sdg' \(did you mean 'sgd'"),
    # what is computed
    ("train mlp --optimizer relu", r"no optimizer 'relu'"),
    ("train mlp --optimizer sgd:momentun=0.9", r"optimizer sgd has no setting 'momentun' \(did you mean 'momentum'"),
    ("train mlp --optimizer sgd:momentum=1.5", r"sgd: momentum should be at least 0 and below 1, got 1.5"),
    ("train mlp --schedule cosin", r"no schedule 'cosin' \(did you mean 'cosine'"),
    ("train mlp --schedule cosine:warm=3", r"schedule cosine has no setting 'warm' \(did you mean 'warmup'"),
    ("train mlp --schedule linear:floor=2", r"floor is a share of the peak and should be at most 1, got 2"),
    ("train mlp --evaluate-every 0", r"--evaluate-every 0: give 1 or more"),
    ("train mlp --accumulate 3", r"--accumulate 3: a batch of 64 samples does not make as many equal pieces"),
    ("train mlp --batch 1.5", r"--batch 1.5: give a whole number"),
    ("train mlp --lr=big --steps 2", r"--lr big: give a number"),
    ("launch -n two train mlp", r"-n two: give a whole number"),
    # what training begins with
    ("train mlp --weights missing.safetensors", r"weights missing.safetensors: No such file"),
    ("train mlp --weights cut.safetensors", r"weights cut.safetensors: this is no safetensors file, or a damaged one"),
    ("train mlp --weights some.safetensors", r"weights some.safetensors: it has no tensor 'fc1.bias'"),
    ("train mlp --weights shape.safetensors", r"'fc1.weight' has shape \(1, 1\), it should"),
    # checkpoints
    ("train mlp --resume", r"--resume means nothing without --checkpoint"),
    ("train mlp --keep 3", r"--keep means nothing without --checkpoint"),
    ("train mlp --checkpoint-every 3", r"--checkpoint-every means nothing without --checkpoint"),
    ("train mlp --checkpoint empty --keep 0", r"--keep 0: give 1 or more"),
    ("train mlp --checkpoint empty --checkpoint-every -1", r"--checkpoint-every -1: give 1 or more"),
    ("train mlp --checkpoint file.txt", r"--checkpoint file.txt: .*file.txt is not a folder"),
    ("train mlp --checkpoint file.txt/x", r"--checkpoint file.txt/x: .*file.txt is not a folder"),
    # records
    ("train mlp --metrics empty", r"--metrics empty: this is a folder"),
    ("train mlp --metrics file.txt/a.jsonl", r"--metrics file.txt/a.jsonl: .*file.txt is not a folder"),
    ("train mlp --tensorboard file.txt", r"--tensorboard file.txt: .*file.txt is not a folder"),
]  # fmt: skip


def check_sentence(err, told):

    assert err.startswith("castile: ") and err.count("\n") == 1 and "Traceback" not in err, err
    assert re.search(told, err), err


@pytest.fixture
def here(folder, home, monkeypatch):
    monkeypatch.chdir(folder)
    for name, value in home.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("words, told", CASES, ids=[words for words, _ in CASES])
def test_bad_options_are_told_in_one_sentence(words, told, folder, here, capsys):
    before = homes.contents(folder)
    assert main(words.split()) == 2
    check_sentence(capsys.readouterr().err, told)
    assert homes.contents(folder) == before


@pytest.mark.mpi
@pytest.mark.parametrize("words, told", [CASES[0], CASES[5]], ids=["unknown", "missing"])
def test_one_rank_of_two_tells_of_a_run_file(words, told, folder, home):
    command, file = words.split()
    status, _, err = mpirun_apart(2, "-m", "castile", command, str(folder / file), **home)
    assert status == 2 and err.count("castile: run file") == 1 and "Traceback" not in err


def printed(capsys, *words):
    assert main(["train", *words, "--print"]) == 0
    return capsys.readouterr().out


def test_a_printed_run_is_whole_and_prints_itself_again(here, tmp_path, capsys):
    out = printed(capsys, "mlp:width=32", "--steps", "7", "--schedule", "cosine:warmup=2", "--evaluate-every", "3")
    for line in (
        'model = "mlp:width=32"',
        "steps = 7",
        'data = "digits"',
        "batch = 64",
        "lr = 0.1",
        "evaluate_every = 3",
    ):
        assert line in out.splitlines()
    assert "epochs" not in out and "print" not in out
    path = tmp_path / "run.toml"
    path.write_text(out)
    assert printed(capsys, str(path)) == out
    # The command line goes before the file.
    assert "steps = 9" in printed(capsys, str(path), "--steps", "9").splitlines()


def test_a_printed_run_as_json_is_the_same(here, capsys):

    told = json.loads(printed(capsys, "mlp", "--json"))
    assert tomllib.loads(printed(capsys, "mlp")) == told


def test_a_recipe_fills_in_what_is_left_open():
    run = train.resolved(Train("mlp"))
    assert (run.batch, run.data, run.epochs, run.steps, run.lr) == (64, "digits", 20, None, 0.1)
    assert optimizers.parse(run.optimizer).momentum == 0.9
    run = train.resolved(Train("mlp", steps=3, lr=0.5, optimizer="sgd"))
    assert (run.epochs, run.steps, run.lr, optimizers.parse(run.optimizer).momentum) == (None, 3, 0.5, 0.0)
    # nothing is searched for where a plan is given
    searched = [(run.search, run.budget) for run in map(train.resolved, (Train("mlp"), Train("mlp", plan="p.json")))]
    assert searched == [("mcmc", "500"), ("", "")]


def test_every_option_is_in_the_help(capsys):
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    for name in Train.__dataclass_fields__:
        assert name == "model" or f"--{name.replace('_', '-')}" in out


def test_a_run_file_on_the_command_line_of_a_process(home, tmp_path):
    (tmp_path / "run.toml").write_text('model = "mlp"\nsearch = "data_parallel"\nsteps = 4\njson = true\n')
    done = subprocess.run(
        [sys.executable, "-m", "castile", "train", "run.toml", "--lr", "0.01"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **home, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["num_steps"] == 4 and facts["run"]["lr"] == 0.01 and facts["run"]["search"] == "data_parallel"


def test_programs_are_told_what_people_are(alone, capsys):
    """Each line but those of steps, whose figures are in records, and of what is being done; and of the end, whose
    figures are facts.
    """
    words = [*MLP, "--steps", "3", "--checkpoint", "run"]
    facts = told(capsys, *words[len(MLP) :])
    shutil.rmtree("run")
    assert main(words) == 0
    shown = capsys.readouterr().out.splitlines()

    def timeless(line):
        return re.sub(r"[\d.]+( ms| s|$)", "", line)

    said, seen = [timeless(line) for text in facts["told"] for line in text.splitlines()], [*map(timeless, shown)]
    assert len(said) > 5 and all(line in seen for line in said), (said, seen)
    ends = r"a step took|prediction error|of steps measured|other programs|steps waited|held out|profile:|checkpoints:"
    ends += r"|[\d.]+ s in all"
    others = rf"step +\d+  loss|.* \.\.\.$|{ends}"
    assert [line for line in shown if timeless(line) not in said and not re.match(others, line)] == []
