"""`castile simulate`: what a step of a plan would take, what goes into it, and what memory it needs.

It does not know how a plan is found, nor how to run one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from castile.launch import models
from castile.launch.jobs import checks, offline
from castile.launch.jobs.offline import Desk
from castile.launch.pictures import timeline as timelines
from castile.launch.pictures.timeline import Undrawn
from castile.launch.processes.ranks import UserError
from castile.launch.reports import report, throughput, trace
from castile.launch.typed import files, options
from castile.launch.typed.files import Outputs
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.evaluation.memory_peaks import Owners, PeakOwners
from castile.planner.evaluation.simulated_step import SimulatedStep
from castile.planner.evaluation.traffic import moved_bytes
from castile.planner.known.seeds import seeds
from castile.planner.searching.refinement import with_best_buckets
from castile.planner.strategy import Strategy
from castile.runtime import memory
from castile.runtime.task import NUM_LANES, CostKey, Kind
from castile.runtime.timeline import PICOSECONDS

BASE = "data_parallel"
# By so much shares that add to one may be told as more.
ROUNDING = 1e-3
# What memory holds, in words.
HELD = {
    "parameters": "parameters",
    "gradients": "their gradients",
    "state": "the optimizer's state",
    "results": "results of nodes and their gradients",
    "temporaries": "temporaries",
}


@dataclass(frozen=True)
class Simulate:
    """Predict what a step of a plan takes: time by kind of work, waiting, memory and its owners."""

    what: options.ModelOrPlan
    """A plan file (x.json), or a model (convnet, gpt:layers=4): data parallel, unless --plan is given."""
    machine: options.MachineOrOwn = ""
    """Where the step would run: local, local:procs=4, a preset such as dgx-h100:nodes=2, or a TOML file; by default
    the machine that the plan's file names, or local."""
    plan: options.File = ""
    """The model's plan file."""
    forward: bool = False
    """Only the forward pass of a step, as for plans that were found with `--objective latency`."""
    batch: options.Count = None
    """Samples a step; by default as many as the plan's file says, or the model's own."""
    profile: options.File = ""
    """A profile database with measurements of this machine; without one, prices come from the machine's figures."""
    trace: options.File = ""
    """Write a Chrome trace of the simulated step to this file (open it in Perfetto)."""
    picture: options.File = ""
    """Draw what each processor does in the simulated step, and how memory fills, as SVG."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Simulate


def run(command: Simulate) -> int:
    """Lower, simulate, pack, tell; rank 0 alone. Raises ValueError or UserError for a user's mistake."""
    checks.counts(batch=command.batch)
    checks.writable(of=command, trace=command.trace, picture=command.picture)
    path, model, given = _named_plan(command)
    machine = offline.machine_of(command.machine, given, path)
    if offline.is_silent(machine):
        return 0
    mode = "forward" if command.forward else "train"
    batch = command.batch or (given.batch if given is not None else None)
    of_file = path if path == command.what else ""
    desk = offline.desk(model, machine, batch, command.profile, plan=given, mode=mode, path=of_file)
    model, plan = desk.model.text, given or seeds(desk.evaluator.lowering)[BASE]
    offline.check_plan(plan, path or BASE, model, desk)
    desk = desk.measured()
    if given is None:
        plan = with_best_buckets(desk.evaluator, plan)
    step = desk.evaluator.step_of(plan)
    try:
        facts = _facts(model, path or BASE, desk, step)
    except ValueError as error:
        # What is found for forward passes foretells no step.
        meant = given is not None and given.predicted is None and not command.forward
        raise UserError(f"{error}; --forward simulates its forward pass alone" if meant else str(error)) from error
    facts |= {"forward": command.forward, "buckets": report.buckets(desk.evaluator, plan)}
    facts |= {"order": report.order(desk.evaluator, plan), "ahead": report.ahead(desk.evaluator, plan)}
    outputs, lanes = Outputs(), {"simulated": step.simulated.timeline}
    title = f"{_drawn(step)}: {_of(facts)}"
    outputs.write(
        "trace", command.trace, lambda path: trace.write(path, step.folded.on_whole_machine(step.tasks), lanes)
    )
    outputs.write(
        "picture", command.picture,
        lambda path: files.write(
            path, timelines.picture(title, step.tasks, lanes, machine, step.role, undrawn(step)).encode()
        ),
    )  # fmt: skip
    facts["files"] = outputs.paths
    if command.json:
        print(json.dumps(facts, indent=2))
    else:
        _tell(facts, report.plan_lines(plan))
    outputs.end()
    return 0


