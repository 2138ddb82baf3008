"""The README's commands do what it says: each one is run, but for `make test`, which runs this; its tables are true."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from castile.launch import data, explain, models, predict, train
from castile.launch.__main__ import main
from castile.launch.jobs import profile_store
from castile.launch.reports import catalogue
from castile.launch.validate import STEP_SECONDS
from tests import documented, standing, test_resnet, test_zoo_sequences, test_zoo_vision
from tests.command_lines import COMMANDS, options_of

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
LINES = [[line.partition(" #")[0].strip() for line in block.splitlines()] for block in BLOCKS]
GROUPS = [[line for line in lines if line.startswith((".venv/bin/", "make "))] for lines in LINES]
GROUPS = [group for group in GROUPS if group]
PLAN_TEXT = "b:2 on 0,1  conv* relu* pool flat fc* loss"
# Of what says none: for how long it looks, and how much of it is measured, is not what is shown.
LIMITS = {
    "plan": ("--budget", "10"), "train": ("--budget", "10"), "profile": ("--op", "fc*"),
    "validate": ("--rounds", "3", "--batch", "64"),
}  # fmt: skip
HEAD = re.compile(r"the plan, after 1 proposal in \d+\.\d s; it equals data_parallel:")


def test_the_commands_are_found() -> None:
    commands = [command for group in GROUPS for command in group]
    assert len(commands) >= 9 and {"make demo", "make test"} <= set(commands)


def starting(group: list[str]) -> object:
    """A group of commands, marked where one of them starts ranks."""
    starts = any(command == "make demo" or "castile launch " in command for command in group)
    return pytest.param(group, id=group[0], marks=[pytest.mark.mpi] if starts else [])


@pytest.mark.slow
@pytest.mark.parametrize("group", [*map(starting, GROUPS)])
def test_runs(
    group: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    for command in group:
        words = shlex.split(command)
        if words[0] == "make":
            make(*words[1:])
        else:
            check(words[1:], capsys)


def make(target: str) -> None:
    """As a user does it, from the start of a process on."""
    if target == "test":
        return
    if not (ROOT / ".venv" / "bin" / "castile").exists():
        pytest.skip("castile is not installed in this checkout's .venv")
    done = subprocess.run(["make", target], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr


def check(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Runs what follows `castile`, in this process or by ranks that are there."""
    num_ranks, line = (int(words[2]), words[3:]) if words[0] == "launch" else (1, words)
    line = [*line, *(LIMITS.get(line[0], ()) if "--budget" not in line else ())]
    if num_ranks > 1:
        status, _, err = standing.run(num_ranks, "-m", "castile", *line, timeout=180)
    else:
        status, err = main(line), capsys.readouterr().err
    assert status == 0, err


def test_the_plan_is_explained_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert PLAN_TEXT in TEXT and HEAD.search(TEXT)
    assert main("plan convnet --machine local:procs=2 --search data_parallel".split()) == 0
    told = capsys.readouterr()
    assert PLAN_TEXT in told.out and HEAD.search(told.out), told.out + told.err


def test_the_operator_shown_is_the_operator_there_is() -> None:
    shown = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    there = (ROOT / "planner" / "ops" / "relu.py").read_text()
    for line in filter(None, (line.strip() for line in shown[1].splitlines())):
        for piece in re.split(r":\s{2,}|:\s(?=return)", line):
            assert piece.rstrip(":") in there or piece.startswith("def layer"), piece


@pytest.mark.parametrize("path", documented.PAGES, ids=lambda path: path.name)
def test_tables_are_what_the_code_has(path: Path) -> None:
    text = path.read_text()
    assert text == documented.page(text), f"{path.name} is behind the code: run `python -m tests.documented`"


def test_every_table_stands_on_a_page() -> None:
    names = [found["name"] for path in documented.PAGES for found in documented.BLOCK.finditer(path.read_text())]
    assert sorted(names) == sorted(documented.TABLES)


def test_every_model_is_counted_as_the_zoo_is_checked() -> None:
    assert {text.partition(":")[0] for text in documented.COUNTED} == set(models.available())
    for text, source in documented.COUNTED.items():
        if source != documented.OWN:
            assert CHECKED[text] == documented.num_params(text), f"{text}: nothing says that {source} count is this"


def checked() -> dict[str, int]:
    """The published and derived numbers of parameters that tests of the models hold."""
    vision = test_zoo_vision.test_the_published_number_of_parameters.pytestmark[0].args[1]
    residual = test_resnet.test_the_published_number_of_parameters.pytestmark[0].args[1]
    counts = {text: told for text, (told, _) in test_zoo_sequences.DERIVED.items()}
    return counts | {text: told for text, told, _ in vision} | {f"resnet:depth={d}": told for d, told in residual}


def usual_profile() -> str:
    """Where measurements are kept by a user who has set nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XDG_DATA_HOME", raising=False)
        patch.setenv("HOME", "/home/user")
        return profile_store.default_profile().replace("/home/user", "~")


CHECKED = checked()
# Defaults that are said in words, because the option's own default leaves it open, as the code has them.
SAID = {
    ("train", "keep"): f"{train.NUM_KEPT} by default",
    ("train", "budget"): f"{train.BUDGET} by default",
    ("train", "profile"): f"by default {usual_profile()}",
    ("profile", "profile"): f"by default {usual_profile()}",
    ("predict", "profile"): f"by default {usual_profile()}",
    ("predict", "budget"): f"{predict.BUDGET} by default",
    ("validate", "batch"): f"by default so many that a data-parallel step takes at least {1e3 * STEP_SECONDS:g} ms",
    ("explain", "budget"): f"{explain.BUDGET} by default",
}


@pytest.mark.parametrize(("command", "option"), SAID)
def test_defaults_in_words_are_those_of_the_code(command: str, option: str) -> None:
    (found,) = (o for o in options_of(command) if o.field == option)
    assert SAID[command, option] in found.help


def test_no_other_default_is_said_in_words() -> None:
    for command in COMMANDS:
        for option in options_of(command):
            said = re.search(r"[\d~][^;.,]*by default|by default[^;.,]*[\d~]", option.help)
            assert not said or (command, option.field) in SAID, f"castile {command}: {option}: {option.help}"


@pytest.mark.parametrize("name", data.available())
def test_every_setting_of_a_data_set_that_says_nothing_by_itself_is_told(name: str) -> None:
    load = import_module(f"castile.launch.data.{name}").load
    settings = [p for p in inspect.signature(load).parameters.values() if p.name not in data.RESERVED]
    left_open = {p.name for p in settings if p.default in ("", None, False) or p.default is p.empty}
    assert left_open <= catalogue.notes_of(load).keys()
