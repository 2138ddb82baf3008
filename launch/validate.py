"""`castile validate`: measures many plans, learns from half of them, and says how well the other half was predicted.

It does not know how predictions are made.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from castile.launch import models
from castile.launch.jobs import checks, jobs
from castile.launch.jobs.jobs import Job
from castile.launch.measuring.measure import TimedPlan, measure, sample_feed, timed_plan
from castile.launch.measuring.plan_choice import simulated
from castile.launch.pictures import shown
from castile.launch.processes import interrupts
from castile.launch.processes.ranks import UserError
from castile.launch.reports import errors, report
from castile.launch.reports.screen import Speaker
from castile.launch.typed import options
from castile.launch.typed.files import Outputs
from castile.planner.choices.space import space_of
from castile.planner.cost import CostModel
from castile.planner.costs.learn import is_delayed
from castile.planner.known.pipelines import divisors, staged
from castile.planner.known.seeds import seeds, stamped
from castile.planner.search import Evaluator
from castile.planner.simulate import simulate
from castile.planner.simulation.replay import Replay, replay
from castile.planner.strategy import Config, Strategy
from castile.runtime.transfer import TooManyTransfers

POOL = 200
WIDEST = 4.0
STEP_SECONDS = 0.022
MOST_SAMPLES = 65536
CALIBRATION_ROUNDS = 5
ROUNDS = 15


@dataclass(frozen=True)
class Validate:
    """Check the simulator: measure many plans, learn from half of them, and see how well the others are predicted."""

    model: options.Model
    """Its name and settings (convnet, mlp, gpt:layers=4,width=128), a Python file with a function build(), or an
    ONNX file."""
    machine: options.Machine = "local"
    """Where to run: this host, with a processor for each rank; or a TOML file that describes it."""
    plans: options.Number = 16
    """How many plans to measure; castile learns from every other one."""
    batch: options.Count = None
    """Samples a step; by default so many that a data-parallel step takes at least 22 ms."""
    accumulate: options.Count = None
    """Cut each batch into so many microbatches, one after another; then pipelines are among the plans."""
    recompute: options.RecomputeOrOwn = ""
    """What is computed again for gradients: selective (what is cheap), 40% (what takes least until so much is kept),
    full (nearly everything), parameters (gathered for each pass), names with wildcards, or several separated by commas;
    none by default."""
    rounds: options.Number = ROUNDS
    """How many steps of each plan are timed; the plans take turns."""
    seed: options.Number = 0
    """Fixes which plans are drawn."""
    trace: options.File = ""
    """Write a Chrome trace of a step to this file (open it in Perfetto), simulated and measured: of the plan that was
    predicted worst of those that castile did not learn from, the step nearest to its median."""
    picture: options.File = ""
    """Draw what each processor does in that step, simulated and measured, as SVG."""
    profile: options.File = ""
    """Keep what was learned in this profile database; by default nothing is kept."""
    json: bool = False
    """Print one JSON object."""


COMMAND = Validate


@dataclass(frozen=True)
class Row:
    """A plan's step: measured, with half the distance of its quartiles; simulated before and after learning."""

    name: str
    learned_from: bool
    measured_seconds: float
    spread_seconds: float
    before_seconds: float
    after_seconds: float


@dataclass(frozen=True)
class Truth:
    """How predictions compare with measurements of plans that were not learned from.

    mean_error, largest_error   of |predicted / measured - 1|
    kendall_tau                 over the num_pairs pairs whose medians differ by more than both spreads, 0 without any
    regret                      by how much the plan predicted to be fastest is slower than the fastest
    least_ratio, largest_ratio  of measured over predicted: that of one more plan drawn alike lies between them with a
                                probability of `coverage`
    """

    mean_error: float
    largest_error: float
    kendall_tau: float
    num_pairs: int
    regret: float
    least_ratio: float
    largest_ratio: float
    coverage: float


@dataclass(frozen=True)
class Lesson:
    """What was known when so many plans had been learned, and the mean error of those that were not."""

    num_plans: int
    num_keys: int
    mean_error: float


@dataclass(frozen=True)
class Outcome:
    """What is reported: each plan, what was learned of half of them one after the other, the measured steps of the
    others, how many steps there were and were held up by other programs, and of which plan a step was written where.
    """

    rows: Sequence[Row]
    lessons: Sequence[Lesson]
    replays: Mapping[str, Replay]
    num_held_up: int
    num_steps: int
    drawn: str
    files: Mapping[str, str]


