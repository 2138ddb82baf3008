"""What a training run reports: the plan, step lines with simulated beside measured times, and the facts at its end.

It does not know how training is done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from castile.kernels.table import Table
from castile.launch.checkpoints.manifest import UNJUDGED, Judged
from castile.launch.data import Dataset
from castile.launch.jobs.execution import Prepared
from castile.launch.jobs.jobs import Job
from castile.launch.measuring.plan_choice import Chosen, simulated
from castile.launch.reports import errors, report, throughput
from castile.launch.reports.report import duration
from castile.launch.training import number_watch
from castile.launch.training.scoring import HeldOut
from castile.planner.cost import CostModel
from castile.planner.costs.learn import is_delayed, undisturbed
from castile.planner.simulation.replay import replay
from castile.runtime import debug
from castile.runtime.memory import written
from castile.runtime.timeline import Timeline

# What is told of a class beside its numbers.
SHARES = ("recall", "precision")
# Of so many classes a line is told.
MOST_LINES = 20


@dataclass
class Progress:
    """The course of a training so far.

    losses, seconds, waited   of each step: the loss, wall seconds of running it, and of waiting for its samples
    paces                     of each step: samples a second, including loading
    judged                    the state of evaluation, as a checkpoint keeps it
    best                      step and loss of the best evaluation so far, where it is wanted
    is_out_of_patience        whether training ended early as evaluations did not improve
    gradients                 the norm of each parameter's gradient in the last step, where it was watched (rank 0)
    num_skipped               steps that were skipped, as their gradients overflowed 16 bits (rank 0)
    num_sampled, sampled      how many steps were measured whole, and their timelines (rank 0)
    evaluations, checkpoints  the facts of each
    copied_seconds            how long steps waited for the state to be copied before it is saved
    latest                    the checkpoint that a run would resume from, "" for none
    stopped_by                the signal that ended training early, "" for none
    unsaved                   why the final state could not be saved (rank 0), "" if it was
    remarks                   notes on how rank 0 runs steps
    workspace_bytes           memory that kernels took on rank 0 beyond the plan
    """

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)
    judged: Judged = UNJUDGED
    best: dict[str, Any] = field(default_factory=dict)
    is_out_of_patience: bool = False
    gradients: dict[str, float] = field(default_factory=dict)
    num_skipped: int = 0
    num_sampled: int = 0
    sampled: list[Timeline] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    copied_seconds: float = 0.0
    latest: str = ""
    stopped_by: str = ""
    unsaved: str = ""
    remarks: list[str] = field(default_factory=list)
    workspace_bytes: int = 0

    @property
    def num_steps(self) -> int:
        return len(self.losses)

    def add(self, loss: float, seconds: float, waited: float, pace: float) -> None:
        """Record a step."""
        self.losses.append(loss)
        self.seconds.append(seconds)
        self.waited.append(waited)
        self.paces.append(pace)


def samples(dataset: Dataset) -> dict[str, int]:
    """The number of samples of the data, and of those left out."""
    found = {"train": dataset.num_samples, "held_out": dataset.num_held_out, "dropped": dataset.num_dropped}
    return found | dict(zip(("bytes_read", "bytes_there"), dataset.read or (), strict=False))


def left_out(dataset: Dataset) -> str:
    """What of the data is in no sample, "" if nothing."""
    words = []
    if dataset.num_dropped:
        words.append(f"{report.counted(dataset.num_dropped, 'sample')} left out, of which something is missing")
    if dataset.read is not None:
        words.append("{} of {} bytes read: give most_bytes for more".format(*dataset.read))
    used = f"{report.counted(dataset.num_samples, 'sample')} to train on and {dataset.num_held_out} held out"
    return f"data set {dataset.name}: {used}, {', '.join(words)}" if words else ""


def plan_text(job: Job, chosen: Chosen) -> str:
    """The plan in a few lines, and the candidates it was chosen from."""
    num_tasks = chosen.prepared.tasks.num_tasks
    travel = f", transfers: {job.travel}" if job.travel else ""
    lines = [f"{job.model.text} on {job.machine.name}: batch {job.graph.batch}, {num_tasks} tasks a step{travel}"]
    if chosen.candidates:
        lines.append(f"{'plan':24} {'simulated':>12} {'measured':>12}")
        for row in chosen.candidates:
            lines.append(f"{row.name:24} {duration(row.simulated_seconds):>12} {duration(row.measured_seconds):>12}")
        equal = f", which is the known plan {chosen.equals}" if chosen.equals else ""
        why = f"{chosen.equals}, as asked" if chosen.asked_for else f"the fastest as measured{equal}"
        lines.append(f"chosen after {report.counted(chosen.num_proposals, 'proposal')}: {why}")
    if chosen.is_made_to_fit:
        lines.append(made_to_fit(chosen.plan.microbatches))
    lines += [f"  {line}" for line in report.plan_lines(chosen.plan)]
    return "\n".join(lines)


def made_to_fit(microbatches: int) -> str:
    """Why steps differ from what was asked for; recomputation is in the plan's own lines."""
    how = f"a step in {microbatches} microbatches" if microbatches > 1 else "results are computed again for gradients"
    return f"{how}: no known plan fits otherwise"


