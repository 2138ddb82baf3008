"""`castile list`: what there is by name, and the settings of each: models, machines, data sets and all else.

It does not know what is in the lists: `reports/catalogue.py` finds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from castile.launch.processes import ranks
from castile.launch.processes.ranks import UserError
from castile.launch.reports import catalogue, report
from castile.launch.reports.catalogue import KINDS
from castile.runtime.memory import written
from castile.runtime.strict import suggestion

Kind = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="KIND", help_behavior_hint="")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WHICH", help_behavior_hint="")]


@dataclass(frozen=True)
class List:
    """List what there is by name: models, machines, data sets, optimizers, schedules, searches and known plans."""

    kind: Kind = ""
    """What to list with a line for each: models, machines, data, optimizers, schedules, searches or plans; without it,
    the names of all."""
    name: Name = ""
    """One of that kind, to describe: its settings with their defaults, and for a model, which may have settings
    (gpt:size=124m) or be a file, its number of parameters."""
    json: bool = False
    """Print one JSON object."""


COMMAND = List


def run(command: List) -> int:
    """Look and tell, rank 0 alone. Raises UserError or ValueError for a name that there is not."""
    if ranks.silent():
        return 0
    facts = _facts(command)
    if command.json:
        print(json.dumps(facts, indent=2))
    elif not command.kind:
        _tell_all(facts)
    elif not command.name:
        _tell_kind(facts[command.kind])
    else:
        _tell_one(facts)
    return 0


def _facts(command: List) -> dict[str, Any]:
    """The entries by kind: of all, of one, or the one that is named by itself."""
    if command.kind and command.kind not in KINDS:
        near = suggestion(command.kind, [*KINDS])
        raise UserError(f"castile list: no kind {command.kind!r}{near}; there are {', '.join(KINDS)}")
    if command.kind == "models" and command.name:
        return catalogue.model(command.name)
    found = {kind: catalogue.facts(kind) for kind in ([command.kind] if command.kind else KINDS)}
    if not command.name:
        return found
    rows = {row["name"]: row for row in found[command.kind]}
    if command.name not in rows:
        near = suggestion(command.name, [*rows])
        raise UserError(f"castile list {command.kind}: there is no {command.name!r}{near}; there are {', '.join(rows)}")
    return rows[command.name]


def _tell_all(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    made = report.table("", "")
    made.show_header = False
    for kind, rows in found.items():
        made.add_row(kind, " ".join(row["name"] for row in rows))
    out = report.console()
    out.say_table(made, wraps=True)
    out.say("\n`castile list KIND` says what each is, `castile list KIND WHICH` which settings it has")


def _tell_kind(rows: Sequence[Mapping[str, Any]]) -> None:
    made = report.table("name", "what it is")
    for row in rows:
        made.add_row(row["name"], row["what"])
    report.console().say_table(made, wraps=True)


def _tell_one(row: Mapping[str, Any]) -> None:
    out = report.console()
    out.say(": ".join(filter(None, (row["name"], row["what"]))))
    for line in filter(None, [row["gives"], *_figures(row)]):
        out.say(line)
    if row["settings"]:
        made = report.table("setting", "default", "what it is")
        for setting in row["settings"]:
            made.add_row(setting["name"], setting["default"], setting["what"])
        out.say("")
        out.say_table(made, wraps=True)


def _figures(row: Mapping[str, Any]) -> list[str]:
    """What else there is to know, in lines."""
    lines = []
    if "num_params" in row:
        lines.append(f"{row['num_params']:,} parameters")
    if "budget" in row:
        lines.append(f"its own budget is {row['budget']} proposals")
    if "processor" in row:
        links = ", ".join(f"{name} {rate / 1e9:.4g} GB/s" for name, rate in row["link_bytes_per_second"].items())
        each = f"{written(row['memory_bytes'])} each, {report.rate(row['flops_per_second'])} in float32"
        lines.append(f"{report.counted(row['num_procs_per_node'], 'processor')} a node, {row['processor']}: {each}")
        lines.append(f"links: {links or 'none'}")
        lines += [f"figures from {row['sources']}"] * bool(row["sources"])
    return lines
