"""Files of the user's own: what they print, and what they see of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from castile.launch.__main__ import main

FILE = """
import argparse
import pprint
import sys
from castile.planner.graph import Graph

print("loading")
sys.stdout.write("writing")
parser = argparse.ArgumentParser()
parser.add_argument("--width", default=8, type=int, required={required})
width = parser.parse_args().width

def build(batch=None, dtype="float32"):
    print("building")
    sys.stdout.write("laying")
    pprint.pprint("helping")
    g = Graph("mine", dtype)
    x = g.linear("fc", g.input("x", (batch or 16, 8), "b c"), features=width)
    g.minimise(g.mean("loss", x))
    return g
"""


def words_of(folder: Path, is_required: bool) -> list[str]:
    path = folder / "net.py"
    path.write_text(FILE.format(required=is_required))
    return ["plan", str(path), "--machine", "dgx-h100", "--search", "data_parallel", "--json"]


def test_what_a_model_file_prints_is_not_in_the_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words_of(tmp_path, is_required=False)) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["search"] == "data_parallel"
    assert all(word in err for word in ("loading", "writing", "building", "laying", "helping"))


def test_a_model_file_that_reads_a_command_line_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It sees none but its own name, and where that does not do, which file ended is said."""
    words = words_of(tmp_path, is_required=True)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "usage: net.py" in said and f"castile: model file {words[1]}: it calls sys.exit (line 11)" in said
