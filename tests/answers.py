"""What commands answer, run in this process: a JSON object, or the sentence with which they refuse."""

from __future__ import annotations

import json

from castile.launch.__main__ import main


def answer(capsys, *words) -> dict:
    """The JSON object that a command prints."""
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def sentence(capsys, *words) -> str:
    """The one sentence with which a command refuses."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("castile: ") and err.count("\n") == 1, err
    return err


def timeless(facts: dict) -> dict:
    """What a command found, but for how long that took."""
    found = {name: value for name, value in facts.items() if name != "elapsed_seconds"}
    return found | {"history": [{k: v for k, v in row.items() if k != "elapsed_seconds"} for row in facts["history"]]}
