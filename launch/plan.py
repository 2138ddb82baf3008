"""`castile plan`: finds a fast way to train a model on a machine, which need not be here, and writes it to a file.

It does not know how to run a plan.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from castile.launch import checks, offline, options, ranks, report, trace
from castile.launch.offline import Desk
from castile.planner import strategy as strategies
from castile.planner.search import Evaluated, Found, Progress, search


@dataclass(frozen=True)
class Plan:
    """Find a fast way to train a model on a machine, which need not be here."""

    model: options.Model
    """A model's name with settings (convnet, gpt:layers=4,width=128) or a Python file with build()."""
    machine: options.Machine = "local"
    """What to plan for: local, local:procs=4, a preset such as dgx-h100:nodes=2, or a TOML file."""
    search: options.Search = "mcmc"
    """The search that looks for a plan: mcmc, exhaustive (small cases) or data_parallel."""
    budget: options.BudgetOrOwn = ""
    """How long it looks: a number of proposals (5000), or a time (10s); the search's own by default."""
    seed: options.Number = 0
    """Fixes the search: the same seed and number of proposals give the same plan."""
    batch: options.Count = None
    """Samples a step; the model's own by default."""
    profile: options.File = ""
    """A profile database with measurements of this machine; without one the machine's figures are the prices."""
    out: options.File = ""
    """Write the plan to this file (JSON)."""
    trace: options.File = ""
    """Write a Chrome trace of the simulated step to this file (open it in Perfetto)."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Plan


def run(command: Plan) -> int:
    """Search, tell, write; rank 0 alone. Raises ValueError or UserError in one sentence for a user's mistake."""
    checks.counts(batch=command.batch)
    checks.writable(out=command.out, trace=command.trace)
    machine = offline.find_machine(command.machine)
    if ranks.silent():
        return 0
    desk = offline.desk(command.model, machine, command.batch, command.profile)
    with _progress() as progress:
        found = search(command.search, desk.evaluator, command.budget, command.seed, progress)
    # A plan file names its model as the user did, so that it can be simulated from the file alone.
    plan = msgspec.structs.replace(found.strategy, model=command.model)
    tasks, simulated = desk.evaluator.simulate(plan)
    facts = _facts(command, desk, found)
    facts["num_tasks"] = tasks.num_tasks
    facts["prices"] = desk.evaluator.cost.sources(tasks.cost_keys)
    if command.out:
        strategies.write(plan, command.out)
    if command.trace:
        trace.write(command.trace, tasks, {"simulated": simulated.timeline})
    if command.json:
        print(json.dumps(facts, indent=2))
    else:
        _tell(facts, report.plan_lines(plan))
    return 0


def _facts(command: Plan, desk: Desk, found: Found) -> dict[str, Any]:
    """Every figure of the search."""
    base = found.seeds["data_parallel"]
    return {
        "model": command.model,
        "machine": desk.machine.name,
        "num_procs": desk.machine.num_procs,
        "batch_samples": desk.evaluator.lowering.graph.batch,
        "search": command.search,
        "seed": command.seed,
        "num_proposals": found.num_proposals,
        "elapsed_seconds": found.elapsed_seconds,
        "equals": found.equals,
        "found": report.facts(found.evaluated, base) | {"arena_bytes": list(found.arena_bytes)},
        "seeds": {name: report.facts(worth, base) for name, worth in found.seeds.items()},
        "layouts": [{"config": row.config, "nodes": row.nodes} for row in report.layouts(found.strategy)],
        "files": {name: path for name, path in (("plan", command.out), ("trace", command.trace)) if path},
    }


def _tell(facts: dict[str, Any], lines: list[str]) -> None:
    out = report.console()
    out.print(
        f"{facts['model']}, {facts['batch_samples']} samples a step, on {facts['machine']} "
        f"({facts['num_procs']} processors); {facts['num_tasks']} tasks a step, prices: "
        f"{report.prices_words(facts['prices'])}\n",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    out.print(report.plan_table({**facts["seeds"], f"found by {facts['search']}": facts["found"]}))
    looked = f"after {facts['num_proposals']} proposals in {facts['elapsed_seconds']:.1f} s"
    same = f"; it equals {facts['equals']}" if facts["equals"] else ""
    out.print(f"\nthe plan, {looked}{same}:", markup=False)
    for line in lines:
        out.print(f"  {line}", markup=False, soft_wrap=True)
    for name, path in facts["files"].items():
        out.print(f"{name} written to {path}", markup=False, soft_wrap=True)


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on the terminal, where there is one."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("searching"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def show(spent: float, best: Evaluated) -> None:
            bar.update(task, completed=spent, description=report.milliseconds(best.seconds))

        yield show
