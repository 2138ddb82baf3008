"""The report of a search for people: what was tried, what was found and how good it is.

It does not know how plans are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from castile.launch.reports import report, throughput
from castile.runtime.memory import written


def tell(facts: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print all that is known of a search; `lines` are the plan in words."""
    out = report.console()
    what = report.what(facts["objective"] == "latency")
    out.say(
        f"{report.subject(facts, what)}; {facts['num_tasks']} tasks{report.bucket_words(facts['buckets'])}, "
        f"prices: {report.prices_words(facts['prices'])}\n"
    )
    for way in _ways(facts):
        out.say(f"{way}\n")
    out.say_table(report.plan_table({**facts["seeds"], f"found by {facts['search']}": facts["found"]}, what))
    out.say(f"\nwith the plan found {throughput.words(facts)}")
    if facts["bound_seconds"] is not None:
        out.say(_bound_words(facts))
    if facts.get("front"):
        out.say("\nplans that no other beats in both time and memory:")
        # Of a plan of the front it is known what its fullest arena takes.
        rows = [row | {"live_bytes": max(row["arena_bytes"])} for row in facts["front"]]
        named = {row.get("file", f"{n}"): row for n, row in enumerate(rows, 1)}
        out.say_table(report.plan_table(named, what, memory="arena"))
        if facts["removed"]:
            out.say(f"removed, of an earlier front: {', '.join(facts['removed'])}")
    looked = f"after {report.counted(facts['num_proposals'], 'proposal')} in {facts['elapsed_seconds']:.1f} s"
    pinned = " with what is pinned" if facts["pinned"] else ""
    same = f"; it equals {facts['equals']}{pinned}" if facts["equals"] else ""
    out.say(f"\nthe plan, {looked}{same}:")
    for line in lines:
        out.say(f"  {line}")
    live, arena = written(facts["found"]["live_bytes"]), written(max(facts["found"]["arena_bytes"]))
    if arena != live:
        out.say(f"\nmemory is what is alive at once; with the gaps between, the plan found takes an arena of {arena}")
    if facts["nearer_prices"]:
        out.say(f"\nbetter prices, estimated from kernels compiled here: {facts['nearer_prices']}")
    out.say_files(facts)


def _ways(facts: Mapping[str, Any]) -> Iterator[str]:
    """What all plans that were tried have in common, where it is not the default."""
    if facts["work_saved_share"]:
        yield (
            f"rewritten by {facts['rewrite']}, which saves {report.percent(facts['work_saved_share'])} of all "
            "processors' work; with the setting rewrite=none the graph stays as the model has it"
        )
    if facts["microbatches"] > 1:
        why = ": no known plan of a whole batch fits" if facts["is_cut_to_fit"] else ""
        how = f"a pipeline of {facts['num_stages']} stages" if facts["num_stages"] > 1 else "one after another"
        ahead = f" ({report.ahead_words(facts['ahead'])})" if facts["ahead"] else ""
        yield f"a step in {facts['microbatches']} microbatches, {how}{why}{ahead}"
    if facts["num_recomputed"]:
        why = ": no known plan fits that keeps all results" if facts["is_recomputed_to_fit"] else ""
        yield f"{facts['num_recomputed']} of {facts['num_nodes']} nodes are computed again for gradients{why}"
    if facts["num_gathered_again"]:
        gathered = f"{facts['num_gathered_again']} of {facts['num_params']} parameters"
        yield f"{gathered} are gathered for each pass that uses them"
    if facts["pinned"]:
        yield f"pinned: {'; '.join(facts['pinned'])}"


def tell_machines(model: str, objective: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what was found on each of several machines, and why nothing was where that is so."""
    out, what = report.console(), report.what(objective == "latency")
    out.say(f"{model}, a plan for each of {len(rows)} machines:\n")
    made = report.table(
        "machine", ">processors", f">{what}", ">samples/s", ">of each processor", ">MFU", ">memory", ">of", "plan"
    )
    for row in rows:
        worth = [""] * 6 + ["none"] if row["refused"] else [*_columns(row), briefly(row)]
        made.add_row(row["machine"], str(row["num_procs"]), *worth)
    out.say_table(made)
    for row in rows:
        if row["refused"]:
            out.say(f"\n{row['machine']}: {row['refused']}")
            continue
        for why in throughput.hidden(row):
            out.say(f"\n{row['machine']}: {why}")
        out.say_files(row)


def _columns(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A plan's time, throughput and memory, in the columns of the table of machines."""
    needed, there = max(zip(row["found"]["arena_bytes"], row["capacity_bytes"]), key=lambda pair: pair[0] / pair[1])
    paces = (report.pace(row[name]) for name in ("samples_per_second", "samples_per_second_per_proc"))
    share = row["model_flops_utilisation"]
    used = "" if share is None else report.percent(share)
    return report.duration(row["found"]["step_seconds"]), *paces, used, written(needed), written(there)


def briefly(row: Mapping[str, Any]) -> str:
    """A plan in a few words: the known plan that it equals, or else what most of its nodes have."""
    most = max(row["layouts"], key=lambda layout: len(layout["nodes"]))
    words = [row["equals"] or f"most nodes {most['config']}"]
    words += [f"{row['num_stages']} stages"] * (row["num_stages"] > 1)
    words += [f"{row['microbatches']} microbatches"] * (row["microbatches"] > 1)
    for name, noun, done in (("recomputed", "node", "computed again"), ("gathered_again", "parameter", "gathered")):
        words += [f"{report.counted(row[f'num_{name}'], noun)} {done}"] * (row[f"num_{name}"] > 0)
    return ", ".join(words)


def _bound_words(facts: Mapping[str, Any]) -> str:
    by_work = facts["work_bound_seconds"] >= facts["chain_bound_seconds"]
    why = "all processors' work" if by_work else "the longest chain of passes"
    least, gap = report.duration(facts["bound_seconds"]), report.percent(facts["gap_share"])
    return f"no plan takes less than {least} ({why}); the plan found takes {gap} more"
