"""Every option of every command changes what it is for, as its case in tests/option_cases shows.

Commands and options are found by walking the code, so an option without a case, or a case without an option, fails.
"""

from __future__ import annotations

import json
import resource
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from castile.launch.__main__ import main, parse
from castile.runtime.machine import num_cores
from tests import homes, option_cases, standing
from tests.command_lines import COMMANDS, module_of, options_of
from tests.option_cases import Case, Ran, cases_of

# What measures waits its turn: on a host with other work it takes several times as long, and is no fault for that.
HANGS_SECONDS = 300.0

CASES = [(command, option) for command in COMMANDS for option in cases_of(command)]


def options(command: str) -> list[str]:
    """The fields of a command, by its dataclass."""
    return [option.field for option in options_of(command)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_case(command):
    missing = [option for option in options(command) if option not in cases_of(command)]
    assert not missing, f"tests/option_cases/{command}.py has no case for {', '.join(missing)} of castile {command}"


@pytest.mark.parametrize("command", option_cases.files())
def test_every_case_is_of_an_option(command):
    assert command in COMMANDS, f"tests/option_cases/{command}.py is about a command that there is not"
    gone = [option for option in cases_of(command) if option not in options(command)]
    assert not gone, f"tests/option_cases/{command}.py has cases for {', '.join(gone)}, which castile {command} has not"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_the_help(command, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    for option in options_of(command):
        assert option.typed in out or option.metavar == "ls|verify|export", option


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """A user's folder of this module's own, in which this host is measured."""
    return homes.make(tmp_path_factory.mktemp("home"), most_ranks=max(4, num_cores()))


@pytest.fixture(scope="module")
def given(tmp_path_factory, environment) -> Path:
    """The folder of files that every run finds where it runs, made by castile itself."""
    folder = tmp_path_factory.mktemp("given")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        for name, text in option_cases.TEXTS.items():
            Path(name).write_text(text)
        for words in option_cases.WORDS:
            assert main(words.split()) == 0, words
        nameless = json.loads(Path("dp.json").read_text()) | {"model": ""}
        Path("nameless.json").write_text(json.dumps(nameless))
        for name in ("dp", "dp24", "fsdp24"):
            reticent = json.loads(Path(f"{name}.json").read_text()) | {"batch": 0, "machine_name": ""}
            Path(f"reticent-{name}.json").write_text(json.dumps(reticent))
    return folder


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, int, int], Ran]:
    """What was run already: many cases have one line without their options."""
    return {}


Runner = Callable[[str, Case, int], Ran]


@pytest.fixture
def run(given, environment, known, tmp_path_factory, capfd) -> Iterator[Runner]:
    """Runs a command line for the n-th time in a folder of its own."""

    def once(line: str, case: Case, number: int) -> Ran:
        key = (line, case.ranks, number)
        if key not in known or case.patch:
            folder = tmp_path_factory.mktemp("run") / "here"
            shutil.copytree(given, folder)
            known[key] = ran(line, case, folder, environment, capfd)
        return known[key]

    yield once


def ran(line: str, case: Case, folder: Path, environment: dict[str, str], capfd: pytest.CaptureFixture[str]) -> Ran:
    """What comes of a command line in a folder."""
    before, began = homes.contents(folder), child_seconds()
    words = shlex.split(line)
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        if case.patch:
            case.patch(patch)
        if case.ranks:
            line = ("-m", "castile", *words)
            status, out, err = standing.run(case.ranks, *line, timeout=HANGS_SECONDS, **environment)
        else:
            status = main(words)
            out, err = capfd.readouterr()
    new = homes.contents(folder).keys() - before.keys()
    return Ran(status, out, err, folder, frozenset(new), child_seconds() - began)


def child_seconds() -> float:
    """Processor seconds of all processes that this one has started and waited for; finer than a clock's tick."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def changed(without: str, given: str) -> set[str]:
    """The options in which two command lines of one command differ."""
    command, *words = shlex.split(without)
    assert shlex.split(given)[0] == command
    left, right = (parsed(command, tuple(line)) for line in (words, shlex.split(given)[1:]))
    return {field.name for field in fields(left) if getattr(left, field.name) != getattr(right, field.name)}


@cache
def parsed(command: str, words: tuple[str, ...]) -> Any:
    """What a command line says; many cases have one without their options."""
    return parse(command, module_of(command), list(words))


def check(case: Case, run: Runner) -> None:
    """The law: with the option that is seen which it is for, and twice without it the same is seen."""
    without, again, given = run(case.without, case, 0), run(case.without, case, 1), run(case.given, case, 0)
    seen = case.sees(without)
    assert case.sees(again) == seen, f"castile {case.without}: what is seen differs from run to run"
    assert case.differs(seen, case.sees(given)), f"castile {case.given} does not what it is for: {seen}"


def marked(command: str, option: str) -> object:
    case = cases_of(command)[option]
    return pytest.param(command, option, marks=[pytest.mark.mpi] if case.ranks or case.mpi else [])


@pytest.mark.parametrize(("command", "option"), [marked(*pair) for pair in CASES])
def test_an_option_changes_what_it_is_for(command, option, run):
    case = cases_of(command)[option]
    assert changed(case.without, case.given) == {option}
    check(case, run)


def test_an_option_that_changes_nothing_is_found_out(run):
    case = cases_of("plan")["batch"]
    with pytest.raises(AssertionError, match="does not what it is for"):
        check(replace(case, given=case.without), run)
    with pytest.raises(AssertionError, match="differs from run to run"):
        check(replace(case, sees=lambda ran: ran.folder), run)
