"""Resuming: the latest checkpoint of a folder, whether it is of the same training, and the plan it was trained with.

It does not know how steps are run, nor how checkpoints are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import numpy as np

from castile import __version__
from castile.launch import models
from castile.launch.checkpoints.folder import latest
from castile.launch.checkpoints.manifest import Facts
from castile.launch.checkpoints.reader import Reader, open_checkpoint
from castile.launch.data import Dataset
from castile.launch.here import consistency
from castile.launch.here.leader import from_leader
from castile.launch.jobs.jobs import Job
from castile.launch.processes.ranks import UserError
from castile.launch.reports.screen import Speaker
from castile.launch.typed import optimizers, settings
from castile.planner import strategy as strategies
from castile.planner.graph import Graph
from castile.planner.strategy import Strategy
from castile.runtime.comm.base import Communicator
from castile.runtime.region import whole

# Options that are part of a training and may change on the way: as told, and as it is when it goes on. Of 16 bits and
# more each goes on from others, where parameters are kept alike.
OPTIONS = ("optimizer", "lr", "schedule", "clip", "undecayed", "dtype")
# Numbers of a setting that are told.
MOST_TOLD = 8
Option = str | int | float | None
Changes = dict[str, list[Option]]


def facts(job: Job, data: str, seed: int, options: Mapping[str, Option], dataset: Dataset | None) -> Facts:
    """What a checkpoint says of this training: its graph as built, whatever the dtype and the rewrites; all ranks call
    it.

    options   those of OPTIONS, and "steps": of the whole run, which its schedule depends on
    dataset   whose samples are hashed; None where nothing is to be saved, as sequential samples would begin anew
    """
    model, kept = job.model.as_built, job.lowering.updates.kept(job.graph.dtype)
    graph = model.graph(job.graph.batch, kept)
    # what is read again may have changed meanwhile: all ranks go by what one has seen
    samples = (
        from_leader(job.comm, lambda: consistency.samples(dataset).encode()).decode() if dataset is not None else ""
    )
    return Facts(model.text, data, graph.batch, seed, graph.fingerprint, graph.dtype, samples, dict(options))


class _Answer(msgspec.Struct):
    """What rank 0 found in the folder: a path, "" for none, and warnings."""

    path: str = ""
    warnings: tuple[str, ...] = ()


def begin(job: Job, folder: str, here: Facts, say: Speaker) -> Reader | None:
    """The checkpoint that a run resumes from, reported to the user; None in a folder without any.

    Raises UserError where it is of another training than `here`.
    """
    saved, warnings = find(job.comm, folder)
    for text in warnings:
        say.warn(f"{text}: --resume goes on from there")
    if saved is not None:
        check_same(as_built(saved.facts), here, saved.path)
        check_fixed(saved, job.graph)
        say.line(f"going on from {saved.path}: {saved.step} steps are done")
        _tell(changes(saved.facts, here), saved.step, say)
        for then, now in version(saved).values():
            say.line(f"it was saved by castile {then}, and this is castile {now}")
    return saved


def version(saved: Reader) -> Changes:
    """The castile versions that wrote the checkpoint and that resumes, where they differ."""
    then = saved.manifest.castile
    return {} if then == __version__ else {"castile": [then, __version__]}


def recut(saved: Reader, plan: Strategy, say: Speaker) -> Changes:
    """The microbatches of the checkpoint and of the plan, reported to the user, where they differ: gradients are of the
    whole batch all the same, and plans decide it where --accumulate is not given.
    """
    then = int(saved.manifest.plan.get("microbatches", 1))
    found: Changes = {} if then == plan.microbatches else {"accumulate": [then, plan.microbatches]}
    _tell(found, saved.step, say)
    return found


def _tell(found: Changes, step: int, say: Speaker) -> None:
    for name, (then, now) in found.items():
        say.line(f"--{name} was {_word(then)} until step {step}, and is {_word(now)} from there on")


def find(comm: Communicator, folder: str) -> tuple[Reader | None, tuple[str, ...]]:
    """The latest intact checkpoint, on every rank, and warnings of later ones; None in a folder without any."""

    def look() -> bytes:
        found = latest(folder)
        return msgspec.json.encode(_Answer(str(found.path), found.warnings) if found else _Answer())

    answer = msgspec.json.decode(from_leader(comm, look), type=_Answer)
    return (open_checkpoint(answer.path) if answer.path else None), answer.warnings


def as_built(facts: Facts) -> Facts:
    """The facts of the network before any rewrite; those of a checkpoint may be of a rewritten one."""
    try:
        model = models.parse(facts.model)
        if not model.rewrite or model.graph(facts.batch, facts.dtype).fingerprint != facts.graph:
            return facts
    except ValueError:  # it is of what there is not any more, or not here
        return facts
    built = model.as_built
    graph = built.graph(facts.batch, facts.dtype).fingerprint
    return msgspec.structs.replace(facts, model=built.text, graph=graph)


def check_same(saved: Facts, here: Facts, path: Path) -> None:
    """Raises UserError where a checkpoint is of another training."""
    if saved.model != here.model and saved.graph != here.graph:
        raise UserError(f"--resume: {path} is of {saved.model}, and this run trains {here.model}: name that model")
    for name in ("batch", "seed", "data"):
        then, now = getattr(saved, name), getattr(here, name)
        if then != now:
            raise UserError(
                f"--resume: {path} was trained with --{name} {then}, and this run has --{name} {now}, so the samples "
                f"would not go on as they were: give --{name} {then}"
            )
    if saved.samples not in ("", here.samples):
        raise UserError(
            f"--resume: {path} was trained with {saved.samples}, and --data {here.data} has {here.samples} now, so the "
            "samples would not go on as they were: bring those back, or begin anew with --weights from `castile "
            "checkpoint export`"
        )
    if "optimizer" in changes(saved, here) and _name(saved) != _name(here):
        then, now = saved.options["optimizer"], here.options["optimizer"]
        raise UserError(
            f"--resume: {path} was trained with --optimizer {then}, whose state is none of --optimizer {now}: give "
            f"--optimizer {then}, or begin anew with --weights from `castile checkpoint export`"
        )
    if saved.dtype != here.dtype:
        raise UserError(
            f"--resume: {path} keeps its parameters in {saved.dtype}, and this run in {here.dtype}: give a --dtype "
            f"that keeps {saved.dtype}, such as --dtype {saved.dtype}"
        )
    if saved.graph != here.graph:
        raise UserError(f"--resume: {path} is of {saved.model} as it was, and the model has changed since: begin anew")


def check_fixed(saved: Reader, graph: Graph) -> None:
    """Raises UserError where numbers that the model's settings fix, such as class weights, differ from those that the
    checkpoint was trained with.
    """
    for name, init in graph.fixed_states.items():
        if name not in saved.regions:
            continue
        then = saved.read(name, whole(saved.regions[name].shape))
        if not np.array_equal(then, np.asarray(init.values, then.dtype)):
            raise UserError(
                f"--resume: {saved.path} was trained with {name} {_listed(then)}, and the model has "
                f"{_listed(np.asarray(init.values))} now: bring those back, or begin anew with --weights from `castile "
                "checkpoint export`"
            )


def _listed(numbers: np.ndarray) -> str:
    some = [f"{number:g}" for number in numbers.ravel()[:MOST_TOLD].tolist()]
    return ", ".join(some + ["..."] * (numbers.size > MOST_TOLD))


def changes(saved: Facts, here: Facts) -> Changes:
    """Options that differ from the checkpoint's: their old and new values."""
    both = [(name, then, here.options[name]) for name, then in saved.options.items() if name in here.options]
    return {name: [then, now] for name, then, now in both if _normalized(name, then) != _normalized(name, now)}


def _normalized(name: str, value: Option) -> object:
    """The value of an option, however it is written."""
    if name != "optimizer":
        return value or None
    try:
        return optimizers.parse(str(value))
    except ValueError:  # there is no such optimizer any more
        return value


def _name(facts: Facts) -> str:
    return settings.split(str(facts.options["optimizer"]))[0]


def _word(value: Option) -> str:
    return str(value) if value else "none"


def plan_of(job: Job, saved: Reader, microbatches: int | None, recompute: Collection[str] | None) -> Strategy | None:
    """The plan of the run that wrote the checkpoint; None where it does not fit here.

    It fits if ranks, machine and graph are the same, and the number of microbatches and the recomputation too, unless
    these are None.
    """
    plan = strategies.decode(saved.plan, f"checkpoint {saved.path}")
    fits = plan.num_procs == job.machine.num_procs and plan.machine == job.machine.fingerprint
    fits = fits and plan.graph in ("", job.graph.fingerprint)
    fits = fits and (recompute is None or {*recompute} == {*plan.recompute})
    return plan if fits and microbatches in (None, plan.microbatches) else None