def _named_plan(command: Simulate) -> tuple[str, str, Strategy | None]:
    """The plan's file, the model, and the plan, if the user named one."""
    # a name of the zoo is a model, whatever files lie here: ./gpt is a file
    is_model = models.is_file(command.what) or command.what in models.available()
    is_plan = command.what.endswith(".json") or (Path(command.what).is_file() and not is_model)
    if is_plan and command.plan:
        raise UserError(f"{command.what} is a plan and --plan {command.plan} is another: name one of them, and a model")
    if not is_plan:
        return command.plan, command.what, strategies.read(command.plan) if command.plan else None
    plan = strategies.read(command.what)
    if not plan.model:
        raise UserError(f"plan {command.what} does not say its model: castile simulate MODEL --plan {command.what}")
    return command.what, plan.model, plan


def _facts(model: str, plan: str, desk: Desk, step: SimulatedStep) -> dict[str, Any]:
    """Every figure. Raises ValueError, naming the largest owners, where the plan does not fit into memory."""
    peak_bytes, tasks, seconds = desk.evaluator.packed(step), step.tasks, step.seconds
    capacity = desk.evaluator.capacity.tolist()
    owners, working = looked_through(step, desk.evaluator.cost)
    params = {param.name for param in desk.evaluator.lowering.graph.params}
    procs = [
        {
            "proc": p,
            "busy_share": float(step.busy_seconds[role] / seconds),
            # what is sent, received, copied or summed while no kernel runs
            "moving_share": float(max(0.0, working[role] - step.busy_seconds[role]) / seconds),
            "waiting_share": float(1 - working[role] / seconds),
            "peak_bytes": peak_bytes[p],
            "capacity_bytes": capacity[p],
            "held": held(owners[role], params),
            "largest": [{"name": name, "size_bytes": nbytes} for name, nbytes in owners[role][:memory.MOST_TOLD]],
        }
        for p, role in enumerate(step.role.tolist())
    ]
    return {
        "model": model,
        "plan": plan,
        "machine": desk.machine.name,
        "num_procs": desk.machine.num_procs,
        "batch_samples": desk.evaluator.lowering.graph.batch,
        "num_tasks": int(step.count.sum()),
        "step_seconds": seconds,
        **throughput.facts(desk.evaluator.lowering, seconds),
        "flops_per_second": flops(step) / seconds / desk.machine.num_procs,
        "moved_bytes": moved_bytes(tasks, step.count),
        "kinds": kinds(step, working),
        "procs": procs,
        "prices": desk.evaluator.cost.sources(tasks.cost_keys),
    }


def held(owners: Sequence[tuple[str, int]], params: Set[str]) -> dict[str, int]:
    """The bytes of each kind of owner: parameters and what is gathered of them, their gradients, what the optimizer
    keeps, results with their gradients, and what kernels take while they run.
    """
    found = dict.fromkeys(HELD, 0)
    for name, nbytes in owners:
        of, _, what = name.partition("/")
        kind = "temporaries" if name.startswith(memory.TEMPORARIES) else "results"
        if of.partition(" ")[0] in params:
            kind = "gradients" if what.startswith("grad") else "state"
            kind = "parameters" if not what or what.startswith("fetched") else kind
        found[kind] += nbytes
    return {f"{kind}_bytes": nbytes for kind, nbytes in found.items()}


def flops(step: SimulatedStep) -> float:
    """The floating-point operations of all kernels of the step, those of replicas and of what is computed again too."""
    tasks = step.tasks
    # as numbers with a point: those of a large step are more than 64 bits hold
    each = np.array([float(key.flops) for key in tasks.cost_keys])[tasks.cost]
    return float((each * step.count)[tasks.kind == Kind.COMPUTE].sum())


