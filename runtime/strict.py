"""Strict reading of files that users hand in: unknown and duplicate keys are refused, errors name field and file.

It does not know what the files are about; the caller's msgspec type says that.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

# Shorter words stand in many names.
LEAST_HELD = 3
# So many names are told where none is near.
MOST_NAMES = 8
# Below this every whole number is one with a point, too.
MOST_EXACT = 2.0**53
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_TYPES = re.compile(r"`(\w+(?: \| \w+)*)`")
# Of the decoder's types, in the words of those who write such files; what may be left out is no type of its own.
_WORDS = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "array": "a list",
    "object": "a table", "null": "nothing",
}  # fmt: skip
_PLACED = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)


def from_toml(data: bytes, form: type[T], source: str) -> T:
    """The value of type `form` in a TOML file's bytes. Raises ValueError in one sentence that begins with `source`."""
    try:
        # some editors begin a file with a mark of its bytes' order
        tree = tomllib.loads(data.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} is not TOML: {error}") from error
    return convert(_with_whole_numbers(tree), form, source)


def from_json(data: bytes | str, form: type[T], source: str) -> T:
    """The value of type `form` in JSON text. Raises ValueError in one sentence that begins with `source`."""
    try:
        tree = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is not JSON: {error}") from error
    return convert(tree, form, source)


def convert(tree: Any, form: type[T], source: str) -> T:
    """The plain tree (dicts, lists, numbers, texts) as a value of type `form`, checked field by field.

    Raises ValueError in one sentence that begins with `source`.
    """
    try:
        return msgspec.convert(tree, form)
    except msgspec.ValidationError as error:
        raise ValueError(f"{source}: {_explain(str(error), form)}") from error


def suggestion(word: str, known: list[str]) -> str:
    """ " (did you mean 'x'?)" for the known word nearest to `word`, or "" where none is near: any sentence goes on.

    Nearest is the shortest that holds the word, capitals or not: who types h100 means dgx-h100 rather than h200.
    """
    typed, folded = word.lower(), {name.lower(): name for name in reversed(known)}
    holding = sorted((key for key in folded if len(typed) >= LEAST_HELD and typed in key), key=len)
    near = holding or difflib.get_close_matches(typed, folded, n=1)
    return f" (did you mean {folded[near[0]]!r}?)" if near else ""


def hint(word: str, known: list[str]) -> str:
    """`suggestion`, or where none is near the first few of those that there are."""
    more = ", ..." if len(known) > MOST_NAMES else ""
    return suggestion(word, known) or f"; there are {', '.join(known[:MOST_NAMES])}{more}"


def _with_whole_numbers(tree: Any) -> Any:
    """The tree of a TOML file with numbers that are whole, as 80e9, as such: who reads a number takes these too."""
    if isinstance(tree, dict):
        return {key: _with_whole_numbers(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_whole_numbers(value) for value in tree]
    return int(tree) if isinstance(tree, float) and tree.is_integer() and abs(tree) < MOST_EXACT else tree


class _Duplicate(ValueError):
    """A key that occurs twice in one JSON object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _Duplicate(f"key {next(k for k in keys if keys.count(k) > 1)!r} occurs twice in one object")
    return tree


def _explain(message: str, form: Any) -> str:
    """The decoder's message with the field's full path in front: `level[0].latency: expected a number`."""
    if unknown := _UNKNOWN.fullmatch(message):
        field, place = unknown["field"], (unknown["path"] or "$").removeprefix("$").lstrip(".")
        among = sorted(_fields(form, place))
        return f"unknown field {'.'.join(filter(None, (place, field)))!r}{hint(field, among)}"
    placed = _PLACED.fullmatch(message)
    assert placed is not None
    path = (placed["path"] or "$").removeprefix("$").lstrip(".")
    if missing := _MISSING.fullmatch(placed["what"]):
        return f"the field {'.'.join(filter(None, (path, missing['field'])))!r} is missing"
    what = _TYPES.sub(_worded, placed["what"]).replace("`", "")
    return f"{path}: {what[0].lower()}{what[1:]}" if path else f"{what[0].lower()}{what[1:]}"


def _worded(types: re.Match[str]) -> str:
    """`float | null` as `a number`; words that are no types stay."""
    names = types[1].split(" | ")
    asked = [name for name in names if name != "null"] or names
    return " or ".join(_WORDS.get(name, name) for name in asked)


def _fields(form: Any, place: str) -> set[str]:
    """The names of the fields of what stands at a place of a type, as in `level[0].share`."""
    structs = _structs(msgspec.inspect.type_info(form))
    for name in re.findall(r"\w+(?=[.\[]|$)", re.sub(r"\[[^\]]*\]", "", place)):
        structs = [s for one in structs for f in one.fields if f.encode_name == name for s in _structs(f.type)]
    return {field.encode_name for one in structs for field in one.fields}


def _structs(info: Any) -> list[Any]:
    """What a type has of objects with fields: itself, or items and alternatives of it."""
    if hasattr(info, "fields"):
        return [info]
    inner = [getattr(info, part) for part in ("item_type", "value_type") if hasattr(info, part)]
    inner += [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
    return [found for one in inner for found in _structs(one)]
