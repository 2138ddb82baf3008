"""What a training run tells: the plan, step lines with simulated beside measured, and the facts at its end.

It does not know how training is done.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from castile.launch import report
from castile.launch.evaluate import HeldOut
from castile.launch.execution import Prepared
from castile.launch.explore import Chosen, simulated
from castile.launch.jobs import Job
from castile.planner.cost import CostModel
from castile.runtime.memory import written
from castile.runtime.timeline import Timeline


@dataclass
class Progress:
    """What training has gone through: losses and wall seconds by step, and some steps' whole timelines (rank 0)."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sampled: list[Timeline] = field(default_factory=list)


@dataclass(frozen=True)
class Speaker:
    """Tells people lines as they come, or programs one JSON object at the end; only the leading rank speaks."""

    leads: bool
    json: bool

    def line(self, text: str) -> None:
        if self.leads and not self.json:
            print(text, flush=True)

    def note(self, text: str) -> None:
        """What is being done, for people who wait; stderr is for what went wrong."""
        self.line(f"{text} ...")

    def close(self, text: Callable[[dict[str, Any]], str], facts: dict[str, Any]) -> None:
        if self.leads:
            print(json.dumps(facts) if self.json else text(facts), flush=True)


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def plan_text(job: Job, chosen: Chosen) -> str:
    """The plan in a few lines, and what it was chosen from."""
    num_tasks = chosen.prepared.tasks.num_tasks
    lines = [f"{job.model.name} on {job.machine.name}: batch {job.graph.batch}, {num_tasks} tasks a step"]
    if chosen.candidates:
        lines.append(f"{'plan':24} {'simulated':>12} {'measured':>12}")
        lines += [f"{c.name:24} {ms(c.simulated_seconds):>12} {ms(c.measured_seconds):>12}" for c in chosen.candidates]
        equal = f", which is the seed {chosen.equals}" if chosen.equals else ""
        lines.append(
            f"chosen: {chosen.equals}, as asked" if chosen.asked_for else f"chosen: the fastest as measured{equal}"
        )
    lines += [f"  {line}" for line in report.plan_lines(chosen.plan)]
    return "\n".join(lines)


def step_line(job: Job, step: int, progress: Progress, prepared: Prepared, last: int) -> str:
    """step 120  loss 2.3140 | 41.20 ms (sim 39.80, +3.5 %) | 12.4k samples/s | mem 3.1 GiB/139.0 GiB"""
    seconds, simulated_seconds = float(np.median(progress.seconds[-last:])), prepared.simulated.seconds
    off = 100 * (seconds / simulated_seconds - 1)
    rate = job.graph.batch / seconds
    fullest = int(prepared.packing.peak_bytes.argmax())
    processor = job.machine.processors[fullest]
    used, there = int(prepared.packing.peak_bytes[fullest]), processor.memory_bytes - processor.reserved_bytes
    return (
        f"step {step:5d}  loss {progress.losses[-1]:.4f} | {ms(seconds)} "
        f"(sim {simulated_seconds * 1e3:.2f}, {off:+.1f} %) | {rate / 1e3:.1f}k samples/s | "
        f"mem {written(used)}/{written(there)}"
    )


def facts(job: Job, chosen: Chosen, progress: Progress, judged: HeldOut | None) -> dict[str, Any]:
    """All figures of a run; call it before the run's own steps are learned, so that predictions are predictions."""
    if not job.leads:
        return {}
    measured = float(np.median([s.seconds for s in progress.sampled]))
    before = simulated(chosen.prepared, CostModel(job.machine))
    after = chosen.prepared.simulated.seconds
    result: dict[str, Any] = {
        "model": job.model.name,
        "machine": job.machine.name,
        "num_ranks": job.comm.size,
        "batch": job.graph.batch,
        "num_tasks": chosen.prepared.tasks.num_tasks,
        "num_steps": len(progress.losses),
        "losses": [_finite(loss) for loss in progress.losses],
        "step_seconds": float(np.median(progress.seconds)),
        "measured_step_seconds": measured,
        "simulated_step_seconds": after,
        "untaught_step_seconds": before,
        "error_before_learning": abs(before / measured - 1),
        "error_after_learning": abs(after / measured - 1),
        "peak_bytes": [int(b) for b in chosen.prepared.packing.peak_bytes],
        "equals_seed": chosen.equals,
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
    if judged is not None:
        result["held_out_loss"], result["held_out_accuracy"] = _finite(judged.loss), judged.accuracy
        result["num_held_out"] = judged.num_samples
    return result


def _finite(number: float) -> float | None:
    """The number, or None, since JSON knows neither infinity nor NaN."""
    return number if math.isfinite(number) else None


def text(facts: dict[str, Any]) -> str:
    """The end of a run in a few lines."""
    before, after = 100 * facts["error_before_learning"], 100 * facts["error_after_learning"]
    lines = [
        f"prediction error over {facts['num_steps']} steps that were not learned from: "
        f"{before:.1f} % before learning, {after:.1f} % after",
    ]
    if None in facts["losses"]:
        step = facts["losses"].index(None) + 1
        lines.append(f"the loss is not a finite number from step {step} on: train again with a smaller --lr")
    if "held_out_accuracy" in facts:
        right = f"held out: {100 * facts['held_out_accuracy']:.2f} % of {facts['num_held_out']} samples right"
        loss = facts["held_out_loss"]
        lines.append(right if loss is None else f"{right}, loss {loss:.4f}")
    lines += [f"{what}: {path}" for what, path in facts["files"].items()]
    lines.append(f"{facts['total_seconds']:.1f} s in all")
    return "\n".join(lines)
