"""`castile plan`: finds a fast way to train a model on a machine, which need not be here, and writes it to a file.

It does not know how to run a plan.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, repeat
from pathlib import Path
from typing import Annotated, Any

import tyro

from castile.launch.here import absent_gpus
from castile.launch.jobs import checks, figures, offline
from castile.launch.jobs.offline import Desk
from castile.launch.jobs.plan_search import PlanSearch
from castile.launch.jobs.request import mode_of
from castile.launch.jobs.search_history import SearchHistory
from castile.launch.pictures import descent, front, layout
from castile.launch.processes.interrupts import ending_early
from castile.launch.processes.ranks import UserError, is_users_mistake
from castile.launch.reports import report, search_comparison, search_report, trace
from castile.launch.reports.progress import searching
from castile.launch.typed import files, options, searchers
from castile.launch.typed.files import Outputs
from castile.planner import strategy as strategies
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import seeds
from castile.planner.search import budget_of
from castile.planner.searches import find
from castile.planner.searching.fronts import Point
from castile.planner.searching.results import SearchResult
from castile.planner.strategy import Strategy
from castile.runtime.machine import Machine

Pin = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PIN", help_behavior_hint="")]
Machines = Annotated[
    tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="MACHINE", help_behavior_hint="")
]
Searches = Annotated[
    tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="search", metavar="NAME", help_behavior_hint="")
]
Numbers = Annotated[str, tyro.conf.arg(name="seed", metavar="N|N-N")]
Procs = Annotated[str, tyro.conf.arg(metavar="PROCS", help_behavior_hint="")]
Seeds = Annotated[str, tyro.conf.arg(metavar="NAMES", help_behavior_hint="")]
Objective = Annotated[str, tyro.conf.arg(metavar="time|latency|memory")]
From = Annotated[str, tyro.conf.arg(name="from", metavar="FILE", help_behavior_hint="")]


# What looks for a plan where no other is named.
SEARCH = "mcmc"


@dataclass(frozen=True)
class Plan:
    """Find a fast way to train a model on a machine, which need not be here."""

    model: options.Model
    """A model's name with settings (convnet, gpt:layers=4,width=128), a Python file with build(), or an ONNX
    file."""
    machine: Machines = ()
    """The machine to plan for: local (by default), local:procs=4, a preset such as dgx-h100:nodes=2, or a TOML file;
    given several times, castile plans for each, and a table compares them."""
    each_search: Searches = ()
    """The search algorithm: mcmc (by default), another of planner/searches, a Python file with search(), or the name of
    a known plan (data_parallel); given several times, a table compares them."""
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
    each_seed: Numbers = "0"
    """Fixes the search: the same seed and number of proposals give the same plan. With several, as in 0-4 or 1,3, each
    search is made with each, and the table tells how far what they find differs."""
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
    """Write the plan to this file (JSON); with --front, those of the front beside it, numbered from the fastest, in
    place of all of an earlier one. With several machines, searches or seeds this and other files are numbered too."""
    trace: options.File = ""
    """Write a Chrome trace of the simulated step to this file (open it in Perfetto)."""
    picture: options.File = ""
    """Draw which processor has which part of each node, as SVG; with --front, time and memory of its plans; with
    several searches or seeds, how the best plan of each got better."""
    json: bool = False
    """Print one JSON object."""

    @property
    def search(self) -> str:
        """Of a command that has one."""
        return (self.each_search or (SEARCH,))[0]

    @property
    def seed(self) -> int:
        """Of a command that has one."""
        return checks.seeds(self.each_seed)[0]


COMMAND = Plan


def run(command: Plan) -> int:
    """Search, tell, write; rank 0 alone. Raises ValueError or UserError in one sentence for a user's mistake."""
    _check(command)
    each = _commands(command)
    for one in each:
        checks.writable(of=one, out=one.out, trace=one.trace, picture=one.picture or command.picture)
    found = {text: offline.find_machine(text) for text in dict.fromkeys(one.machine[0] for one in each)}
    # every rank takes part in measuring each of them
    if all([offline.is_silent(machine) for machine in found.values()]):
        return 0
    machines = [found[one.machine[0]] for one in each]
    given = strategies.read(command.from_) if command.from_ else None
    which = [f"{n} of {len(each)}" if len(each) > 1 else "" for n in range(1, len(each) + 1)]
    asked = [_case(*one) for one in zip(each, machines, repeat(given), which)]
    with ending_early("the best plan so far" if len(asked) == 1 else "the best plans so far") as is_over:
        if len(asked) == 1:
            return _tell(command, *_planned(asked[0], is_over))
        tried = []
        while asked:  # what was worked out for one is let go of before the next
            tried.append(_tried(asked.pop(0), is_over))
        return _compare(command, tried) if len(command.machine) > 1 else _contest(command, tried)


