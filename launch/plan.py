"""`castile plan`: finds a fast way to train a model on a machine, which need not be here, and writes it to a file.

It does not know how to run a plan.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from castile.launch.here import absent
from castile.launch.jobs import checks, offline
from castile.launch.jobs.looking import Looking
from castile.launch.jobs.offline import Desk
from castile.launch.jobs.wanted import mode_of
from castile.launch.pictures import front, layout
from castile.launch.processes.interrupts import ending_early
from castile.launch.processes.ranks import UserError
from castile.launch.reports import report, searches, trace
from castile.launch.reports.progress import searching
from castile.launch.typed import files, options
from castile.launch.typed.files import Outputs
from castile.planner import strategy as strategies
from castile.planner.bounds.lower_bound import Bound, lower_bound
from castile.planner.choices.pins import Pins
from castile.planner.choices.spaces import Spaces
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import seeds
from castile.planner.lowering.stages import num_stages
from castile.planner.search import Found, budget_of
from castile.planner.searches import find
from castile.planner.searching.fronts import Point
from castile.planner.strategy import Strategy

Pin = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PIN", help_behavior_hint="")]
Procs = Annotated[str, tyro.conf.arg(metavar="PROCS", help_behavior_hint="")]
Seeds = Annotated[str, tyro.conf.arg(metavar="NAMES", help_behavior_hint="")]
Objective = Annotated[str, tyro.conf.arg(metavar="time|latency|memory")]
From = Annotated[str, tyro.conf.arg(name="from", metavar="FILE", help_behavior_hint="")]


@dataclass(frozen=True)
class Plan:
    """Find a fast way to train a model on a machine, which need not be here."""

    model: options.Model
    """A model's name with settings (convnet, gpt:layers=4,width=128), a Python file with build(), or an ONNX
    file."""
    machine: options.Machine = "local"
    """What to plan for: local, local:procs=4, a preset such as dgx-h100:nodes=2, or a TOML file."""
    search: options.Search = "mcmc"
    """The search that looks for a plan: mcmc, another of planner/searches, or a known plan's name (data_parallel)."""
    objective: Objective = "time"
    """What to make small: time (of a training step), latency (of a forward pass), memory (of the fullest processor)."""
    front: bool = False
    """Also look for plans that need less memory and more time, and tell all that none other beats in both."""
    pin: Pin = ()
    """What nodes must have, by name or pattern: 'h.*.attn: {h: 8}', 'head: {b: 4, procs: 0-3}'; give it as often."""
    without: Procs = ""
    """Processors that are to do nothing (3,5 or 0-3,8); what the host reads, as the loss, is still sent to 0."""
    seeds: Seeds = ""
    """The known plans to start from (data_parallel,megatron); all by default."""
    from_: From = ""
    """Start from the plan of this file too; what is found is never behind it, unless a pin changes it."""
    budget: options.BudgetOrOwn = ""
    """How long it looks: a number of proposals (5000), of each search where several are made (in microbatches, on fewer
    processors), or a time (10s), of all together; the search's own by default."""
    processes: options.Number = 1
    """In how many processes a search may walk side by side (--search tempering); what it finds is the same."""
    seed: options.Number = 0
    """Fixes the search: the same seed and number of proposals give the same plan."""
    batch: options.Count = None
    """Samples a step; the model's own by default."""
    accumulate: options.Count = None
    """Cut each batch into so many pieces in time, one after another; by default one, or as many as let a plan fit."""
    recompute: options.RecomputeOrOwn = ""
    """Results that are computed again for gradients, for less memory: selective (what is cheap), 40% (what takes least
    until so much is kept), full (nearly all), parameters (gathered for each pass), names with wildcards, several with
    commas, or none; by default as little as lets a plan fit."""
    dtype: options.Dtype = "float32"
    """What is computed with: float32, float64, bfloat16 or float16."""
    optimizer: options.Optimizer = ""
    """How parameters will be updated, which takes memory: a name with settings, sgd:momentum=0.9 or adamw:beta2=0.95;
    that of the plan of --from or the model's own by default."""
    clip: options.Norm = None
    """Gradients will be scaled to this norm where they are longer; as with --from or the model's own by default, 0 for
    never."""
    profile: options.File = ""
    """A profile database with measurements of this machine; without one the machine's figures are the prices."""
    out: options.File = ""
    """Write the plan to this file (JSON); with --front those of the front beside it, numbered from the fastest."""
    trace: options.File = ""
    """Write a Chrome trace of the simulated step to this file (open it in Perfetto)."""
    picture: options.File = ""
    """Draw which processor has which part of each node, as SVG; with --front instead what its plans take and need."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Plan


def run(command: Plan) -> int:
    """Search, tell, write; rank 0 alone. Raises ValueError or UserError in one sentence for a user's mistake."""
    checks.counts(batch=command.batch, processes=command.processes, accumulate=command.accumulate)
    checks.dtype(command.dtype)
    checks.norm(command.clip)
    checks.seed(command.seed)
    if command.objective == "latency" and (command.optimizer or command.clip is not None):
        raise UserError("--optimizer and --clip mean nothing with --objective latency, which updates nothing")
    checks.writable(of=command, out=command.out, trace=command.trace, picture=command.picture)
    machine = offline.find_machine(command.machine)
    if offline.is_silent(machine):
        return 0
    mode = mode_of(command.objective)
    given = strategies.read(command.from_) if command.from_ else None
    desk = offline.desk(
        command.model, machine, command.batch, command.profile, (command.dtype,), given, mode,
        optimizer=command.optimizer, clip=command.clip,
    )  # fmt: skip
    is_as_built = command.from_ or command.objective == "memory"
    desk, saved = (desk, 0.0) if is_as_built else desk.rewritten()
    looking = Looking(command, desk, _start(command, desk, given))
    _check_pieces(command, looking)
    _check_names(looking)
    with searching() as progress, ending_early("the best plan so far") as is_over:
        limits = replace(budget_of(command.search, looking.lowering, command.budget), is_over=is_over)
        looking = replace(looking, desk=desk.measured())
        chosen, found, points = looking.look(limits, progress)
    desk, evaluator, pinned = looking.desk, chosen.evaluator, chosen.pins
    plan = _signed(desk, found.strategy)
    facts = _facts(command, desk, found)
    facts["rewrite"], facts["work_saved_share"] = desk.model.rewrite, saved
    facts["microbatches"] = plan.microbatches
    facts["num_stages"] = num_stages(plan, desk.evaluator.lowering.graph.nodes)
    is_cut = plan.microbatches > looking.microbatches and facts["num_stages"] == 1
    facts["is_cut_to_fit"] = is_cut and not _fits_whole(found, looking.microbatches)
    facts["num_nodes"] = len(desk.evaluator.lowering.graph.nodes)
    facts["num_params"] = len(desk.evaluator.lowering.graph.params)
    facts |= report.dropped(evaluator, plan)
    facts["is_recomputed_to_fit"] = {*plan.recompute} != {*looking.recompute}
    facts["pinned"] = [str(pin) for pin in pinned.pins] if pinned is not None else []
    facts |= _bound_facts(_bound(evaluator, pinned, found), found)
    facts |= _task_facts(evaluator, plan)
    facts["nearer_prices"] = _nearer_prices(command, desk)
    outputs = Outputs()
    if command.front:
        facts["front"] = _front_facts(command, desk, found, points, outputs)
    outputs.write("plan", command.out, lambda path: files.write(path, strategies.encode(plan)))
    outputs.write("trace", command.trace, lambda path: _trace(path, evaluator, plan))
    outputs.write("picture", command.picture, lambda path: files.write(path, _picture(facts, evaluator, plan).encode()))
    facts["files"] = outputs.paths
    if command.json:
        print(json.dumps(facts, indent=2))
    else:
        searches.tell(facts, report.plan_lines(plan))
    outputs.end()
    return 0


