"""Everything that has a name: models, machines, data sets, optimizers, schedules, searches and known plans, with their
settings, as the code has them.

It does not know who reads it: `castile list` shows it, and the tables of the README are written from it.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from castile.launch import data, models
from castile.launch.typed import optimizers, rates
from castile.planner import op as ops
from castile.planner import searches
from castile.planner.known.described import described
from castile.runtime import machine as machines

# What the settings of machines say.
SIZES = {"nodes": "how many nodes, all alike", "procs": "how many processors: of a node, or shares of a device"}


@dataclass(frozen=True)
class Entry:
    """Something that has a name.

    what       what it is, in a clause
    settings   each with its default, "", None or 0 where that is left open
    notes      descriptions of some settings
    gives      what a model makes of its inputs, or a sample is
    figures    further figures, for programs
    """

    name: str
    what: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    gives: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


def _models() -> Iterator[Entry]:
    return map(_model, models.available())


def _model(name: str) -> Entry:
    module = models.module_of(name)
    settings = _defaults(module.build, ("batch", "dtype", "training"))
    return Entry(name, clause(docstring(module)), settings, notes_of(module.build), docstring(module.build))


def _machines() -> Iterator[Entry]:
    for name in machines.presets():
        lines = (machines.PRESETS / f"{name}.toml").read_text(encoding="utf-8").splitlines()
        comment = " ".join(line[1:].strip() for line in lines[: next(n for n, x in enumerate(lines) if x[:1] != "#")])
        named = re.search(r"Sources(?: besides)?: (.*?)\.(?: Rates| The|$)", comment)
        settings = machines.settings_of(name)
        said = {key: SIZES[key] for key in settings}
        yield Entry(name, clause(comment), settings, said, figures=_figures(name, settings, named[1] if named else ""))


def _figures(name: str, settings: Mapping[str, int], sources: str) -> dict[str, Any]:
    """What a machine has: links within a node and, where there may be several, between two."""
    one, two = (machines.parse(f"{name}:nodes={n}" if "nodes" in settings else name) for n in (1, 2))
    return {
        "num_procs_per_node": one.num_procs,
        "processor": one.processors[0].kind,
        "memory_bytes": one.processors[0].memory_bytes,
        "flops_per_second": one.processors[0].flops_rate("float32"),
        "link_bytes_per_second": {level.name: level.bytes_per_second for level in two.levels},
        "sources": sources,
    }


def _data() -> Iterator[Entry]:
    for name in data.available():
        module = importlib.import_module(f"castile.launch.data.{name}")
        settings = _defaults(module.load, data.RESERVED)
        yield Entry(name, first(module), settings, notes_of(module.load), docstring(module.load))


def _optimizers() -> Iterator[Entry]:
    for name in optimizers.available():
        kind = ops.find(name)
        yield Entry(name, first(sys.modules[kind.__module__]), _defaults(kind))


def _schedules() -> Iterator[Entry]:
    for name in rates.available():
        function = rates.parse(name).function
        yield Entry(name, sentence(docstring(function)), _defaults(function, ("step", "num_steps")))


def _searches() -> Iterator[Entry]:
    for name in searches.available():
        module = importlib.import_module(f"castile.planner.searches.{name}")
        yield Entry(name, first(module), figures={"budget": module.BUDGET})


def _plans() -> Iterator[Entry]:
    for name, what in described().items():
        yield Entry(name, sentence(what))


# What has names, by the word for several of a kind.
KINDS: dict[str, Callable[[], Iterator[Entry]]] = {
    "models": _models, "machines": _machines, "data": _data, "optimizers": _optimizers, "schedules": _schedules,
    "searches": _searches, "plans": _plans,
}  # fmt: skip


def facts(kind: str) -> list[dict[str, Any]]:
    """The entries of a kind for programs: defaults as they are typed, "" where they are left open."""
    return [_facts(one) for one in KINDS[kind]()]


def _facts(one: Entry) -> dict[str, Any]:
    settings = [
        {"name": name, "default": typed(name, value).partition("=")[2], "what": one.notes.get(name, "")}
        for name, value in one.settings.items()
    ]
    return {"name": one.name, "what": one.what, "gives": one.gives, "settings": settings, **one.figures}


def model(text: str) -> dict[str, Any]:
    """A model that the user names, which may be a file, with the parameters that it has by its settings.

    Raises ValueError as `models.parse` does.
    """
    return _facts(_model(models.parse(text).name)) | {"name": text, "num_params": num_params(text)}


def num_params(text: str) -> int:
    """The parameters of a model as it is planned."""
    return sum(prod(t.shape) for t in models.parse(text).graph(2).params)


def notes_of(function: Callable[..., Any]) -> dict[str, str]:
    """The descriptions of settings in a function's docstring, from its lines `setting   words`; indented lines continue
    one.
    """
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if begin := re.match(r"(\w+(?:, \w+)*)(?:   +|: )(\S.*)", line):
            names = [name for name in begin[1].split(", ") if name in inspect.signature(function).parameters]
            found.update(dict.fromkeys(names, begin[2]))
        elif line.startswith("   "):
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
        else:
            names = []
    return found


def typed(name: str, value: Any) -> str:
    """A setting with its default as a user types it; only its name where the default is open."""
    if value in ("", None) or (type(value) is int and value == 0):
        return name
    return f"{name}={str(value).lower() if type(value) is bool else f'{value:g}' if type(value) is float else value}"


def docstring(thing: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def first(module: Any) -> str:
    """The first sentence of a module."""
    return sentence(docstring(module))


def sentence(text: str, ends: str = ".") -> str:
    """A text up to its first full stop that is in no bracket."""
    depth = 0
    for n, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and letter in ends and text[n + 1 : n + 2] in (" ", ""):
            return text[:n]
    return text


def clause(text: str) -> str:
    """A text up to its first stop of any kind."""
    return sentence(text, ".:;")


def _defaults(function: Callable[..., Any], reserved: Iterable[str] = ()) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in set(reserved)}
