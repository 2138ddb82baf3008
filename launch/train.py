"""`castile train`: finds a plan for this model on these ranks, trains with it, and learns from what each task took.

It does not know how plans are searched, lowered or run; it composes those who do.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from castile.launch import models
from castile.launch.arrays import weights
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints import layout as layouts
from castile.launch.checkpoints.checkpointer import Checkpointer
from castile.launch.checkpoints.manifest import Facts
from castile.launch.checkpoints.reader import Reader
from castile.launch.data import Dataset
from castile.launch.here import alike
from castile.launch.jobs import checks, jobs, runfile
from castile.launch.jobs.execution import Execution, feed_from
from castile.launch.jobs.jobs import Job
from castile.launch.measuring import explore, tuning
from castile.launch.measuring.explore import Chosen, Wish
from castile.launch.pictures import timeline as timelines
from castile.launch.processes import interrupts
from castile.launch.processes.ranks import UserError
from castile.launch.processes.stopping import SIGNALS, Stopping
from castile.launch.reports import trace
from castile.launch.reports.screen import Speaker
from castile.launch.training import records, resume, telling
from castile.launch.training.metrics import Lines
from castile.launch.training.telling import Progress
from castile.launch.training.training import Course, Training
from castile.launch.typed import files, optimizers, options, rates
from castile.launch.typed.files import Outputs
from castile.planner import searches
from castile.planner import strategy as strategies
from castile.planner.evaluation.budget import parse_budget
from castile.planner.strategy import Strategy
from castile.runtime import debug
from castile.runtime.timeline import Timeline

NUM_KEPT = 2
SEARCH, BUDGET = "mcmc", "500"


@dataclass(frozen=True)
class Train:
    """Train a model on these ranks, with a plan from a file or one that is searched for and measured first."""

    model: options.Model
    """Its name and settings (convnet, gpt:layers=4,width=128), a Python file with build(), or an ONNX file; or a run
    file (run.toml), which says this and any of the options below by name. The command line goes before the file."""
    machine: options.Machine = "local"
    """Where to train: this host, with a processor for each rank; virtual:procs=2 for one GPU as two processors of one
    rank; or a TOML file that describes it."""
    plan: options.File = ""
    """Train with the plan of this file, as --out writes it; without one a plan is searched for."""
    search: options.SearchOrOwn = ""
    """The search that looks for a plan: mcmc, exhaustive (small cases), or data_parallel to have just that; mcmc by
    default."""
    budget: options.BudgetOrOwn = ""
    """How long it looks: a number of proposals (5000), which repeats exactly, or a time (10s); 500 by default."""
    seed: options.Number = 0
    """Fixes the initial parameters, which samples are held out, their order, and the search."""
    data: options.Data = ""
    """What to train on: digits, text:file=PATH, idx:folder=PATH, csv:file=PATH,label=COLUMN, numpy:file=PATH,
    iterator:file=PATH, reverse, clicks, synthetic; the model's own data set by default."""
    batch: options.Count = None
    """Samples a step; the model's own by default."""
    epochs: options.Count = None
    """Passes over the training samples, to the last whole batch; the model's own by default."""
    steps: options.Count = None
    """Train so many steps in all, instead of whole passes over the samples."""
    optimizer: options.Optimizer = ""
    """How parameters are updated: a name with settings, sgd:momentum=0.9 or adamw:beta2=0.95,decay=0.1; the model's own
    by default."""
    lr: options.Rate = None
    """Learning rate, the schedule's peak; the model's own by default."""
    schedule: options.Schedule = ""
    """How the rate goes: constant, linear, cosine or wsd, with settings: cosine:warmup=100,floor=0.1 (a share of the
    peak), wsd:warmup=0.05,decay=0.2; lengths in steps, or below 1 as a share of the run. The model's own by default."""
    clip: options.Norm = None
    """Scale the gradient to this norm where it is longer; the model's own by default, 0 for never."""
    undecayed: options.Patterns = ""
    """Parameters without weight decay: names with wildcards, separated by commas (*.bias,*norm*); the model's own by
    default."""
    accumulate: options.Count = None
    """Cut each batch into so many pieces in time, one after another, whose gradients are summed, for less memory; by
    default one, or as many as let a plan fit."""
    recompute: options.RecomputeOrOwn = ""
    """Results computed again for gradients: selective (what is cheap), 40% (what takes least until so much is kept),
    full (nearly all), parameters (gathered for each pass), names with wildcards, several with commas, or none; by
    default as little as lets a plan fit."""
    dtype: options.Dtype = "float32"
    """What is computed with: float32, float64, bfloat16 or float16; with the last two parameters, sums of gradients and
    optimizer state stay float32."""
    weights: options.File = ""
    """Begin with the parameters of this safetensors file, under own or their model's standard names, or ONNX file."""
    evaluate_every: options.Count = None
    """Evaluate on the held-out samples after so many steps each; without it at the end."""
    checkpoint: options.Folder = ""
    """Save the training in this folder: at the end, and when SIGTERM or SIGUSR1 asks to stop, which then ends the job
    with status 0."""
    checkpoint_every: options.Count = None
    """Save after so many steps each, too."""
    keep: options.Count = None
    """How many checkpoints stay; 2 by default."""
    resume: bool = False
    """Go on from the latest checkpoint in the folder of --checkpoint; where there is none yet, begin."""
    metrics: options.File = ""
    """Write a line of JSON for each step, evaluation and checkpoint to this file (.jsonl); when resumed, add to it."""
    tensorboard: options.Folder = ""
    """Write the same as TensorBoard's event files into this folder."""
    out: options.File = ""
    """Write the plan that was trained with to this file (JSON)."""
    trace: options.File = ""
    """Write a Chrome trace of one step, simulated and measured, to this file (open it in Perfetto)."""
    picture: options.File = ""
    """Draw what each processor does in one step, simulated and measured, as SVG."""
    profile: options.File = ""
    """The profile database to learn from and into; by default ~/.local/share/castile/profile.db."""
    print: bool = False
    """Print the run with all that is left open filled in, as a run file, and stop."""
    json: bool = False
    """Print one JSON object."""

    # of these the one that is typed stands instead of the other in a run file
    INSTEAD = (("epochs", "steps"), ("plan", "search"), ("plan", "budget"))


