"""The report of `castile explain`: the figures of its JSON object as sentences and small tables.

It does not know how the figures are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from castile.launch.reports import report
from castile.launch.reports.report import Output, duration, percent, table
from castile.planner.alternatives import pattern
from castile.runtime.memory import written

MOST_ROWS = 10
MOST_LETTERS = 58
REFUSED = "too many tasks to be simulated"
SPANS = {
    "compute": "computing",
    "copy": "copies and sums beside it",
    "transfer": "transfers that no computing hides",
    "waiting": "waiting for other processors",
    "idle": "idle after the last task",
}


def tell(facts: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print it; lines are the plan's."""
    out, what = report.console(), report.what(facts["forward"])
    out.say(f"{report.subject(facts, what)}, plan {facts['plan']}:")
    op = facts.get("op")
    for line in [f"{op['config']}  {with_members(op)}"] if op else lines:
        out.say(f"  {line}")
    out.say(f"\n{_figures(facts, what)}\n")
    # What is found for forward passes foretells no step.
    if facts["predicted_step_seconds"] is None and not facts["forward"]:
        out.say("its file foretells no step; --forward explains its forward pass alone\n")
    if op:
        _tell_op(out, op, what)
    else:
        out.say_table(_span_table(facts["spans"], what))
    whose = f"{op['name']} and its edges in the longest chain" if op else "the longest chain"
    out.say(f"\n{whose}, of tasks that follow each other without a gap; a {what} is shorter only if this is:")
    out.say_table(_cause_table(facts["causes"]))
    if op and any(row["levels"] for row in facts["causes"]):
        out.say("\nits transfers on each level of links, by the machine's figures:")
        out.say_table(_level_table(facts["causes"]))
    if "why_not" in facts:
        _tell_why_not(out, facts["why_not"], what)
    out.say_files(facts)


def _figures(facts: Mapping[str, Any], what: str) -> str:
    """What the plan takes, in a sentence."""
    before = facts["predicted_step_seconds"]
    changed = before is not None and duration(before) != duration(facts["step_seconds"])
    note = f" (by the prices of its file {duration(before)})" if changed else ""
    over = "" if facts["fits"] else ", too many"
    return (
        f"a {what} takes {duration(facts['step_seconds'])}{note}{report.without(facts)} in "
        f"{facts['num_tasks']} tasks{report.bucket_words(facts['buckets'])}, moves "
        f"{written(facts['moved_bytes'])}, and holds {written(facts['live_bytes'])} at once of "
        f"{written(facts['capacity_bytes'])}{over}"
    )


def _span_table(spans: Sequence[Mapping[str, Any]], what: str) -> Table:
    """What processors do."""
    made = table(f"a processor's {what}", ">mean", ">share", ">least", ">most")
    for row in spans:
        seconds = (duration(row[f"{which}_seconds"]) for which in ("mean", "least", "most"))
        mean, *extremes = seconds
        made.add_row(SPANS[row["what"]], mean, percent(row["share"]), *extremes)
    return made


def _cause_table(causes: Sequence[Mapping[str, Any]]) -> Table:
    """Nodes and edges and what they cost."""
    made = table("node or edge", ">in the chain", ">share", ">tasks", ">moved", ">time", ">hidden")
    for row in causes[:MOST_ROWS]:
        moved = written(row["moved_bytes"]) if row["moved_bytes"] else ""
        hidden = percent(row["hidden_share"]) if row["kind"] == "transfer" else ""
        made.add_row(
            shortened(_cause(row)), duration(row["chain_seconds"]), percent(row["chain_share"]),
            str(row["num_tasks"]), moved, duration(row["proc_seconds"]), hidden,
        )  # fmt: skip
    _add_rest(made, causes)
    return made


def _level_table(causes: Sequence[Mapping[str, Any]]) -> Table:
    """What edges take level by level."""
    made = table("edge", "level", ">latency", ">bytes")
    for row in [row for row in causes if row["levels"]][:MOST_ROWS]:
        for level in row["levels"]:
            latency, transfer = level["latency_seconds"], level["transfer_seconds"]
            made.add_row(shortened(_cause(row)), level["level"], duration(latency), duration(transfer))
    return made


