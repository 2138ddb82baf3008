"""The README's commands do what it says: each one is run, but for `make test`, which runs this."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
LINES = [[line.partition(" #")[0].strip() for line in block.splitlines()] for block in BLOCKS]
GROUPS = [[line for line in lines if line.startswith((".venv/bin/", "make "))] for lines in LINES]
GROUPS = [group for group in GROUPS if group]
PLAN_TEXT = "b:2 on 0,1  conv* relu* pool flat fc* loss"


def test_the_commands_are_found() -> None:
    commands = [command for group in GROUPS for command in group]
    assert len(commands) >= 9 and {"make demo", "make test"} <= set(commands)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0])
def test_runs(group: list[str], tmp_path: Path) -> None:
    for command in group:
        if command != "make test":
            run(command, tmp_path)


def run(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    if words[0] == "make" and not (ROOT / ".venv" / "bin" / "castile").exists():
        pytest.skip("castile is not installed in this checkout's .venv")
    if words[0].endswith("/castile"):
        words[:1] = [sys.executable, "-m", "castile"]
    words = [word.replace("build/", f"{tmp_path}/") for word in words]
    where = ROOT if words[0] == "make" else tmp_path
    done = subprocess.run(words, cwd=where, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plan_is_explained_as_it_is_printed() -> None:
    assert PLAN_TEXT in TEXT
    asked = "plan convnet --machine local:procs=2 --search data_parallel"
    done = subprocess.run([sys.executable, "-m", "castile", *asked.split()], capture_output=True, text=True, timeout=60)
    assert PLAN_TEXT in done.stdout, done.stdout + done.stderr


def test_the_operator_shown_is_the_operator_there_is() -> None:
    shown = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    there = (ROOT / "planner" / "ops" / "relu.py").read_text()
    for line in filter(None, (line.strip() for line in shown[1].splitlines())):
        for piece in re.split(r":\s{2,}|:\s(?=return)", line):
            assert piece.rstrip(":") in there or piece.startswith("def layer"), piece
