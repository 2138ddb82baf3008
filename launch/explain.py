"""`castile explain`: why a plan is as it is: what its time goes into, which edges pay, and what else a node could do.

It does not know how a plan is found, nor how to run one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np
import tyro

from castile.launch.jobs import checks, offline
from castile.launch.jobs.offline import Desk
from castile.launch.pictures import layout
from castile.launch.processes.ranks import UserError
from castile.launch.reports import explanation_report, report
from castile.launch.reports.explanation_report import folded
from castile.launch.typed import files, options
from castile.launch.typed.files import Outputs
from castile.planner import strategy as strategies
from castile.planner.alternatives import alternatives, node_of, pattern, plain, switches
from castile.planner.explanation import Crossing, Edge, Explanation, explain
from castile.planner.known.seeds import seeds
from castile.planner.search import Budget, Evaluated, Evaluator, parse_budget
from castile.planner.strategy import Config, Strategy, in_words
from castile.runtime.machine import Machine
from castile.runtime.timeline import PICOSECONDS
from castile.runtime.transfer import TooManyTransfers

BUDGET = "100"
KINDS = ("compute", "copy", "transfer")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Explain:
    """Explain a plan: where the time of a step goes, which edges pay, and what else a node could do."""

    plan: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")]
    """The plan's file (JSON), as `castile plan --out` and `castile train` write it."""
    op: Annotated[str, tyro.conf.arg(metavar="NODE", help_behavior_hint="")] = ""
    """A node, one that was fused into another, or an update such as fc.weight/update: explain it alone, with its next
    best layouts, all else equal."""
    why_not: Annotated[str, tyro.conf.arg(metavar="SEED", help_behavior_hint="")] = ""
    """A known plan such as data_parallel: explain what makes it slower, or faster, than this one."""
    machine: options.MachineOrOwn = ""
    """The machine that the plan was made for, where its file does not name it or it has another name here: local,
    local:procs=4, a preset such as dgx-h100:nodes=2, a TOML file."""
    model: Annotated[str, tyro.conf.arg(metavar="MODEL", help_behavior_hint="")] = ""
    """The model, where the plan's file does not name it."""
    forward: bool = False
    """Only the forward pass of a step, as for plans that were found with `--objective latency`."""
    batch: options.Count = None
    """Samples a step; by default as many as the plan's file says, or the model's own."""
    profile: options.File = ""
    """A profile database with measurements of this machine; without one, prices come from the machine's figures."""
    budget: options.BudgetOrOwn = ""
    """With --op or --why-not: how many other plans to simulate for each, 100 by default, or for how long (10s)."""
    picture: options.File = ""
    """Draw which processor has which part of each node, as SVG."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Explain


def run(command: Explain) -> int:
    """Simulate, account, tell; rank 0 alone. Raises ValueError or UserError for a user's mistake."""
    checks.counts(batch=command.batch)
    checks.writable(of=command, picture=command.picture)
    budget = parse_budget(command.budget or BUDGET)
    if command.budget and not (command.op or command.why_not):
        raise UserError("--budget means nothing without --op or --why-not: give one of them too")
    plan = strategies.read(command.plan)
    machine = offline.machine_of(command.machine, plan, command.plan)
    if offline.is_silent(machine):
        return 0
    mode = "forward" if command.forward else "train"
    desk = desk_of(plan, command.plan, machine, command.model, command.batch, command.profile, mode)
    if command.op:
        command = replace(command, op=node_of(desk.evaluator.lowering, plan, command.op))
    if command.why_not:
        _seed(desk.evaluator, command.why_not)
    desk = desk.measured()
    evaluator = desk.evaluator
    worth, explanation = evaluator.evaluate(plan), explain(evaluator, plan)
    facts = _facts(command, desk, plan, explanation, worth)
    if command.op:
        facts["op"] = _elsewise(evaluator, plan, worth, command.op, budget)
    if command.why_not:
        facts["why_not"] = _against(evaluator, plan, worth, explanation, command.why_not, budget)
    outputs = Outputs()
    title = f"{facts['model']}, plan {command.plan}: {report.duration(worth.seconds)} on {facts['machine']}"
    outputs.write(
        "picture", command.picture, lambda path: files.write(path, layout.picture(title, evaluator, plan).encode())
    )
    facts["files"] = outputs.paths
    if command.json:
        print(json.dumps(facts, indent=2))
    else:
        explanation_report.tell(facts, report.plan_lines(plan))
    outputs.end()
    return 0


def desk_of(
    plan: Strategy,
    path: str,
    machine: Machine,
    model: str = "",
    batch: int | None = None,
    profile: str = "",
    mode: str = "train",
) -> Desk:
    """A desk for the model of a file's plan on the machine, with batches cut as the plan cuts them.

    model   where the file does not say it
    batch   samples a step, where it is not what the file says
    mode    what the plan is lowered to, as `Lowering` has it; a forward pass takes the whole batch
    Raises ValueError or UserError where the plan is for another model or machine.
    """
    named = model or plan.model
    if not named:
        raise UserError(f"plan {path} does not say its model: give it with --model")
    of_file = "" if model else path
    desk = offline.desk(named, machine, batch or plan.batch, profile, plan=plan, mode=mode, path=of_file)
    if mode == "train" and (plan.microbatches > 1 or plan.recompute):
        lowering = desk.evaluator.lowering.remade(microbatches=plan.microbatches, recompute=plan.recompute)
        desk = replace(desk, evaluator=desk.evaluator.remade("time", lowering=lowering))
    # What is seen of it then is not seen again.
    offline.check_plan(plan, path, desk.model.text, desk)
    return desk