COMMAND = Train


def parse(args: Sequence[str]) -> Train:
    """The command in these words and in the run file that they may name."""
    return runfile.parse(Train, "castile train", args)


# A loss that is not finite is told in a sentence with what to do about it, and not by the kernels that met it before.
@np.errstate(over="ignore", invalid="ignore")
def run(command: Train) -> int:
    """Plan, train, evaluate, learn, report. Raises ValueError or UserError for a user's mistake."""
    begun, undecayed = time.perf_counter(), command.undecayed
    _check(command)
    command = resolved(command)
    if command.batch:
        checks.pieces(command.accumulate, command.batch)
    if command.print:
        return _print(command)
    # who comes second to a file or folder is to hear of it before a plan is looked for, which takes long
    with records.held(command) as lines:
        return _run(command, lines, undecayed, begun)


def _run(command: Train, lines: Lines | None, undecayed: str, begun: float) -> int:
    """Do what the resolved command says; `undecayed` is as it was typed, and all began at that time."""
    job = jobs.start(
        command.model, command.machine, command.batch, command.profile or None,
        optimizers.updates(command.optimizer, command.clip, command.undecayed), command.accumulate or 1,
        command.recompute, command.data, command.seed, command.dtype, command.plan,
    )  # fmt: skip
    command = replace(command, model=job.model.text)
    if command.search:
        searches.find(command.search, job.lowering)
    checks.some_match("undecayed", undecayed, [param.name for param in job.graph.params])
    say = Speaker(job.leads, command.json)
    dataset = job.dataset(command.data, command.seed)
    for line in filter(None, (job.model.remark(job.graph), telling.left_out(dataset))):
        say.line(line)
    alike.check_data(job.comm, dataset)
    alike.check_file(job.comm, "--weights", command.weights)
    values = weights.load(command.weights, job.model, job.graph) if command.weights else None
    num_steps, told = _num_steps(command, job, dataset), records.told(command)
    here = _facts(command, job, dataset, num_steps)
    saved = _saved(command, job, here, say)
    given, before = _given(command, job, saved), saved.path if saved is not None else None
    job.measure()
    if saved is not None and saved.step >= num_steps:
        say.line(telling.nothing_to_train(saved.step, num_steps))
        # what nothing happens to stays as it is
        command = replace(command, checkpoint="", metrics="", tensorboard="", out="", trace="", picture="")
        chosen = explore.any_known(job) if given is None else explore.given(job, *given)
    else:
        with interrupts.told(telling.not_begun(before, given is not None)):
            chosen = _choose(command, job, dataset, given, say)
        if chosen.candidates:
            # what was measured stays, whatever becomes of the training; what hinders it is told at the end
            with suppress(ValueError):
                job.keep()
    say.line(telling.plan_text(job, chosen))
    changed = resume.changes(saved.facts, here) | resume.recut(saved, chosen.plan, say) if saved is not None else {}
    if line := tuning.settings_line(job, chosen.prepared.tasks, _profiling(command)):
        say.line(line)
    telling.show_plan(job, chosen)
    outputs = Outputs()
    if job.leads and command.out:
        meant = command.optimizer, command.clip
        signed = strategies.signed(chosen.plan, command.model, job.graph, job.machine, *meant)
        outputs.write("plan", command.out, lambda path: files.write(path, strategies.encode(signed)))
    with interrupts.told(telling.not_begun(before, True)):
        execution = _begin(command, job, chosen, values)
        course = _course(command, job, dataset, chosen, execution, saved, num_steps, here)
    # who is asked to stop while the run ends lets it end
    with Stopping(job.comm, SIGNALS if course.saver else ()):
        with records.begin(command, job, lines, course.first_step, course.num_steps, say) as log:
            progress = Training(job, course, log, say).run()
            log.record("end", **telling.end(progress, course.first_step))
        facts = telling.facts(job, chosen, progress, course.first_step, told)
        if job.leads and progress.sampled:
            _show(command, job, chosen, progress.sampled[-1], outputs)
        facts |= {"changed": changed, "samples": telling.samples(dataset)}
        facts |= {"files": outputs.paths | _files(command, job), "total_seconds": time.perf_counter() - begun}
        _close(command, job, chosen, progress, facts, say)
    outputs.refuse(progress.unsaved)
    outputs.end()
    return 0