@interrupts.ending_with("ended, and nothing is kept; with fewer --plans and --rounds there is less to wait for")
def run(command: Validate) -> int:
    """Measure, learn, predict, report. Raises ValueError or UserError in one sentence for a user's mistake."""
    checks.counts(batch=command.batch, accumulate=command.accumulate, rounds=command.rounds)
    if command.plans < 4:
        raise UserError(f"--plans {command.plans}: at least 4 are needed, half to learn from and half to predict")
    checks.writable(of=command, trace=command.trace, picture=command.picture)
    if command.batch:
        checks.pieces(command.accumulate, command.batch)
    job = _start(command, command.batch or _batch(command), command.profile)
    Speaker(job.leads, command.json).note(f"measuring {command.plans} plans")
    feed = sample_feed(job, command.seed)
    plans = draw(job, command.plans, command.seed)
    trials = [timed_plan(job, name, plan, command.seed) for name, plan in plans.items()]
    measure(job, trials, feed, job.model.recipe.lr / 100, command.rounds)
    untaught = CostModel(job.machine)
    taught, fresh = trials[::2], trials[1::2]
    lessons = [_lesson(job, 0, fresh)]
    for number, t in enumerate(taught, 1):
        job.learn(t.prepared, t.steps)
        lessons.append(_lesson(job, number, fresh))
    job.keep()
    if job.leads:
        rows = [_row(job, t, t in taught, untaught) for t in trials]
        replays = {t.name: replay(t.prepared.tasks, job.cost, t.steps) for t in fresh}
        steps = [step for t in trials for step in t.steps]
        outputs, num_held_up = Outputs(), sum(map(is_delayed, steps))
        drawn = _show(command, job, fresh, rows, outputs)
        _report(command, job, Outcome(rows, lessons, replays, num_held_up, len(steps), drawn, outputs.paths))
        outputs.end()
    return 0


def _start(command: Validate, batch: int, profile: str) -> Job:
    job = jobs.start(
        command.model, command.machine, batch, profile,
        microbatches=command.accumulate or 1, recompute=command.recompute,
    )  # fmt: skip
    job.measure()
    return job


