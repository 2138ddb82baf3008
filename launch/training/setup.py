"""The setup of a training run, once its ranks have met: job and data, checkpoint to resume from, plan, and course.

It does not know what happens in a step, nor what is reported at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from castile.launch.arrays import weights
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints import layout as layouts
from castile.launch.checkpoints.checkpointer import Checkpointer
from castile.launch.checkpoints.manifest import UNJUDGED, Facts, Judged
from castile.launch.checkpoints.reader import Reader
from castile.launch.data import Dataset
from castile.launch.here import consistency
from castile.launch.jobs import checks, jobs
from castile.launch.jobs.execution import feed_from
from castile.launch.jobs.jobs import Job
from castile.launch.measuring import plan_choice
from castile.launch.measuring.plan_choice import Chosen, PlanOptions
from castile.launch.processes import interrupts
from castile.launch.processes.ranks import UserError
from castile.launch.reports.screen import Speaker
from castile.launch.training import evaluate, gradient_check, records, resume, run_report, split_check
from castile.launch.training.number_watch import Watch
from castile.launch.training.training import Course
from castile.launch.typed import optimizers, rates
from castile.planner import searches
from castile.planner import strategy as strategies
from castile.planner.strategy import Strategy

# How many checkpoints stay where it is not said.
NUM_KEPT = 2
# What a run that trains nothing leaves as it is.
UNTOUCHED = dict.fromkeys(("checkpoint", "metrics", "tensorboard", "out", "trace", "picture"), "")


@dataclass(frozen=True)
class TrainingRun:
    """A run whose ranks have met.

    command    of `castile train`, resolved
    as_facts   the run as it is shown and written
    values     initial parameters by name; None for the model's own
    num_steps  from the beginning of training to its end
    facts      what a checkpoint says of this training
    saved      the checkpoint to resume from, if any
    given      the plan to train with, and its origin; None where one is searched for
    """

    command: Any
    as_facts: dict[str, Any]
    job: Job
    say: Speaker
    dataset: Dataset
    values: Mapping[str, np.ndarray] | None
    num_steps: int
    facts: Facts
    saved: Reader | None
    given: tuple[Strategy, str] | None

    @property
    def is_over(self) -> bool:
        """Whether the checkpoint has all steps, or all that patience allows."""
        is_done = self.saved is not None and self.saved.step >= self.num_steps
        return is_done or self.judged.is_out_of(self.command.patience)

    @property
    def judged(self) -> Judged:
        """The state of evaluation so far."""
        return self.saved.manifest.judged if self.saved is not None else UNJUDGED

    @property
    def first_step(self) -> int:
        return self.saved.step if self.saved is not None else 0

    @cached_property
    def rate(self) -> Callable[[int], float]:
        """The learning rate of each step 0 <= step < num_steps; ValueError where the user's function fails."""
        return rates.parse(self.command.schedule).rates(self.command.lr, self.num_steps)

    @property
    def before(self) -> Path | None:
        """The checkpoint that exists whatever happens to this run."""
        return self.saved.path if self.saved is not None else None

    def untouched(self) -> TrainingRun:
        """The run without further steps and without files to write."""
        return replace(self, command=replace(self.command, **UNTOUCHED), num_steps=self.first_step)

    def choose(self) -> Chosen:
        """The given plan, or the one that measures fastest here; measurements are kept, whatever happens later."""
        if self.is_over:
            return plan_choice.any_known(self.job) if self.given is None else plan_choice.given(self.job, *self.given)
        with interrupts.ending_with(run_report.not_begun(self.before, self.given is not None)):
            chosen = plan_choice.given(self.job, *self.given) if self.given is not None else self._measured()
        if chosen.candidates:
            with suppress(ValueError):  # what hinders it is told at the end
                self.job.keep()
        return chosen

    def _measured(self) -> Chosen:
        command, batch = self.command, self.job.graph.batch
        # arrays that the model does not take may hold what none could
        feed = feed_from(self.dataset.take(0, batch, dict.fromkeys(self.job.graph.inputs, np.arange(batch))))
        wish = PlanOptions(command.search, command.budget, command.seed, command.accumulate, command.recompute)
        return plan_choice.choose(self.job, wish, feed, command.lr, self.say.note)

    def changed(self, plan: Strategy) -> dict[str, Any]:
        """What differs from when the checkpoint was written, including the plan."""
        if self.saved is None:
            return {}
        changed = resume.changes(self.saved.facts, self.facts) | resume.version(self.saved)
        return changed | resume.recut(self.saved, plan, self.say)

    def course(self, chosen: Chosen) -> Course:
        """The steps to take, with this rank's part of the plan and the initial parameters."""
        with interrupts.ending_with(run_report.not_begun(self.before, True)):
            watch = Watch(self.job.graph, chosen.prepared) if self.command.watch else None
            execution = self.job.execute(chosen.prepared, self.command.seed, look=watch)
            if self.values is not None:
                execution.initialise(self.command.seed, self.values)
            saver = self._saver()
            if saver is not None:
                saver.prepare(execution.carried, strategies.encode(chosen.plan))
            if self.saved is not None:
                self.saved.check_regions(layouts.agree(self.job.comm, execution.carried).regions.values())
                execution.restore(self.saved.read)
            return Course(
                chosen.plan, chosen.prepared, execution, self.dataset, self.rate, self.first_step, self.num_steps,
                self.command.evaluate_every, saver, watch, self.judged, self.command.patience,
                self.command.best and saver is not None,
            )  # fmt: skip

    def _saver(self) -> Checkpointer | None:
        if not self.command.checkpoint:
            return None
        every = max(min(self.command.checkpoint_every or self.num_steps, self.num_steps), 1)
        return Checkpointer(
            self.command.checkpoint, self.job.comm, every, self.command.keep or NUM_KEPT, self.facts, self.first_step,
            keeps_best=self.command.best,
        )  # fmt: skip


