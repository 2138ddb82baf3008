"""Run files: every option of a command as a key of a TOML file, read strictly and written again resolved.

    castile train run.toml --lr 0.1         the file's options, but for those on the command line

Paths mean what they mean on the command line. It does not know what the options are for; the command's dataclass says.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from castile.launch.here.leader import communicator, from_leader
from castile.launch.processes.ranks import UserError
from castile.launch.typed import files, options
from castile.runtime.strict import convert

T = TypeVar("T")

SUFFIX = ".toml"


def parse(form: type[T], prog: str, args: Sequence[str], of: type[Any] | None = None, keys: Sequence[str] = ()) -> T:
    """The command of dataclass `form` made from words, where its `model` may name a run file that says the rest.

    of, keys   the command that run files are of, where it is another, and what is taken from them
    All ranks call it; the file is read by rank 0. Raises ValueError or UserError in one sentence for a faulty file.
    """
    # what a file switches on, the command line can switch off
    typed = options.read(form, prog, args, can_deny=True)
    path = typed.model  # type: ignore[attr-defined]
    if not path.endswith(SUFFIX):
        return typed
    content = from_leader(communicator(), lambda: _bytes(path))
    given: Any = read(content, of or form, f"run file {path}")
    if of is not None:
        given = form(**{key: getattr(given, key) for key in keys})
    given = replace(given, **_given_way(form, typed))
    # what the file says takes the place of the defaults, so that any word of the command line goes before it
    again = options.read(form, prog, args, default=given, can_deny=True)
    return replace(again, model=given.model)


def _given_way(form: type[T], typed: T) -> dict[str, Any]:
    """What the file says of options that the typed ones stand instead of, as if it did not."""
    defaults = {f.name: f.default for f in fields(form)}  # type: ignore[arg-type]
    pairs: Iterable[tuple[str, str]] = getattr(form, "INSTEAD", ())
    both = (names for pair in pairs for names in (pair, pair[::-1]))
    return {other: defaults[other] for name, other in both if getattr(typed, name) != defaults[name]}


def read(data: bytes, form: type[T], source: str) -> T:
    """The command in a run file's bytes. Raises ValueError in one sentence that begins with `source`."""
    try:
        # some editors begin a file with a mark of its bytes' order
        tree = tomllib.loads(data.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} is not TOML: {error}") from error
    hints = get_type_hints(form)
    tree = {key: _as_word(value, hints.get(key)) for key, value in _with_underscores(tree, source).items()}
    entries = [_entry(f, hints[f.name]) for f in fields(form)]  # type: ignore[arg-type]
    found = convert(tree, msgspec.defstruct("Options", entries, forbid_unknown_fields=True), source)
    return form(**msgspec.structs.asdict(found))


def text(command: Any, without: Sequence[str] = ()) -> str:
    """The command as a run file, but for options that were not given and those named in `without`."""
    words = {name: _written(value) for name, value in given(command, without).items()}
    return "".join(f"{name} = {word}\n" for name, word in words.items())


def write(paths: Iterable[Path], command: Any, without: Sequence[str], warn: Callable[[str], None]) -> None:
    """Write the command as run files; `warn` is told of what cannot be, as no training ends for it."""
    for path in paths:
        try:
            files.write(path, text(command, without).encode())
        except UserError as error:
            warn(f"{error}; training goes on without this file")


def given(command: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """The options of a command that say something."""
    values = {f.name: getattr(command, f.name) for f in fields(command) if f.name not in without}
    return {name: value for name, value in values.items() if value not in (None, "") and value is not False}


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"run file {path}: {error.strerror}") from error


def _with_underscores(tree: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The tree with names as Python writes them: checkpoint-every is checkpoint_every."""
    written: dict[str, str] = {}
    for key in tree:
        first = written.setdefault(key.replace("-", "_"), key)
        if first != key:
            raise ValueError(f"{source}: {first!r} and {key!r} are one option, given twice")
    return {name: tree[key] for name, key in written.items()}


def _as_word(value: Any, hint: Any) -> Any:
    """A number where the option takes a word, such as a budget, as that word."""
    return str(value) if hint is str and type(value) in (int, float) else value


def _entry(field: Field[Any], hint: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    return (field.name, hint) if field.default is MISSING else (field.name, hint, field.default)


def _written(value: Any) -> str:
    # JSON's words for texts, numbers and truth are TOML's, but for one control character
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