def _batch(command: Validate) -> int:
    """Samples with which a data-parallel step is long enough to be timed, found by timing it."""
    # A multiple of the pieces that is cut into.
    pieces = command.accumulate or 1
    batch, seconds = -(-models.parse(command.model).recipe.batch // pieces) * pieces, 0.0
    while batch < MOST_SAMPLES:
        job = _start(command, batch, "")
        Speaker(job.leads, command.json).note(f"timing a step of {batch} samples")
        timed = timed_plan(job, "data_parallel", seeds(job.lowering)["data_parallel"], command.seed)
        measure(job, [timed], sample_feed(job, command.seed), 0.0, CALIBRATION_ROUNDS)
        seconds = float(job.agree(lambda t=timed: repr(t.seconds).encode()))  # type: ignore[misc]
        if seconds >= STEP_SECONDS:
            break
        batch *= 2 ** max(1, round(math.log2(STEP_SECONDS / seconds)))
    return batch


def draw(job: Job, count: int, seed: int) -> dict[str, Strategy]:
    """The seeds, and random plans spread evenly over the logarithm of their simulated times, in that order.

    A plan draws a Config for each kind of node, so that repeated layers are alike, and breaks the rule for a few nodes.
    Of a batch that is cut into microbatches there are pipelines of such plans, too, whose stages are of any length.
    Those of too many transfers are not drawn. Raises UserError where there are fewer than are asked for.
    """
    rng = random.Random(seed)
    evaluator = Evaluator(job.lowering, job.cost)
    pool = dict(seeds(job.lowering))
    for number in range(POOL):
        pool[f"random {number}"] = stamped(job.lowering, _random(job, rng), "random", seed)
    seconds = {}
    for name, plan in pool.items():
        with contextlib.suppress(TooManyTransfers):
            seconds[name] = evaluator.evaluate(plan).seconds
    if len(seconds) < count:
        raise UserError(f"--plans {count}: there are {len(seconds)} to draw from, ask for no more")
    limit = WIDEST * min(seconds.values())
    names = sorted((n for n in seconds if seconds[n] <= limit), key=lambda n: seconds[n])
    if len(names) < count:
        names = sorted(seconds, key=lambda n: seconds[n])[:count]
    wanted = np.geomspace(seconds[names[0]], seconds[names[-1]], count)
    taken: list[str] = []
    for target in wanted:
        free = [n for n in names if n not in taken]
        taken.append(min(free, key=lambda n: abs(np.log(seconds[n] / target))))
    chosen = sorted(taken, key=lambda n: seconds[n])
    agreed = json.loads(job.agree(lambda: json.dumps(chosen).encode()))
    return {name: pool[name] for name in agreed}


def _random(job: Job, rng: random.Random) -> dict[str, Config]:
    """A plan for all processors, or one for a few in each stage of a pipeline whose stages end anywhere."""
    num_procs = job.machine.num_procs
    num_stages = rng.choice([n for n in divisors(num_procs) if n <= job.lowering.microbatches])
    inner = _uncut(job, rng, num_procs // num_stages)
    ends = sorted(rng.choices(range(1, len(inner)), k=num_stages - 1))
    return staged(inner, num_procs // num_stages, [bisect(ends, n) for n in range(len(inner))])


def _uncut(job: Job, rng: random.Random, num_procs: int) -> dict[str, Config]:
    """One Config for each kind of node on so many processors, but for a few."""
    of_kind: dict[object, Config] = {}
    configs = {}
    for name, node in job.lowering.piece.nodes.items():
        space = space_of(node, num_procs)
        kind = (node.op.name, tuple(node.alignment.axes))
        if kind not in of_kind or rng.random() < 0.1:
            of_kind[kind] = space.draw(rng)
        extents = node.alignment.extents
        fits = all(degree <= extents[axis] for axis, degree in of_kind[kind].split.items())
        configs[name] = of_kind[kind] if fits else space.draw(rng)
    return configs


def _row(job: Job, t: TimedPlan, learned_from: bool, untaught: CostModel) -> Row:
    before, after = simulated(t.prepared, untaught), simulated(t.prepared, job.cost)
    return Row(t.name, learned_from, t.seconds, t.spread_seconds, before, after)


def _lesson(job: Job, num_plans: int, fresh: Sequence[TimedPlan]) -> Lesson:
    cost = job.cost
    errors = [abs(simulated(t.prepared, cost) / t.seconds - 1) for t in fresh] if job.leads else [0.0]
    return Lesson(num_plans, len(job.snapshot.rows), float(np.mean(errors)))


def _show(command: Validate, job: Job, fresh: Sequence[TimedPlan], rows: Sequence[Row], outputs: Outputs) -> str:
    """Write the step of the plan that was predicted worst, if the user asks for it; gives the plan's name."""
    wrong = {row.name: abs(row.after_seconds / row.measured_seconds - 1) for row in rows}
    worst = max(fresh, key=lambda t: wrong[t.name])
    tasks, engines = worst.prepared.tasks, job.machine.engines
    lanes = {
        "simulated": simulate(*job.cost.by_kind(tasks), engines).timeline,
        "measured": min(worst.steps, key=lambda step: abs(step.seconds - worst.seconds)),
    }
    shown.write(
        outputs, f"a step of {command.model} on {job.machine.name}, {worst.name}", tasks, lanes, job.machine,
        trace_path=command.trace, picture_path=command.picture,
    )  # fmt: skip
    return worst.name


def truth(rows: Sequence[Row], after: bool) -> Truth:
    """Compare predictions with measurements."""
    predicted = np.array([r.after_seconds if after else r.before_seconds for r in rows])
    measured = np.array([r.measured_seconds for r in rows])
    errors, ratios = np.abs(predicted / measured - 1), measured / predicted
    signs = []
    for i, j in combinations(range(len(rows)), 2):
        if abs(measured[i] - measured[j]) > max(rows[i].spread_seconds, rows[j].spread_seconds):
            signs.append(np.sign(predicted[i] - predicted[j]) * np.sign(measured[i] - measured[j]))
    tau = float(np.mean(signs)) if signs else 0.0
    regret = float(measured[predicted.argmin()] / measured.min() - 1)
    # of n + 1 plans drawn alike any may be the last, and n - 1 of them lie between two others
    coverage = max(0.0, (len(rows) - 1) / (len(rows) + 1))
    return Truth(
        float(errors.mean()), float(errors.max()), tau, len(signs), regret, float(ratios.min()), float(ratios.max()),
        coverage,
    )  # fmt: skip


def _report(command: Validate, job: Job, outcome: Outcome) -> None:
    rows = outcome.rows
    fresh = [r for r in rows if not r.learned_from]
    seconds = [r.measured_seconds for r in rows]
    facts = {
        "model": job.model.text,
        "machine": job.machine.name,
        "batch": job.graph.batch,
        "microbatches": job.lowering.microbatches,
        "num_recomputed": len(job.graph.nodes.keys() & {*job.lowering.recompute}),
        "num_plans": len(rows),
        "measured_spread": max(seconds) / min(seconds),
        "num_steps": outcome.num_steps,
        "num_held_up": outcome.num_held_up,
        "before_learning": asdict(truth(fresh, after=False)),
        "after_learning": asdict(truth(fresh, after=True)),
        "lessons": [asdict(lesson) for lesson in outcome.lessons],
        "errors": errors.facts(outcome.replays),
        "overhead_seconds": job.snapshot.overhead_seconds,
        "meeting_seconds": job.snapshot.meeting_seconds,
        "drawn": outcome.drawn,
        "files": dict(outcome.files),
        "plans": [asdict(r) | {"error_after": r.after_seconds / r.measured_seconds - 1} for r in rows],
    }
    if command.json:
        print(json.dumps(facts))
    else:
        tell(facts)


def tell(facts: Mapping[str, Any]) -> None:
    """How plans were predicted, for people."""
    pieces = f" in {facts['microbatches']} pieces" if facts["microbatches"] > 1 else ""
    again = f", {report.counted(facts['num_recomputed'], 'node')} computed again" if facts["num_recomputed"] else ""
    batch = f"batch {facts['batch']}{pieces}{again}"
    print(f"{facts['model']} on {facts['machine']}, {batch}: {facts['num_plans']} plans, ms a step")
    print(f"{'plan':18} {'measured':>16} {'sim before':>11} {'sim after':>11} {'error':>8}")
    for row in facts["plans"]:
        measured, spread, before, after = (
            1e3 * row[f"{which}_seconds"] for which in ("measured", "spread", "before", "after")
        )
        error = "learned" if row["learned_from"] else f"{100 * row['error_after']:+.1f} %"
        print(f"{row['name']:18} {measured:9.2f} ±{spread:5.2f} {before:11.2f} {after:11.2f} {error:>8}")
    for words in ("before learning", "after learning"):
        truth = facts[words.replace(" ", "_")]
        many = report.counted(truth["num_pairs"], "pair")
        order = f"Kendall's tau {truth['kendall_tau']:.2f} over {many}" if truth["num_pairs"] else "no two plans differ"
        print(
            f"{words}: mean error {100 * truth['mean_error']:.1f} %, largest {100 * truth['largest_error']:.1f} %, "
            f"{order}, regret {100 * truth['regret']:.1f} %"
        )
    print(*_foreseen(facts), *errors.lines(facts["errors"]), sep="\n")
    gap, meeting = (1e6 * facts[f"{which}_seconds"] for which in ("overhead", "meeting"))
    print(f"learned besides what tasks take: {gap:.1f} us before a kernel, {meeting:.1f} us where processors meet")
    print(f"measured times are spread over {facts['measured_spread']:.2f}x")
    if facts["num_held_up"]:
        print(
            f"other programs held up {facts['num_held_up']} of {report.counted(facts['num_steps'], 'step')}: where "
            "these are many, errors say little of predictions"
        )
    for what, path in facts["files"].items():
        print(f"{what} of a step of {facts['drawn']} written to {path}")


def _foreseen(facts: Mapping[str, Any]) -> list[str]:
    """How sure predictions are, and how they got better."""
    after, curve = facts["after_learning"], facts["lessons"]
    least, largest = (f"{after[f'{which}_ratio']:.2f}" for which in ("least", "largest"))
    many = report.counted(facts["errors"]["num_plans"], "plan")
    learned = ", ".join(str(each["num_plans"]) for each in curve)
    means = ", ".join(report.percent(each["mean_error"]) for each in curve)
    return [
        f"mean error with {learned} plans learned: {means}",
        f"by the {many} not learned from, another takes {least} to {largest} times what is predicted in "
        f"{100 * after['coverage']:.0f} % of cases",
    ]
