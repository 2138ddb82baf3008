"""`castile diff`: what two plans of a model do differently, and what that is worth.

It does not know why; `castile explain` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.table import Table

from castile.launch.explain import desk_of
from castile.launch.jobs import checks, offline
from castile.launch.jobs.offline import Desk
from castile.launch.processes.ranks import UserError
from castile.launch.reports import report
from castile.launch.reports.explanation_report import folded, shortened, signed, with_members
from castile.launch.typed import options
from castile.planner import strategy as strategies
from castile.planner.alternatives import differences
from castile.planner.graph import Node
from castile.planner.strategy import Config, Predicted, Strategy
from castile.runtime import memory

MOST_ROWS = 20
MOST_LETTERS = 80
# What plans are made for and with; a difference in one of these is told beside the nodes that moved.
SETTINGS = (
    "machine", "machine_name", "num_procs", "microbatches", "recompute", "bucket_bytes", "order", "ahead", "search",
    "seed", "cost_snapshot", "optimizer", "clip",
)  # fmt: skip
FIGURES = ("step_seconds", "peak_bytes", "moved_bytes")


@dataclass(frozen=True)
class Diff:
    """Compare two plans of a model: which nodes lie differently, and what that does to time and memory."""

    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    """A plan's file (JSON)."""
    b: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    """The plan file to compare it with."""
    machine: Annotated[str, tyro.conf.arg(metavar="MACHINE", help_behavior_hint="")] = ""
    """Simulate both on this machine (dgx-h100:nodes=2), by the same prices, and say what was fused into which node;
    without it, the predictions in their files are shown."""
    forward: bool = False
    """With --machine: only the forward pass of a step, as for plans that were found with `--objective latency`."""
    batch: options.Count = None
    """With --machine: samples a step; by default as many as the plans' files say, or the model's own."""
    profile: options.File = ""
    """With --machine: a profile database with measurements of it."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Diff


def run(command: Diff) -> int:
    """Read, compare, tell; rank 0 alone. Raises ValueError or UserError for a user's mistake."""
    checks.counts(batch=command.batch)
    if not command.machine:
        checks.only_with("machine", forward=command.forward, batch=command.batch, profile=command.profile)
    machine = offline.find_machine(command.machine) if command.machine else None
    if offline.is_silent(machine):
        return 0
    a, b = (strategies.read(path) for path in (command.a, command.b))
    if a.graph != b.graph:
        changed = "the same, which has changed between, or is of another dtype"
        apart = changed if a.made_for == b.made_for else b.made_for
        raise UserError(
            f"plans {command.a} and {command.b} are not of one model and batch, and only such can be compared: the one "
            f"was made for {a.made_for}, the other for {apart}"
        )
    facts: dict[str, Any] = {"a": {"file": command.a}, "b": {"file": command.b}}
    facts["simulated_on"] = machine.name if machine else None
    facts["forward"] = command.forward
    if machine is None:
        facts |= compare(a, b, a.predicted, b.predicted)
    else:
        mode = "forward" if command.forward else "train"
        given = ((a, command.a), (b, command.b))
        opened = [
            (plan, desk_of(plan, path, machine, "", command.batch, command.profile, mode)) for plan, path in given
        ]
        (worth_a, nodes), (worth_b, _) = (_simulated(plan, desk.measured()) for plan, desk in opened)
        facts |= compare(a, b, worth_a, worth_b)
        for row in facts["moved"]:
            row["members"] = folded([part for name in row["nodes"] if name in nodes for part in nodes[name].members])
    if command.json:
        print(json.dumps(facts, indent=2))
    else:
        _tell(facts)
    return 0


