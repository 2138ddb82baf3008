"""Errors of predictions: which sorts of tasks make predicted steps differ from measured ones, as figures and as a
table.

It does not know how steps were measured or predicted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from castile.launch.reports.report import percent
from castile.planner.simulation.replay import Replay, Sort

MOST_ROWS = 12
# One sort is named in a sentence where an error would be so many times as large without its own.
WORTH = 0.9
STEPS = ("predicted", "typical", "replayed", "measured")


def facts(steps: Mapping[str, Replay]) -> dict[str, Any]:
    """The mean error of these steps, by the names of their plans, and what it would be with the measured times of one
    sort of tasks, of all sorts, and of all as in each step by itself.

    Sorts that reduce the error most come first.
    """
    replays, sorts = [*steps.values()], defaultdict[str, list[Sort]](list)
    for each in replays:
        for name, sort in each.sorts.items():
            sorts[name].append(sort)
    took = sum(sort.measured_seconds for of in sorts.values() for sort in of)
    rows = [_row(name, of, took) | {"mean_error": _mean_error_without(replays, name)} for name, of in sorts.items()]
    return {
        "num_plans": len(replays),
        "mean_error": mean_error(replays, lambda r: r.predicted_seconds),
        "mean_error_of_typical_tasks": mean_error(replays, lambda r: r.typical_seconds),
        "mean_error_of_each_step": mean_error(replays, lambda r: r.replayed_seconds),
        "plans": [_step(name, each) for name, each in steps.items()],
        "sorts": sorted(rows, key=lambda row: row["mean_error"]),
    }


def mean_error(replays: Sequence[Replay], seconds: Callable[[Replay], float]) -> float:
    """The mean of |seconds / measured - 1|."""
    return float(np.mean([abs(seconds(r) / r.measured_seconds - 1) for r in replays]))


def _mean_error_without(replays: Sequence[Replay], name: str) -> float:
    """The mean error with measured times of this sort."""
    return mean_error(replays, lambda r: r.sorts[name].step_seconds if name in r.sorts else r.predicted_seconds)


def _step(name: str, replay: Replay) -> dict[str, Any]:
    return {"name": name} | {f"{of}_seconds": getattr(replay, f"{of}_seconds") for of in STEPS}


def _row(name: str, of: Sequence[Sort], took: float) -> dict[str, Any]:
    predicted, measured = (sum(getattr(sort, f"{what}_seconds") for sort in of) for what in ("predicted", "measured"))
    sources: dict[str, float] = defaultdict(float)
    for sort in of:
        for source, seconds in sort.sources.items():
            sources[source] += seconds / predicted
    return {
        "sort": name,
        "num_tasks": sum(sort.num_tasks for sort in of),
        "predicted_seconds": predicted,
        "measured_seconds": measured,
        "measured_share": measured / took,
        "ratio": predicted / measured,
        "sources": dict(sources),
    }


def lines(told: Mapping[str, Any]) -> list[str]:
    """The table of these figures."""
    rows = told["sorts"][:MOST_ROWS]
    widest = max(len(row["sort"]) for row in rows)
    found = [f"{'what':{widest}}  {'share':>7}  predicted/took  {'known from':22}  error were it right"]
    for row in rows:
        found.append(
            f"{row['sort']:{widest}}  {percent(row['measured_share']):>7}  {row['ratio']:14.2f}  "
            f"{_sources(row['sources']):22}  {percent(row['mean_error']):>19}"
        )
    if left := len(told["sorts"]) - len(rows):
        found.append(f"and {left} more, which --json tells")
    typical, each = (percent(told[f"mean_error_of_{which}"]) for which in ("typical_tasks", "each_step"))
    return [
        *found,
        f"were all tasks predicted to take what they typically took, the error would be {typical}",
        f"and {each} with what they took in each step; the rest is waiting, and what passes between tasks",
    ]


def sentence(told: Mapping[str, Any]) -> str:
    """The same in one line."""
    first, error, every = told["sorts"][0], told["mean_error"], told["mean_error_of_typical_tasks"]
    helps = f"{percent(first['mean_error'])} with {first['sort']} and " if first["mean_error"] < WORTH * error else ""
    would = f"it would be {helps}{percent(every)} with all tasks predicted right"
    return f"of steps measured task by task it is {percent(error)}; {would}"


def _sources(shares: Mapping[str, float]) -> str:
    """learned 80 %, measured: the source of most, with its share where there are others."""
    ordered = sorted(shares, key=lambda source: -shares[source])
    first = ordered[0]
    return f"{first} {percent(shares[first])}" if len(ordered) > 1 else first
