"""`castile train`: finds a plan for this model on these ranks, trains with it, and learns from what each task took.

It does not know how plans are searched, lowered or run; it composes those who do.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from castile.launch import models
from castile.launch.here import leader
from castile.launch.jobs import checks, profile_store, runfile
from castile.launch.jobs.jobs import Job
from castile.launch.measuring import tuning
from castile.launch.measuring.plan_choice import Chosen
from castile.launch.pictures import shown
from castile.launch.processes.ranks import UserError
from castile.launch.processes.signals import SIGNALS
from castile.launch.processes.stopping import Stopping
from castile.launch.reports.screen import Speaker
from castile.launch.training import records, run_report
from castile.launch.training.metrics import Lines
from castile.launch.training.run_report import Progress
from castile.launch.training.setup import NUM_KEPT, begin
from castile.launch.training.training import Training
from castile.launch.typed import files, optimizers, options, rates, searchers
from castile.launch.typed.files import Outputs
from castile.planner import strategy as strategies
from castile.planner.evaluation.budget import parse_budget
from castile.runtime import debug

SEARCH, BUDGET = "mcmc", "500"


@dataclass(frozen=True)
class Train:
    """Train a model on these ranks, with a plan from a file or one that is searched for and measured first."""

    model: options.Model
    """Its name and settings (convnet, gpt:layers=4,width=128), a Python file with build(), or an ONNX file; or a run
    file (run.toml), which sets this and any of the options below by name. The command line overrides the file."""
    machine: options.Machine = "local"
    """Where to train: this host, with a processor for each rank; virtual:procs=2 for one GPU as two processors of one
    rank; or a TOML file that describes it."""
    plan: options.File = ""
    """Train with the plan in this file, as --out writes it; without one, castile searches for a plan."""
    search: options.SearchOrOwn = ""
    """The search algorithm: mcmc, exhaustive (small cases), a Python file with search(), or a known plan such as
    data_parallel, and just that; mcmc by default."""
    budget: options.BudgetOrOwn = ""
    """How long to search: a number of proposals (5000), which repeats exactly, or a time (10s); 500 by default."""
    seed: options.Number = 0
    """Fixes the initial parameters, which samples are held out, their order, and the search."""
    data: options.Data = ""
    """What to train on: digits, text:file=PATH, idx:folder=PATH, csv:file=PATH,label=COLUMN, numpy:file=PATH,
    tokens:file=PATH, iterator:file=PATH, reverse, clicks, synthetic; the model's own data set by default."""
    batch: options.Count = None
    """Samples a step; the model's own by default."""
    epochs: options.Count = None
    """Passes over the training samples, to the last whole batch; the model's own by default."""
    steps: options.Count = None
    """Train for so many steps in all, instead of whole passes over the samples."""
    optimizer: options.Optimizer = ""
    """The optimizer, a name with settings: sgd:momentum=0.9 or adamw:beta2=0.95,decay=0.1; the model's own by
    default."""
    lr: options.Rate = None
    """Learning rate, the schedule's peak; the model's own by default."""
    schedule: options.Schedule = ""
    """The learning-rate schedule: constant, linear, cosine or wsd, with settings: cosine:warmup=100,floor=0.1 (a share
    of the peak), wsd:warmup=0.05,decay=0.2; lengths in steps, or below 1 as a share of the run; or a Python file with
    share(). The model's own by default."""
    clip: options.Norm = None
    """Scale gradients longer than this norm down to it; the model's own by default, 0 for never."""
    undecayed: options.Patterns = ""
    """Parameters without weight decay: names with wildcards, separated by commas (*.bias,*norm*); the model's own by
    default."""
    accumulate: options.Count = None
    """Cut each batch into so many microbatches, one after another, whose gradients are summed, to save memory; by
    default one, or as many as let a plan fit."""
    recompute: options.RecomputeOrOwn = ""
    """What is computed again for gradients, to save memory: selective (what is cheap), 40% (what takes least until so
    much is kept), full (nearly everything), parameters (gathered for each pass), names with wildcards, several
    separated by commas, or none; by default as little as lets a plan fit."""
    dtype: options.Dtype = "float32"
    """The dtype of the computation: float32, float64, bfloat16 or float16; with the last two, parameters, sums of
    gradients and optimizer state stay float32."""
    weights: options.File = ""
    """Start from the parameters in this safetensors file, under castile's or their model's standard names, or in an
    ONNX file."""
    evaluate_every: options.Count = None
    """Evaluate on the held-out samples every so many steps; without it, at the end."""
    patience: options.Count = None
    """End when so many evaluations in a row brought no lower loss of held-out samples than the best before them."""
    checkpoint: options.Folder = ""
    """Save the training in this folder: at the end, and when SIGTERM, SIGUSR1, SIGHUP or SIGXCPU asks to stop, which
    then ends the job with status 0."""
    checkpoint_every: options.Count = None
    """Also save every so many steps."""
    keep: options.Count = None
    """How many checkpoints to keep; 2 by default."""
    best: bool = False
    """Also save whenever an evaluation has the lowest loss of held-out samples so far, and keep that checkpoint beside
    the latest; `castile checkpoint ls` tells which it is."""
    resume: bool = False
    """Continue from the latest checkpoint in the folder of --checkpoint; where there is none yet, begin."""
    metrics: options.File = ""
    """Write a line of JSON for each step, evaluation and checkpoint to this file (.jsonl); when resumed, add to it."""
    tensorboard: options.Folder = ""
    """Write the same as TensorBoard's event files into this folder."""
    watch: bool = False
    """On CPUs: look at what each task makes. Where the loss, or a parameter, is no finite number any more, tell the
    operator, pass and sample where that begins; and record the norm of each parameter's gradient. Steps take longer."""
    out: options.File = ""
    """Write the plan that was used to this file (JSON)."""
    trace: options.File = ""
    """Write a Chrome trace of one step, simulated and measured, to this file (open it in Perfetto)."""
    picture: options.File = ""
    """Draw what each processor does in one step, simulated and measured, as SVG."""
    profile: options.File = ""
    """The profile database to learn from and into; by default ~/.local/share/castile/profile.db."""
    print: bool = False
    """Print the run as a run file, with every default filled in, and stop."""
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
    since, undecayed = time.perf_counter(), command.undecayed
    _check(command)
    command = resolved(command)
    if command.batch:
        checks.pieces(command.accumulate, command.batch)
    if command.print:
        return _print(command)
    # who comes second to a file or folder is to hear of it before a plan is looked for, which takes long
    with records.held(command) as lines:
        return _run(command, lines, undecayed, since)


