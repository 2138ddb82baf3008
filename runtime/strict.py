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
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_PLACED = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)


def from_toml(data: bytes, form: type[T], source: str) -> T:
    """The value of type `form` in a TOML file's bytes. Raises ValueError in one sentence that begins with `source`."""
    try:
        tree = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} is not TOML: {error}") from error
    return convert(tree, form, source)


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
        field = unknown["field"]
        path = ".".join(part for part in ((unknown["path"] or "$").removeprefix("$").lstrip("."), field) if part)
        return f"unknown field {path!r}" + suggestion(field, sorted(_fields(form)))
    placed = _PLACED.fullmatch(message)
    assert placed is not None
    path = (placed["path"] or "$").removeprefix("$").lstrip(".")
    what = placed["what"].replace("`", "")
    return f"{path}: {what[0].lower()}{what[1:]}" if path else f"{what[0].lower()}{what[1:]}"


def _fields(form: Any) -> set[str]:
    """The names of all fields of a type and of the types within it."""
    names: set[str] = set()
    queue, seen = [msgspec.inspect.type_info(form)], set()
    while queue:
        info = queue.pop()
        if id(info) in seen:
            continue
        seen.add(id(info))
        for field in getattr(info, "fields", ()):
            names.add(field.encode_name)
            queue.append(field.type)
        queue += getattr(info, "types", ()) + getattr(info, "item_types", ())
        queue += [getattr(info, part) for part in ("item_type", "value_type") if hasattr(info, part)]
    return names
