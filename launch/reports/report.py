"""Reports of plans: which nodes lie where in a few lines, what plans cost in a table, and the same as JSON.

It does not know how plans are found.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from castile.planner.alternatives import pattern
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.strategy import PATH, PROGRAM, READY, Config, Strategy, in_words, runs_of
from castile.runtime.memory import written

# A plan in words has at most so many lines of so many letters; of more processors that differ than these the others are
# counted, and of those alike, where they fill so many letters.
PLAN_LINES, PLAN_WIDTH = 10, 100
AGAIN, GATHERED = "computed again for gradients: ", "gathered for each pass: "
MOST_PROCS, RUNS_WIDTH = 8, 24
# Which of several kernels that are ready goes first by an order.
FIRST = {PROGRAM: "the first in the program", PATH: "the one with the longest chain of tasks behind it"}
# No table is as wide, in columns of text.
TABLE_WIDTH = 1000


@dataclass(frozen=True)
class Layout:
    """Nodes with the same Config, in the order of the graph, and the Config in words."""

    nodes: tuple[str, ...]
    config: str


def layouts(strategy: Strategy) -> list[Layout]:
    """The nodes of each Config; after them the updates and fetches that have a Config of their own."""
    found: dict[tuple[bool, str], list[str]] = {}
    for name, config in strategy.configs.items():
        found.setdefault(("/" in name, str(config)), []).append(name)
    rows = sorted(found.items(), key=lambda row: row[0][0])
    return [Layout(tuple(nodes), config) for (_, config), nodes in rows]


def _wherever(strategy: Strategy) -> list[Layout]:
    """The same of nodes that are split alike, on whatever processors."""
    nodes: dict[tuple[bool, str], list[str]] = {}
    alike: dict[tuple[bool, str], dict[str, Config]] = {}
    for name, config in strategy.configs.items():
        key = "/" in name, config.cuts
        nodes.setdefault(key, []).append(name)
        alike.setdefault(key, {})[str(config)] = config
    rows = [(key, in_words([*configs.values()])) for key, configs in alike.items()]
    return [Layout(tuple(nodes[key]), words) for key, words in sorted(rows, key=lambda row: row[0][0])]


def plan_lines(strategy: Strategy) -> list[str]:
    """The plan in few lines: each Config and its nodes, those of repeated blocks as `block*.q`; then its other
    settings.
    """
    rows, more = layouts(strategy), _further(strategy)
    most = PLAN_LINES - len(more)
    # Of a pipeline of many stages there is one for each of them.
    rows = rows if len(rows) <= most else _wherever(strategy)
    shown, rest = (rows, []) if len(rows) <= most else (rows[: most - 1], rows[most - 1 :])
    indent = max((len(row.config) for row in shown), default=0)
    width = PLAN_WIDTH - indent - 2
    lines = [f"{row.config:<{indent}}  {named_briefly(row.nodes, strategy.configs, width)}" for row in shown]
    if rest:
        lines.append(f"and {len(rest)} more layouts, of {sum(len(row.nodes) for row in rest)} nodes")
    return lines + more


def _further(strategy: Strategy) -> list[str]:
    """What it recomputes, its buckets, its order, what it begins ahead, and which processors it leaves idle."""
    lines, used = [], {proc for config in strategy.configs.values() for proc in config.procs}
    nodes = [name for name in strategy.recompute if name in strategy.configs]
    params = [name.removesuffix("/fetch") for name in strategy.recompute if name not in strategy.configs]
    for what, names, every in ((AGAIN, nodes, strategy.configs), (GATHERED, params, params)):
        if names:
            lines.append(what + named_briefly(names, every, PLAN_WIDTH - len(what)))
    if strategy.bucket_bytes:
        joined = f"collectives in buckets of at most {written(strategy.bucket_bytes)}, updates together"
        lines.append("updates together" if len(used) == 1 else joined)
    if strategy.order != READY:
        lines.append(f"of several ready kernels, {FIRST[strategy.order]} goes first")
    if _begins_ahead(strategy):
        more = "1 microbatch" if strategy.ahead == 1 else f"{strategy.ahead} microbatches"
        lines.append(f"{more} begun ahead, beyond those that fill the pipeline")
    if idle := [proc for proc in range(strategy.num_procs) if proc not in used]:
        lines.append(f"nothing to do for {runs_of(tuple(idle))}")
    return lines


def named_briefly(nodes: Sequence[str], every: Iterable[str], width: int) -> str:
    """Names, of `every` name there is, on one line: a family that is complete as one name with a star; what does not
    fit is counted.
    """
    families = _families(every)
    words: dict[str, int] = {}
    for name in nodes:
        family = families[pattern(name)]
        whole = len(family) > 1 and set(family) <= set(nodes)
        word = pattern(name) if whole else name
        words[word] = len(family) if whole else 1
    text, left = "", sum(words.values())
    for word, count in words.items():
        longer = f"{text} {word}".lstrip()
        if text and len(longer + _and_more(left - count)) > width:
            break
        text, left = longer, left - count
    return text + _and_more(left)


def _and_more(count: int) -> str:
    return f" and {count} more" if count else ""


def _families(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(pattern(name), []).append(name)
    return found


def facts(worth: Evaluated, base: Evaluated) -> dict[str, Any]:
    """A plan's figures, beside data parallelism."""
    return {
        "step_seconds": worth.seconds,
        "live_bytes": max(worth.peak_bytes),
        "moved_bytes": worth.moved_bytes,
        "speedup_over_data_parallel": base.seconds / worth.seconds,
        "fits": worth.fits,
    }