def nothing_to_train(done: int, num_steps: int, judged: Judged) -> str:
    """The report of a run that resumes at its end: after its last step, or as evaluations did not improve."""
    why, more = f"and the run has {num_steps}", "--steps or --epochs"
    if done < num_steps:
        many = report.counted(judged.since, "evaluation")
        why, more = f"and {many} brought nothing better than that of step {judged.step}", "--patience"
    return f"nothing to train: {done} steps are done {why}, so files stay as they are: give more with {more} to go on"


def not_begun(saved: Path | None, is_planned: bool) -> str:
    """What there is of a run that ends before its first step, perhaps while searching for a plan."""
    if saved is not None:
        return f"ended before the first step: with --resume the same command goes on from {saved}"
    advice = "" if is_planned else "; with --plan FILE a run begins without measuring"
    return f"ended before the first step, so nothing is saved{advice}"


def show_plan(job: Job, chosen: Chosen) -> None:
    """Print what the debug ladder asks for before the first step."""
    tasks, rank = chosen.prepared.tasks, job.comm.rank
    debug.show(debug.PLAN, rank, lambda: "\n".join(report.plan_lines(chosen.plan)))
    debug.show(debug.GRAPH, rank, lambda: debug.graph_table(tasks))
    form = "numpy" if job.backend == "numpy" else "triton"
    debug.show(debug.SOURCES, rank, lambda: debug.kernel_sources(tasks, Table(form).source))


def step_line(job: Job, step: int, progress: Progress, prepared: Prepared, last: int) -> str:
    """step 120  loss 2.3140 | 41.200 ms (sim 39.800, +3.5 %) | 12.4k samples/s | mem 3.1 GiB/139.0 GiB"""
    seconds, simulated_seconds = float(np.median(progress.seconds[-last:])), prepared.simulated.seconds
    took = duration(seconds)
    unit = took[took.index(" ") :]
    off = 100 * (seconds / simulated_seconds - 1)
    rate = float(np.median(progress.paces[-last:]))
    fullest = int(prepared.packing.peak_bytes.argmax())
    processor = job.machine.processors[fullest]
    used, there = int(prepared.packing.peak_bytes[fullest]), processor.capacity_bytes
    return (
        f"step {step:5d}  loss {progress.losses[-1]:.4f} | {took} "
        f"(sim {duration(simulated_seconds).removesuffix(unit)}, {off:+.1f} %) | {report.pace(rate)} | "
        f"mem {written(used)}/{written(there)}"
    )


def evaluation(step: int, judged: HeldOut) -> dict[str, Any]:
    """An evaluation's facts, without figures that the model does not have."""
    return {"step": step, **quality(judged), "num_samples": judged.num_samples}


def quality(judged: HeldOut) -> dict[str, Any]:
    """The figures of an evaluation: loss (None if not finite), accuracy, AUC, perplexity, the numbers of non-finite
    losses and of predictions where it is not one a sample, and the same of further outputs by name.
    """
    facts = {
        "loss": finite(judged.loss), "accuracy": judged.accuracy, "auc": judged.auc,
        "perplexity": judged.perplexity and finite(judged.perplexity),
        "num_not_finite": judged.num_not_finite or None, "num_predictions": judged.num_predictions,
        "others": {name: quality(other) for name, other in judged.others.items()} or None,
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value is not None or name == "loss"}


def classes(judged: HeldOut) -> list[dict[str, Any]]:
    """For each class, how many predictions should be and were of it, recall and precision, None of none; nothing where
    classes are not counted.
    """
    confusion = judged.confusion or ()
    said = [sum(row[c] for row in confusion) for c in range(len(confusion))]
    return [
        {
            "class": c, "num_labels": sum(row), "num_said": said[c],
            "recall": row[c] / sum(row) if sum(row) else None, "precision": row[c] / said[c] if said[c] else None,
        }
        for c, row in enumerate(confusion)
    ]  # fmt: skip