def _cause(row: Mapping[str, Any]) -> str:
    """A cause in words: `linear F: fc`, `all_reduce by ring over nvlink: fc.weight/grad`."""
    if row["kind"] == "compute":
        return f"{row['op']} {row['form']}: {with_members(row)}"
    by = f" by {row['algorithm']}" if row["algorithm"] not in ("", "direct") else ""
    over = f"{by} over {row['link']}" if row["link"] else ""
    # Where a gradient goes is said by its name.
    to = "" if row["to"] == f"{row['name'].partition('/')[0]}/update" else f" to {row['to']}"
    return f"{row['form']}{over}: {row['name']}{to}"


def _tell_op(out: Output, op: Mapping[str, Any], what: str) -> None:
    """The next best layouts of a node."""
    refused = f", {op['num_refused']} have {REFUSED}" if op["num_refused"] else ""
    out.say(
        f"{op['name']} otherwise, all else equal (of {op['num_layouts']} other layouts "
        f"{op['num_simulated']} were simulated, {op['num_excluded']} ruled out by a bound{refused}):"
    )
    if not op["alternatives"]:
        return
    made = table("layout", f">{what}", ">longer by", ">x", ">memory", f">moved a {what}", "")
    for row in op["alternatives"]:
        made.add_row(shortened(row["config"]), *_priced(row))
    out.say_table(made)


def _tell_why_not(out: Output, why: Mapping[str, Any], what: str) -> None:
    """What another plan takes, and by what."""
    out.say(
        f"\nthe layouts of {why['name']}, all else equal, take {duration(why['step_seconds'])}, "
        f"{signed(why['longer_seconds'])} "
        f"({why['times']:.2f} times as long); where its longest chain differs:",
    )
    made = table("node or edge", ">here", ">there", ">longer by")
    for row in why["causes"][:MOST_ROWS]:
        over = f" over {row['link']}" if row["link"] else ""
        here, there = duration(row["chain_seconds"]), duration(row["other_chain_seconds"])
        made.add_row(
            shortened(f"{row['op']} {row['form']}{over}: {row['name']}".lstrip()),
            here,
            there,
            signed(row["longer_seconds"]),
        )
    _add_rest(made, why["causes"])
    out.say_table(made)
    out.say(f"\nthis plan with a part laid out as in {why['name']}, each by itself:")
    if why["switches"]:
        made = table("nodes", "here", "there", f">{what}", ">longer by", ">x", ">memory", f">moved a {what}", "")
        for row in why["switches"][:MOST_ROWS]:
            made.add_row(
                shortened(row["name"], 32), shortened(row["here"], 24), shortened(row["there"], 24), *_priced(row)
            )
        _add_rest(made, why["switches"])
        out.say_table(made)
    if why["num_switches_refused"]:
        out.say(f"{why['num_switches_refused']} more parts have {REFUSED}")
    if why["num_switches_left"]:
        out.say(f"{why['num_switches_left']} more parts were not tried: raise --budget")


def _priced(row: Mapping[str, Any]) -> tuple[str, ...]:
    step, longer = duration(row["step_seconds"]), signed(row["longer_seconds"])
    note = "" if row["fits"] else "does not fit"
    return step, longer, f"{row['times']:.3f}", written(row["live_bytes"]), written(row["moved_bytes"]), note


def with_members(row: Mapping[str, Any]) -> str:
    """The name of nodes, and what is known to be part of them."""
    return f"{row['name']} (with {row['members']})" if row.get("members") else str(row["name"])


def signed(seconds: float) -> str:
    """A difference with its sign."""
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"


def folded(names: Sequence[str]) -> str:
    """Names in a few words, all layers of a kind as one with stars."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(pattern(name), []).append(name)
    return " ".join(word if len(of) > 1 else of[0] for word, of in kinds.items())


def shortened(text: str, most: int = MOST_LETTERS) -> str:
    """Text of at most so many letters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _add_rest(table: Table, rows: Sequence[object]) -> None:
    if len(rows) > MOST_ROWS:
        table.add_row(f"and {len(rows) - MOST_ROWS} more")
