"""What training learns is kept where that can be; nobody who did not ask for it loses a training by it."""

import json

import pytest

from castile.launch.__main__ import main
from castile.launch.processes.ranks import UserError
from castile.launch.typed import files
from castile.planner.costs.database import Database

LINE = ["train", "mlp:width=8", "--search", "data_parallel", "--steps", "2", "--json"]


def no_folder(path):
    path.write_text("a file")


def no_database(path):
    (path / "castile").mkdir(parents=True)
    (path / "castile" / "profile.db").write_bytes(b"something else" * 100)


@pytest.mark.parametrize("spoil", [no_folder, no_database])
def test_training_goes_on_without_the_users_own_database(spoil, alone, monkeypatch, capsys):
    spoil(alone / "share")
    monkeypatch.setenv("XDG_DATA_HOME", str(alone / "share"))
    assert main(LINE) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["num_steps"] == 2 and "profile" not in json.loads(told.out)["files"]
    assert told.err.count("castile: what is learned here is not kept: profile database") <= 1 and "kept: " in told.err
    assert main([*LINE, "--profile", str(alone / "share" / "castile" / "profile.db")]) == 2
    assert main(["profile", "mlp:width=8"]) == 2


@pytest.mark.parametrize("asked", [[], ["--profile", "here.db"]])
def test_a_training_that_ended_is_told_whatever_becomes_of_the_database(asked, alone, monkeypatch, capsys):
    def full(database, snapshot):
        raise UserError(f"profile database {database.path}: database or disk is full")

    monkeypatch.setattr(Database, "add", full)
    assert main([*LINE, *asked]) == (2 if asked else 0)
    told = capsys.readouterr()
    assert json.loads(told.out)["num_steps"] == 2 and "database or disk is full" in told.err


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(files.Path, "home", nowhere)
    with pytest.raises(UserError, match="set HOME or XDG_CACHE_HOME"):
        files.users("XDG_CACHE_HOME", ".cache")
