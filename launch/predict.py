"""`castile predict`: what a trained network says of samples, written sample by sample, and how right it is.

It does not know how the network was trained, how a plan is lowered, nor how files are made.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from castile.launch import data, models
from castile.launch.arrays import results, weights  # fmt: skip
from castile.launch.arrays.results import Column
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints.manifest import Facts
from castile.launch.checkpoints.reader import Reader, open_checkpoint
from castile.launch.data import WHICH, Samples, rows_of
from castile.launch.here import consistency, leader
from castile.launch.jobs import checks, jobs, runfile
from castile.launch.jobs.execution import Execution, Prepared
from castile.launch.jobs.jobs import Job
from castile.launch.measuring import plan_choice
from castile.launch.processes import interrupts
from castile.launch.processes.ranks import UserError
from castile.launch.reports import report
from castile.launch.reports.screen import Speaker
from castile.launch.train import Train
from castile.launch.training import evaluate, resume, run_report
from castile.launch.training.records import RESOLVED
from castile.launch.training.scoring import HeldOut, losses_of
from castile.launch.typed import options, searchers
from castile.planner import searches
from castile.planner.bodies.vocabulary import wide
from castile.planner.evaluation.budget import parse_budget
from castile.planner.known.seeds import known_names
from castile.planner.strategy import Strategy
from castile.runtime.comm.base import Communicator

# What a run file of a training says of its network and data.
TAKEN = ("model", "data", "seed", "batch", "dtype", "checkpoint")
BUDGET = "500"


@dataclass(frozen=True)
class Predict:
    """Predict with a trained network: its outputs for each sample, and how right they are where labels are known."""

    model: options.Model
    """The network that was trained: its name and settings, a Python or an ONNX file; or the run file of its training,
    which lies beside checkpoints and metrics (resolved.toml) and names its data, seed, dtype and checkpoints too."""
    checkpoint: options.Folder = ""
    """Its parameters: the latest checkpoint in this folder, or this one (DIR/step-00000120)."""
    weights: options.File = ""
    """Or the parameters in this safetensors file, under castile's or their model's standard names, or in an ONNX
    file."""
    data: options.Data = ""
    """What to predict, as `castile train` takes it, such as numpy:held_out=new.npz; labels are not needed. By default
    what it was trained on, or the model's own data set."""
    samples: options.Which = "held_out"
    """Which samples of the data: those held out, those to train on, or all of them."""
    seed: options.Count = None
    """Decides which samples are held out; as in training by default, else 0."""
    batch: options.Count = None
    """Samples at a time; by default as in training, or the model's own number."""
    dtype: options.DtypeOrOwn = ""
    """The dtype of the computation: float32, float64, bfloat16 or float16; by default that of the parameters."""
    machine: options.Machine = "local"
    """Where to run: this host, with a processor for each rank; virtual:procs=2 for one GPU as two processors of one
    rank; or a TOML file that describes it."""
    plan: options.File = ""
    """Use the plan in this file, as `castile train --out` writes it; without one, the plan that the checkpoint was
    trained with, or where that does not fit a known one that does."""
    search: options.SearchOrOwn = ""
    """Search for the fastest plan of a forward pass instead, as simulated: mcmc, dynamic, a Python file with search(),
    or a known plan such as data_parallel."""
    budget: options.BudgetOrOwn = ""
    """With --search: how long to search, a number of proposals (5000), 500 by default, or a time (10s)."""
    out: options.File = ""
    """Write the outputs to this file, in the order of the data: .npz, an array for each output, and `data/row`, the row
    of the data that each sample is; .npy, where there is one output; .csv, a line for each sample."""
    losses: options.File = ""
    """Write the loss of each prediction to this file, in the same formats: for a text, that of each token."""
    profile: options.File = ""
    """The profile database with measured prices; by default ~/.local/share/castile/profile.db."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Predict


def parse(args: Sequence[str]) -> Predict:
    """The command in these words and in the run file that they may name."""
    prog = "castile predict"
    found = runfile.parse(Predict, prog, args, Train, TAKEN)
    typed = options.read(Predict, prog, args, can_deny=True)
    # who names weights means these, and not what the run has saved
    own = "" if typed.weights else _checkpoints_beside(typed.model) or found.checkpoint
    return replace(found, checkpoint=typed.checkpoint or own)


def _checkpoints_beside(path: str) -> str:
    """The folder of a run file that training wrote beside its checkpoints, wherever they are now; "" for others."""

    if Path(path).name != RESOLVED:
        return ""
    folder = Path(path).parent
    found = leader.from_leader(leader.communicator(), lambda: b"there" if folders.checkpoints(folder) else b"")
    return str(folder) if found else ""


@dataclass(frozen=True)
class _Planned:
    """A plan of the forward pass, ready to run, whose it is, and how many a search looked at."""

    plan: Strategy
    prepared: Prepared
    whose: str
    num_proposals: int = 0


def run(command: Predict) -> int:
    """Predict, write, tell. Raises ValueError or UserError for a user's mistake."""
    begun = time.perf_counter()
    _check(command)
    comm = leader.communicator()
    say = Speaker(comm.rank == 0, command.json)
    saved = _saved(comm, command.checkpoint, say) if command.checkpoint else None
    command = _filled(command, saved)
    if saved is not None and (setting := data.changed_setting(command.data, saved.facts.data)):
        what = f"its {setting} is not that of training, {saved.facts.data}, so that numbers mean other things"
        say.warn(f"--data {command.data}: {what}: leave it as it was there, and name new rows by new=FILE beside it")
    job = jobs.start(
        command.model, command.machine, command.batch, command.profile or None, dataset=command.data,
        seed=command.seed or 0, dtype=command.dtype, plan=command.plan,
    )  # fmt: skip
    columns = _columns(job)
    dataset = job.dataset(command.data, command.seed or 0, evaluate.needed(job.evaluation))
    consistency.check_data(job.comm, dataset)
    consistency.check_file(job.comm, "--weights", command.weights)
    samples = dataset.in_order(command.samples)
    labels = evaluate.truths(job, samples)
    first = next(iter(labels.values()), None)
    of_losses = [Column("loss", losses_of(job.evaluation, first), "float64")] if first else []
    _check_samples(command, samples, columns, of_losses)
    values = _values(command, job, saved)
    job.measure()
    planned = _plan(command, job, saved)
    execution = job.execute(planned.prepared, 0, {}, job.evaluation)
    if saved is not None:
        execution.restore(saved.read)
    else:
        execution.initialise(0, values)
    source = str(saved.path) if saved is not None else command.weights
    say.line(f"{command.model} on {job.machine.name}: parameters of {source}, {job.graph.batch} samples at a time")
    if line := run_report.left_out(dataset):
        say.line(line)
    say.line(f"the plan, {planned.whose}:")
    say.line("\n".join(f"  {line}" for line in report.plan_lines(planned.plan)))
    started = time.perf_counter()
    judged = _predict(command, execution, samples, columns, labels, of_losses, say)
    seconds = time.perf_counter() - started
    count = len(samples)
    facts: dict[str, Any] = {
        "model": command.model, "machine": job.machine.name, "num_ranks": job.comm.size, "parameters": source,
        "data": command.data, "which": command.samples, "samples": count, "batch": job.graph.batch,
        "num_dropped": dataset.num_dropped,
        "seconds": seconds, "samples_per_second": count / seconds, "plan": planned.whose,
        "num_proposals": planned.num_proposals,
        "simulated_seconds": planned.prepared.simulated.seconds,
        "outputs": {c.name: {"shape": [count, *c.shape], "dtype": c.dtype} for c in columns},
        "quality": run_report.quality(judged) if judged is not None else None,
        "classes": run_report.classes(judged) if judged is not None else [],
        "confusion": judged.confusion if judged is not None else None,
        "files": {name: path for name in ("out", "losses") if (path := getattr(command, name))},
        "total_seconds": time.perf_counter() - begun,
    }  # fmt: skip
    say.close(_text, facts)
    return 0


