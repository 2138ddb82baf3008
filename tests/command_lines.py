"""The options of each command, as the code has them: how they are written, their defaults, and what they say they do.

It does not know what they change.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tyro

from castile.launch.__main__ import commands

COMMANDS = tuple(commands())


@dataclass(frozen=True)
class Option:
    """An option of a command.

    field     of the command's dataclass
    flag      as it is typed, "" for a word that is known by its place
    metavar   what stands for its value, "" for a switch
    default   MISSING where the user has to give it; "", None and () where it is left open
    help      what it says in --help
    """

    field: str
    flag: str
    metavar: str
    default: Any
    help: str

    def __str__(self) -> str:
        """As a user types it, with its default in the place of the value where it has one that says something."""
        return self.typed if self.default is MISSING or self.is_open else f"{self.flag} {self.default}"

    @property
    def typed(self) -> str:
        """As a user types it, without its default."""
        return " ".join(word for word in (self.flag, self.metavar) if word)

    @property
    def is_open(self) -> bool:
        """Whether its default is no value: it is off, or decided by something else."""
        return self.default in ("", None, ()) or not self.metavar


def module_of(command: str) -> ModuleType:
    return importlib.import_module(f"castile.launch.{command}")


@cache
def options_of(command: str) -> tuple[Option, ...]:
    """The options of a command in the order of its dataclass."""
    form = module_of(command).COMMAND
    hints, helps = get_type_hints(form, include_extras=True), _helps(form)
    return tuple(_option(field.name, hints[field.name], field.default, helps[field.name]) for field in fields(form))


def _option(name: str, hint: Any, default: Any, text: str) -> Option:
    bare, *marks = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    # Aliases stand in the marks as the option's own name does, where it cannot be the field's.
    said = [mark for mark in marks if hasattr(mark, "metavar")]
    written = next((mark.name for mark in said if mark.name), name.replace("_", "-"))
    flag = "" if any(mark is tyro.conf.Positional[int].__metadata__[0] for mark in marks) else f"--{written}"
    metavar = next((mark.metavar for mark in said if mark.metavar), "") or _metavar(bare)
    return Option(name, flag, metavar, default, text)


def _metavar(bare: Any) -> str:
    """What tyro writes for a value where nothing else is said."""
    if bare is bool:
        return ""
    return "|".join(get_args(bare)) if get_origin(bare) is Literal else bare.__name__.upper()


def _helps(form: type) -> dict[str, str]:
    """The text below each field of a dataclass, in one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(form))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found