def class_lines(classes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each class, the lowest recall first where there are many."""
    if not classes:
        return []
    rows = classes
    if len(classes) > MOST_LINES:
        rows = sorted(classes, key=lambda c: (c["recall"] is None, c["recall"]))[:MOST_LINES]
    share = {name: [f"{100 * c[name]:.2f} %" if c[name] is not None else "-" for c in rows] for name in SHARES}
    lines = [f"{'class':>5} {'labels':>8} {'recall':>9} {'said':>8} {'precision':>9}"]
    for c, recall, precision in zip(rows, *share.values(), strict=True):
        lines.append(f"{c['class']:>5} {c['num_labels']:>8} {recall:>9} {c['num_said']:>8} {precision:>9}")
    num_left = len(classes) - len(rows)
    return lines + ([f"and {num_left} more, whose recall is higher"] if num_left else [])


def evaluation_line(facts: dict[str, Any]) -> str:
    """step   100  held out: 91.20 % of 360 samples right, loss 0.2931"""
    return f"step {facts['step']:5d}  held out: {judged(facts)}"


def end(progress: Progress, first_step: int) -> dict[str, Any]:
    """The last record of a run."""
    reason = "patience" if progress.is_out_of_patience else progress.stopped_by or "done"
    facts = {"step": first_step + progress.num_steps, "reason": reason}
    return facts | ({"num_skipped": progress.num_skipped} if progress.num_skipped else {})


def in_pieces(batch: int, whole: int) -> str:
    """Why held-out samples are not evaluated a batch at a time."""
    return f"held-out samples are judged {batch} at a time: steps leave no memory for {whole}"


def unjudged_line(step: int, signal: str) -> str:
    """step   100  held out: not judged, as SIGTERM asked to stop"""
    return f"step {step:5d}  held out: not judged, as {signal} asked to stop"


def checkpoint_line(step: int, path: str, nbytes: int, seconds: float) -> str:
    """step   100  saved in runs/a/step-00000100: 3.2 MiB in 0.04 s"""
    return f"step {step:5d}  saved in {path}: {written(nbytes)} in {seconds:.2f} s"


def facts(job: Job, chosen: Chosen, progress: Progress, first_step: int, run: dict[str, Any]) -> dict[str, Any]:
    """All figures of a run; call it before the run's own steps are learned, so that predictions are predictions."""
    if not job.leads:
        return {}
    result: dict[str, Any] = {
        "model": job.model.text,
        "machine": job.machine.name,
        "num_ranks": job.comm.size,
        "batch": job.graph.batch,
        "run": run,
        "num_tasks": chosen.prepared.tasks.num_tasks,
        "first_step": first_step,
        "num_steps": progress.num_steps,
        "num_skipped": progress.num_skipped,
        "losses": [finite(loss) for loss in progress.losses],
        "gradients": progress.gradients,
        "waited_seconds": sum(progress.waited),
        "copied_seconds": progress.copied_seconds,
        "stopped_by": progress.stopped_by,
        "is_out_of_patience": progress.is_out_of_patience,
        "best": progress.best,
        "evaluations": progress.evaluations,
        "checkpoints": progress.checkpoints,
        "latest_checkpoint": progress.latest,
        "peak_bytes": [int(b) for b in chosen.prepared.packing.peak_bytes],
        "workspace_bytes": progress.workspace_bytes,
        "remarks": progress.remarks,
        "microbatches": chosen.plan.microbatches,
        "is_made_to_fit": chosen.is_made_to_fit,
        "equals_seed": chosen.equals,
        "num_proposals": chosen.num_proposals,
        "candidates": [
            {
                "name": c.name,
                "untaught_seconds": c.untaught_seconds,
                "simulated_seconds": c.simulated_seconds,
                "measured_seconds": c.measured_seconds,
            }
            for c in chosen.candidates
        ],
    }
    if progress.seconds:
        seconds = float(np.median(progress.seconds))
        result |= {"step_seconds": seconds} | throughput.facts(job.lowering, seconds)
    if progress.sampled:
        result |= _predictions(job, chosen, progress)
        steps = replay(chosen.prepared.tasks, job.cost, progress.sampled)
        result["errors"] = errors.facts({job.model.text: steps})
    if progress.evaluations and not progress.stopped_by:
        judged = {name: value for name, value in progress.evaluations[-1].items() if name != "step"}
        result["num_held_out"] = judged.pop("num_samples")
        result |= {f"held_out_{name}": value for name, value in judged.items()}
    return result


def _predictions(job: Job, chosen: Chosen, progress: Progress) -> dict[str, Any]:
    """The measured step beside its predictions before and after learning."""
    measured = undisturbed(progress.sampled)
    before = simulated(chosen.prepared, CostModel(job.machine))
    after = chosen.prepared.simulated.seconds
    return {
        "measured_step_seconds": measured,
        "simulated_step_seconds": after,
        "untaught_step_seconds": before,
        "error_before_learning": abs(before / measured - 1),
        "error_after_learning": abs(after / measured - 1),
        "num_sampled": len(progress.sampled),
        "num_held_up": sum(map(is_delayed, progress.sampled)),
    }


def finite(number: float) -> float | None:
    """The number, or None for infinity and NaN, which JSON lacks."""
    return number if math.isfinite(number) else None


def text(facts: dict[str, Any]) -> str:
    """The end of a run in a few lines."""
    lines = list(facts["remarks"])
    if "step_seconds" in facts:
        lines.append(f"a step took {duration(facts['step_seconds'])}, the median: {throughput.words(facts)}")
    if "error_before_learning" in facts:
        before, after = 100 * facts["error_before_learning"], 100 * facts["error_after_learning"]
        lines.append(
            f"prediction error over {report.counted(facts['num_steps'], 'step')} not learned from: "
            f"{before:.1f} % before learning, {after:.1f} % after"
        )
    if "errors" in facts:
        lines.append(errors.sentence(facts["errors"]))
    if facts.get("num_held_up"):
        measured, all_were = report.counted(facts["num_sampled"], "step"), facts["num_held_up"] == facts["num_sampled"]
        of = "the others, and transfers are learned from them"
        if all_were:
            of = "the quickest, and transfers are learned from it where nothing else is known of them"
        lines.append(
            f"other programs held up {facts['num_held_up']} of {measured} that were measured task by task: errors are "
            f"of {of}"
        )
    if facts["num_steps"]:
        lines.append(f"steps waited {duration(facts['waited_seconds'])} for samples in all")
    if facts["gradients"]:
        lines.append(f"gradients in the last step: {number_watch.longest(facts['gradients'])}")
    if facts.get("num_skipped"):
        many = report.counted(facts["num_steps"], "step")
        lines.append(f"{facts['num_skipped']} of {many} skipped, whose gradients were too large for half precision")
    if facts["stopped_by"]:
        done = facts["first_step"] + facts["num_steps"]
        there = facts["latest_checkpoint"]
        left = f"--resume goes on from {there}" if there else "nothing is saved"
        lines.append(f"stopped by {facts['stopped_by']} after step {done}: {left}")
    if "num_held_out" in facts:
        lines.append(f"held out: {judged(facts['evaluations'][-1])}")
    if facts["best"]:
        ended = ", and nothing better came of those since" if facts["is_out_of_patience"] else ""
        lines.append(f"the best evaluation: loss {facts['best']['loss']:.4f} after step {facts['best']['step']}{ended}")
    lines += [f"{what}: {path}" for what, path in facts["files"].items()]
    lines.append(f"{facts['total_seconds']:.1f} s in all")
    return "\n".join(lines)


def judged(facts: dict[str, Any]) -> str:
    """91.20 % of 360 samples right, loss 0.2931; or of 3968 predictions in 31 samples"""
    words, what = [], f"{facts['num_samples']} samples"
    if "num_predictions" in facts:
        what = f"{facts['num_predictions']} predictions in {what}"
    if "accuracy" in facts:
        words.append(f"{100 * facts['accuracy']:.2f} % of {what} right")
    if "auc" in facts:
        words.append(f"area under the curve {facts['auc']:.4f}")
    if facts["loss"] is not None:
        words.append(f"loss {facts['loss']:.4f}")
    if "perplexity" in facts:
        words.append(f"perplexity {facts['perplexity']:.2f}")
    if "num_not_finite" in facts:
        words.append(f"{report.counted(facts['num_not_finite'], 'prediction')} without a finite loss")
    alike = {"num_samples": facts["num_samples"]}
    others = [f"{name}: {judged(other | alike)}" for name, other in facts.get("others", {}).items()]
    return "; ".join([", ".join(words), *others])