def _close(command: Train, job: Job, chosen: Chosen, progress: Progress, facts: dict[str, Any], say: Speaker) -> None:
    """Tell the training, and learn from it; whatever becomes of one of the two the other is done."""
    try:
        say.close(telling.text, facts)
    finally:
        if progress.num_sampled:
            job.learn(chosen.prepared, progress.sampled)
            with jobs.kept(command.profile or None):
                job.keep()


def _show(command: Train, job: Job, chosen: Chosen, measured: Timeline, outputs: Outputs) -> None:
    """Write what the user wants to see of a step."""
    lanes = {"simulated": chosen.prepared.simulated.timeline, "measured": measured}
    tasks, title = chosen.prepared.tasks, f"a step of {command.model} on {job.machine.name}"
    outputs.write("trace", command.trace, lambda path: trace.write(path, tasks, lanes))
    outputs.write(
        "picture", command.picture,
        lambda path: files.write(path, timelines.picture(title, tasks, lanes, job.machine).encode()),
    )  # fmt: skip


def resolved(command: Train) -> Train:
    """The command with what it leaves open as the model's recipe has it. Raises ValueError for an unknown model."""
    recipe = models.parse(command.model).recipe
    return replace(
        command,
        search=command.search or ("" if command.plan else SEARCH),
        budget=command.budget or ("" if command.plan else BUDGET),
        batch=recipe.batch if command.batch is None else command.batch,
        data=command.data or recipe.data,
        epochs=recipe.epochs if command.epochs is None and command.steps is None else command.epochs,
        optimizer=command.optimizer or recipe.updated_by,
        lr=recipe.lr if command.lr is None else command.lr,
        schedule=command.schedule or recipe.schedule,
        clip=recipe.clip if command.clip is None else command.clip,
        undecayed=command.undecayed or recipe.undecayed,
        keep=(command.keep or NUM_KEPT) if command.checkpoint else None,
    )


def _check(command: Train) -> None:
    """Raises UserError or ValueError for what can be known to be wrong before the ranks have met."""
    checks.counts(
        batch=command.batch, epochs=command.epochs, steps=command.steps, evaluate_every=command.evaluate_every,
        checkpoint_every=command.checkpoint_every, keep=command.keep, accumulate=command.accumulate,
    )  # fmt: skip
    checks.rates(lr=command.lr)
    checks.norm(command.clip)
    checks.dtype(command.dtype)
    checks.writable(of=command, out=command.out, trace=command.trace, picture=command.picture, metrics=command.metrics)
    checks.folders(checkpoint=command.checkpoint, tensorboard=command.tensorboard)
    if command.steps is not None and command.epochs is not None:
        raise UserError(f"--steps {command.steps} and --epochs {command.epochs}: give one of the two")
    for name in ("search", "budget"):
        if command.plan and (said := getattr(command, name)):
            raise UserError(f"--plan {command.plan} and --{name} {said}: give one of the two")
    if not command.checkpoint:
        checks.only_with(
            "checkpoint", checkpoint_every=command.checkpoint_every, keep=command.keep, resume=command.resume
        )
    if command.optimizer:
        optimizers.parse(command.optimizer)
    if command.schedule:
        rates.parse(command.schedule)
    parse_budget(command.budget or BUDGET)
    debug.level()


