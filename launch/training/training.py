"""The training loop: steps are fed, run, evaluated, recorded and saved, until the last one or a signal.

It does not know how the plan was chosen, what the options were, nor how its records are shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import msgspec

from castile.launch.checkpoints.checkpointer import Checkpointer
from castile.launch.checkpoints.manifest import UNJUDGED, Judged
from castile.launch.data import Dataset
from castile.launch.jobs import sample_checks
from castile.launch.jobs.execution import Execution, Prepared
from castile.launch.jobs.jobs import Job
from castile.launch.processes import last_words
from castile.launch.processes.ranks import UserError
from castile.launch.processes.signals import SIGNALS
from castile.launch.processes.stopping import Stopping
from castile.launch.reports import report
from castile.launch.reports.progress import Advance
from castile.launch.reports.screen import Speaker
from castile.launch.training import evaluate, number_watch, run_report
from castile.launch.training.evaluate import ForwardPass
from castile.launch.training.feeding import Feeder
from castile.launch.training.metrics import Metrics
from castile.launch.training.number_watch import Report, Watch
from castile.launch.training.run_report import Progress
from castile.launch.training.saving import SMALLER, Saves
from castile.launch.training.scoring import HeldOut
from castile.planner.step.beside import NORM, is_scaled
from castile.planner.strategy import Strategy
from castile.runtime import debug
from castile.runtime.timeline import Timeline

NUM_SAMPLED = 20
# Between these a line is told where none was for such a share of the time that steps have taken.
LEAST_QUIET_SECONDS, QUIET_SHARE, MOST_QUIET_SECONDS = 5.0, 0.1, 60.0
# On a GPU a step that is measured whole is put there task by task, and costs more than others.
LEAST_BETWEEN = 4
# Of so many steps in a row that are skipped the last two dozen or more had a loss that is not scaled up any more.
MOST_SKIPPED = 50


@dataclass(frozen=True)
class Course:
    """The steps first_step <= step < num_steps of a data set, each with its learning rate.

    evaluate_every   steps between evaluations on held-out samples, None for one at the end
    saver            saves the state when it is due, after the last step and when a signal asks to stop
    judged           the state of evaluation before the first step
    patience         evaluations in a row without improvement after which the run ends; None for never
    keeps_best       whether the state of the best evaluation so far is saved and kept
    watch            watches the results of tasks, None if nobody does
    """

    plan: Strategy
    prepared: Prepared
    execution: Execution
    dataset: Dataset
    rates: Callable[[int], float]
    first_step: int
    num_steps: int
    evaluate_every: int | None = None
    saver: Checkpointer | None = None
    watch: Watch | None = None
    judged: Judged = UNJUDGED
    patience: int | None = None
    keeps_best: bool = False


@dataclass
class Training:
    """A training in progress."""

    job: Job
    course: Course
    log: Metrics
    say: Speaker
    progress: Progress = field(default_factory=Progress)
    # Whether the next step may be under way before the results of the last one were looked at; when that one ended.
    _is_ahead: bool = False
    _ended_at: float = 0.0
    # When steps began, when the last line was told of one, and of which.
    _begun_at: float = 0.0
    _told: tuple[float, int] = (0.0, 0)
    # How many steps up to the last were skipped in a row.
    _num_skipped: int = 0

    def __post_init__(self) -> None:
        # without a place to save to a signal ends the job as it ends any program
        course, outlets = self.course, (self.log, self.say, self.progress)
        self.progress.judged = course.judged
        self._stopping = Stopping(self.job.comm, SIGNALS if course.saver else ())
        self._saves = Saves(self.job, course.plan, course.execution, course.saver, *outlets, self._is_stopped)

    def run(self) -> Progress:
        """Train. Raises UserError where the loss is not finite, and Ended for Ctrl-C."""
        try:
            return self._run()
        except Exception:
            self._saves.break_off()
            raise
        except KeyboardInterrupt:
            raise self._saves.interrupted(self._num_done) from None

    def _run(self) -> Progress:
        course, progress, runner = self.course, self.progress, self.course.execution.runner
        last_words.leave(self._saves.left)
        with self._stopping:
            self._steps()
            progress.remarks, progress.workspace_bytes = runner.remarks, runner.workspace_bytes
            # a job that was asked to stop has little time left
            is_reported = bool(progress.stopped_by) or progress.is_out_of_patience
            if not is_reported and evaluate.truths(self.job, course.dataset.held_out):
                many = report.counted(course.dataset.num_held_out, "sample")
                with self.say.under_way(f"evaluating on {many}") as advance:
                    self._evaluate(self._last, advance)
        return progress

    @property
    def _num_done(self) -> int:
        """The number of steps done."""
        return self.course.first_step + self.progress.num_steps

    @property
    def _last(self) -> int:
        """The number of steps done at the end; a resumed run may have none left."""
        return max(self.course.num_steps, self.course.first_step)

    def _steps(self) -> None:
        """Run all steps, or those until a signal or patience ends training, and save the result."""
        course, job, first, last = self.course, self.job, self.course.first_step, self._last
        self._begun_at = time.perf_counter()
        self._told = self._begun_at, first
        with ExitStack() as stack:
            inputs, batch = course.execution.inputs, job.graph.batch
            feeder = stack.enter_context(Feeder(course.dataset, inputs, batch, first, last - first))
            bar = stack.enter_context(self.say.bar(first, last))
            if self._lacks_evaluation:
                self._evaluate(first)
            for step in range(first, last):
                is_ended = bool(self.progress.stopped_by) or self.progress.is_out_of_patience
                if is_ended and not self._is_ahead:
                    break
                self._step(step, feeder)
                bar.step(step + 1, self.progress.losses[-1], self.progress.paces[-1])
                self._after(step + 1)
                if course.saver is not None and not self.progress.stopped_by and self._is_asked_to_stop(step):
                    self.progress.stopped_by = self._stopping.name
            self._saves.end(self._num_done)

    def _is_asked_to_stop(self, step: int) -> bool:
        with self.course.execution.runner.prompt():
            return self._stopping.after(step)

    def _is_stopped(self) -> bool:
        """Whether the job was asked to stop until now, which all ranks learn together."""
        if self.course.saver is None:
            return False
        with self.course.execution.runner.prompt():
            is_asked = self._stopping.now()
        if is_asked:
            self.progress.stopped_by = self._stopping.name
        return is_asked

    def _step(self, step: int, feeder: Feeder) -> None:
        """One step; `step` are done before it. Where nobody wants the state in between the next begins behind it."""
        begun, waited = self._ended_at if self._is_ahead else time.perf_counter(), feeder.waited_seconds
        execution, progress = self.course.execution, self.progress
        ahead, first, rate = execution.runner.feeds_ahead, self.course.first_step, self.course.rates(step)
        if not ahead or step == first:
            self._feed(step, feeder)
        is_sampled = self._is_sampled(step)
        if is_sampled:
            self.job.comm.align_clocks()
        ready = begun if self._is_ahead else time.perf_counter()
        more = ahead and step + 1 < self.course.num_steps
        self._is_ahead = more and self._may_be_followed(step)
        meanwhile = partial(self._begin_next, step + 1, feeder) if more else None
        execution.run(meanwhile, is_sampled)
        self._ended_at = done = time.perf_counter()
        # what is made of the times of tasks is no part of the step
        timeline = execution.timeline() if is_sampled else None
        loss = execution.output(self.job.graph.loss)
        lost, pace = feeder.waited_seconds - waited, self.job.graph.batch / (done - begun)
        progress.add(float(loss) if loss is not None else math.nan, done - ready, lost, pace)
        reports, before = self._reports(), progress.gradients
        progress.gradients = number_watch.norms(reports)
        self._record(step + 1, rate)
        spoilt = next((each.spoilt for each in reports if each.spoilt), "")
        is_lost = loss is not None and not math.isfinite(progress.losses[-1])
        if is_lost or spoilt:
            what = "the loss is not a finite number" if is_lost else f"{spoilt!r} holds numbers that are not finite"
            self.log.record("end", step=step + 1, reason=what)
            raise UserError(f"step {step + 1}: {what}: {self._to_blame(step, feeder, reports, before)}")
        self._look_for_skipped(step + 1, reports)
        if timeline is not None:
            self._sample(step + 1, timeline)
        if timeline is not None or self._is_quiet:
            self._tell(step + 1)

    def _reports(self) -> list[Report]:
        """What all ranks have seen in a step, on rank 0; nothing where nobody looks."""
        if self.course.watch is None:
            return []
        with self.course.execution.runner.prompt():
            parts = self.job.comm.gather_bytes(msgspec.msgpack.encode(self.course.watch.report()))
        return [msgspec.msgpack.decode(part, type=Report) for part in parts or ()]

    def _look_for_skipped(self, step: int, reports: Sequence[Report]) -> None:
        """Count a step that was skipped, where the loss is scaled. Raises UserError where all are from now on."""
        norm, graph = self.course.execution.output(NORM), self.job.graph
        if norm is None or not is_scaled(graph, self.job.lowering.updates):
            return
        if math.isfinite(norm):
            self._num_skipped = 0
            return
        self.progress.num_skipped += 1
        self._num_skipped += 1
        if self._num_skipped == MOST_SKIPPED:
            self.log.record("end", step=step, reason=f"gradients are too large for {graph.dtype}")
            trouble = number_watch.first(reports)
            where = f"{trouble.words}: " if trouble is not None else ""
            raise UserError(
                f"step {step}: {MOST_SKIPPED} steps in a row were skipped, since gradients are too large for "
                f"{graph.dtype} where the loss is not scaled up, too: {where}train with --dtype bfloat16 or float32"
            )

    def _begin_next(self, step: int, feeder: Feeder) -> None:
        """What is done for the next step while one is under way."""
        self._feed(step, feeder)
        if self._is_ahead:
            self.course.execution.runner.begin_ahead()

    @property
    def _lacks_evaluation(self) -> bool:
        """Whether what the run goes on from is due to be judged, where that decides anything: the run before it ended
        with that step, or was asked to stop.
        """
        course, first = self.course, self.course.first_step
        is_wanted = course.keeps_best or course.patience is not None
        return is_wanted and self._is_judged(first) and course.judged.last < first < course.num_steps

    def _may_be_followed(self, step: int) -> bool:
        """Whether a step and the next may be put onto devices together; the same on all ranks."""
        is_wanted = self._saves.due(step + 1) or self._is_judged(step + 1)
        is_timed = self._is_sampled(step) or self._is_sampled(step + 1)
        return not (is_wanted or is_timed or self.progress.stopped_by)

    def _is_judged(self, step: int) -> bool:
        return self.course.evaluate_every is not None and step % self.course.evaluate_every == 0

    def _to_blame(self, step: int, feeder: Feeder, reports: Sequence[Report], before: dict[str, float]) -> str:
        """What may have made the loss of a step no finite number, and what to do: samples of it or of the one before,
        of which an update may have been, what ranks have seen, or the rate; `before` are gradients before that step."""
        dataset, batch = self.course.dataset, self.job.graph.batch
        # Before the first update no rate is to blame.
        at_once = "look for such numbers in samples and parameters, and for labels out of range"
        mend = SMALLER if step else at_once
        for fed in range(step, max(step - 2, self.course.first_step - 1), -1):
            rows = feeder.again(fed, [name for name in self.job.graph.inputs if name in dataset.shapes])
            if found := sample_checks.first_odd(rows.rows):
                place = dataset.place(int(dataset.indices(fed, batch)[rows.places[found.name][found.row]]))
                instead = f", or where it is meant {mend}" if step and math.isinf(found.value) else ""
                return f"{place}, counted from 0, has {found.words}: {sample_checks.MEND}{instead}"
        if self.course.watch is None:
            return f"{mend}, or with --watch, which tells where they begin" if self.job.backend == "numpy" else mend
        trouble = number_watch.first(reports)
        words = [trouble.words] if trouble is not None else []
        if trouble is not None and trouble.sample is not None:
            words.append(f"for {dataset.place(int(dataset.indices(step, batch)[trouble.sample]))}, counted from 0")
        if before:
            words.append(f"gradients a step before: {number_watch.longest(before)}")
        return f"{', '.join(words)}: mend the network there, or {SMALLER if step else at_once}" if words else mend

    def _feed(self, step: int, feeder: Feeder) -> None:
        self.course.execution.feed(next(feeder), self.course.rates(step), step)

    def _record(self, step: int, rate: float) -> None:
        prepared, progress, batch = self.course.prepared, self.progress, self.job.graph.batch
        norm = self.course.execution.output(NORM)
        # where gradients overflow 16 bits they have no norm, and the step is skipped
        norms: dict[str, Any] = {"norm": float(norm) if math.isfinite(norm) else None} if norm is not None else {}
        norms |= {"gradients": progress.gradients} if progress.gradients else {}
        self.log.record(
            "step", step=step, samples=step * batch, loss=progress.losses[-1], rate=rate,
            step_seconds=progress.seconds[-1], simulated_seconds=prepared.simulated.seconds,
            samples_per_second=progress.paces[-1], peak_bytes=int(prepared.packing.peak_bytes.max()),
            waited_seconds=progress.waited[-1], **norms,
        )  # fmt: skip

    @property
    def _sampled_every(self) -> int:
        """Every so many steps one is measured task by task: about twenty in all, on a GPU fewer."""
        num_steps = self.course.num_steps - self.course.first_step
        least = 1 if self.job.backend == "numpy" else min(LEAST_BETWEEN, num_steps)
        return max(least, num_steps // NUM_SAMPLED)

    def _is_sampled(self, step: int) -> bool:
        return (step + 1 - self.course.first_step) % self._sampled_every == 0

    def _sample(self, step: int, timeline: Timeline) -> None:
        """Gather a step that was measured whole."""
        course = self.course
        self.progress.num_sampled += 1
        with course.execution.runner.prompt():
            whole = self.job.gather(timeline)
        if whole is not None:
            self.progress.sampled.append(whole)
            debug.show(debug.TASKS, self.job.comm.rank, partial(debug.task_table, course.prepared.tasks, whole))

    @property
    def _is_quiet(self) -> bool:
        """Whether no line on steps was printed for long, and no bar shows that they go on."""
        share = QUIET_SHARE * (self._ended_at - self._begun_at)
        quiet = min(max(share, LEAST_QUIET_SECONDS), MOST_QUIET_SECONDS)
        return not self.say.has_bar and self._ended_at - self._told[0] > quiet

    def _tell(self, step: int) -> None:
        """Print a line on the steps since the last one."""
        since, prepared = step - self._told[1], self.course.prepared
        self.say.step_line(lambda: run_report.step_line(self.job, step, self.progress, prepared, since))
        self._told = time.perf_counter(), step

    def _after(self, step: int) -> None:
        """What is due when so many steps are done."""
        self._saves.poll()
        # a checkpoint tells how the evaluation of its own step was, so that who goes on from it has the patience left
        if self._is_judged(step) and step < self._last and not self.progress.stopped_by:
            self._evaluate(step)
        if self._saves.due(step) and step < self._last:
            self._saves.save(step)

    @cached_property
    def _passing(self) -> ForwardPass:
        """What held-out samples go through, made once."""
        passing, whole = evaluate.forward_pass(self.job, self.course.plan, self.course.prepared), self.job.graph.batch
        if passing.graph.batch < whole:
            self.say.line(run_report.in_pieces(passing.graph.batch, whole))
        return passing

    def _evaluate(self, step: int, advance: Advance = lambda *_: None) -> None:
        course = self.course
        judged = evaluate.held_out(
            self.job, lambda: self._passing, course.dataset, course.execution, advance, self._is_stopped
        )
        if self.progress.stopped_by:
            self.say.line(run_report.unjudged_line(step, self.progress.stopped_by))
            return
        if judged is not None:
            self._tell_judged(step, judged)
        self._weigh(step, judged.loss if judged is not None else math.nan)

    def _tell_judged(self, step: int, judged: HeldOut) -> None:
        """Tell and record what an evaluation said, on rank 0."""
        course = self.course
        facts = run_report.evaluation(step, judged)
        self.progress.evaluations.append(facts)
        self.log.record("evaluation", **facts)
        if facts["loss"] is None:
            why = "the loss of held-out samples is not a finite number: look for such numbers in them"
            self.say.warn(f"step {step}: {why}, or {SMALLER}")
        # the last is told at the end of the run
        if step < course.num_steps:
            self.say.line(run_report.evaluation_line(facts))

    def _weigh(self, step: int, loss: float) -> None:
        """What an evaluation means for what is kept and for how long the run goes on; all ranks come to it."""
        course, progress = self.course, self.progress
        with course.execution.runner.prompt():
            verdict = self.job.agree(lambda: msgspec.json.encode(progress.judged.after(step, loss)))
        progress.judged = judged = msgspec.json.decode(verdict, type=Judged)
        if course.keeps_best and not judged.since:
            self._saves.save_best(step, loss)
        if (course.keeps_best or course.patience is not None) and judged.loss is not None:
            progress.best = {"step": judged.step, "loss": judged.loss}
        progress.is_out_of_patience = judged.is_out_of(course.patience) and step < course.num_steps
