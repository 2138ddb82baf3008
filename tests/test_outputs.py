"""Outputs: a file that cannot be written keeps a command from neither telling what it found nor its other files."""

import json

import pytest

from castile.launch.__main__ import main
from tests.command_lines import COMMANDS, options_of

# `checkpoint export` does nothing but write, --out of train comes before its steps, that of predict with its samples.
CASES = {
    "plan": "plan mlp:width=16 --machine local:procs=2 --search data_parallel",
    "simulate": "simulate mlp:width=16 --machine local:procs=2",
    "explain": "explain plan.json --machine local:procs=2",
    "profile": "profile mlp:width=16 --plan one.json",
    "train": "train mlp:width=16 --steps 2 --plan one.json",
    "validate": "validate mlp:width=16 --batch 8 --plans 4 --rounds 1",
}
BEFORE = {("train", "out"), ("checkpoint", "out"), ("predict", "out")}
OUTPUTS = [
    (command, option.field)
    for command in COMMANDS
    for option in options_of(command)
    if option.field in ("out", "trace", "picture") and (command, option.field) not in BEFORE
]


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    for name, procs in (("plan.json", 2), ("one.json", 1)):
        words = f"plan mlp:width=16 --machine local:procs={procs} --search data_parallel --out {folder / name}"
        assert main(words.split()) == 0
    return folder


@pytest.mark.parametrize(("command", "refused"), OUTPUTS)
def test_what_cannot_be_written_is_told_after_all_else(command, refused, plans, alone, capsys, monkeypatch):
    # what was free when the command began need not be so at its end
    monkeypatch.setattr("castile.launch.jobs.checks.writable", lambda **_: None)
    words = CASES[command]
    for name in ("plan.json", "one.json"):
        words = words.replace(name, str(plans / name))
    files = {field: f"{field}.file" for other, field in OUTPUTS if other == command}
    (alone / files[refused]).mkdir()
    given = [word for field, path in files.items() for word in (f"--{field}", path)]
    capsys.readouterr()
    assert main([*words.split(), *given, "--json"]) == 2
    out, err = capsys.readouterr()
    told = json.loads(out)["files"]
    assert f"castile: {files[refused]}: " in err and err.count("choose another path") == 1 and "Traceback" not in err
    assert files[refused] not in told.values()
    for field, path in files.items():
        assert (alone / path).is_file() == (field != refused) == (path in told.values())


@pytest.mark.parametrize("command", sorted({command for command, field in OUTPUTS if field == "picture"}))
def test_a_picture_is_refused_under_another_formats_name(command, plans, alone, capsys):
    """Before anything is done: a program that reads the name would not show the file."""
    words = [str(plans / word) if word.endswith(".json") else word for word in CASES[command].split()]
    capsys.readouterr()
    assert main([*words, "--picture", "plan.PNG"]) == 2
    assert "--picture plan.PNG: pictures are SVG" in capsys.readouterr().err and not (alone / "plan.PNG").exists()