def _trace(path: str, evaluator: Evaluator, plan: Strategy) -> None:
    seen = evaluator.see(plan)
    trace.write(path, seen.folded.placed(seen.tasks), {"simulated": seen.simulated.timeline})


def _signed(desk: Desk, plan: Strategy) -> Strategy:
    graph = desk.evaluator.lowering.graph
    return strategies.signed(plan, desk.model.text, graph, desk.machine, desk.optimizer, desk.clip)


def _task_facts(evaluator: Evaluator, plan: Strategy) -> dict[str, Any]:
    """How many tasks a step has, where their prices come from, and what its buckets, its order and what it begins ahead
    do.
    """
    tasks, count = evaluator.tasks(plan)
    return {
        "num_tasks": int(count.sum()),
        "prices": evaluator.cost.sources(tasks.cost_keys),
        "buckets": report.buckets(evaluator, plan),
        "order": report.order(evaluator, plan),
        "ahead": report.ahead(evaluator, plan),
    }


def _fits_whole(found: Found, microbatches: int) -> bool:
    """Whether a known plan fits in so many microbatches, or fewer."""
    return any(seed.fits and seed.strategy.microbatches <= microbatches for seed in found.seeds.values())


def _nearer_prices(command: Plan, desk: Desk) -> str | None:
    """The command that tells prices from compiled kernels, where a plan went by data sheets and these could be told."""
    if desk.snapshot is not None or not absent.is_known(desk.machine) or len(desk.machine.kinds) > 1:
        return None
    words = ["castile", "profile", command.model, "--machine", command.machine, "--dtype", command.dtype]
    words += [] if command.batch is None else ["--batch", str(command.batch)]
    return shlex.join([*words, "--profile", "FILE"])


def _start(command: Plan, desk: Desk, given: Strategy | None) -> dict[str, Strategy]:
    """The plan to start from, if one is given. Raises UserError, with the file's name, where it is not for this."""
    if given is None:
        return {}
    offline.check_plan(given, command.from_, desk.model.text, desk)
    return {"given": given}


