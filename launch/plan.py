"""`castile plan`: finds a fast way to train a model on a machine, which need not be here, and writes it to a file.

It does not know how to run a plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tyro

from castile.launch import checks, files, offline, options, plan_report, report, trace
from castile.launch.files import Outputs
from castile.launch.interrupts import ending_early
from castile.launch.offline import Desk
from castile.launch.pictures import front, layout
from castile.launch.progress import searching
from castile.launch.ranks import UserError
from castile.planner import accumulating, pins
from castile.planner import strategy as strategies
from castile.planner.accumulating import Chosen
from castile.planner.bounds import Bound, lower_bound
from castile.planner.budget import Budget, clock
from castile.planner.evaluator import Evaluator
from castile.planner.fewer import FURTHER, on_fewer
from castile.planner.filling import filled
from castile.planner.fronts import Point, search_front
from castile.planner.lower import Lowering
from castile.planner.pins import Pins
from castile.planner.pipelines import divisors
from castile.planner.search import Found, NoPlanFits, Progress, budget_of, search
from castile.planner.searches import find
from castile.planner.seeds import known_names, seeds
from castile.planner.settling import SETTLING, settled
from castile.planner.sizes import SIZES
from castile.planner.sketch.sieve import num_parts
from castile.planner.spaces import Spaces
from castile.planner.stages import num_stages
from castile.planner.strategy import Names, Strategy

# Where plans have so many parts, it is asked first whether known ones come near fitting: a search takes a minute to say
# that it found none.
DEAR = 100_000
# What a search gets of a budget that others have spent: it looks at the known plans all the same.
LEAST_SECONDS = 1e-3

Pin = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PIN", help_behavior_hint="")]
Procs = Annotated[str, tyro.conf.arg(metavar="PROCS", help_behavior_hint="")]
Seeds = Annotated[str, tyro.conf.arg(metavar="NAMES", help_behavior_hint="")]
Objective = Annotated[str, tyro.conf.arg(metavar="time|latency|memory")]
From = Annotated[str, tyro.conf.arg(name="from", metavar="FILE", help_behavior_hint="")]


@dataclass(frozen=True)
class Plan:
    """Find a fast way to train a model on a machine, which need not be here."""

    model: options.Model
    """A model's name with settings (convnet, gpt:layers=4,width=128) or a Python file with build()."""
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
    """Processors that are to do nothing (3,5 or 0-3,8)."""
    seeds: Seeds = ""
    """The known plans to start from (data_parallel,megatron); all by default."""
    from_: From = ""
    """Start from the plan of this file too; what is found is never behind it, unless a pin changes it."""
    budget: options.BudgetOrOwn = ""
    """How long it looks: a number of proposals (5000), or a time (10s); the search's own by default."""
    processes: options.Number = 1
    """In how many processes a search may walk side by side (--search tempering); what it finds is the same."""
    seed: options.Number = 0
    """Fixes the search: the same seed and number of proposals give the same plan."""
    batch: options.Count = None
    """Samples a step; the model's own by default."""
    accumulate: options.Count = None
    """Cut each batch into so many pieces in time, one after another; by default one, or as many as let a plan fit."""
    dtype: options.Dtype = "float32"
    """What is computed with: float32, float64, bfloat16 or float16."""
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
    checks.writable(out=command.out, trace=command.trace, picture=command.picture)
    machine = offline.find_machine(command.machine)
    if offline.is_silent(machine):
        return 0
    mode = _mode(command)
    desk = offline.desk(command.model, machine, command.batch, command.profile, (command.dtype,), mode=mode)
    start = _start(command, desk)
    _check_pieces(command, desk, start)
    _check_names(command, _evaluator(command, desk, _asked(command, start)))
    with searching() as progress, ending_early("the best plan so far") as is_over:
        limits = replace(budget_of(command.search, desk.evaluator.lowering, command.budget), is_over=is_over)
        desk = desk.measured()
        evaluator, pinned, found, points = _look(command, desk, start, limits, progress)
    plan = _signed(command, desk, found.strategy)
    facts = _facts(command, desk, found)
    facts["microbatches"] = plan.microbatches
    facts["num_stages"] = num_stages(plan, desk.evaluator.lowering.graph.nodes)
    facts["is_cut_to_fit"] = plan.microbatches > _asked(command, start) and facts["num_stages"] == 1
    facts["pinned"] = [str(pin) for pin in pinned.pins] if pinned is not None else []
    facts |= _bound_facts(_bound(evaluator, pinned, found), found)
    facts |= _task_facts(evaluator, plan)
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
        plan_report.tell(facts, report.plan_lines(plan))
    outputs.end()
    return 0


def _trace(path: str, evaluator: Evaluator, plan: Strategy) -> None:
    tasks, simulated = evaluator.simulate(plan)
    trace.write(path, tasks, {"simulated": simulated.timeline})


def _signed(command: Plan, desk: Desk, plan: Strategy) -> Strategy:
    return strategies.signed(plan, command.model, desk.evaluator.lowering.graph, desk.machine)


