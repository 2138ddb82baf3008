"""Names with settings, as a user types them: `gpt:layers=4,width=128` is a name and what to call its function with.

It does not know what the names stand for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from types import NoneType
from typing import Any, get_args, get_type_hints

from castile.runtime.strict import suggestion

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def split(text: str) -> tuple[str, dict[str, str]]:
    """The name and the settings of NAME or NAME:key=value,key=value. Raises ValueError where it is not of that form.

    What follows a comma and has no = goes on with the value before it, as in a file's name.
    """
    name, colon, given = text.partition(":")
    said = list[str]()
    for piece in given.split(",") if colon else []:
        if said and "=" not in piece and piece:
            said[-1] += f",{piece}"
        else:
            said.append(piece)
    pieces = [piece.partition("=") for piece in said]
    for key, equals, value in pieces:
        if not (key.isidentifier() and equals and value):
            raise ValueError(
                f"{text!r}: settings are written name:key=value,key=value, and {key + equals!r} is not one"
            )
    keys = [key for key, _, _ in pieces]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise ValueError(f"{text!r}: setting {twice[0]!r} is given twice")
    return name, {key: value for key, _, value in pieces}


def joined(name: str, given: Mapping[str, object]) -> str:
    """The text that `split` takes apart so."""
    return f"{name}:{','.join(f'{key}={value}' for key, value in given.items())}" if given else name


def names(function: Callable[..., Any], reserved: Iterable[str] = ()) -> dict[str, Any]:
    """The settings of a function: its parameters with the types of their hints, but those that are reserved.

    One that may be None, which leaves it open, is given as what it is otherwise; one without a hint is of its default's
    type where that is a number or a truth, else text.
    """
    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    plain = {p: type(one.default) if type(one.default) in (int, float, bool) else str for p, one in parameters.items()}
    return {p: _without_none(hints.get(p, plain[p])) for p in parameters if p not in set(reserved)}


def _without_none(hint: Any) -> Any:
    """The type of a hint without None."""
    return next(kind for kind in get_args(hint) if kind is not NoneType) if NoneType in get_args(hint) else hint


def typed(
    function: Callable[..., Any], given: Mapping[str, str], who: str, reserved: Iterable[str] = ()
) -> dict[str, Any]:
    """`given` as values for the keyword parameters of `function`, by their type hints: int, float, bool or str.

    reserved   parameters that are not settings
    Raises ValueError in the words of `who` for a setting that is unknown or not of its type.
    """
    known = names(function, reserved)
    for key in given:
        if key not in known:
            among = ", ".join(sorted(known)) or "none"
            raise ValueError(f"{who} has no setting {key!r}{suggestion(key, sorted(known))}; its settings: {among}")
    return {key: _value(known[key], text, f"{who}: setting {key!r}") for key, text in given.items()}


def _value(kind: Any, text: str, who: str) -> Any:
    try:
        value = _TRUTH[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError) as error:
        names = {bool: "true or false", int: "a whole number", float: "a number"}
        raise ValueError(f"{who} should be {names.get(kind, kind)}, got {text!r}") from error
    # Whoever takes it compares it with bounds, and no comparison refuses nan.
    if kind is float and not isfinite(value):
        raise ValueError(f"{who} should be a finite number, got {text!r}")
    return value
