"""Saving: when a training's state is saved, what is reported of it, and which checkpoint it could resume from.

It does not know how steps are run, nor how a checkpoint reaches the disk.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from castile.launch.checkpoints.checkpointer import Checkpointer, Outcome
from castile.launch.jobs import sample_checks
from castile.launch.jobs.execution import Execution
from castile.launch.jobs.jobs import Job
from castile.launch.processes import last_words
from castile.launch.processes.ranks import Ended, UserError
from castile.launch.reports import report
from castile.launch.reports.screen import Speaker
from castile.launch.training import run_report
from castile.launch.training.metrics import Metrics
from castile.launch.training.run_report import Progress
from castile.planner import strategy as strategies
from castile.planner.strategy import Strategy
from castile.runtime.backends.base import Key

SMALLER = "train again with a smaller --lr"
# When the last save is tried again: ten minutes in all.
AGAIN_SECONDS = (5, 15, 40, 60, 120, 180, 180)
# Meanwhile it is asked so often whether the job is to stop.
TICK_SECONDS = 0.2


@dataclass
class Saves:
    """The saves of a training; all ranks reach them after the same steps.

    saver        None where there is nowhere to save to
    is_stopped   whether the job was asked to stop, which all ranks learn together
    """

    job: Job
    plan: Strategy
    execution: Execution
    saver: Checkpointer | None
    log: Metrics
    say: Speaker
    progress: Progress
    is_stopped: Callable[[], bool]
    _is_over: bool = False

    @property
    def latest(self) -> Path | None:
        """The checkpoint that the training would resume from now, None for none."""
        return self.saver.latest if self.saver is not None else None

    @property
    def left(self) -> str:
        """What there is to resume from, should the training end now."""
        if self.latest is not None:
            return f"with --resume the same command goes on from {self.latest}"
        if self.saver is not None:
            each = report.counted(self.saver.every_steps, "step")
            return f"nothing is saved yet: saves come after every {each}, with a smaller --checkpoint-every sooner"
        return "nothing is saved yet; --checkpoint DIR with --checkpoint-every N saves, to --resume from"

    def due(self, step: int) -> bool:
        """Whether the state after that many steps is to be saved."""
        return self.saver is not None and self.saver.due(step)

    def save(self, step: int) -> None:
        """Begin to save the state after that many steps. Raises UserError where no run could resume from it."""
        assert self.saver is not None
        carried = self.execution.saved()
        self.check(carried, step)
        with self.execution.runner.prompt():
            samples, plan = step * self.job.graph.batch, strategies.encode(self.plan)
            copied = self.saver.save(step, samples, carried, plan, self.progress.judged)
        self.progress.copied_seconds += copied.seconds + copied.waited_seconds

    def save_best(self, step: int, loss: float) -> None:
        """Save the state after that many steps, the best so far on held-out samples, and keep it; all ranks call it."""
        assert self.saver is not None
        if not self._is_over:
            self.save(step)
            self._tell(self._ended(self.saver))
        if self.job.leads and (warning := self.saver.note(step, loss)):
            self.say.warn(warning)

    def poll(self) -> None:
        """Report the outcome of a save as soon as it is known."""
        if self.saver is not None:
            with self.execution.runner.prompt():
                outcome = self.saver.poll()
            self._tell(outcome)

    def end(self, step: int) -> None:
        """Save the final state. If something temporary such as a full disk prevents it, try again and again, unless the
        job was asked to stop, before or meanwhile, and has little time left. Without a place to save to, check that the
        state is valid.
        """
        saver = self.saver
        if saver is None:
            if self.progress.num_steps:
                self.check(self.execution.saved(), step)
            return
        self._tell(self._ended(saver))
        outcome = None
        for seconds in (*AGAIN_SECONDS, None):
            self.save(step)
            outcome = self._ended(saver)
            may_pass = outcome is not None and outcome.may_pass
            is_last = seconds is None or not may_pass or bool(self.progress.stopped_by)
            self._tell(outcome, "" if is_last else f"; it is tried again in {seconds} s")
            if is_last or self._is_stopped_within(seconds or 0):
                break
        if self.job.leads and outcome is not None and not outcome.complete:
            self.progress.unsaved = f"what was trained since is lost: {outcome.warning}"
        saver.close()
        self._is_over = True
        self.progress.latest = str(self.latest or "")

    def break_off(self) -> None:
        """Before an error ends the run, let the save in progress become a checkpoint, wherever other ranks are; what
        there is then is reported after the error.
        """
        self._end_alone("ending the save that is under way")
        if self.latest is not None:
            last_words.follow(self.left)

    def interrupted(self, done: int) -> Ended:
        """What Ctrl-C after `done` steps ends the run with: it lets the save in progress end; a second one does not
        wait for it.
        """
        at_once = False
        try:
            self._end_alone("ending the save that is under way; Ctrl-C once more leaves it")
        except KeyboardInterrupt:
            at_once = True
        return Ended(signal.SIGINT, f"ended after step {done}: {self.left}", at_once)

    def check(self, carried: Mapping[Key, np.ndarray], step: int) -> None:
        """Raises UserError for a state that no run could resume from: the loss of its own step may still be finite."""
        graph = self.job.graph
        # what is carried and never changes, such as a mask, may come with infinities, and is saved with them
        constants = set(graph.states) - set(graph.updates)
        for (region, _, _), array in carried.items():
            if region not in constants and not sample_checks.is_finite(array):
                then = ", which are not saved" if self.saver is not None else ""
                raise UserError(f"step {step}: {region} holds numbers that are not finite{then}: {SMALLER}")

    def _end_alone(self, what: str) -> None:
        if self.saver is None or not self.saver.is_saving:
            return
        # it may be that nobody listens any more which ends the run
        with suppress(BrokenPipeError):
            self.say.note(what)
        outcome = self.saver.break_off()
        with suppress(BrokenPipeError):
            self._tell(outcome, "")

    def _is_stopped_within(self, seconds: float) -> bool:
        """Wait for so long, or until the job is asked to stop, which all ranks learn together."""
        end = time.perf_counter() + seconds
        while not self.is_stopped():
            with self.execution.runner.prompt():
                is_over = self.job.agree(lambda: b"over" if time.perf_counter() >= end else b"") == b"over"
            if is_over:
                return False
            time.sleep(min(TICK_SECONDS, seconds))
        return True

    def _ended(self, saver: Checkpointer) -> Outcome | None:
        """The outcome of the save in progress."""
        with self.execution.runner.prompt():
            return saver.wait()

    def _tell(self, outcome: Outcome | None, then: str = ", and training goes on") -> None:
        """Report the outcome of a save, and what happens if it failed."""
        if outcome is None:
            return
        facts = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
        self.progress.checkpoints.append(facts)
        self.log.record("checkpoint", **facts)
        if outcome.warning:
            self.say.warn(f"{outcome.warning}{'' if outcome.complete else then}")
        if outcome.complete:
            last_words.leave(self.left)
            self.say.line(run_report.checkpoint_line(outcome.step, outcome.path, outcome.nbytes, outcome.seconds))
