"""`castile plan`: finds a fast way to train a model on a machine, which need not be here, and writes it to a file.

It does not know how to run a plan.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

import tyro

from castile.launch.here import absent
from castile.launch.jobs import checks, figures, offline
from castile.launch.jobs.looking import Looking
from castile.launch.jobs.offline import Desk
from castile.launch.jobs.wanted import mode_of
from castile.launch.pictures import front, layout
from castile.launch.processes.interrupts import ending_early
from castile.launch.processes.ranks import UserError, is_users_mistake
from castile.launch.reports import report, searches, trace
from castile.launch.reports.progress import searching
from castile.launch.typed import files, options, searchers
from castile.launch.typed.files import Outputs
from castile.planner import strategy as strategies
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import seeds
from castile.planner.search import Found, budget_of
from castile.planner.searches import find
from castile.planner.searching.fronts import Point
from castile.planner.strategy import Strategy
from castile.runtime.machine import Machine

Pin = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PIN", help_behavior_hint="")]
Machines = Annotated[
    tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="MACHINE", help_behavior_hint="")
]
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
    machine: Machines = ()
    """The machine to plan for: local (by default), local:procs=4, a preset such as dgx-h100:nodes=2, or a TOML file;
    given several times, castile plans for each, and a table compares them."""
    search: options.Search = "mcmc"
    """The search algorithm: mcmc, another of planner/searches, a Python file with search(), or the name of a known
    plan (data_parallel)."""
    objective: Objective = "time"
    """What to minimise: time (of a training step), latency (of a forward pass), memory (of the fullest processor, with
    as many microbatches and as much recomputation as help, unless these are given)."""
    front: bool = False
    """Also search for plans that take less memory and more time, with more microbatches and more recomputation too, and
    list all that no other beats in both."""
    pin: Pin = ()
    """What nodes must have, by name or pattern: 'h.*.attn: {h: 8}', 'head: {b: 4, procs: 0-3}'; may be given several
    times."""
    without: Procs = ""
    """Processors to leave idle (3,5 or 0-3,8); what the host reads, such as the loss, is still sent to 0."""
    seeds: Seeds = ""
    """The known plans to start from (data_parallel,megatron); all by default."""
    from_: From = ""
    """Also start from the plan in this file; the plan found is never worse, unless a pin changes it."""
    budget: options.BudgetOrOwn = ""
    """How long to search: a number of proposals (5000), for each search where several are made (with microbatches, on
    fewer processors, for a front), or a time (10s) for all of them together; by default the search's own."""
    processes: options.Number = 1
    """How many processes a search may use side by side (--search tempering); the plan found is the same."""
    seed: options.Number = 0
    """Fixes the search: the same seed and number of proposals give the same plan."""
    batch: options.Count = None
    """Samples a step; the model's own by default."""
    accumulate: options.Count = None
    """Cut each batch into so many microbatches, one after another; by default one, or as many as let a plan fit."""
    recompute: options.RecomputeOrOwn = ""
    """What is computed again for gradients, to save memory: selective (what is cheap), 40% (what takes least until so
    much is kept), full (nearly everything), parameters (gathered for each pass), names with wildcards, several
    separated by commas, or none; by default as little as lets a plan fit."""
    dtype: options.Dtype = "float32"
    """The dtype of the computation: float32, float64, bfloat16 or float16."""
    optimizer: options.Optimizer = ""
    """The optimizer that training will use, whose state takes memory: a name with settings, sgd:momentum=0.9 or
    adamw:beta2=0.95; by default that of the plan of --from, or the model's own."""
    clip: options.Norm = None
    """Gradients longer than this norm will be scaled down to it; by default as with --from, or the model's own; 0 for
    never."""
    profile: options.File = ""
    """A profile database with measurements of this machine; without one, prices come from the machine's figures."""
    out: options.File = ""
    """Write the plan to this file (JSON); with --front, those of the front beside it, numbered from the fastest. With
    several machines this and other files are numbered too, in their order."""
    trace: options.File = ""
    """Write a Chrome trace of the simulated step to this file (open it in Perfetto)."""
    picture: options.File = ""
    """Draw which processor has which part of each node, as SVG; with --front, time and memory of its plans."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Plan


def run(command: Plan) -> int:
    """Search, tell, write; rank 0 alone. Raises ValueError or UserError in one sentence for a user's mistake."""
    _check(command)
    each = _each(command)
    for one in each:
        checks.writable(of=one, out=one.out, trace=one.trace, picture=one.picture)
    machines = [offline.find_machine(one.machine[0]) for one in each]
    # every rank takes part in measuring each of them
    if all([offline.is_silent(machine) for machine in machines]):
        return 0
    given = strategies.read(command.from_) if command.from_ else None
    which = [f"{n} of {len(each)}" if len(each) > 1 else "" for n in range(1, len(each) + 1)]
    asked = [_asked(*one) for one in zip(each, machines, repeat(given), which)]
    with ending_early("the best plan so far" if len(asked) == 1 else "the best plans so far") as is_over:
        if len(asked) == 1:
            return _tell(command, *_planned(asked[0], is_over))
        return _compare(command, [_tried(one, is_over) for one in asked])


