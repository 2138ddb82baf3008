"""Options that several commands take: how they are written on the command line and shown in its help.

It does not know commands, nor what is done with the values. An option that is not given is "" or None.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Annotated, Any, Literal, Optional, TypeVar, get_args, get_origin, get_type_hints

import tyro

from castile.launch.processes.ranks import UserError
from castile.runtime.strict import suggestion

T = TypeVar("T")

_NUMBERS: dict[type, str] = {int: "a whole number", float: "a number"}
# What tyro marks a word that is known by its place with has no name.
(_PLACED,) = tyro.conf.Positional[int].__metadata__  # type: ignore[attr-defined]


def _arg(metavar: str) -> object:
    # The words of each option say its default where "" or None would tell nothing.
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
ModelOrPlan = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL|FILE")]
Machine = Annotated[str, tyro.conf.arg(metavar="MACHINE")]
MachineOrOwn = Annotated[str, tyro.conf.arg(metavar="MACHINE", help_behavior_hint="")]
Search = Annotated[str, tyro.conf.arg(metavar="NAME")]
SearchOrOwn = Annotated[str, _arg("NAME")]
BudgetOrOwn = Annotated[str, _arg("N|TIME")]
Data = Annotated[str, _arg("DATA")]
Optimizer = Annotated[str, _arg("OPTIMIZER")]
Schedule = Annotated[str, _arg("SCHEDULE")]
Patterns = Annotated[str, _arg("PATTERNS")]
RecomputeOrOwn = Annotated[str, _arg("none|selective|N%|full|parameters|PATTERNS")]
File = Annotated[str, _arg("FILE")]
Folder = Annotated[str, _arg("DIR")]
Which = Annotated[str, tyro.conf.arg(metavar="held_out|train|all")]
# For `int | None` tyro asks typeguard, which takes a twentieth of a short training to import.
Count = Annotated[Optional[int], _arg("N")]  # noqa: UP045
Rate = Annotated[Optional[float], _arg("RATE")]  # noqa: UP045
Norm = Annotated[Optional[float], _arg("NORM")]  # noqa: UP045
Dtype = Annotated[str, tyro.conf.arg(metavar="DTYPE")]
DtypeOrOwn = Annotated[str, _arg("DTYPE")]
Number = Annotated[int, tyro.conf.arg(metavar="N")]


def read(form: type[T], prog: str, args: Sequence[str], default: T | None = None, can_deny: bool = False) -> T:
    """The command of dataclass `form` that is in these words; what they leave open is as in `default`.

    can_deny   whether --no-x is an option too where x is a switch, for what else a default would have switched on
    Raises UserError in one sentence for words that make no such command; `--help` raises SystemExit.
    """
    _check(arguments_of(form, can_deny), prog, args)
    config = () if can_deny else (tyro.conf.FlagCreatePairsOff,)
    if default is None:
        return tyro.cli(form, prog=prog, args=list(args), config=config)
    return tyro.cli(form, prog=prog, args=list(args), config=config, default=default)


@dataclass(frozen=True)
class Argument:
    """What a command takes: an option, by the flags that it may be typed as, or without any a word known by its place.

    metavar   what stands for its value in the help, "" for a switch, which has none
    kind      of its value: int, float or str
    choices   the values that there are, none where any text will do
    """

    flags: tuple[str, ...]
    metavar: str
    kind: type
    choices: tuple[str, ...]
    is_needed: bool
    is_many: bool


def arguments_of(form: Any, can_deny: bool = False) -> list[Argument]:
    """All that a command of dataclass `form` takes, in the order of its fields; `can_deny` as for `read`."""
    hints = get_type_hints(form, include_extras=True)
    return [_argument(field, hints[field.name], can_deny) for field in fields(form)]


def _argument(field: Field[Any], hint: Any, can_deny: bool) -> Argument:
    bare, *marks = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    said = [mark for mark in marks if hasattr(mark, "metavar")]
    choices = get_args(bare) if get_origin(bare) is Literal else ()
    metavar = next((mark.metavar for mark in said if mark.metavar), "|".join(choices))
    kind = next((kind for kind in _NUMBERS if kind in (bare, *get_args(bare))), str)
    name = next((mark.name for mark in said if mark.name), field.name.replace("_", "-"))
    flags = [f"--{name}", *(alias for mark in said for alias in mark.aliases or ())]
    if bare is bool and can_deny:
        flags.append(f"--no-{name}")
    if _PLACED in marks:
        flags = []
    return Argument(tuple(flags), metavar, kind, choices, field.default is MISSING, get_origin(bare) is tuple)


def _check(takes: Sequence[Argument], prog: str, args: Sequence[str]) -> None:
    """Raises UserError where tyro would find a fault, and tell of it in a box; what follows --help is not looked at."""
    known = {flag: taken for taken in takes for flag in taken.flags}
    places, given = [taken for taken in takes if not taken.flags], set()
    words, only_places = iter(args), False
    for word in words:
        if only_places or not word.startswith("-"):
            if not places:
                raise UserError(f"{prog} has no place for {word!r}; `{prog} --help` tells what it takes")
            taken = places[0] if places[0].is_many else places.pop(0)
            _check_value(taken, prog, word)
        elif word == "--":
            only_places = True
            continue
        elif word in ("-h", "--help"):
            return
        else:
            typed, value = _parted(word, known)
            if (flag := typed.replace("_", "-")) not in known:
                raise UserError(_unknown(typed, flag, takes, prog))
            taken = known[flag]
            _check_value(taken, typed, next(words, None) if taken.metavar and value is None else value)
        given.add(taken)
    if missing := [taken for taken in takes if taken.is_needed and not taken.is_many and taken not in given]:
        missed = " and ".join(" ".join([*taken.flags[:1], taken.metavar]) for taken in missing)
        raise UserError(f"{prog} needs {missed}; `{prog} --help` tells what it takes")


def _unknown(typed: str, flag: str, takes: Sequence[Argument], prog: str) -> str:
    """What is said of an option, as it was typed and as a flag, that the command does not have."""
    if place := next((one for one in takes if not one.flags and flag[2:].upper() in one.metavar.split("|")), None):
        return f"{prog} has no option {typed}: give {place.metavar} by itself; `{prog} --help` tells what it takes"
    near = suggestion(flag, sorted(["--help", *(flag for one in takes for flag in one.flags)]))
    return f"{prog} has no option {typed}{near}; `{prog} --help` lists them"


def _parted(word: str, known: Container[str]) -> tuple[str, str | None]:
    """An option as it was typed, and what was typed with it in the same word: -n4, --steps=4."""
    if word[:2] in known and word[2:]:
        return word[:2], word[2:].removeprefix("=")
    typed, equals, value = word.partition("=")
    return typed, value if equals else None


def _check_value(taken: Argument, who: str, value: str | None) -> None:
    """Raises UserError for a value that the option or the place `who` cannot have."""
    if not taken.metavar:
        if value is not None:
            raise UserError(f"{who} is a switch and has no value: leave {value!r} out")
        return
    if value is None or (value.startswith("-") and taken.flags and not _is(float, value)):
        raise UserError(f"{who} needs {taken.metavar} after it")
    if taken.kind in _NUMBERS and not _is(taken.kind, value):
        raise UserError(f"{who} {value}: give {_NUMBERS[taken.kind]}")
    if taken.choices and value not in taken.choices:
        raise UserError(f"{who}: {value!r} is none of {', '.join(taken.choices)}")


def _is(kind: type, value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True