def _seed(evaluator: Evaluator, name: str) -> Strategy:
    """The known plan of that name. Raises UserError where there is none."""
    try:
        return seeds(evaluator.lowering, [name], evaluator.cost)[name]
    except ValueError as error:
        raise UserError(f"--why-not {name}: {error}") from error


def _elsewise(
    evaluator: Evaluator, plan: Strategy, worth: Evaluated, node: str, budget: Budget
) -> dict[str, Any]:
    """What else the node could do, all else equal."""
    found, within = alternatives(evaluator, plan, node, budget), evaluator.lowering.names.within
    return {
        "name": found.name,
        "members": folded([part for part, whole in within.items() if whole == found.name]),
        "config": str(found.chosen),
        "alternatives": [{"config": str(config), **_priced(other, worth)} for config, other in found.best],
        "num_layouts": found.num_layouts,
        "num_simulated": found.num_simulated,
        "num_excluded": found.num_excluded,
        "num_refused": found.num_refused,
    }


def _against(
    evaluator: Evaluator, plan: Strategy, worth: Evaluated, explanation: Explanation, seed: str, budget: Budget
) -> dict[str, Any]:
    """What makes the known plan of that name slower, or faster, than the plan."""
    other = _judged(evaluator, seed, plan)
    found = switches(evaluator, plan, other, budget)
    return {
        "name": seed,
        **_priced(evaluator.evaluate(other), worth),
        "causes": _compared(explanation, explain(evaluator, other)),
        "switches": [
            {"nodes": list(s.names), "here": _layouts(s.here.values()), "there": _layouts(s.there.values())}
            | {"name": folded(s.names), **_priced(s.evaluated, worth)}
            for s in found.best
        ],
        "num_switches_left": found.num_left,
        "num_switches_refused": found.num_refused,
    }


def _judged(evaluator: Evaluator, name: str, plan: Strategy) -> Strategy:
    """The known plan of that name as far as it is about nodes, with all else as in the plan."""
    other = msgspec.structs.replace(
        _seed(evaluator, name), bucket_bytes=plan.bucket_bytes, order=plan.order, ahead=plan.ahead
    )
    try:
        evaluator.evaluate(other)
    except TooManyTransfers as error:
        raise UserError(f"--why-not {name}: {error}") from error
    return other


def _facts(command: Explain, desk: Desk, plan: Strategy, found: Explanation, worth: Evaluated) -> dict[str, Any]:
    """Every figure but those of other plans."""
    capacity = desk.evaluator.capacity
    fullest = int(np.argmax(np.array(worth.peak_bytes) / capacity))
    predicted = plan.predicted.step_seconds if plan.predicted else None
    return {
        "model": desk.model.text,
        "plan": command.plan,
        "search": plan.search,
        "machine": desk.machine.name,
        "num_procs": desk.machine.num_procs,
        "batch_samples": desk.evaluator.lowering.graph.batch,
        "microbatches": plan.microbatches,
        **report.dropped(desk.evaluator, plan),
        "forward": command.forward,
        "num_tasks": int(found.num_tasks.sum()),
        "buckets": report.buckets(desk.evaluator, plan),
        "order": report.order(desk.evaluator, plan),
        "ahead": report.ahead(desk.evaluator, plan),
        "step_seconds": worth.seconds,
        "predicted_step_seconds": None if command.forward else predicted,
        "moved_bytes": worth.moved_bytes,
        "live_bytes": worth.peak_bytes[fullest],
        "capacity_bytes": int(capacity[fullest]),
        "fits": worth.fits,
        "layouts": [{"config": row.config, "nodes": row.nodes} for row in report.layouts(plan)],
        "spans": _spans(_procs(found)),
        "procs": _procs(found),
        "causes": _causes(found, command.op),
    }


def _procs(found: Explanation) -> Rows:
    """What each processor does; the parts add up to the step."""
    seconds = {kind: found.spent[:, found.of_kind(kind)].sum(axis=1) / PICOSECONDS for kind in KINDS}
    waiting, idle = found.awaited.sum(axis=1) / PICOSECONDS, found.idle / PICOSECONDS
    return [
        {
            "proc": p,
            **{f"{kind}_seconds": float(seconds[kind][role]) for kind in KINDS},
            "waiting_seconds": float(waiting[role]),
            "idle_seconds": float(idle[role]),
        }
        for p, role in enumerate(found.role.tolist())
    ]


