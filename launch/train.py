"""`castile train`: finds a plan for this model on these ranks, trains with it, and learns from what each task took.

It does not know how plans are searched, lowered or run; it composes those who do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from castile.kernels.table import Table
from castile.launch import checks, evaluate, explore, jobs, options, report, trace, training_report
from castile.launch.data import Dataset
from castile.launch.execution import Execution, Prepared, feed_from
from castile.launch.explore import Chosen
from castile.launch.jobs import Job
from castile.launch.ranks import UserError
from castile.launch.training_report import Progress, Speaker
from castile.planner import search as searches
from castile.planner import strategy as strategies
from castile.runtime import debug

NUM_SAMPLED = 20


@dataclass(frozen=True)
class Train:
    """Train a model on these ranks, with a plan from a file or one that is searched for and measured first."""

    model: options.Model
    """Its name and settings (convnet, mlp, gpt:layers=4,width=128), or a Python file with a function build()."""
    machine: options.Machine = "local"
    """Where to train: this host, with a processor for each rank; or a TOML file that describes it."""
    plan: options.File = ""
    """Train with the plan of this file, as --out writes it; without one a plan is searched for."""
    search: options.Search = "mcmc"
    """The search that looks for a plan: mcmc, exhaustive (small cases), or data_parallel to have just that."""
    budget: options.Budget = "500"
    """How long it looks: a number of proposals (5000), which repeats exactly, or a time (10s)."""
    seed: options.Number = 0
    """Fixes the initial parameters, which samples are held out, their order, and the search."""
    data: options.Data = ""
    """What to train on: digits, text, text:file=PATH; the model's own data set by default."""
    batch: options.Count = None
    """Samples a step; the model's own by default."""
    epochs: options.Count = None
    """Passes over the training samples; the model's own by default."""
    steps: options.Count = None
    """Train so many steps, instead of whole passes over the samples."""
    lr: options.Rate = None
    """Learning rate; the model's own by default."""
    out: options.File = ""
    """Write the plan that was trained with to this file (JSON)."""
    trace: options.File = ""
    """Write a Chrome trace of one step, simulated and measured, to this file (open it in Perfetto)."""
    profile: options.File = ""
    """The profile database to learn from and into; by default ~/.local/share/castile/profile.db."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Train


def run(command: Train) -> int:
    """Plan, train, evaluate, learn, report. Raises ValueError or UserError for a user's mistake."""
    begun = time.perf_counter()
    _check(command)
    profile = command.profile or jobs.default_profile()
    job = jobs.start(command.model, command.machine, command.batch, profile)
    dataset = job.dataset(command.data, command.seed)
    steps_per_epoch = dataset.steps_per_epoch(job.graph.batch)
    rate = command.lr or job.model.recipe.lr
    say = Speaker(job.leads, command.json)
    chosen = _choose(command, job, dataset, rate, say)
    say.line(training_report.plan_text(job, chosen))
    _explain(job, chosen)
    if job.leads and command.out:
        # a plan file names its model as the user did, so that it can be simulated from the file alone
        strategies.write(msgspec.structs.replace(chosen.plan, model=command.model), command.out)
    execution = job.execute(chosen.prepared, command.seed)
    num_steps = command.steps or (command.epochs or job.model.recipe.epochs) * steps_per_epoch
    progress = _train(job, dataset, rate, execution, chosen.prepared, num_steps, say)
    judged = evaluate.held_out(job, chosen.plan, dataset, execution.state)
    if job.leads and command.trace:
        Path(command.trace).parent.mkdir(parents=True, exist_ok=True)
        lanes = {"simulated": chosen.prepared.simulated.timeline, "measured": progress.sampled[-1]}
        trace.write(command.trace, chosen.prepared.tasks, lanes)
    facts = training_report.facts(job, chosen, progress, judged)
    job.learn(chosen.prepared, progress.sampled)
    job.keep()
    facts["files"] = {k: v for k, v in (("plan", command.out), ("profile", profile), ("trace", command.trace)) if v}
    facts["total_seconds"] = time.perf_counter() - begun
    say.close(training_report.text, facts)
    return 0


def _check(command: Train) -> None:
    """Raises UserError or ValueError for what can be known to be wrong before the ranks have met."""
    checks.counts(batch=command.batch, epochs=command.epochs, steps=command.steps)
    checks.rates(lr=command.lr)
    checks.writable(out=command.out, trace=command.trace)
    if command.steps is not None and command.epochs is not None:
        raise UserError(f"--steps {command.steps} and --epochs {command.epochs}: give one of the two")
    searches.find(command.search)
    searches.parse_budget(command.budget)
    debug.level()


def _choose(command: Train, job: Job, dataset: Dataset, rate: float, say: Speaker) -> Chosen:
    """The plan of the file that the user named, or the one that measures fastest here."""
    if command.plan:
        return explore.given(job, job.plan_of(command.plan), command.plan)
    feed = feed_from(dataset.batch(0, job.graph.batch))
    return explore.choose(job, command.search, command.budget, command.seed, feed, rate, say.note)


def _explain(job: Job, chosen: Chosen) -> None:
    """What the debug ladder asks to see before the first step."""
    tasks, rank = chosen.prepared.tasks, job.comm.rank
    debug.show(debug.PLAN, rank, lambda: "\n".join(report.plan_lines(chosen.plan)))
    debug.show(debug.GRAPH, rank, lambda: debug.graph_table(tasks))
    debug.show(debug.SOURCES, rank, lambda: debug.kernel_sources(tasks, Table("numpy").source))


def _train(
    job: Job, dataset: Dataset, rate: float, execution: Execution, prepared: Prepared, num_steps: int, say: Speaker
) -> Progress:
    """Train; about twenty steps are measured whole, and each tells a line."""
    progress = Progress()
    batch, every = job.graph.batch, max(1, num_steps // NUM_SAMPLED)
    for step in range(num_steps):
        execution.feed(feed_from(dataset.batch(step, batch)), rate)
        begun = time.perf_counter()
        timeline = execution.step()
        progress.seconds.append(time.perf_counter() - begun)
        loss = execution.output(job.graph.loss)
        progress.losses.append(float(loss) if loss is not None else float("nan"))
        if step % every == every - 1:
            whole = job.gather(timeline)
            if whole is not None:
                progress.sampled.append(whole)
                debug.show(debug.TASKS, job.comm.rank, partial(debug.task_table, prepared.tasks, whole))
            say.line(training_report.step_line(job, step + 1, progress, prepared, every))
    return progress
