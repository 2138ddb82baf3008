"""Comparison of searches on the same problem, each with one seed or with several, as figures and as a table.

It does not know how a search moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

from castile.launch.reports import report
from castile.launch.reports.search_report import briefly
from castile.runtime.memory import written

Facts = Mapping[str, Any]


def facts(objective: str, runs: Sequence[Facts]) -> dict[str, Any]:
    """Figures of `castile plan` for several searches, from those of each, in the order of their names.

    runs   the figures of each search, with `refused` instead of figures where nothing was found
    """
    found = [run for run in runs if not run["refused"]]
    best = min((_objective_of(objective, run) for run in found), default=None)
    names = dict.fromkeys(run["search"] for run in runs)
    rows = [_of_search(name, objective, [run for run in runs if run["search"] == name], best) for name in names]
    are_best = (run in found and _objective_of(objective, run) == best for run in runs)
    first = next((number for number, is_best in enumerate(are_best) if is_best), None)
    return {"searches": rows, "best": first, "runs": list(runs)}


def _objective_of(objective: str, run: Facts) -> float:
    """What a search minimises: seconds or bytes."""
    return float(max(run["found"]["arena_bytes"]) if objective == "memory" else run["found"]["step_seconds"])


def _of_search(name: str, objective: str, runs: Sequence[Facts], best: float | None) -> dict[str, Any]:
    """One search's figures over its seeds; `above_best` is how much its median exceeds the best of all."""
    found = [run for run in runs if not run["refused"]]
    worth = [_objective_of(objective, run) for run in found]
    return {
        "search": name,
        "seeds": [run["seed"] for run in runs],
        "num_found": len(found),
        "num_equal_best": worth.count(best) if best is not None else 0,
        "above_best": median(worth) / best - 1 if best and worth else None,
        "arena_bytes" if objective == "memory" else "step_seconds": _spread(worth),
        "num_proposals": _spread([run["num_proposals"] for run in found]),
        "elapsed_seconds": _spread([run["elapsed_seconds"] for run in found]),
    }


def _spread(values: Sequence[float]) -> dict[str, float | None] | None:
    """Least, median, mean, most and sample deviation; None of no values, and no deviation of one."""
    if not values:
        return None
    deviation = stdev(values) if len(values) > 1 else None
    return {"least": min(values), "median": median(values), "mean": fmean(values), "deviation": deviation,
            "most": max(values)}  # fmt: skip


def tell(model: str, objective: str, facts: Facts) -> None:
    """Print the table, the best plan in a few words, what was refused, and the files."""
    out, runs = report.console(), facts["runs"]
    what = report.what(objective == "latency")
    out.say(f"{model} on {runs[0]['machine']}: what searches find for a {what}\n")
    kind = "memory" if objective == "memory" else what
    made = report.table(
        "search", ">seeds", f">least {kind}", ">median", ">mean", ">deviation", ">most", ">median above best",
        ">proposals", ">searched for",
    )  # fmt: skip
    for row in facts["searches"]:
        made.add_row(row["search"], _count(row), *_cells(row, objective))
    out.say_table(made)
    for run in runs:
        if run["refused"]:
            out.say(f"\n{run['search']}, seed {run['seed']}: {run['refused']}")
    if facts["best"] is not None:
        best = runs[facts["best"]]
        file = best["files"].get("plan")
        where = f", in {file}" if file else ""
        out.say(f"\nthe best: {best['search']}, seed {best['seed']}: {briefly(best)}{where}")
    for name in dict.fromkeys(name for run in runs for name in run.get("files", {})):
        paths = [path for run in runs if (path := run.get("files", {}).get(name))]
        out.say(f"{name} of each written to {paths[0]}, and so on to {paths[-1]}")
    out.say_files(facts)


def _count(row: Facts) -> str:
    """With how many seeds a plan was found, and of how many where that is not all."""
    every = len(row["seeds"])
    return f"{every}" if row["num_found"] == every else f"{row['num_found']} of {every}"


def _cells(row: Facts, objective: str) -> Iterator[str]:
    spread = row["arena_bytes"] if objective == "memory" else row["step_seconds"]
    if spread is None:
        yield from ["none"] + [""] * 7
        return
    for name in ("least", "median", "mean", "deviation", "most"):
        value = spread[name]
        yield "" if value is None else written(round(value)) if objective == "memory" else report.duration(value)
    yield report.percent(row["above_best"])
    yield f"{row['num_proposals']['median']:,.0f}"
    yield f"{row['elapsed_seconds']['median']:.1f} s"