def _task_facts(evaluator: Evaluator, plan: Strategy) -> dict[str, Any]:
    """How many tasks a step has, where their prices come from, and what its buckets and its order do."""
    tasks, count = evaluator.tasks(plan)
    return {
        "num_tasks": int(count.sum()),
        "prices": evaluator.cost.sources(tasks.cost_keys),
        "buckets": report.buckets(evaluator, plan),
        "order": report.order(evaluator, plan),
    }


def _start(command: Plan, desk: Desk) -> dict[str, Strategy]:
    """The plan to start from, if one is given. Raises UserError, with the file's name, where it is not for this."""
    if not command.from_:
        return {}
    plan = strategies.read(command.from_)
    offline.check_plan(plan, command.from_, command.model, desk)
    return {"given": plan}


def _check_pieces(command: Plan, desk: Desk, start: dict[str, Strategy]) -> None:
    """Raises UserError where the batch cannot be cut as --accumulate says."""
    checks.pieces(command.accumulate, desk.evaluator.lowering.graph.batch)
    if command.accumulate and command.objective == "latency":
        raise UserError("--accumulate means nothing for --objective latency: a forward pass takes the whole batch")
    for plan in start.values():
        if command.accumulate not in (None, plan.microbatches):
            raise UserError(
                f"--accumulate {command.accumulate}: plan {command.from_} cuts the batch into {plan.microbatches}; "
                "give that, or leave --from out"
            )


def _check_names(command: Plan, evaluator: Evaluator) -> None:
    """Raises ValueError where there is no such search, known plan or pinned node."""
    find(command.search, evaluator.lowering)
    checks.trains(evaluator.lowering)
    _pins(command, evaluator)
    if names := _names(command, evaluator.lowering):
        seeds(evaluator.lowering, names)


def _asked(command: Plan, start: dict[str, Strategy]) -> int:
    """Into how many microbatches the batch is cut if a plan fits then: as is said, as the given plan does, or one."""
    if command.objective == "latency":
        return 1
    return command.accumulate or max((plan.microbatches for plan in start.values()), default=1)


def _look(
    command: Plan, desk: Desk, start: dict[str, Strategy], limits: Budget, progress: Progress | None
) -> tuple[Evaluator, Pins | None, Found, list[Point]]:
    """Search, and where no plan fits in more and more microbatches, unless their number was said.

    A time to look is that of all searches together, and what was found tells how long they took together and what they
    proposed. Where nothing is left of it, a search still looks at the known plans. Raises NoPlanFits then, with a
    number that would do.
    """

    def at(count: int) -> tuple[Evaluator, Pins | None]:
        evaluator = _evaluator(command, desk, count)
        return evaluator, _pins(command, evaluator)

    def more_than(count: int) -> Chosen | None:
        # Who wants an end waits for no further number.
        return accumulating.enough(at, (n for n in numbers if n > count and not limits.is_over()), names, is_late)

    began, names, refused, num_proposals = clock(), _names(command, desk.evaluator.lowering), None, 0
    numbers = divisors(desk.evaluator.lowering.graph.batch) if command.objective != "latency" else ()
    is_late, is_settled = limits.begun().is_over, limits.begun(1 + SETTLING).is_over
    count, is_free = _asked(command, start), not (command.accumulate or start)
    evaluator, pinned = at(count)
    if is_free and _is_far(evaluator, pinned, names) and (more := more_than(count)) is not None:
        count, evaluator, pinned = more.number, more.evaluator, more.pins
    while True:
        try:
            left = _left(limits, clock() - began)
            found, points = _search(command, evaluator, start, left, is_settled, pinned, progress)
            break
        except NoPlanFits as error:
            num_proposals += error.num_proposals
            refused, more = refused or error, more_than(count)
            if more is None:
                raise refused from None
            if not is_free:
                # A plan that is given says into how many pieces it cuts the batch.
                free, near = "leave --from out and " if start else "", "fits" if more.fits else "comes near fitting"
                advice = f"{free}give --accumulate {more.number}, with which a known plan {near}"
                raise NoPlanFits(f"{error}; or {advice}") from error
            count, evaluator, pinned = more.number, more.evaluator, more.pins
    # A time is spent on one number of microbatches, and a front has one.
    if is_free and limits.seconds is None and command.objective == "time" and names is None and not points:
        more_numbers = (n for n in numbers[2:] if n != count and not limits.is_over())
        evaluator, pinned, found = filled(
            evaluator, pinned, found, more_numbers, at,
            lambda other, within: _search(command, other, {}, limits, is_settled, within, progress)[0],
        )  # fmt: skip
    num_proposals += found.num_proposals
    return evaluator, pinned, replace(found, elapsed_seconds=clock() - began, num_proposals=num_proposals), points


def _left(limits: Budget, passed: float) -> Budget:
    """What is left of a budget after so many seconds: the least there is where nothing is."""
    if limits.seconds is None:
        return limits
    return replace(limits, seconds=max(LEAST_SECONDS, limits.seconds - passed), before=passed)


