"""The report of a profiling run: a row for each kind of task, those that take most of a step first.

It does not know how they were measured.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from castile.launch.measuring.coverage import ALL
from castile.launch.measuring.tuning import TunedCall
from castile.launch.reports import report
from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Measured
from castile.planner.graph import Graph
from castile.runtime.machine import CPU, Machine
from castile.runtime.memory import written

MOST_ROWS = 30
WIDEST_SHAPES = 44
WIDEST_KERNELS = 32
WIDEST_NODES = 40
HEAD = ("share", "count", "op", "pass", "shapes", "time", "+-", "GFLOP/s", "GB/s", "roofline", "kernels", "nodes")
WORDS = ("op", "pass", "shapes", "kernels", "nodes")
ALONE = ("similar", "idle")
# No kernel is by so much faster than the large products by which a host's rate was measured, unless that was long ago.
TOO_FAST = 1.5


@dataclass(frozen=True)
class Row:
    """A kind of task as measured, and its part in the step of the first plan that has it.

    count    how many tasks of that step are of this kind; 0 where it was measured apart from a plan
    share    its share of all processors' time in tasks
    is_new   whether it was measured now, not found in the database
    beside   what ranks without such tasks did meanwhile: "similar" ones, or "idle"; "same" where all ranks had them
    kernels  the kernels that it calls, and the choice for each
    nodes    what the tasks of this kind in that step belong to: nodes, or what a transfer brings
    """

    measured: Measured
    plan: str
    count: int
    share: float
    is_new: bool
    beside: str
    kernels: tuple[TunedCall, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ProfileScope:
    """What was profiled.

    num_ranks   0 where none ran, and all times are estimates from compiled kernels
    op          names of the nodes whose tasks these are, "" for all
    """

    model: str
    machine: Machine
    graph: Graph
    num_ranks: int
    op: str


def facts(
    of: ProfileScope, rows: Sequence[Row], path: str, elapsed_seconds: float, num_tuned: int = 0
) -> dict[str, Any]:
    """Every figure; num_tuned: kernel calls of which several choices were timed."""
    cost, processor = CostModel(of.machine), of.machine.processors[0]
    ordered = sorted(rows, key=lambda row: -row.share)
    return {
        "model": of.model,
        "machine": of.machine.name,
        "num_ranks": of.num_ranks,
        "batch_samples": of.graph.batch,
        "dtype": of.graph.dtype,
        "op": of.op,
        "plans": list(dict.fromkeys(row.plan for row in rows)),
        "num_keys": len(rows),
        "num_new_keys": sum(row.is_new for row in rows),
        "num_tuned_calls": num_tuned,
        "processor": {
            "kind": processor.kind,
            "flops_per_second": processor.flops_rate(of.graph.dtype),
            "bytes_per_second": processor.bytes_per_second,
        },
        "keys": [_fact(cost, row) for row in ordered],
        "files": {"profile": path},
        "total_seconds": elapsed_seconds,
    }


def _fact(cost: CostModel, row: Row) -> dict[str, Any]:
    key, seconds = row.measured.key, row.measured.seconds
    # For a kernel the roofline is rates alone, whatever its like attain; a transfer's latency belongs to its form.
    fixed, flops, _, nbytes = cost.terms(key if key.link else replace(key, name="", shapes=""))
    least = fixed + nbytes if key.link else max(flops, nbytes)
    op, _, pass_ = key.work.rpartition(".") if not key.link else (key.name, "", "")
    return {
        "op": op or key.name,
        "pass": pass_ if op else "",
        "shapes": key.shapes,
        "dtype": key.dtype,
        "link": key.link,
        "size_bytes": key.nbytes,
        "num_members": key.members,
        "seconds": seconds,
        "spread_seconds": row.measured.spread_seconds,
        "flops_per_second": key.flops / seconds,
        "bytes_per_second": key.nbytes / seconds,
        "roofline_share": least / seconds,
        "plan": row.plan,
        "num_in_step": row.count,
        "step_share": row.share,
        "is_new": row.is_new,
        "other_ranks": row.beside,
        "kernels": [_kernel(taken) for taken in row.kernels],
        "nodes": row.nodes,
    }


def _kernel(taken: TunedCall) -> dict[str, Any]:
    timed = [{"form": way.form, "setting": way.setting, "seconds": way.seconds} for way in taken.ways]
    facts = {"kernel": taken.kernel, "form": taken.form, "setting": taken.setting, "ways": timed}
    return facts | ({"binds": taken.binds} if taken.binds else {})


def tell(facts: Mapping[str, Any], as_json: bool) -> None:
    """Print one JSON object, or a table and where the times are kept."""
    if as_json:
        print(json.dumps(facts))
        return
    keys = facts["keys"]
    print(f"{facts['model']}, {report.counted(facts['batch_samples'], 'sample')} a step, on {facts['machine']}")
    whose = f"of {facts['op']} " if facts["op"] else ""
    # plans in buckets of several sizes, and as many as have all splits, are told once
    alike = (ALL if name.startswith(f"{ALL}, ") else name.partition(" in buckets of ")[0] for name in facts["plans"])
    plans = dict.fromkeys(alike)
    print(f"{report.counted(len(keys), 'kind')} of tasks {whose}in the steps of {', '.join(plans)}")
    print(f"share: what a kind takes of the time in tasks{whose and ' of these'}, in the first plan that has it\n")
    print("\n".join(_table(keys[:MOST_ROWS], dict.fromkeys(name for key in keys for name in key["nodes"]))))
    if len(keys) > MOST_ROWS:
        print(f"... and {len(keys) - MOST_ROWS} more, which --json tells")
    lone = [key for key in keys if key["other_ranks"] in ALONE]
    if lone:
        idle = sum(key["other_ranks"] == "idle" for key in lone)
        print(f"* not on all ranks: meanwhile the others ran something similar ({len(lone) - idle}), or idled ({idle})")
    new, path = facts["num_new_keys"], facts["files"]["profile"]
    if facts["num_tuned_calls"]:
        print(f"\nof {facts['num_tuned_calls']} kernel calls several ways were timed, and the fastest is taken")
    how = "measured" if facts["num_ranks"] else "told"
    print(f"\n{new} {how} now, {len(keys) - new} known before, in {facts['total_seconds']:.1f} s; kept in {path}")
    for line in _doubtful_rates(facts) if facts["num_ranks"] else _estimated_lines(facts):
        print(line)


def _estimated_lines(facts: Mapping[str, Any]) -> list[str]:
    """How times were obtained though nothing ran, and how to use them."""
    kind, num_untold = facts["processor"]["kind"], facts["num_untold_keys"]
    left = f"; of {report.counted(num_untold, 'kind')} nothing can be told" if num_untold else ""
    given = {"machine": "machine", "dtype": "dtype", "batch": "batch_samples"}
    words = [word for name, fact in given.items() for word in (f"--{name}", str(facts[fact]))]
    plan = shlex.join(["castile", "plan", facts["model"], *words, "--profile", facts["files"]["profile"]])
    nothing_ran = f"nothing ran: it is told from kernels compiled for {kind}, those told now with what binds them{left}"
    return [nothing_ran, f"plan with it: {plan}"]


def _doubtful_rates(facts: Mapping[str, Any]) -> list[str]:
    """What to do where a kernel exceeds the rate that is stored for this host; otherwise nothing."""
    rate, most = facts["processor"]["flops_per_second"], max(key["flops_per_second"] for key in facts["keys"])
    is_measured = facts["machine"].startswith("local:") and facts["processor"]["kind"] == CPU
    if not is_measured or most < TOO_FAST * rate:
        return []
    return [
        f"kernels reach {_giga(most)} GFLOP/s where this host's rate is kept as {_giga(rate)}: that is out of date, "
        "`castile doctor --measure-again`"
    ]


def _table(keys: Sequence[Mapping[str, Any]], every: Iterable[str]) -> list[str]:
    """Lines of columns: words to the left, numbers to the right; `every` are the names of all nodes."""
    rows = [HEAD, *((*_cells(key), report.named_briefly(key["nodes"], every, WIDEST_NODES)) for key in keys)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    pads = [str.ljust if name in WORDS else str.rjust for name in HEAD]
    return ["  ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths)).rstrip() for row in rows]


def _cells(key: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        report.percent(key["step_share"]),
        str(key["num_in_step"]),
        key["op"] + "*" * (key["other_ranks"] in ALONE),
        key["pass"],
        _shortened(key["shapes"].rstrip("|") or f"{key['num_members']} ranks, {written(key['size_bytes'])}"),
        _time(key["seconds"]),
        _time(key["spread_seconds"]) if key["spread_seconds"] else "-",
        _giga(key["flops_per_second"]),
        _giga(key["bytes_per_second"]),
        report.percent(key["roofline_share"]),
        _shortened(", ".join(map(_kernel_words, key["kernels"])), WIDEST_KERNELS),
    )


def _kernel_words(kernel: Mapping[str, Any]) -> str:
    """A kernel, and its choice where there were several."""
    how = f" {kernel['form']} {kernel['setting']}".rstrip() if kernel["ways"] else ""
    binds = f" ({kernel['binds']})" if "binds" in kernel else ""
    return f"{kernel['kernel']}{how}{binds}"


def _shortened(text: str, widest: int = WIDEST_SHAPES) -> str:
    return text if len(text) <= widest else text[: widest - 3] + "..."


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.2f}" if rate else "-"