def _profiling(command: Train) -> str:
    """The command that measures the kernel calls of this run's plan."""
    plan = command.plan or command.out
    said = {"machine": command.machine if command.machine != "local" else "", "batch": command.batch,
            "dtype": command.dtype, "profile": command.profile, "plan": plan or "PLAN.json"}  # fmt: skip
    words = (f"--{name} {shlex.quote(str(value))}" for name, value in said.items() if value)
    first = "" if plan else "train with --out PLAN.json, then "
    return " ".join([f"{first}castile profile", shlex.quote(command.model), *words])


def _print(command: Train) -> int:
    text = json.dumps(records.told(command)) if command.json else runfile.text(command, without=("print",)).rstrip()
    if jobs.communicator().rank == 0:
        print(text)
    return 0


def _saved(command: Train, job: Job, here: Facts, say: Speaker) -> Reader | None:
    """The checkpoint to go on from, if any.

    Raises UserError where it is of another training, and where a run that begins would write over it.
    """
    if not command.resume:
        if command.checkpoint and job.leads:
            folders.check_free(Path(command.checkpoint))
        return None
    return resume.begin(job, command.checkpoint, here, say)


def _given(command: Train, job: Job, saved: Reader | None) -> tuple[Strategy, str] | None:
    """The plan of the file that the user named, or the one that was trained with before, and whose it is."""
    again = job.lowering.recompute if command.recompute else None
    if command.plan:
        plan = job.plan_of(command.plan)
        checks.as_planned(plan, command.plan, command.accumulate, again, "plan again")
        return plan, command.plan
    before = resume.plan_of(job, saved, command.accumulate, again) if saved is not None else None
    if saved is not None and before is not None:
        return before, f"of checkpoint {saved.path}"
    return None


def _choose(command: Train, job: Job, dataset: Dataset, given: tuple[Strategy, str] | None, say: Speaker) -> Chosen:
    """The plan that is given, or what measures fastest here."""
    if given is not None:
        return explore.given(job, *given)
    assert command.lr is not None
    batch = job.graph.batch
    # arrays that the model does not take may hold what none could
    feed = feed_from(dataset.take(0, batch, dict.fromkeys(job.graph.inputs, np.arange(batch))))
    wish = Wish(command.search, command.budget, command.seed, command.accumulate, command.recompute)
    return explore.choose(job, wish, feed, command.lr, say.note)


def _begin(command: Train, job: Job, chosen: Chosen, values: Mapping[str, np.ndarray] | None) -> Execution:
    """This rank's part of the plan, with the numbers that training begins with."""
    execution = job.execute(chosen.prepared, command.seed)
    if values is not None:
        execution.initialise(command.seed, values)
    return execution


def _facts(command: Train, job: Job, dataset: Dataset, num_steps: int) -> Facts:
    """What a checkpoint says of this training."""
    told = {name: getattr(command, name) for name in resume.OPTIONS} | {"steps": num_steps}
    return resume.facts(job, command.data, command.seed, told, dataset if command.checkpoint else None)


def _course(
    command: Train, job: Job, dataset: Dataset, chosen: Chosen, execution: Execution, saved: Reader | None,
    num_steps: int, here: Facts,
) -> Course:  # fmt: skip
    first = saved.step if saved is not None else 0
    saver = None
    if command.checkpoint:
        every = max(min(command.checkpoint_every or num_steps, num_steps), 1)
        saver = Checkpointer(command.checkpoint, job.comm, every, command.keep or NUM_KEPT, here, first)
        saver.prepare(execution.carried, strategies.encode(chosen.plan))
    if saved is not None:
        saved.check_regions(layouts.agree(job.comm, execution.carried).regions.values())
        execution.restore(saved.read)
    assert command.lr is not None
    course_rates = rates.parse(command.schedule).rates(command.lr, num_steps)
    return Course(
        chosen.plan, chosen.prepared, execution, dataset, course_rates, first, num_steps,
        command.evaluate_every, saver,
    )  # fmt: skip


def _num_steps(command: Train, job: Job, dataset: Dataset) -> int:
    """How many steps the run has from its beginning to its end."""
    return command.steps or dataset.num_steps(job.graph.batch, command.epochs or 1)


def _files(command: Train, job: Job) -> dict[str, str]:
    """What was written where."""
    profile = "" if job.database is None else str(job.database.path)
    named = {
        "profile": profile, "metrics": command.metrics, "tensorboard": command.tensorboard,
        "checkpoints": command.checkpoint,
    }  # fmt: skip
    return {name: path for name, path in named.items() if path}