def _is_far(evaluator: Evaluator, pinned: Pins | None, names: list[str] | None) -> bool:
    """Whether no known plan comes near fitting, where a search takes long to say that it found none."""
    return num_parts(evaluator) >= DEAR and accumulating.foresee(evaluator, names, pinned).is_far


def _mode(command: Plan) -> str:
    """What plans are lowered to."""
    return "forward" if command.objective == "latency" else "train"


def _evaluator(command: Plan, desk: Desk, count: int) -> Evaluator:
    """What measures the objective: training steps in so many microbatches, or forward passes."""
    mode, known = _mode(command), desk.evaluator.lowering
    if (known.mode, known.microbatches) == (mode, count):
        return desk.evaluator.turned(command.objective)
    lowering = Lowering(known.graph, known.machine, known.updates, mode, count)
    return desk.evaluator.turned(command.objective, lowering=lowering)


def _search(
    command: Plan,
    evaluator: Evaluator,
    start: dict[str, Strategy],
    limits: Budget,
    is_settled: Callable[[], bool],
    pinned: Pins | None,
    progress: Progress | None,
) -> tuple[Found, list[Point]]:
    # A search begins without buckets.
    plain = {name: msgspec.structs.replace(plan, bucket_bytes=0) for name, plan in start.items()}
    sizes = (*SIZES, *(plan.bucket_bytes for plan in start.values()))
    given: dict[str, Any] = {
        "seed": command.seed, "progress": progress, "start": plain, "num_processes": command.processes,
        "seeds": _names(command, evaluator.lowering), "sizes": sizes,
    }  # fmt: skip
    if command.front:
        found, points = search_front(command.search, evaluator, limits, pins=pinned, **given)
        return settled(evaluator, found, sizes, is_settled), points

    def look(within: Pins | None, share: float = 1.0) -> Found:
        part = limits if limits.seconds is None else replace(limits, seconds=share * limits.seconds)
        return search(command.search, evaluator, part, pins=within, **given)

    found = on_fewer(evaluator, look(pinned), partial(look, share=FURTHER), pinned, is_settled)
    return settled(evaluator, found, sizes, is_settled), []


def _names(command: Plan, lowering: Lowering) -> list[str] | None:
    """The known plans to start from, None for all; a search that is one of them looks at no other."""
    if command.seeds:
        return [name.strip() for name in command.seeds.split(",")]
    return [command.search] if command.search in known_names(lowering) else None


def _pins(command: Plan, evaluator: Evaluator) -> Pins | None:
    """What the user insists on, None for nothing."""
    lowering = evaluator.lowering
    found = [pins.parse(text) for text in command.pin]
    if command.without:
        found.append(pins.without(command.without, lowering.machine.num_procs))
    names = Names(lowering.piece.nodes, lowering.names.optional)
    return Pins(found, names, lowering.machine.num_procs) if found else None


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
    """The front from the fastest plan to the smallest; each is written if the plan is."""
    rows = []
    for number, point in enumerate(points, 1):
        row = report.facts(point.evaluated, found.seeds["data_parallel"]) | {"arena_bytes": list(point.arena_bytes)}
        if command.out:
            out = Path(command.out)
            path = str(out.with_name(f"{out.stem}-{number}{out.suffix}"))
            data = strategies.encode(_signed(command, desk, point.strategy))
            if outputs.attempt(partial(files.write, path, data)):
                row["file"] = path
        rows.append(row)
    return rows


def _facts(command: Plan, desk: Desk, found: Found) -> dict[str, Any]:
    """Every figure of the search."""
    base = found.seeds["data_parallel"]
    return {
        "model": command.model,
        "machine": desk.machine.name,
        "num_procs": desk.machine.num_procs,
        "batch_samples": desk.evaluator.lowering.graph.batch,
        "search": command.search,
        "objective": command.objective,
        "seed": command.seed,
        "num_proposals": found.num_proposals,
        "elapsed_seconds": found.elapsed_seconds,
        "equals": found.equals,
        "found": report.facts(found.evaluated, base) | {"arena_bytes": list(found.arena_bytes)},
        "seeds": {name: report.facts(worth, base) for name, worth in found.seeds.items()},
        "layouts": [{"config": row.config, "nodes": row.nodes} for row in report.layouts(found.strategy)],
    }


def _picture(facts: Mapping[str, Any], evaluator: Evaluator, plan: Strategy) -> str:
    """The front if one was looked for, else the plan."""
    what = report.what(facts["objective"] == "latency")
    title = f"{facts['model']}, {report.counted(facts['batch_samples'], 'sample')} a {what}, on {facts['machine']}"
    if "front" in facts:
        return front.picture(title, facts["front"], facts["seeds"], int(evaluator.capacity.max()))
    return layout.picture(f"{title}: {report.milliseconds(facts['found']['step_seconds'])}", evaluator, plan)
