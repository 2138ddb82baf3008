"""Completion: what bash completes, by the script that it is given, is what the command line takes."""

import shlex
import shutil
import subprocess

import pytest

from castile.launch import data, models
from castile.launch.__main__ import main
from castile.launch.completion import plans, script
from castile.launch.reports.catalogue import KINDS
from castile.launch.typed import optimizers, rates
from castile.planner import searches
from castile.runtime import machine as machines
from tests.command_lines import COMMANDS, options_of

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """What is offered for the last of several words."""
    path = tmp_path_factory.mktemp("completion") / "castile.sh"
    path.write_text(script())

    def ask(*words: str) -> list[str]:
        typed = shlex.join(words)
        line = f"source {path}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _castile; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "--norc", "-uc", line], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), words
        return done.stdout.split()

    return ask


def test_commands_are_completed(completed):
    assert completed("castile", "") == [*COMMANDS]
    assert completed("castile", "p") == [name for name in COMMANDS if name.startswith("p")]
    assert completed("castile", "zz") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_all_options_of_a_command_are_completed(command, completed):
    flags = {option.flag for option in options_of(command) if option.flag}
    assert flags | {"--help"} <= {*completed("castile", command, "-")} <= flags | {"--help", "-n"}
    if command != "launch":
        assert completed("castile", "launch", "-n", "2", command, "-") == completed("castile", command, "-")


@pytest.mark.parametrize(
    ("words", "offered"),
    [("plan", models.available()), ("plan mlp --machine", machines.presets()), ("train", models.available()),
     ("train mlp --data", data.available()), ("train mlp --optimizer", optimizers.available()),
     ("train mlp --schedule", rates.available()), ("plan mlp --dtype", models.DTYPES),
     ("plan mlp --search", (*searches.available(), *plans())), ("plan mlp --seeds", plans()), ("list", KINDS),
     ("plan mlp --objective", ("time", "latency", "memory")), ("checkpoint", ("ls", "verify", "export")),
     ("plan mlp --recompute", ("none", "selective", "full", "parameters")), ("launch -n 2", COMMANDS),
     ("launch -n 2 train mlp --data", data.available()), ("plan mlp --out", ()), ("explain", ()),
     ("train --steps", ())],
)  # fmt: skip
def test_names_are_completed_where_they_may_stand(words, offered, completed):
    """Else names of files are, as bash does where nothing is offered."""
    assert completed("castile", *words.split(), "") == [*offered]


def test_it_is_printed(capsys):
    assert main(["completion"]) == 0
    assert capsys.readouterr().out == script() + "\n"
    assert script().endswith("complete -o default -F _castile castile")