def _check(command: Predict) -> None:
    """Raises UserError or ValueError for what can be known to be wrong before the ranks have met."""
    checks.counts(batch=command.batch)
    if command.samples not in WHICH:
        raise UserError(f"--samples {command.samples}: give one of {', '.join(WHICH)}")
    if command.dtype:
        checks.dtype(command.dtype)
    results.check_ending("--out", command.out)
    results.check_ending("--losses", command.losses)
    checks.writable(of=command, out=command.out, losses=command.losses)
    if bool(command.checkpoint) == bool(command.weights):
        why = "two sources of parameters" if command.weights else "no parameters"
        raise UserError(f"castile predict has {why}: give --checkpoint DIR of a training, or --weights FILE")
    if command.plan and command.search:
        raise UserError(f"--plan {command.plan} and --search {command.search}: give one of the two")
    if not command.search:
        checks.only_with("search", budget=command.budget)
    searchers.read(command.search)
    parse_budget(command.budget or BUDGET)


class _Answer(msgspec.Struct):
    """The checkpoint that rank 0 found, and what it has to warn of."""

    path: str
    warnings: tuple[str, ...] = ()


def _saved(comm: Communicator, folder: str, say: Speaker) -> Reader:
    """The latest checkpoint of a folder that is whole, or the one that this is, on every rank.

    Raises UserError where there is none.
    """

    def look() -> bytes:
        path = Path(folder)
        if path.is_dir() and folders.is_checkpoint(path):
            open_checkpoint(path).verify()
            return msgspec.json.encode(_Answer(folder))
        found = folders.latest(path)
        if found is None:
            raise UserError(f"--checkpoint {folder}: it holds no checkpoint: name the folder that training saved in")
        return msgspec.json.encode(_Answer(str(found.path), found.warnings))

    answer = msgspec.json.decode(leader.from_leader(comm, look), type=_Answer)
    for text in answer.warnings:
        say.warn(f"{text}, and is what predicts")
    return open_checkpoint(answer.path)


