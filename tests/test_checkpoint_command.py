"""The command `castile checkpoint`: what it lists, what it finds, what it takes out, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from castile.launch.__main__ import main
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints import manifest
from castile.launch.checkpoints.folder import latest
from castile.launch.checkpoints.reader import Reader
from tests.checkpoints import save, state


@pytest.fixture
def folder(tmp_path) -> Path:
    save(tmp_path / "checkpoints", [5, 10, 15], size=2, keep=3)
    return tmp_path / "checkpoints"


def run(capsys, *words: object, status: int = 0) -> str:
    """What the command says on stdout, or where it fails on stderr, in one sentence."""
    assert main(["checkpoint", *map(str, words)]) == status
    out, err = capsys.readouterr()
    assert "Traceback" not in err and err.count("\n") == (status != 0), err
    return err if status else out


def damage(path: Path, name: str = "rank-00001.safetensors") -> None:
    data = bytearray((path / name).read_bytes())
    data[-1] ^= 1
    (path / name).write_bytes(data)


def test_help(capsys):
    assert main(["checkpoint", "--help"]) == 0
    out = capsys.readouterr().out
    assert "usage: castile checkpoint" in out and "{ls,verify,export}" in out and "--json" in out


def test_ls(folder, capsys):
    lines = run(capsys, "ls", folder).splitlines()
    assert [line.split()[0] for line in lines] == ["step-00000005", "step-00000010", "step-00000015"]
    assert "480 samples" in lines[2] and "mlp:width=4 on digits" in lines[2]
    told = json.loads(run(capsys, "ls", folder, "--json"))["checkpoints"]
    assert [(row["step"], row["samples"], row["num_files"]) for row in told] == [
        (5, 160, 2),
        (10, 320, 2),
        (15, 480, 2),
    ]
    for row in told:
        assert row["size_bytes"] == sum(path.stat().st_size for path in (folder / row["name"]).glob("*.safetensors"))
        assert (row["model"], row["data"], row["seed"], row["dtype"]) == ("mlp:width=4", "digits", 7, "float64")


def test_ls_tells_why_one_cannot_be_loaded(folder, capsys):
    (folder / "step-00000010" / manifest.NAME).unlink()
    lines = run(capsys, "ls", folder).splitlines()
    assert "step-00000010 is damaged: manifest.json" in lines[1] and "samples" in lines[2]
    assert "why" in json.loads(run(capsys, "ls", folder, "--json"))["checkpoints"][1]


@pytest.mark.parametrize("at", ["open", "read"])
def test_what_a_run_takes_away_meanwhile_is_looked_for_again(at, folder, tmp_path, capsys, monkeypatch):
    """A run that saves there keeps its latest alone: what is gone is not damaged."""
    taken, name = folder / "step-00000015", "_check_head" if at == "open" else "_load"
    real = getattr(Reader, name)

    def meanwhile(self, *args):
        if self.path == taken and taken.is_dir():
            shutil.rmtree(taken)
        return real(self, *args)

    monkeypatch.setattr(Reader, name, meanwhile)
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert latest(folder).step == 10
    taken = copy / "step-00000015"
    assert "step-00000010" in run(capsys, "export", copy, "--out", tmp_path / "w.safetensors")


@pytest.mark.parametrize("one", [False, True])
def test_verify_of_what_is_whole(one, folder, capsys):
    path = folder / "step-00000010" if one else folder
    text = run(capsys, "verify", path)
    assert text.startswith("1 checkpoint is whole" if one else "3 checkpoints are whole")
    told = json.loads(run(capsys, "verify", path, "--json"))
    assert told["damaged"] == [] and len(told["sound"]) == (1 if one else 3)


@pytest.mark.parametrize("one", [False, True])
def test_verify_names_file_and_tensor_and_offers_the_one_before(one, folder, capsys):
    damage(folder / "step-00000015")
    path = folder / "step-00000015" if one else folder
    err = run(capsys, "verify", path, status=2)
    assert "step-00000015 is damaged: rank-00001.safetensors, tensor 'flags[2:3, 0:1, 0:3]': its bytes" in err
    assert "step-00000010 is whole" in err and "--resume" in err
    assert main(["checkpoint", "verify", str(path), "--json"]) == 2
    (told,) = json.loads(capsys.readouterr().out)["damaged"]
    assert (told["file"], told["tensor"]) == ("rank-00001.safetensors", "flags[2:3, 0:1, 0:3]")


def test_the_one_offered_is_whole_itself_and_resumed(folder, capsys):
    """The latest, wherever those that are damaged lie."""
    for name, offered in ((10, 15), (15, 5), (5, 0)):
        damage(folder / folders.name_of(name))
        words = f"{folders.name_of(offered)} is whole, and `castile train" if offered else "no checkpoint beside it"
        assert words in run(capsys, "verify", folder, status=2)
        assert words in run(capsys, "export", folder / folders.name_of(name), "--out", folder / "out", status=2)
        if offered:
            found = latest(folder)
            assert found is not None and found.step == offered


def test_one_under_another_name_is_checked_too(folder, capsys):
    (folder / "step-00000015").rename(folder / "mine")
    assert run(capsys, "verify", folder / "mine").startswith("1 checkpoint is whole")
    damage(folder / "mine")
    err = run(capsys, "verify", folder / "mine", status=2)
    assert "mine is damaged: rank-00001.safetensors" in err and "step-00000010 is whole" in err


@pytest.mark.parametrize("keeps_state", [False, True])
def test_export_gives_whole_tensors_by_name(keeps_state, folder, capsys, tmp_path):
    out = tmp_path / "deep" / "out.safetensors"
    words = ["export", folder, "--out", out, *(["--state"] if keeps_state else [])]
    assert "tensors of " in run(capsys, *words)
    found = safetensors.numpy.load_file(out)
    expected = {name: array for name, array in state(15).items() if keeps_state or "/" not in name}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)
    told = json.loads(run(capsys, *words, "--json"))
    assert told["num_tensors"] == len(expected) and told["size_bytes"] == out.stat().st_size
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_export_of_what_is_damaged_writes_nothing(folder, capsys, tmp_path):
    damage(folder / "step-00000015")
    out = tmp_path / "out.safetensors"
    err = run(capsys, "export", folder, "--out", out, status=2)
    assert "tensor 'flags" in err and "step-00000010 is whole" in err
    assert not list(tmp_path.glob("out*"))
    run(capsys, "export", folder / "step-00000010", "--out", out)
    assert np.array_equal(safetensors.numpy.load_file(out)["fc2.w"], state(10)["fc2.w"])


def test_what_is_refused(folder, capsys, tmp_path):
    assert "no such folder" in run(capsys, "ls", tmp_path / "nowhere", status=2)
    assert "holds no checkpoint" in run(capsys, "ls", tmp_path, status=2)
    assert "--out FILE" in run(capsys, "export", folder, status=2)
    assert "--state belongs to" in run(capsys, "verify", folder, "--state", status=2)
    assert "--out belongs to" in run(capsys, "ls", folder, "--out", "x", status=2)
    assert "this is a folder" in run(capsys, "export", folder, "--out", tmp_path, status=2)
    for name in ("w.npz", "w.pt"):  # who reads such a file looks for another format in it
        assert f"{name}: what is written is safetensors" in run(capsys, "export", folder, "--out", name, status=2)
    shutil.rmtree(folder / "step-00000015")
    (folder / "step-00000015").mkdir()
    assert "manifest.json: it cannot be read" in run(capsys, "verify", folder, status=2)
