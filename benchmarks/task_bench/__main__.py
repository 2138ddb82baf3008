"""Task Bench on castile, by hand in mpi4py, and in Dask: METG(50 %) and peak rate of each pattern.

    python benchmarks/task_bench [--ranks 2] [--width 4] [--steps 100] [--rounds 15] [--json]

METG(50 %) is the smallest task granularity (wall time x cores / tasks) at which a pattern reaches half the peak rate,
which is the best rate that any system reached with any pattern. Of each length of task the fastest of all rounds
counts. castile and the program by hand take turns on the same ranks, with `width / ranks` neighbouring points on each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import on_ranks
from benchmarks.figures import Figure, tell
from benchmarks.task_bench import kernel
from benchmarks.task_bench.metg import Curve, Run, metg
from benchmarks.task_bench.on_dask import OnDask, is_installed
from benchmarks.task_bench.patterns import NAMES, Pattern
from castile.runtime.comm.base import Communicator

MOST_MICROSECONDS = 30.0
CASTILE, BY_HAND, DASK = SYSTEMS = ("castile", "mpi4py by hand", "dask")
# How long the tasks work; the last ones give the peak rate.
SECONDS = tuple(1e-6 * us for us in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 500))
DASK_SECONDS = tuple(1e-6 * us for us in (62.5, 125, 250, 500, 1000, 2000, 4000))
# Dask takes so long that fewer steps and rounds must do.
DASK_STEPS, DASK_ROUNDS = 50, 3

Curves = dict[str, dict[str, Curve]]  # by pattern and system
Trial = tuple[str, str, int]  # a pattern, a system, and how many turns a task works


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=4, help="points of a step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="PATTERN", help=", ".join(NAMES))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rank", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        Pattern("stencil", options.width, options.steps)
    except ValueError as error:
        parser.error(str(error))
    if options.rank:
        on_this_rank(options)
        return
    curves, status = on_all_ranks(options)
    if status:
        sys.exit(status)
    if is_installed():
        for name, curve in in_dask(options).items():
            curves[name][DASK] = curve
    report(curves, options)


def on_all_ranks(options: argparse.Namespace) -> tuple[Curves, int]:
    """What the ranks measured, and the status with which they ended."""
    with tempfile.TemporaryDirectory(prefix="castile-task-bench-") as folder:
        found = Path(folder) / "curves.json"
        words = [f"--{key}={getattr(options, key)}" for key in ("ranks", "width", "steps", "rounds")]
        status = on_ranks.start(__file__, options.ranks, [*words, f"--rank={found}", "--only", *options.only])
        return ({} if status else _read(found.read_text(encoding="utf-8"))), status


def on_this_rank(options: argparse.Namespace) -> None:
    """Measure castile and the program by hand in turns; rank 0 writes the file."""
    # only the ranks need MPI
    from mpi4py import MPI

    from benchmarks.task_bench.by_hand import ByHand
    from benchmarks.task_bench.on_castile import OnCastile
    from castile.runtime.comm.mpi import world

    comm = world()
    speed = MPI.COMM_WORLD.allreduce(kernel.turns_a_second(), op=MPI.MIN)
    systems: dict[str, dict[str, Any]] = {}
    for name in options.only:
        pattern = Pattern(name, options.width, options.steps)
        systems[name] = {CASTILE: OnCastile(pattern, comm.size, [comm]), BY_HAND: ByHand(pattern, MPI.COMM_WORLD)}
    trials = {
        (name, key, int(speed * seconds)): partial(_wall, comm, system)
        for name, pair in systems.items()
        for seconds in SECONDS
        for key, system in pair.items()
    }
    best = _best(trials, options.rounds)
    curves = {
        name: {key: Curve(system.pattern.num_tasks, comm.size, best[name, key]) for key, system in pair.items()}
        for name, pair in systems.items()
    }
    if comm.rank == 0:
        Path(options.rank).write_text(_written(curves), encoding="utf-8")


def _wall(comm: Communicator, system: Any, turns: int) -> float:
    """Seconds of one run by all ranks."""
    comm.barrier()
    began = perf_counter()
    system.run(turns)
    comm.barrier()
    seconds = perf_counter() - began
    system.check()
    return seconds


def _best(trials: Mapping[Trial, Callable[[int], float]], rounds: int) -> dict[tuple[str, str], tuple[Run, ...]]:
    """Each trial's shortest time; in each round all take a turn, so that a disturbance of the host strikes all."""
    seconds = dict.fromkeys(trials, float("inf"))
    for _ in range(rounds):
        for trial, run in trials.items():
            seconds[trial] = min(seconds[trial], run(trial[2]))
    best: dict[tuple[str, str], tuple[Run, ...]] = {}
    for (name, key, turns), wall in seconds.items():
        best[name, key] = (*best.get((name, key), ()), Run(turns, wall))
    return best


