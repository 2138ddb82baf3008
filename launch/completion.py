"""`castile completion`: what a shell runs to complete command lines of castile.

It does not know commands, options and names: they are found as the command line finds them.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from castile.launch import data, models
from castile.launch.__main__ import commands
from castile.launch.processes import ranks
from castile.launch.reports.catalogue import KINDS
from castile.launch.typed import optimizers, options, rates
from castile.launch.typed.options import Argument
from castile.planner import searches
from castile.planner.known.described import described
from castile.runtime import machine as machines


@dataclass(frozen=True)
class Completion:
    """Print what bash, or zsh with bashcompinit, runs to complete command lines: `source <(castile completion)`."""


COMMAND = Completion

# `at` is where the command stands of the line that is typed at: what `launch` starts has options of its own. Where no
# word is found, names of files are.
_SCRIPT = """\
_castile() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} at=1 n words=
    local commands={commands}
    if [[ ${{COMP_WORDS[1]}} == launch ]]; then
        for ((n = 2; n < COMP_CWORD; n++)); do
            [[ " $commands " == *" ${{COMP_WORDS[n]}} "* ]] && at=$n && break
        done
    fi
    if ((COMP_CWORD == 1)); then
        words=$commands
    else
        case "${{COMP_WORDS[at]}} $before" in
{values}
        *)
            case "${{COMP_WORDS[at]}} $current" in
{options}
{places}
            esac
            ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _castile castile"""


def run(command: Completion) -> int:
    """Print the script, rank 0 alone."""
    if not ranks.silent():
        print(script())
    return 0


def script() -> str:
    """The function `_castile` of bash, and that it completes what begins with castile."""
    modules = {name: importlib.import_module(f"castile.launch.{name}") for name in commands()}
    taken = {name: options.arguments_of(module.COMMAND) for name, module in modules.items()}
    values = (
        _case(8, [f"{name} {flag}" for flag in one.flags], _values(one))
        for name, every in taken.items()
        for one in every
        if one.metavar and one.flags
    )
    places = (
        _case(12, [name], [word for one in every if not one.flags for word in _values(one)], "*")
        for name, every in taken.items()
    )
    flags = (
        _case(12, [name], ["--help", *(flag for one in every for flag in one.flags)], "-*")
        for name, every in taken.items()
    )
    return _SCRIPT.format(
        commands=shlex.quote(" ".join(commands())),
        values="\n".join(values),
        options="\n".join(flags),
        places="\n".join(places),
    )


def _case(indent: int, of: Iterable[str], words: Iterable[str], rest: str = "") -> str:
    """A branch for these words, before what else is typed."""
    pattern = "|".join(shlex.quote(one + " " * bool(rest)) + rest for one in of)
    return f"{' ' * indent}{pattern}) words={shlex.quote(' '.join(words))} ;;"


def _values(taken: Argument) -> list[str]:
    """The words that may stand there, those of its choices, as far as they are known; none for files and numbers."""
    return [word for part in taken.metavar.split("|") for word in _known(part)]


def _known(part: str) -> Iterator[str]:
    """By what stands in the help for a value: a choice itself, or the names that there are."""
    if part in _NAMES:
        yield from _NAMES[part]()
    elif re.fullmatch("[a-z_]+", part):
        yield part


def plans() -> tuple[str, ...]:
    """Known plans that have names of their own."""
    return tuple(name for name in described() if name.islower())


# What may stand for a value, by what stands for it in the help.
_NAMES: dict[str, Callable[[], tuple[str, ...] | list[str]]] = {
    "MODEL": models.available,
    "MACHINE": machines.presets,
    "DATA": data.available,
    "OPTIMIZER": optimizers.available,
    "SCHEDULE": rates.available,
    "DTYPE": lambda: models.DTYPES,
    "NAME": lambda: (*searches.available(), *plans()),
    "NAMES": plans,
    "KIND": lambda: tuple(KINDS),
    "COMMAND...": lambda: tuple(commands()),
}