def looked_through(step: SimulatedStep, cost: CostModel) -> tuple[list[Owners], np.ndarray]:
    """Of each processor of `step.tasks` who owns what when most lives there, and float64[C], for how many seconds at
    least one of its lanes is at work.
    """
    peaks, ledger = PeakOwners(step), step.ledger(np.zeros(step.tasks.num_tasks, np.int64), 1)
    step.show_stretches(cost, peaks.enter, ledger.enter)
    return peaks.owners, ledger.spent[:, 0] / PICOSECONDS


def kinds(step: SimulatedStep, working: np.ndarray) -> list[dict[str, Any]]:
    """What the processors' time goes into: operators, local copies and sums, transfers by form and link, waiting.

    working   for how long each processor of `step.tasks` is at work, in seconds
    """
    tasks = step.tasks
    owner = np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.lane_ptr))
    computes, num_keys = tasks.kind == Kind.COMPUTE, len(tasks.cost_keys)
    alike = tasks.cost + num_keys * computes
    num_tasks = np.bincount(alike, step.count, 2 * num_keys)
    picoseconds = np.bincount(alike[owner], step.lasts[owner] * step.copies[tasks.lanes // NUM_LANES], 2 * num_keys)
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for number in np.flatnonzero(num_tasks).tolist():
        entry = found[_kind(tasks.cost_keys[number % num_keys], number >= num_keys)]
        entry[0] += num_tasks[number]
        entry[1] += picoseconds[number]
    rows = [(what, [count, lasts / PICOSECONDS]) for what, (count, lasts) in found.items()]
    rows.sort(key=lambda row: -row[1][1])
    whole = len(step.role) * step.seconds
    rows.append(("waiting", [0, whole - float(step.copies @ working)]))
    return [
        {"what": what, "num_tasks": int(count), "proc_seconds": float(total), "share": float(total / whole)}
        for what, (count, total) in rows
    ]


def _kind(key: CostKey, computes: bool) -> str:
    if key.link:
        return f"{key.name} over {key.link}"
    name = key.name.partition(".")[0]
    return name if computes else f"{name} (local)"


def _drawn(step: SimulatedStep) -> str:
    """What a step takes, and how much of it is drawn."""
    count, few = step.strategy.microbatches, step.num_microbatches
    drawn = f", of {count} microbatches {few} drawn" if few < count else ""
    return f"{report.duration(step.seconds)} simulated{drawn}"


def undrawn(step: SimulatedStep) -> Undrawn | None:
    """What a picture leaves out: microbatches not written out, nor stood for by others; None where none is."""
    if not step.left:
        return None
    computes = (step.busy_seconds / step.seconds)[step.role]
    return Undrawn(*step.timeline.longest_pause(), f"{step.left} microbatches", computes)


def _of(facts: Mapping[str, Any]) -> str:
    """What was simulated, in words."""
    return f"{report.subject(facts, report.what(facts['forward']))}, plan {facts['plan']}"


def _tell(facts: dict[str, Any], lines: list[str]) -> None:
    out = report.console()
    what = report.what(facts["forward"])
    out.say(f"{_of(facts)}:")
    for line in lines:
        out.say(f"  {line}")
    out.say(
        f"\na {what} takes {report.duration(facts['step_seconds'])}{report.without(facts)} in "
        f"{facts['num_tasks']} tasks{report.bucket_words(facts['buckets'])} and moves "
        f"{memory.written(facts['moved_bytes'])}; prices: {report.prices_words(facts['prices'])}"
    )
    out.say(f"{throughput.words(facts)}, {report.rate(facts['flops_per_second'])} on each processor\n")
    out.say_table(report.kind_table(facts["kinds"]))
    if sum(kind["share"] for kind in facts["kinds"]) > 1 + ROUNDING:
        out.say("shares are of all processors' time; they add up to more, as transfers overlap with kernels")
    out.say("")
    out.say_table(report.proc_table(facts["procs"]))
    fullest = max(facts["procs"], key=lambda row: row["peak_bytes"])
    owners = ", ".join(f"{owner['name']} ({memory.written(owner['size_bytes'])})" for owner in fullest["largest"])
    sizes = {words: fullest["held"][f"{kind}_bytes"] for kind, words in HELD.items()}
    kinds = ", ".join(f"{words} {memory.written(nbytes)}" for words, nbytes in sizes.items() if nbytes)
    out.say(f"\nwhen processor {fullest['proc']} is fullest it holds {owners}\nin all: {kinds}")
    out.say_files(facts)
