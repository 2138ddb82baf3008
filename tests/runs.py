"""Training as a user types it, and what it has put on record."""

import json

from castile.launch.__main__ import main

MLP = ("train", "mlp:width=32", "--search", "data_parallel")


def told(capsys, *words):
    capsys.readouterr()
    assert main([*MLP, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def records(path, kind):
    return [r for r in map(json.loads, path.read_bytes().splitlines()) if r["kind"] == kind]


def losses(path):
    """The loss of each step, that of the last run of it where it ran twice."""
    return {r["step"]: r["loss"] for r in records(path, "step")}