def _check(command: Plan) -> None:
    """Raises UserError for what can be known to be wrong before there is a model or a machine."""
    checks.counts(batch=command.batch, processes=command.processes, accumulate=command.accumulate)
    checks.dtype(command.dtype)
    checks.norm(command.clip)
    checks.seed(command.seed)
    searchers.read(command.search)
    if command.objective == "latency" and (command.optimizer or command.clip is not None):
        raise UserError("--optimizer and --clip mean nothing with --objective latency, which updates nothing")
    if command.front and len(command.machine) > 1:
        raise UserError("--front is of one machine: give one --machine, or leave --front out")


def _each(command: Plan) -> list[Plan]:
    """The command for each of its machines, with files of its own. Raises UserError where these cannot be numbered."""
    texts = command.machine or ("local",)
    if len(texts) == 1:
        return [replace(command, machine=texts)]
    paths = {name: path for name in ("out", "trace", "picture") if (path := getattr(command, name))}
    for name, path in paths.items():
        if files.is_stream(Path(path)):
            raise UserError(f"--{name} {path}: {len(texts)} machines have a file each; give a path of a file")
    each = []
    for number, text in enumerate(texts, 1):
        named: dict[str, Any] = {name: files.numbered(path, number) for name, path in paths.items()}
        each.append(replace(command, machine=(text,), **named))
    return each


@dataclass(frozen=True)
class _Asked:
    """What is asked of one machine, looked through.

    which   of several machines, in words
    saved   the share of work that rewrites of the graph save
    """

    command: Plan
    looking: Looking
    which: str
    saved: float


def _asked(command: Plan, machine: Machine, given: Strategy | None, which: str) -> _Asked:
    """Raises ValueError or UserError for what can be known to be wrong before anything is looked for."""
    desk = offline.desk(
        command.model, machine, command.batch, command.profile, (command.dtype,), given, mode_of(command.objective),
        optimizer=command.optimizer, clip=command.clip,
    )  # fmt: skip
    is_as_built = command.from_ or command.objective == "memory"
    desk, saved = (desk, 0.0) if is_as_built else desk.rewritten()
    looking = Looking(command, desk, _start(command, desk, given))
    _check_pieces(command, looking)
    _check_names(looking)
    return _Asked(command, looking, which, saved)


def _tried(asked: _Asked, is_over: Callable[[], bool]) -> tuple[dict[str, Any], Outputs]:
    """The facts of what is found on one of several machines, or of why nothing is; and what was written of it."""
    try:
        facts, _, outputs = _planned(asked, is_over)
        return facts | {"refused": None}, outputs
    except ValueError as error:
        if not is_users_mistake(error):
            raise
        machine = asked.looking.desk.machine
        return {"machine": machine.name, "num_procs": machine.num_procs, "refused": str(error)}, Outputs()