def _check_pieces(command: Plan, looking: Looking) -> None:
    """Raises UserError where steps cannot be as --accumulate and --recompute say."""
    desk = looking.desk
    checks.pieces(command.accumulate, desk.evaluator.lowering.graph.batch)
    if command.objective == "latency":
        if command.accumulate:
            raise UserError("--accumulate means nothing for --objective latency: a forward pass takes the whole batch")
        if command.recompute:
            raise UserError("--recompute means nothing for --objective latency: a forward pass keeps nothing")
    said = looking.dropped(command.recompute) if command.recompute else None
    for plan in looking.start.values():
        checks.as_planned(plan, command.from_, command.accumulate, said, "leave --from out")


def _check_names(looking: Looking) -> None:
    """Raises ValueError where there is no such search, known plan or pinned node, or a search has one process only."""
    command = looking.command
    looked_for = find(command.search, looking.lowering)
    if command.processes > 1 and not hasattr(looked_for, "PROCESSES"):
        raise UserError(
            f"--processes {command.processes} means nothing for --search {command.search}, which goes on in one "
            "process: leave it out, or give --search tempering"
        )
    checks.trains(looking.lowering)
    looking.pins(looking.lowering)
    if names := looking.names:
        seeds(looking.lowering, names)


def _bound(evaluator: Evaluator, pinned: Pins | None, found: Found) -> Bound | None:
    """What no plan beats that cuts nodes into as many parts as the search may, or as the plan does."""
    most = Spaces(evaluator.lowering, evaluator.cost, pinned).most_parts
    parts = (config.num_parts for config in found.strategy.configs.values())
    return lower_bound(evaluator, max(evaluator.lowering.machine.num_procs, most, *parts))


def _bound_facts(bound: Bound | None, found: Found) -> dict[str, Any]:
    """What no plan can beat, and how far off the plan is; nothing where the bound is not known."""
    return {
        "bound_seconds": bound and bound.seconds,
        "work_bound_seconds": bound and bound.work_seconds,
        "chain_bound_seconds": bound and bound.chain_seconds,
        "gap_share": bound and bound.gap(found.evaluated.seconds),
    }


def _front_facts(
    command: Plan, desk: Desk, found: Found, points: list[Point], outputs: Outputs
) -> list[dict[str, Any]]:
    """The front from the fastest plan to the smallest; each is written beside the plan, if that is a file."""
    rows = []
    for number, point in enumerate(points, 1):
        row = report.facts(point.evaluated, found.seeds["data_parallel"]) | {"arena_bytes": list(point.arena_bytes)}
        out = Path(command.out)
        if command.out and not files.is_stream(out):
            path = str(out.with_name(f"{out.stem}-{number}{out.suffix}"))
            data = strategies.encode(_signed(desk, point.strategy))
            if outputs.attempt(partial(files.write, path, data)):
                row["file"] = path
        rows.append(row)
    return rows


def _facts(command: Plan, desk: Desk, found: Found) -> dict[str, Any]:
    """Every figure of the search."""
    base = found.seeds["data_parallel"]
    return {
        "model": desk.model.text,
        "machine": desk.machine.name,
        "num_procs": desk.machine.num_procs,
        "batch_samples": desk.evaluator.lowering.graph.batch,
        "optimizer": desk.optimizer,
        "clip": desk.clip,
        "search": found.strategy.search,
        "objective": command.objective,
        "seed": command.seed,
        "num_proposals": found.num_proposals,
        "elapsed_seconds": found.elapsed_seconds,
        "equals": found.equals,
        "found": report.facts(found.evaluated, base) | {"arena_bytes": list(found.arena_bytes)},
        "seeds": {name: _seed_facts(worth, found) for name, worth in found.seeds.items()},
        "layouts": [{"config": row.config, "nodes": row.nodes} for row in report.layouts(found.strategy)],
    }


def _seed_facts(worth: Evaluated, found: Found) -> dict[str, Any]:
    """What a known plan is worth; one that comes before what was found fits by its live bytes only, not once packed."""
    facts = report.facts(worth, found.seeds["data_parallel"])
    return facts | {"fits": worth.fits and (found.is_insisted or worth.rank >= found.evaluated.rank)}


def _picture(facts: Mapping[str, Any], evaluator: Evaluator, plan: Strategy) -> str:
    """The front if one was looked for, else the plan."""
    what = report.what(facts["objective"] == "latency")
    title = f"{facts['model']}, {report.counted(facts['batch_samples'], 'sample')} a {what}, on {facts['machine']}"
    if "front" in facts:
        return front.picture(title, facts["front"], facts["seeds"], int(evaluator.capacity.max()))
    return layout.picture(f"{title}: {report.milliseconds(facts['found']['step_seconds'])}", evaluator, plan)