def begin(command: Any, undecayed: str) -> TrainingRun:
    """Set up the run of a resolved command; all ranks call it. `undecayed` is as it was typed.

    Raises ValueError or UserError for a user's mistake.
    """
    job = jobs.start(
        command.model, command.machine, command.batch, command.profile or None,
        optimizers.updates(command.optimizer, command.clip, command.undecayed), command.accumulate or 1,
        command.recompute, command.data, command.seed, command.dtype, command.plan,
    )  # fmt: skip
    command = replace(command, model=job.model.text)
    check_watched(command, job)
    if command.search:
        searches.find(command.search, job.lowering)
    checks.some_match("undecayed", undecayed, [param.name for param in job.graph.params])
    say = Speaker(job.leads, command.json)
    dataset = job.dataset(command.data, command.seed)
    for line in filter(None, (job.model.remark(job.graph), run_report.left_out(dataset))):
        say.line(line)
    for line in (*gradient_check.remarks(job.graph), *split_check.remarks(job.graph)) if job.leads else ():
        say.warn(line)
    if (command.patience or command.best) and not evaluate.truths(job, dataset.held_out):
        what = "--best" if command.best else f"--patience {command.patience}"
        raise UserError(f"{what}: no held-out samples have labels to judge by: give other --data, or leave it out")
    consistency.check_data(job.comm, dataset)
    consistency.check_file(job.comm, "--weights", command.weights)
    consistency.check_file(job.comm, "--schedule", rates.file(command.schedule))
    values = weights.load(command.weights, job.model, job.graph) if command.weights else None
    num_steps = command.steps or dataset.num_steps(job.graph.batch, command.epochs or 1)
    options = {name: getattr(command, name) for name in resume.OPTIONS} | {"steps": num_steps}
    facts = resume.facts(job, command.data, command.seed, options, dataset if command.checkpoint else None)
    saved = _saved(command, job, facts, say)
    begun = TrainingRun(
        command, records.as_facts(command), job, say, dataset, values, num_steps, facts, saved,
        _given_plan(command, job, saved),
    )
    if not begun.is_over:
        # a function that is wrong is told of before anything is measured, and not when the last step is reached
        for step in (begun.first_step, num_steps - 1):
            begun.rate(step)
    job.measure()
    if saved is not None and begun.is_over:
        say.line(run_report.nothing_to_train(saved.step, num_steps, begun.judged))
        return begun.untouched()
    return begun


def check_watched(command: Any, job: Job) -> None:
    """Raises UserError where results of tasks cannot be watched."""
    if command.watch and job.backend != "numpy":
        raise UserError(
            "--watch: it looks at what CPUs make: begin the command with CUDA_VISIBLE_DEVICES= so that it goes on "
            "there from a checkpoint, or leave it out"
        )


def _saved(command: Any, job: Job, facts: Facts, say: Speaker) -> Reader | None:
    """The checkpoint to resume from, if any.

    Raises UserError where it is of another training, and where a new run would overwrite it.
    """
    if not command.resume:
        if command.checkpoint and job.leads:
            folders.check_free(Path(command.checkpoint))
        return None
    return resume.begin(job, command.checkpoint, facts, say)


def _given_plan(command: Any, job: Job, saved: Reader | None) -> tuple[Strategy, str] | None:
    """The plan in the user's file, or the one that was trained with before; and its origin."""
    again = job.lowering.recompute if command.recompute else None
    if command.plan:
        plan = job.plan_of(command.plan)
        checks.as_planned(plan, command.plan, command.accumulate, again, "plan again")
        return plan, command.plan
    before = resume.plan_of(job, saved, command.accumulate, again) if saved is not None else None
    if saved is not None and before is not None:
        return before, f"of checkpoint {saved.path}"
    return None
