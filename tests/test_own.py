"""What docs/own.md shows works as it is shown, and it tells of every field of a machine's file."""

import json
import re
import shlex
import sys

import msgspec
import numpy as np
import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.arrays import weights
from castile.launch.jobs.offline import desk
from castile.launch.jobs.trial import Trial
from castile.planner.search import search
from castile.runtime import machine
from tests import homes
from tests.mpi import CHECKOUT

TEXT = (CHECKOUT / "docs" / "own.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
FILES = {body.partition("\n")[0].removeprefix("# "): body for kind, body in BLOCKS if kind}
COMMANDS = [line for kind, body in BLOCKS if not kind for line in body.splitlines()]


def test_files_and_commands_are_found():
    assert set(FILES) == {
        "net.py",
        "small.py",
        "swish.py",
        "later.py",
        "samples.py",
        "drop.py",
        "climb.py",
        "cluster.toml",
        "sweep.py",
        "steps.py",
        "differs.py",
    }
    assert len(COMMANDS) == 16


def test_the_commands_of_the_page_do_what_they_say_one_after_another(tmp_path, monkeypatch, capsys):
    for name, body in FILES.items():
        (tmp_path / name).write_text(body)
    monkeypatch.chdir(tmp_path)
    exec(FILES["small.py"], {})
    for name, value in homes.make(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    for line in COMMANDS:
        # Of a node of eight processors here are two, on which searches take a third.
        castile, *words = shlex.split(line.replace("dgx-h100:nodes=1", "local:procs=2"))
        assert castile == "castile" and main(words) == 0, f"{line}: {capsys.readouterr().err}"


def test_every_field_of_a_machines_file_is_told():
    forms = (machine._File, machine._Processors, machine._Level)
    for field in (field for form in forms for field in msgspec.structs.fields(form)):
        assert re.search(rf"\b{field.encode_name}\b", TEXT), f"docs/own.md does not tell of {field.encode_name}"


def test_every_layer_is_where_the_page_says():
    for layer in re.findall(r"\bg\.(?!input|outputs|minimise)(\w+)\(", FILES["net.py"]):
        assert any((CHECKOUT / "planner" / room / f"{layer}.py").is_file() for room in ("layers", "ops")), layer


def test_what_lies_beside_a_file_can_be_imported(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "net_of_others.py").write_text(FILES["net.py"])
    (tmp_path / "folder" / "importing.py").write_text("from net_of_others import build\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert models.parse("folder/importing.py:width=5").graph().tensors["fc1"].shape == (64, 5)


def test_a_program_can_plan(capsys):
    exec(FILES["sweep.py"], {})
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(" nodes: ")[0] for line in told] == ["1", "2"]
    words = ["plan", "mlp:layers=4,width=4096", "--machine", "dgx-h100:nodes=1", "--batch", "65536"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    milliseconds = found["found"]["step_seconds"] * 1e3
    assert told[0] == f"1 nodes: {milliseconds:.3f} ms a step in {found['num_tasks']} tasks"


def test_a_program_can_take_steps(tmp_path, monkeypatch, capsys):
    (tmp_path / "net.py").write_text(FILES["net.py"])
    monkeypatch.chdir(tmp_path)
    exec(FILES["steps.py"], {})
    of_found, of_cut = ([float(word) for word in line.split()] for line in capsys.readouterr().out.splitlines())
    assert of_found[0] < of_cut[0] and of_found[1:] == pytest.approx(of_cut[1:], rel=1e-4)


def test_a_program_finds_where_a_network_differs(tmp_path, monkeypatch, capsys):
    """From one with another function after its first layer, what comes before is the same and what follows is not."""
    (tmp_path / "net.py").write_text(FILES["net.py"])
    (tmp_path / "other.py").write_text(FILES["net.py"].replace("g.relu(", "g.tanh("))
    monkeypatch.chdir(tmp_path)
    at = desk("other.py", machine.parse("local:procs=1"), batch=32)
    trial, random = Trial(at, search("one_processor", at.evaluator).strategy), np.random.default_rng(0)
    params = {param.name: trial.parameters[param.name] for param in trial.graph.params}
    weights.save("begin.safetensors", params, at.model)
    batch = {"image": random.normal(size=(32, 1, 8, 8)), "label": random.integers(0, 10, 32)}
    step = trial.step(batch)
    gradients = {f"{name}/grad": gradient for name, gradient in step.gradients.items()}
    np.savez("theirs.npz", **batch, **step.results, **gradients)
    exec(FILES["differs.py"], {})
    apart = {name: float(off) for name, off in map(str.split, capsys.readouterr().out.splitlines())}
    assert apart["fc1"] < 1e-6 and min(apart["act"], apart["head"], apart["fc1.weight/grad"]) > 1e-2
    assert list(apart).index("fc1") < list(apart).index("act") < list(apart).index("head")