def _filled(command: Predict, saved: Reader | None) -> Predict:
    """The command with what it leaves open as it was in training, or as the model's recipe has it."""
    recipe, facts = models.parse(command.model).recipe, saved.facts if saved is not None else None
    return replace(
        command,
        data=command.data or (facts.data if facts else "") or recipe.data,
        seed=command.seed if command.seed is not None else facts.seed if facts else 0,
        batch=command.batch or (facts.batch if facts else recipe.batch),
        dtype=command.dtype or (facts.dtype if facts else "float32"),
    )


def _columns(job: Job) -> list[Column]:
    """The arrays that are predicted. Raises UserError where the model gives none for each sample."""
    graph = job.evaluation
    checks.predicts(job.model.name, graph)
    found = [graph.tensors[name] for name in graph.outputs]
    if shared := next((t for t in found if t.shape[:1] != (graph.batch,)), None):
        raise UserError(
            f"model {job.model.name}: its output {shared.name!r} has shape {shared.shape}, which is not for each of "
            f"{graph.batch} samples: leave it out of g.outputs"
        )
    return [Column(t.name, t.shape[1:], wide(t.dtype)) for t in found]


def _check_samples(
    command: Predict, samples: Samples, columns: Sequence[Column], of_losses: Sequence[Column]
) -> None:
    """Raises UserError where there is nothing to predict or nothing would come of it."""
    if not len(samples):
        raise UserError(f"--data {command.data}: it has no samples for --samples {command.samples}: choose others")
    if command.out:
        results.check("--out", command.out, columns, len(samples))
    if command.losses and of_losses:
        results.check("--losses", command.losses, of_losses, len(samples))
    if command.losses and not of_losses:
        raise UserError(f"--data {command.data}: it has no labels to tell losses by: leave --losses out")
    if not (command.out or of_losses):
        raise UserError(f"--data {command.data}: it has no labels to judge by: write the outputs with --out FILE.npz")


def _values(command: Predict, job: Job, saved: Reader | None) -> Mapping[str, np.ndarray]:
    """The parameters in a file of weights, none where they come from a checkpoint.

    Raises ValueError or UserError where the network's are not there.
    """
    graph = job.evaluation
    if saved is not None:
        _check_saved(command, job, saved)
        return {}
    found = weights.load(command.weights, job.model, graph)
    # what no training changes is as the model has it
    if lacking := next((name for name in graph.states if name in job.graph.updates and name not in found), None):
        raise UserError(
            f"weights {command.weights}: it has no {lacking!r}, which training gathers and predictions need: write one "
            "with `castile checkpoint export`"
        )
    return found