def _planned(asked: _Asked, is_over: Callable[[], bool]) -> tuple[dict[str, Any], Strategy, Outputs]:
    """Search, and write what is found: every figure of it, the plan, and the files.

    Raises NoPlanFits and other ValueErrors where there is nothing to be found.
    """
    command, looking = asked.command, asked.looking
    with searching(asked.which) as progress:
        limits = replace(budget_of(command.search, looking.lowering, command.budget), is_over=is_over)
        looking = replace(looking, desk=looking.desk.measured())
        chosen, found, points = looking.look(limits, progress)
    desk, evaluator = looking.desk, chosen.evaluator
    plan = _signed(desk, found.strategy)
    facts = figures.of(looking, chosen, found, asked.saved)
    facts["nearer_prices"] = _nearer_prices(command, desk)
    outputs = Outputs()
    if command.front:
        facts["front"] = _front_facts(command, desk, found, points, outputs)
    outputs.write("plan", command.out, lambda path: files.write(path, strategies.encode(plan)))
    outputs.write("trace", command.trace, lambda path: _trace(path, evaluator, plan))
    outputs.write("picture", command.picture, lambda path: files.write(path, _picture(facts, evaluator, plan).encode()))
    facts["files"] = outputs.paths
    return facts, plan, outputs


def _tell(command: Plan, facts: dict[str, Any], plan: Strategy, outputs: Outputs) -> int:
    if command.json:
        print(json.dumps(facts, indent=2))
    else:
        searches.tell(facts, report.plan_lines(plan))
    outputs.end()
    return 0


def _compare(command: Plan, tried: list[tuple[dict[str, Any], Outputs]]) -> int:
    """Tell of several machines. Raises UserError, once all is told, where no plan fits on any."""
    rows = [facts for facts, _ in tried]
    if command.json:
        print(json.dumps({"model": command.model, "objective": command.objective, "machines": rows}, indent=2))
    else:
        searches.tell_machines(command.model, command.objective, rows)
    for _, outputs in tried:
        outputs.end()
    if all(facts["refused"] for facts in rows):
        raise UserError("no plan was found for any of these machines")
    return 0


def _trace(path: str, evaluator: Evaluator, plan: Strategy) -> None:
    seen = evaluator.see(plan)
    trace.write(path, seen.folded.placed(seen.tasks), {"simulated": seen.simulated.timeline})


def _signed(desk: Desk, plan: Strategy) -> Strategy:
    graph = desk.evaluator.lowering.graph
    return strategies.signed(plan, desk.model.text, graph, desk.machine, desk.optimizer, desk.clip)


def _nearer_prices(command: Plan, desk: Desk) -> str | None:
    """The command that tells prices from compiled kernels, where a plan went by data sheets and these could be told."""
    if desk.snapshot is not None or not absent.is_known(desk.machine) or len(desk.machine.kinds) > 1:
        return None
    words = ["castile", "profile", command.model, "--machine", desk.machine.name, "--dtype", command.dtype]
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


def _front_facts(
    command: Plan, desk: Desk, found: Found, points: list[Point], outputs: Outputs
) -> list[dict[str, Any]]:
    """The front from the fastest plan to the smallest; each is written beside the plan, if that is a file."""
    rows = []
    for number, point in enumerate(points, 1):
        row = report.facts(point.evaluated, found.seeds["data_parallel"]) | {"arena_bytes": list(point.arena_bytes)}
        if command.out and not files.is_stream(Path(command.out)):
            path = files.numbered(command.out, number)
            data = strategies.encode(_signed(desk, point.strategy))
            if outputs.attempt(partial(files.write, path, data)):
                row["file"] = path
        rows.append(row)
    return rows


def _picture(facts: Mapping[str, Any], evaluator: Evaluator, plan: Strategy) -> str:
    """The front if one was looked for, else the plan."""
    what = report.what(facts["objective"] == "latency")
    title = f"{facts['model']}, {report.counted(facts['batch_samples'], 'sample')} a {what}, on {facts['machine']}"
    if "front" in facts:
        return front.picture(title, facts["front"], facts["seeds"], int(evaluator.capacity.max()))
    return layout.picture(f"{title}: {report.duration(facts['found']['step_seconds'])}", evaluator, plan)