def _check(command: Plan) -> None:
    """Raises UserError for what can be known to be wrong before there is a model or a machine."""
    checks.counts(batch=command.batch, processes=command.processes, accumulate=command.accumulate)
    checks.dtype(command.dtype)
    checks.norm(command.clip)
    numbers = checks.seeds(command.each_seed)
    for search in command.each_search:
        searchers.read(search)
    if command.objective == "latency" and (command.optimizer or command.clip is not None):
        raise UserError("--optimizer and --clip mean nothing with --objective latency, which updates nothing")
    are_many = len(command.each_search) > 1 or len(numbers) > 1
    if command.front and (are_many or len(command.machine) > 1):
        raise UserError("--front is of one machine, one search and one seed: give one of each, or leave --front out")
    if are_many and len(command.machine) > 1:
        raise UserError("several machines and several searches or seeds: give several of the one or of the other")


def _commands(command: Plan) -> list[Plan]:
    """The command for each of its machines, or its searches with each seed, with files of its own.

    Raises UserError where these cannot be numbered.
    """
    texts, searches = command.machine or ("local",), command.each_search or (SEARCH,)
    ways = [
        replace(command, machine=(text,), each_search=(search,), each_seed=str(seed))
        for text, search, seed in product(texts, searches, checks.seeds(command.each_seed))
    ]
    if len(ways) == 1:
        return ways
    what = "machines" if len(texts) > 1 else "searches"
    paths = {name: path for name in ("out", "trace", "picture") if (path := getattr(command, name))}
    if len(texts) == 1:
        paths.pop("picture", None)  # one shows how all went on
    for name, path in paths.items():
        if files.is_stream(Path(path)):
            raise UserError(f"--{name} {path}: {len(ways)} {what} have a file each; give a path of a file")
    each = []
    for number, way in enumerate(ways, 1):
        named: dict[str, Any] = {name: files.numbered(path, number) for name, path in paths.items()}
        each.append(replace(way, **{"picture": ""} | named))
    return each


@dataclass(frozen=True)
class _Case:
    """What is asked of one machine, looked through.

    which   of several machines or searches, in words
    saved   the share of work that rewrites of the graph save
    """

    command: Plan
    plan_search: PlanSearch
    which: str
    saved: float


def _case(command: Plan, machine: Machine, given: Strategy | None, which: str) -> _Case:
    """Raises ValueError or UserError for what can be known to be wrong before anything is looked for."""
    desk = offline.desk(
        command.model, machine, command.batch, command.profile, (command.dtype,), given, mode_of(command.objective),
        optimizer=command.optimizer, clip=command.clip,
    )  # fmt: skip
    is_as_built = command.from_ or command.objective == "memory"
    desk, saved = (desk, 0.0) if is_as_built else desk.rewritten()
    plan_search = PlanSearch(command, desk, _start(command, desk, given))
    _check_pieces(command, plan_search)
    _check_names(plan_search)
    return _Case(command, plan_search, which, saved)


def _tried(asked: _Case, is_over: Callable[[], bool]) -> tuple[dict[str, Any], Outputs]:
    """The facts of what one of several searches finds, or of why it finds nothing; and what was written of it."""
    try:
        facts, _, outputs = _planned(asked, is_over)
        return facts | {"refused": None}, outputs
    except ValueError as error:
        if not is_users_mistake(error):
            raise
        command, machine = asked.command, asked.plan_search.desk.machine
        why = {"search": command.search, "seed": command.seed, "refused": str(error)}
        return {"machine": machine.name, "num_procs": machine.num_procs} | why, Outputs()


def _planned(asked: _Case, is_over: Callable[[], bool]) -> tuple[dict[str, Any], Strategy, Outputs]:
    """Search, and write what is found: every figure of it, the plan, and the files.

    Raises NoPlanFits and other ValueErrors where there is nothing to be found.
    """
    command, plan_search = asked.command, asked.plan_search
    with searching(asked.which) as shown:
        limits = replace(budget_of(command.search, plan_search.lowering, command.budget), is_over=is_over)
        plan_search = replace(plan_search, desk=plan_search.desk.measured())
        course = SearchHistory(shown)
        chosen, found, points = plan_search.run(limits, course.tell)
    desk, evaluator = plan_search.desk, chosen.evaluator
    plan = _signed(desk, found.strategy)
    facts = figures.of(plan_search, chosen, found, course, asked.saved)
    facts["nearer_prices"] = _nearer_prices(command, desk)
    outputs = Outputs()
    if command.front:
        facts["front"] = _front_facts(command, desk, found, points, outputs)
    outputs.write("plan", command.out, lambda path: files.write(path, strategies.encode(plan)))
    outputs.write("trace", command.trace, lambda path: _trace(path, evaluator, plan))
    outputs.write("picture", command.picture, lambda path: files.write(path, _picture(facts, evaluator, plan).encode()))
    facts |= {"files": outputs.paths, "removed": outputs.removed}
    return facts, plan, outputs