def _run(command: Train, lines: Lines | None, undecayed: str, since: float) -> int:
    """Do what the resolved command says; `undecayed` is as it was typed, and all began at that time."""
    begun = begin(command, undecayed)
    command, job, say = begun.command, begun.job, begun.say
    chosen = begun.choose()
    say.line(run_report.plan_text(job, chosen))
    changed = begun.changed(chosen.plan)
    if line := tuning.settings_line(job, chosen.prepared.tasks, _profiling(command)):
        say.line(line)
    run_report.show_plan(job, chosen)
    outputs = Outputs()
    if job.leads and command.out:
        meant = command.optimizer, command.clip
        signed = strategies.signed(chosen.plan, command.model, job.graph, job.machine, *meant)
        outputs.write("plan", command.out, lambda path: files.write(path, strategies.encode(signed)))
    course = begun.course(chosen)
    # who is asked to stop while the run ends lets it end
    with Stopping(job.comm, SIGNALS if course.saver else ()):
        with records.begin(command, job, lines, course.first_step, course.num_steps, say) as log:
            progress = Training(job, course, log, say).run()
            log.record("end", **run_report.end(progress, course.first_step))
        facts = run_report.facts(job, chosen, progress, course.first_step, begun.as_facts)
        if job.leads and progress.sampled:
            lanes = {"simulated": chosen.prepared.simulated.timeline, "measured": progress.sampled[-1]}
            shown.write(
                outputs, f"a step of {command.model} on {job.machine.name}", chosen.prepared.tasks, lanes, job.machine,
                trace_path=command.trace, picture_path=command.picture,
            )  # fmt: skip
        facts |= {"changed": changed, "samples": run_report.samples(begun.dataset)}
        facts |= {"files": outputs.paths | _files(command, job), "total_seconds": time.perf_counter() - since}
        _close(command, job, chosen, progress, facts, say)
    outputs.refuse(progress.unsaved)
    outputs.end()
    return 0


def _close(command: Train, job: Job, chosen: Chosen, progress: Progress, facts: dict[str, Any], say: Speaker) -> None:
    """Tell the training, and learn from it; whatever becomes of one of the two the other is done."""
    try:
        say.close(run_report.text, facts)
    finally:
        if progress.num_sampled:
            job.learn(chosen.prepared, progress.sampled)
            with profile_store.kept(command.profile or None):
                job.keep()


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
        patience=command.patience, checkpoint_every=command.checkpoint_every, keep=command.keep,
        accumulate=command.accumulate,
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
            "checkpoint", checkpoint_every=command.checkpoint_every, keep=command.keep, best=command.best,
            resume=command.resume,
        )  # fmt: skip
    if not command.evaluate_every:
        checks.only_with("evaluate_every", patience=command.patience, best=command.best)
    if command.optimizer:
        optimizers.parse(command.optimizer)
    if command.schedule:
        rates.parse(command.schedule)
    searchers.read(command.search)
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
    text = json.dumps(records.as_facts(command)) if command.json else runfile.text(command, without=("print",)).rstrip()
    if leader.communicator().rank == 0:
        print(text)
    return 0


def _files(command: Train, job: Job) -> dict[str, str]:
    """What was written where."""
    profile = "" if job.database is None else str(job.database.path)
    named = {
        "profile": profile, "metrics": command.metrics, "tensorboard": command.tensorboard,
        "checkpoints": command.checkpoint,
    }  # fmt: skip
    return {name: path for name, path in named.items() if path}