def _spans(procs: Rows) -> Rows:
    """The same over all processors."""
    every = {what: [row[what] for row in procs] for what in procs[0] if what != "proc"}
    step = sum(map(sum, every.values()))
    return [
        {
            "what": what.removesuffix("_seconds"),
            "mean_seconds": sum(values) / len(procs),
            "least_seconds": min(values),
            "most_seconds": max(values),
            "share": sum(values) / step,
        }
        for what, values in every.items()
    ]


def _causes(found: Explanation, op: str = "") -> Rows:
    """Nodes and edges, those of all layers of a kind in one row, by what they add to the longest chain.

    op   only this node's passes and the edges that it makes or reads
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, cause in enumerate(found.causes):
        edge = _edge(found, number)
        if not op or op in (*edge.makers, *edge.readers, "" if cause.is_transfer else cause.name):
            between = (" ".join(dict.fromkeys(map(pattern, names))) for names in edge)
            key = (pattern(cause.name), cause.op, cause.kind, cause.form, cause.link, cause.algorithm, *between)
            groups.setdefault(key, []).append(number)
    everywhere = found.on_all(found.spent), found.on_all(found.awaited)
    rows = [_cause(found, numbers, *everywhere) for numbers in groups.values()]
    return sorted(rows, key=lambda row: (-row["chain_seconds"], -row["proc_seconds"]))


def _edge(found: Explanation, number: int) -> Edge:
    """Between which nodes a cause's transfers go; none for what is no transfer."""
    cause = found.causes[number]
    return found.labels.edges[cause.name] if cause.is_transfer else Edge((), ())


def _cause(found: Explanation, numbers: Sequence[int], spent: np.ndarray, awaited: np.ndarray) -> dict[str, Any]:
    """A row: these causes are alike but for their names; spent and awaited on all processors."""

    def seconds(of: np.ndarray) -> float:
        return float(of[numbers].sum()) / PICOSECONDS

    first = found.causes[numbers[0]]
    edges = [_edge(found, number) for number in numbers]
    makers, readers = (list(dict.fromkeys(chain.from_iterable(names))) for names in zip(*edges, strict=True))
    total = seconds(found.total)
    between = {"from": folded(makers), "to": folded(readers)} if first.is_transfer else {}
    members = list(chain.from_iterable(found.causes[n].members for n in numbers))
    return {
        "name": folded([found.causes[n].name for n in numbers]),
        "kind": first.kind,
        "op": first.op,
        "form": first.form,
        "link": first.link,
        "algorithm": first.algorithm,
        **between,
        "members": folded(members),
        "levels": _levels([found.labels.crossings[n] for n in numbers]),
        "num_causes": len(numbers),
        "num_tasks": int(found.num_tasks[numbers].sum()),
        "moved_bytes": int(found.moved_bytes[numbers].sum()),
        "proc_seconds": total,
        "hidden_share": 1 - seconds(spent) / total,
        "awaited_seconds": seconds(awaited),
        "chain_seconds": seconds(found.chain),
        "chain_share": seconds(found.chain) * PICOSECONDS / found.makespan,
    }


def _levels(crossings: Sequence[Mapping[str, Crossing]]) -> Rows:
    """What transfers take on each level of links, all together."""
    return [
        {
            "level": level,
            "latency_seconds": sum(of[level].latency_seconds for of in crossings if level in of),
            "transfer_seconds": sum(of[level].transfer_seconds for of in crossings if level in of),
        }
        for level in dict.fromkeys(level for of in crossings for level in of)
    ]


def _compared(here: Explanation, there: Explanation) -> Rows:
    """How much longer each cause's part of the longest chain is in another plan; they add up to the difference."""
    lasts: dict[tuple[str, ...], list[int]] = {}
    names: dict[tuple[str, ...], dict[str, None]] = {}
    for side, found in enumerate((here, there)):
        for cause, picoseconds in zip(found.causes, found.chain.tolist(), strict=True):
            key = (pattern(cause.name), cause.op, cause.form, cause.link)
            lasts.setdefault(key, [0, 0])[side] += picoseconds
            names.setdefault(key, {})[cause.name] = None
    rows = [
        {
            "name": folded(list(names[key])),
            **dict(zip(("op", "form", "link"), key[1:], strict=True)),
            "chain_seconds": mine / PICOSECONDS,
            "other_chain_seconds": theirs / PICOSECONDS,
            "longer_seconds": (theirs - mine) / PICOSECONDS,
        }
        for key, (mine, theirs) in lasts.items()
        if mine != theirs
    ]
    return sorted(rows, key=lambda row: -abs(row["longer_seconds"]))


def _layouts(alike: Iterable[Config | None]) -> str:
    """Layouts of nodes that are cut alike."""
    configs = list(dict.fromkeys(plain(config) for config in alike if config is not None))
    return in_words(configs) if configs else "by default"


def _priced(found: Evaluated, worth: Evaluated) -> dict[str, Any]:
    """What another plan takes, and how much longer that is."""
    return {
        "step_seconds": found.seconds,
        "longer_seconds": found.seconds - worth.seconds,
        "times": found.seconds / worth.seconds,
        "live_bytes": max(found.peak_bytes),
        "moved_bytes": found.moved_bytes,
        "fits": found.fits,
    }