def dropped(evaluator: Evaluator, plan: Strategy) -> dict[str, int]:
    """How many nodes are recomputed for gradients, and how many parameters gathered for each pass."""
    lowering = evaluator.lowering
    num_gathered = len(lowering.names.fetches.intersection(plan.recompute))
    return {"num_recomputed": len(lowering.shortened(2).program(plan).again), "num_gathered_again": num_gathered}


def buckets(evaluator: Evaluator, plan: Strategy) -> dict[str, int] | None:
    """The effect of a plan's buckets on its step, None where it has none."""
    if not plan.bucket_bytes:
        return None
    joined = evaluator.evaluate(plan)
    alone = evaluator.evaluate(msgspec.structs.replace(plan, bucket_bytes=0))
    return {
        "size_bytes": plan.bucket_bytes,
        "num_collectives": joined.num_collectives,
        "num_collectives_alone": alone.num_collectives,
        "num_tasks": joined.num_tasks,
        "num_tasks_alone": alone.num_tasks,
    }


def bucket_words(row: Mapping[str, int] | None) -> str:
    """What buckets do, behind the number of tasks; nothing where there are none."""
    if row is None or row["num_tasks"] == row["num_tasks_alone"]:
        return ""
    before, joined = f"{row['num_tasks_alone']} before", "updates were put together"
    if row["num_collectives"] < row["num_collectives_alone"]:
        size = written(row["size_bytes"])
        joined = f"{row['num_collectives_alone']} collectives became {row['num_collectives']} in buckets of {size}"
    return f" ({before} {joined})"


def order(evaluator: Evaluator, plan: Strategy) -> dict[str, Any] | None:
    """The effect of the order of a plan's kernels on its step, None for the default order."""
    if plan.order == READY:
        return None
    alone = evaluator.evaluate(msgspec.structs.replace(plan, order=READY))
    return {"name": plan.order, "step_seconds_without": alone.seconds}


def ahead(evaluator: Evaluator, plan: Strategy) -> dict[str, Any] | None:
    """The effect of microbatches begun ahead on step and memory, None where there are none."""
    if not _begins_ahead(plan) or evaluator.lowering.mode != "train":
        return None
    found, alone = (evaluator.evaluate(one) for one in (plan, msgspec.structs.replace(plan, ahead=0)))
    return {
        "microbatches": plan.ahead,
        "step_seconds_without": alone.seconds,
        "live_bytes": max(found.peak_bytes),
        "live_bytes_without": max(alone.peak_bytes),
    }


def _begins_ahead(plan: Strategy) -> bool:
    """Whether it says so, and has microbatches to begin with."""
    return plan.ahead > 0 and plan.microbatches > 1


def without(facts: Mapping[str, Any]) -> str:
    """What a step would take without its order and without what is begun ahead, after its time; "" where there is
    neither.
    """
    parts, (order, ahead) = list[str](), (facts["order"], facts["ahead"])
    if order is not None:
        parts.append(f"{duration(order['step_seconds_without'])} if kernels ran as they become ready")
    if ahead is not None:
        parts.append(ahead_words(ahead))
    return f" ({'; '.join(parts)})" if parts else ""


def ahead_words(row: Mapping[str, Any]) -> str:
    """What a step would take if it began no microbatch ahead."""
    live, alone = written(row["live_bytes"]), written(row["live_bytes_without"])
    step = duration(row["step_seconds_without"])
    return f"{step}, with {alone} live instead of {live}, if no microbatch were begun ahead"


def what(forward: bool) -> str:
    """What figures are of, in words."""
    return "forward pass" if forward else "step"


def subject(facts: Mapping[str, Any], what: str) -> str:
    """What figures, which are of a `what` each, were found for: a model, its batch and a machine."""
    return (
        f"{facts['model']}, {counted(facts['batch_samples'], 'sample')} a {what}, on {facts['machine']} "
        f"({counted(facts['num_procs'], 'processor')})"
    )


def plan_table(rows: Mapping[str, Mapping[str, Any]], what: str = "step", memory: str = "memory") -> Table:
    """Plans by name, with their facts, which are of a `what` each; `memory` is what their bytes are called."""
    notes = {name: "" if row["fits"] else "does not fit" for name, row in rows.items()}
    noted = any(notes.values())
    made = table("plan", f">{what}", f">{memory}", f">moved a {what}", ">x data parallel", *[""] * noted)
    for name, row in rows.items():
        factor = f"{row['speedup_over_data_parallel']:.2f}"
        moved = written(row["moved_bytes"])
        made.add_row(
            name, duration(row["step_seconds"]), written(row["live_bytes"]), moved, factor, *[notes[name]] * noted
        )
    return made