def _tell(command: Plan, facts: dict[str, Any], plan: Strategy, outputs: Outputs) -> int:
    if command.json:
        print(json.dumps(facts, indent=2))
    else:
        search_report.tell(facts, report.plan_lines(plan))
    outputs.end()
    return 0


def _compare(command: Plan, tried: list[tuple[dict[str, Any], Outputs]]) -> int:
    """Tell of several machines. Raises UserError, once all is told, where no plan fits on any."""
    rows = [facts for facts, _ in tried]
    if command.json:
        print(json.dumps({"model": command.model, "objective": command.objective, "machines": rows}, indent=2))
    else:
        search_report.tell_machines(command.model, command.objective, rows)
    for _, outputs in tried:
        outputs.end()
    if all(facts["refused"] for facts in rows):
        raise UserError("no plan was found for any of these machines")
    return 0


def _contest(command: Plan, tried: list[tuple[dict[str, Any], Outputs]]) -> int:
    """Tell of several searches. Raises UserError, once all is told, where none found a plan."""
    runs = [facts for facts, _ in tried]
    found = [run for run in runs if not run["refused"]]
    facts = search_comparison.facts(command.objective, runs)
    outputs = Outputs()
    if found:
        outputs.write("picture", command.picture, lambda path: files.write(path, _course(command, found).encode()))
    facts["files"] = outputs.paths
    if command.json:
        print(json.dumps({"model": command.model, "objective": command.objective, **facts}, indent=2))
    else:
        search_comparison.tell(command.model, command.objective, facts)
    for one in (outputs, *(written for _, written in tried)):
        one.end()
    if not found:
        raise UserError("no plan was found by any of these searches")
    return 0


def _course(command: Plan, found: list[dict[str, Any]]) -> str:
    """How the best plan of each search got better."""
    what = "live_bytes" if command.objective == "memory" else "step_seconds"
    return descent.picture(f"{found[0]['model']} on {found[0]['machine']}", what, found)


def _trace(path: str, evaluator: Evaluator, plan: Strategy) -> None:
    step = evaluator.step_of(plan)
    trace.write(path, step.folded.on_whole_machine(step.tasks), {"simulated": step.simulated.timeline})


def _signed(desk: Desk, plan: Strategy) -> Strategy:
    graph = desk.evaluator.lowering.graph
    return strategies.signed(plan, desk.model.text, graph, desk.machine, desk.optimizer, desk.clip)


def _nearer_prices(command: Plan, desk: Desk) -> str | None:
    """The command that tells prices from compiled kernels, where a plan went by data sheets and these could be told."""
    if desk.snapshot is not None or not absent_gpus.is_known(desk.machine) or len(desk.machine.kinds) > 1:
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


def _check_pieces(command: Plan, plan_search: PlanSearch) -> None:
    """Raises UserError where steps cannot be as --accumulate and --recompute say."""
    desk = plan_search.desk
    checks.pieces(command.accumulate, desk.evaluator.lowering.graph.batch)
    if command.objective == "latency":
        if command.accumulate:
            raise UserError("--accumulate means nothing for --objective latency: a forward pass takes the whole batch")
        if command.recompute:
            raise UserError("--recompute means nothing for --objective latency: a forward pass keeps nothing")
    said = plan_search.dropped(command.recompute) if command.recompute else None
    for plan in plan_search.start.values():
        checks.as_planned(plan, command.from_, command.accumulate, said, "leave --from out")


def _check_names(plan_search: PlanSearch) -> None:
    """Raises ValueError where there is no such search, known plan or pinned node, or a search has one process only."""
    command = plan_search.command
    looked_for = find(command.search, plan_search.lowering)
    if command.processes > 1 and not hasattr(looked_for, "PROCESSES"):
        raise UserError(
            f"--processes {command.processes} means nothing for --search {command.search}, which goes on in one "
            "process: leave it out, or give --search tempering"
        )
    checks.trains(plan_search.lowering)
    plan_search.pins(plan_search.lowering)
    if names := plan_search.names:
        seeds(plan_search.lowering, names)


def _front_facts(
    command: Plan, desk: Desk, found: SearchResult, points: list[Point], outputs: Outputs
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
    outputs.remove_beyond(command.out, len(points), strategies.read)
    return rows


def _picture(facts: Mapping[str, Any], evaluator: Evaluator, plan: Strategy) -> str:
    """The front if one was looked for, else the plan."""
    what = report.what(facts["objective"] == "latency")
    title = f"{facts['model']}, {report.counted(facts['batch_samples'], 'sample')} a {what}, on {facts['machine']}"
    if "front" in facts:
        return front.picture(title, facts["front"], facts["seeds"], int(evaluator.capacity.max()))
    return layout.picture(f"{title}: {report.duration(facts['found']['step_seconds'])}", evaluator, plan)