def _check_saved(command: Predict, job: Job, saved: Reader) -> None:
    """Raises UserError where a checkpoint is of another network than the one that the user names."""
    facts, graph, built = resume.as_built(saved.facts), job.evaluation, job.model.as_built
    other = f"--checkpoint {saved.path}: it is of {facts.model}, and not of {command.model}"
    if facts.model != built.text and not _is_of(facts, built):
        raise UserError(f"{other}: name that model, or --weights with its parameters")
    for name in [*(t.name for t in graph.params), *graph.states]:
        found = saved.regions.get(name)
        if found is None or found.shape != graph.tensors[name].shape:
            there = "it has none" if found is None else f"its own has {found.shape}"
            on = f" with --data {command.data}" if facts.model == built.text else ""
            raise UserError(f"{other}{on}, whose {name!r} has shape {graph.tensors[name].shape} here: {there}")


def _is_of(facts: Facts, model: models.Model) -> bool:
    """Whether a checkpoint is of this network, whichever of its parameters were frozen in training."""
    try:
        graph = model.frozen_as(facts.model).graph(facts.batch, facts.dtype)
    except ValueError:  # it has no parameters of the names that were frozen there
        return False
    return graph.fingerprint == facts.graph


def _plan(command: Predict, job: Job, saved: Reader | None) -> _Planned:
    """The plan that the user names or asks to be looked for, or the checkpoint's where it fits, or a known one.

    Raises UserError where it does not fit.
    """
    lowering = evaluate.forward(job, job.evaluation, served=True)
    trained, whose = None, ""
    if command.plan:
        trained, whose = job.plan_of(command.plan), f"of {command.plan}"
    elif command.search:
        searches.find(command.search, lowering)
        asked_for = [command.search] if command.search in known_names(lowering) else None
        budget, seed = command.budget or BUDGET, command.seed or 0
        looked_at = 0

        def search() -> Strategy:
            nonlocal looked_at
            found = plan_choice.searched(job, lowering, command.search, budget, seed, asked_for)
            looked_at = found.num_proposals
            return found.strategy

        with interrupts.ending_with("ended before the first sample, so nothing is written"):
            plan = job.agreed_plan(search)
        return _Planned(plan, job.prepare(plan, lowering), f"found by {command.search}", looked_at)
    elif saved is not None:
        trained, whose = resume.plan_of(job, saved, None, None), f"of {saved.path}"
    if trained is None:
        chosen = plan_choice.any_known(job, lowering)
        return _Planned(chosen.plan, chosen.prepared, chosen.plan.search)
    plan = evaluate.adapted(trained, job.lowering, job.evaluation)
    return _Planned(plan, job.prepare(plan, lowering), whose)


def _predict(
    command: Predict, execution: Execution, samples: Samples, columns: Sequence[Column], labels: Mapping[str, str],
    of_losses: Sequence[Column], say: Speaker,
) -> HeldOut | None:  # fmt: skip
    """Go through all samples; how right they are, on rank 0, where there are labels."""
    graph = execution.graph

    def sink(path: str, columns: Sequence[Column]) -> AbstractContextManager[results.Add]:
        writes = bool(path) and execution.comm.rank == 0
        return results.writing(path, columns, rows_of(samples)) if writes else nullcontext(lambda arrays: None)

    with (
        interrupts.ending_with("ended before the last sample, so nothing is written"),
        say.under_way(f"predicting {report.counted(len(samples), 'sample')}") as advance,
        sink(command.out, columns) as add,
        sink(command.losses, of_losses) as tell,
    ):
        batches = evaluate.outputs_of(execution, samples, set(labels.values()), advance)

        def written() -> Iterator[tuple[evaluate.Arrays, evaluate.Arrays]]:
            for outputs, given in batches:
                add(outputs)
                yield outputs, given

        if labels:
            return evaluate.judge(graph, labels, written(), len(samples), lambda losses: tell({"loss": losses}))
        deque(written(), maxlen=0)
    return None


def _text(facts: dict[str, Any]) -> str:
    """The end of a run in a few lines."""
    pace = report.pace(facts["samples_per_second"])
    lines = [f"{report.counted(facts['samples'], 'sample')} in {facts['seconds']:.2f} s, {pace}"]
    if facts["quality"] is not None:
        lines.append(run_report.judged(facts["quality"] | {"num_samples": facts["samples"]}))
    lines += run_report.class_lines(facts["classes"])
    for name, output in facts["outputs"].items():
        lines.append(f"{name}: {' x '.join(map(str, output['shape']))} of {output['dtype']}")
    lines += [f"{what}: {path}" for what, path in facts["files"].items()]
    return "\n".join(lines)