def compare(a: Strategy, b: Strategy, worth_a: Predicted | None, worth_b: Predicted | None) -> dict[str, Any]:
    """What changes from plan a to plan b: settings, figures where both are known, and the nodes that moved.

    Turned round it says the same with a and b exchanged and every difference negated.
    """
    moved: dict[tuple[str | None, str | None], list[str]] = {}
    for (_, here, there), names in differences(a.configs, b.configs).items():
        moved.setdefault((_config_text(here), _config_text(there)), []).extend(names)
    every = dict.fromkeys((*a.configs, *b.configs))
    return {
        "model": a.model,
        "settings": {
            name: {"a": getattr(a, name), "b": getattr(b, name)}
            for name in SETTINGS
            if getattr(a, name) != getattr(b, name)
        },
        "figures": _figures(worth_a, worth_b),
        "num_nodes": len(every),
        "num_moved": sum(map(len, moved.values())),
        "moved": [
            {"name": folded(names), "nodes": names, "a": here, "b": there} for (here, there), names in moved.items()
        ],
    }


def _figures(a: Predicted | None, b: Predicted | None) -> dict[str, dict[str, float]] | None:
    """Each figure of both plans and by how much that of b is larger."""
    if a is None or b is None:
        return None
    return {
        name: {"a": getattr(a, name), "b": getattr(b, name), "delta": getattr(b, name) - getattr(a, name)}
        for name in FIGURES
    }


def _config_text(config: Config | None) -> str | None:
    return None if config is None else str(config)


def _simulated(plan: Strategy, desk: Desk) -> tuple[Predicted, Mapping[str, Node]]:
    """What a plan takes on a machine, whether it fits there or not, and its model's nodes."""
    found, arenas = desk.evaluator.evaluate(plan), desk.evaluator.arenas(plan)
    worth = Predicted(found.seconds, max(arenas), found.moved_bytes)
    return worth, desk.evaluator.lowering.graph.nodes


def _tell(facts: Mapping[str, Any]) -> None:
    out = report.console()
    out.say(f"{facts['model']}: from {facts['a']['file']} to {facts['b']['file']}")
    # a fingerprint says nothing to whom a name does
    hidden = "machine" if "machine_name" in facts["settings"] else ""
    for name, of in facts["settings"].items():
        if name == hidden:
            continue
        here, there = (_setting_words(name, of[plan]) for plan in "ab")
        out.say(f"  {name.removesuffix('_name').removesuffix('_bytes').replace('_', ' ')}: {here} -> {there}")
    figures = facts["figures"]
    if figures is None:
        out.say("\na file predicts nothing: --machine simulates both plans, with --forward their forward passes")
    else:
        by = f"simulated on {facts['simulated_on']}" if facts["simulated_on"] else "as their files predict"
        out.say(f"\n{by}:")
        out.say_table(_figure_table(figures, report.what(facts["forward"])))
    out.say(f"\n{facts['num_moved']} of {facts['num_nodes']} nodes lie differently" + (":" if facts["moved"] else ""))
    for row in facts["moved"][:MOST_ROWS]:
        here, there = (row[plan] or "by default" for plan in "ab")
        out.say(f"  {here} -> {there}  {shortened(with_members(row), MOST_LETTERS)}")
    if len(facts["moved"]) > MOST_ROWS:
        out.say(f"  and {len(facts['moved']) - MOST_ROWS} more moves")


def _setting_words(name: str, setting: Any) -> str:
    """A setting in words; of several nodes how many they are."""
    if setting and name.endswith("_bytes"):
        return memory.written(setting)
    return f"{len(setting)} nodes" if setting and isinstance(setting, tuple) else str(setting or "none")


def _figure_table(figures: Mapping[str, Mapping[str, Any]], what: str) -> Table:
    table = report.table("", ">a", ">b", ">b is more by")
    step = figures["step_seconds"]
    table.add_row(what, *map(report.duration, (step["a"], step["b"])), signed(step["delta"]))
    for name, words in (("peak_bytes", "memory"), ("moved_bytes", f"moved a {what}")):
        of = figures[name]
        delta = ("-" if of["delta"] < 0 else "+") + memory.written(abs(of["delta"]))
        table.add_row(words, memory.written(of["a"]), memory.written(of["b"]), delta)
    return table
