"""Searches that are Python files of the user's own: found by what is typed, held to what all searches are held to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from castile.launch.__main__ import main
from tests import homes

Caught = pytest.CaptureFixture[str]
MODEL, MACHINE = "mlp:layers=1,width=1024", "dgx-h100:nodes=1"
CLIMB = """
BUDGET = "30"

def search(run, moves: int = 1):
    print(moves, "at a time")
    while run.spent < 1:
        names = run.rng.sample(list(run.lowering.piece.nodes), moves)
        drawn = {name: run.spaces[name].draw(run.rng) for name in names}
        run.propose({**run.best.strategy.configs, **drawn})
    return "nothing that is looked at"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the process is in, with a home of its own and a search."""
    monkeypatch.chdir(tmp_path)
    for name, value in homes.make(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    Path("climb.py").write_text(CLIMB)
    return tmp_path


def told(capsys: Caught, *words: str) -> dict:
    """What a command prints for programs."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_file_is_a_search(folder: Path, capsys: Caught) -> None:
    """With its own budget, or the user's; it repeats, settings change it, and it is not behind known plans."""
    line = ["plan", MODEL, "--machine", MACHINE, "--without", "2-7", "--batch", "4096"]
    first = told(capsys, *line, "--search", "climb.py", "--out", "p.json")
    again = told(capsys, *line, "--search", "climb.py:moves=1")
    assert first["num_proposals"] == 30 and json.loads(Path("p.json").read_text())["search"] == "climb.py"
    assert first["layouts"] == again["layouts"]
    fitting = [seed["step_seconds"] for seed in first["seeds"].values() if seed["fits"]]
    assert first["found"]["step_seconds"] <= min(fitting)
    capsys.readouterr()
    assert main([*line, "--search", "climb.py:moves=2", "--budget", "7"]) == 0
    out, err = capsys.readouterr()
    assert "after 7 proposals" in out and "2 at a time" in err and "at a time" not in out


def test_training_and_predictions_look_by_it_too(folder: Path, capsys: Caught) -> None:
    line = ["train", "mlp:width=8", "--search", "climb.py", "--budget", "5", "--steps", "1", "--checkpoint", "run"]
    found = told(capsys, *line)
    assert found["run"]["search"] == "climb.py" and found["num_proposals"] >= 5
    assert (
        told(capsys, "predict", "run/resolved.toml", "--search", "climb.py:moves=2")["plan"]
        == "found by climb.py:moves=2"
    )


@pytest.mark.parametrize(
    ("text", "typed", "sentence"),
    [
        (
            "x = 1",
            "mine.py",
            "search file mine.py has no function search(run), which proposes plans until run.spent is 1",
        ),
        ("def search(run):\n    run.nonsense()", "mine.py", "search(run) failed: AttributeError: "),
        ("def search(run):\n    run.nonsense()", "mine.py", "(line 2)"),
        (
            "BUDGET = 'long'\ndef search(run): pass",
            "mine.py",
            "search file mine.py: BUDGET: budget 'long': give a number",
        ),
        ("WALKS = 1\ndef search(run): pass", "mine.py", "search file mine.py: WALKS: 1 should be True or False"),
        ("def search(run, n: int = 2): pass", "mine.py:n=two", "search mine.py: setting 'n' should be a whole number"),
        ("def search(run, n: int = 2): pass", "mine.py:m=2", "search mine.py has no setting 'm'"),
        ("def search(run:", "mine.py", "search file mine.py: SyntaxError"),
        ("", "none.py", "search file none.py: No such file"),
    ],
)
def test_what_is_no_search_is_told(folder: Path, capsys: Caught, text: str, typed: str, sentence: str) -> None:
    Path("mine.py").write_text(text)
    capsys.readouterr()
    assert main(["plan", MODEL, "--machine", MACHINE, "--search", typed]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1