def in_dask(options: argparse.Namespace) -> dict[str, Curve]:
    """Measure Dask, with as many threads of this process, on each pattern."""
    speed = kernel.turns_a_second()
    steps = max(DASK_STEPS, 2 * options.width)
    systems = {name: OnDask(Pattern(name, options.width, steps), options.ranks) for name in options.only}

    def wall(system: OnDask, turns: int) -> float:
        began = perf_counter()
        system.run(turns)
        seconds = perf_counter() - began
        system.check()
        return seconds

    trials = {
        (name, DASK, int(speed * seconds)): partial(wall, system)
        for name, system in systems.items()
        for seconds in DASK_SECONDS
    }
    best = _best(trials, DASK_ROUNDS)
    return {name: Curve(s.pattern.num_tasks, options.ranks, best[name, DASK]) for name, s in systems.items()}


def report(curves: Curves, options: argparse.Namespace) -> None:
    """Tell the table and the figures."""
    peak = max(curve.peak for systems in curves.values() for curve in systems.values())
    found = {name: {key: metg(curve, peak) for key, curve in systems.items()} for name, systems in curves.items()}
    figures = [_figure(name, key, found) for name in found for key in SYSTEMS]
    own = [found[name][CASTILE] for name in found]
    worst = None if None in own else 1e6 * max(seconds for seconds in own if seconds is not None)
    figures.append(Figure("task_bench_worst_metg_microseconds", worst, most=MOST_MICROSECONDS))
    if options.json:
        print(json.dumps({"width": options.width, "steps": options.steps, "ranks": options.ranks,
                          "turns_per_second": peak, "figures": [asdict(figure) for figure in figures],
                          "curves": json.loads(_written(curves))}))  # fmt: skip
        return
    print(f"METG(50 %) in microseconds, and the peak rate in millions of turns a second: {options.width} points, "
          f"{options.steps} steps, {options.ranks} ranks; load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(f"{'':12}" + "".join(f"{key:>24}" for key in SYSTEMS))
    for name, systems in curves.items():
        print(f"{name:12}" + "".join(f"{_cell(found[name], systems, key):>24}" for key in SYSTEMS))
    tell(figures)


def _figure(name: str, system: str, found: Mapping[str, Mapping[str, float | None]]) -> Figure:
    label = f"task_bench_{name}_{system.replace(' ', '_')}_metg_microseconds"
    most = MOST_MICROSECONDS if system == CASTILE else None
    if system not in found[name]:
        return Figure(label, None, note="not installed")
    seconds = found[name][system]
    return Figure(label, seconds and 1e6 * seconds, most=most, note="" if seconds else "never at half the peak rate")


def _cell(found: Mapping[str, float | None], systems: Mapping[str, Curve], key: str) -> str:
    if key not in systems:
        return "not installed"
    seconds = found[key]
    return f"{'never' if seconds is None else f'{1e6 * seconds:.1f}'} | {1e-6 * systems[key].peak:.0f}"


def _written(curves: Curves) -> str:
    return json.dumps({n: {key: asdict(curve) for key, curve in systems.items()} for n, systems in curves.items()})


def _read(text: str) -> Curves:
    def curve(fields: dict) -> Curve:
        return Curve(fields["num_tasks"], fields["num_cores"], tuple(Run(**run) for run in fields["runs"]))

    return {name: {key: curve(c) for key, c in systems.items()} for name, systems in json.loads(text).items()}


if __name__ == "__main__":
    main()