def kind_table(kinds: Sequence[Mapping[str, Any]]) -> Table:
    """What the processors' time goes into."""
    made = table("what", ">tasks", ">time", ">share")
    for kind in kinds:
        num = str(kind["num_tasks"]) if kind["num_tasks"] else ""
        made.add_row(kind["what"], num, duration(kind["proc_seconds"]), percent(kind["share"]))
    return made


def proc_table(procs: Sequence[Mapping[str, Any]]) -> Table:
    """How busy and how full processors are, those alike in one row."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for row in procs:
        full = written(row["peak_bytes"]), written(row["capacity_bytes"])
        cells = (*(percent(row[f"{what}_share"]) for what in ("busy", "moving", "waiting")), *full)
        alike.setdefault(cells, []).append(row["proc"])
    made = table(">processor", ">computing", ">moving", ">waiting", ">memory", ">of")
    rows = list(alike.items())
    for cells, members in rows[:MOST_PROCS]:
        made.add_row(_briefly(tuple(members)), *cells)
    if left := sum(len(members) for _, members in rows[MOST_PROCS:]):
        made.add_row("...", f"and {left} more")
    return made


def _briefly(procs: tuple[int, ...]) -> str:
    """Processors in words; where these are many, how they begin and how many they are."""
    words = runs_of(procs)
    return words if len(words) <= RUNS_WIDTH else f"{words[:RUNS_WIDTH].rpartition(',')[0]},... ({len(procs)} of them)"


def table(*columns: str) -> Table:
    """A table without lines; columns that begin with > hold figures."""
    # without a style of its own, which would be in a file too: mpirun gives ranks a terminal where there is none
    made = Table(box=None, pad_edge=False, header_style="")
    for column in columns:
        made.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return made


def duration(seconds: float) -> str:
    """Seconds as people read a step's: 1.297 ms, 412 ms, 75.30 s, 29492 s."""
    if seconds < 10:
        return f"{seconds * 1e3:.3f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 1000 else f"{seconds:.0f} s"


def counted(number: int, noun: str) -> str:
    """1 proposal, 2 proposals."""
    return f"{number} {noun}{'s' * (number != 1)}"


def pace(per_second: float, what: str = "samples") -> str:
    """Samples, or what else, a second as people read them: 1.45M samples/s, 48.2k samples/s, 2.74 samples/s."""
    if per_second >= 1e6:
        return f"{per_second / 1e6:.2f}M {what}/s"
    return f"{per_second / 1e3:.1f}k {what}/s" if per_second >= 1e3 else f"{per_second:.3g} {what}/s"


def rate(flops_per_second: float) -> str:
    """Floating-point operations a second as people read them: 41.2 TFLOP/s, 0.84 GFLOP/s."""
    many = flops_per_second >= 1e12
    return f"{flops_per_second / 1e12:.1f} TFLOP/s" if many else f"{flops_per_second / 1e9:.3g} GFLOP/s"


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{share * 100:.1f} %"


def prices_words(prices: Mapping[str, int]) -> str:
    """Where prices come from: `12 kinds of tasks measured, 3 learned, 40 from the roofline`."""
    first, *others = prices.items()
    parts = [f"{counted(first[1], 'kind')} of tasks {first[0]}", *(f"{count} {source}" for source, count in others)]
    return ", ".join(parts).replace("roofline", "from the roofline")


class Output(Console):
    """Standard output. A reader who has gone ends a command as everywhere, not with a status of rich's own."""

    def say(self, text: str) -> None:
        """Print a line as it is, however long."""
        self.print(text, soft_wrap=True)

    def say_table(self, made: Table, wraps: bool = False) -> None:
        """Print a table, of which lines end as their words do: a narrow terminal wraps no blanks.

        wraps   whether words of its last column that a terminal has no room for go on below; else it cuts anywhere
        """
        is_narrow = wraps and self.is_terminal
        made.columns[-1].no_wrap = not is_narrow
        with self.capture() as captured:
            self.print(made, width=shutil.get_terminal_size().columns if is_narrow else None)
        for line in captured.get().splitlines():
            self.say(line.rstrip())

    def say_files(self, facts: Mapping[str, Any]) -> None:
        """Print what was written where."""
        for name, path in facts["files"].items():
            self.say(f"{name} written to {path}")

    def on_broken_pipe(self) -> None:
        raise


def console() -> Output:
    """Where people read: standard output, wide enough for any table; a terminal wraps lines, which cuts no figure."""
    # without markup: what stands in brackets is a user's, such as a part of a file's name
    return Output(highlight=False, markup=False, width=TABLE_WIDTH)
