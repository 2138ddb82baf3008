"""Options that several commands take: how they are written on the command line and shown in its help.

It does not know commands, nor what is done with the values. An option that is not given is "" or None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import takewhile
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import tyro

from castile.launch.ranks import UserError
from castile.runtime.strict import suggestion

T = TypeVar("T")

_NUMBERS: dict[type, str] = {int: "a whole number", float: "a number"}


def _arg(metavar: str) -> object:
    # The words of each option say its default where "" or None would tell nothing.
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
ModelOrPlan = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL|FILE")]
Machine = Annotated[str, tyro.conf.arg(metavar="MACHINE")]
Search = Annotated[str, tyro.conf.arg(metavar="NAME")]
Budget = Annotated[str, tyro.conf.arg(metavar="N|TIME")]
BudgetOrOwn = Annotated[str, _arg("N|TIME")]
Data = Annotated[str, _arg("DATA")]
Optimizer = Annotated[str, _arg("OPTIMIZER")]
Schedule = Annotated[str, _arg("SCHEDULE")]
Patterns = Annotated[str, _arg("PATTERNS")]
File = Annotated[str, _arg("FILE")]
Folder = Annotated[str, _arg("DIR")]
Count = Annotated[int | None, _arg("N")]
Rate = Annotated[float | None, _arg("RATE")]
Norm = Annotated[float | None, _arg("NORM")]
Dtype = Annotated[str, tyro.conf.arg(metavar="DTYPE")]
Number = Annotated[int, tyro.conf.arg(metavar="N")]


def read(form: type[T], prog: str, args: Sequence[str], default: T | None = None, can_deny: bool = False) -> T:
    """The command of dataclass `form` that is in these words; what they leave open is as in `default`.

    can_deny   whether --no-x is an option too where x is a switch, for what else a default would have switched on
    Raises UserError in one sentence for an option that the command does not have, and for a value that is not the
    number it should be; any other fault of usage, and `--help`, raises SystemExit.
    """
    known = {"--help": str, **dict(_flags(form, can_deny))}
    words = list(takewhile(lambda word: word != "--", args))
    for word, after in zip(words, [*words[1:], ""]):
        typed, equals, value = word.partition("=")
        flag = typed.replace("_", "-")
        if flag.startswith("--") and flag not in known:
            near = suggestion(flag, sorted(known))
            raise UserError(f"{prog} has no option {typed}{near}; `{prog} --help` lists them")
        _check_number(flag, known.get(flag, str), value if equals else after)
    config = () if can_deny else (tyro.conf.FlagCreatePairsOff,)
    if default is None:
        return tyro.cli(form, prog=prog, args=list(args), config=config)
    return tyro.cli(form, prog=prog, args=list(args), config=config, default=default)


def _flags(form: type, can_deny: bool) -> Iterator[tuple[str, type]]:
    """The options of a command as they are typed, each with what its value is: a whole number, a number, or text."""
    hints, bare = get_type_hints(form, include_extras=True), get_type_hints(form)
    for field in fields(form):
        marks: tuple[Any, ...] = getattr(hints[field.name], "__metadata__", ())
        name = next((mark.name for mark in marks if getattr(mark, "name", None)), field.name.replace("_", "-"))
        kinds = (bare[field.name], *get_args(bare[field.name]))
        kind = next((kind for kind in _NUMBERS if kind in kinds), str)
        for typed in (f"--{name}", *(alias for mark in marks for alias in getattr(mark, "aliases", None) or ())):
            yield typed, kind
        if can_deny and field.type in (bool, "bool"):
            yield f"--no-{name}", str


def _check_number(flag: str, kind: type, value: str) -> None:
    """Raises UserError where a number is meant and none is given; no word at all is told with the help."""
    if kind in _NUMBERS and value and not value.startswith("--"):
        try:
            kind(value)
        except ValueError as error:
            raise UserError(f"{flag} {value}: give {_NUMBERS[kind]}") from error
