"""Explanations: what a step's tasks are for, what each processor's time goes into, and the chain that sets its length.

It does not know how plans are found, nor who reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.simulated_step import SimulatedStep
from castile.planner.evaluation.traffic import key_moves
from castile.planner.lower import Lowering
from castile.planner.lowering.ragged import first_seen_numbers, row_pointers
from castile.planner.step.program import Program
from castile.planner.strategy import Strategy
from castile.runtime.levels import level_name
from castile.runtime.task import NUM_LANES

# What `program.of_micro` adds to a region of which microbatches hold pieces.
_MICRO = re.compile(r"@\d+:\d+$")
HOST = "the host"


class Cause(NamedTuple):
    """What a task is for: a pass of a node, or a transfer of a region.

    form        the pass ("F", "again", "B", "W"), or the transfer's ("all_reduce", "move"; "pack", "fold" on one
                processor)
    link        the farthest level of links that a transfer crosses, "" on one processor
    algorithm   by which a transfer goes over the links
    op          the node's operator
    members     what a rewrite made part of the node
    """

    name: str
    form: str
    link: str = ""
    algorithm: str = ""
    op: str = ""
    is_transfer: bool = False
    members: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """ "compute", "copy" (copies and sums on one processor) or "transfer"."""
        return "compute" if not self.is_transfer else "transfer" if self.link else "copy"


class Edge(NamedTuple):
    """The nodes between which a region is moved; the host fills inputs, and reads the outputs."""

    makers: tuple[str, ...]
    readers: tuple[str, ...]


class Crossing(NamedTuple):
    """What transfers take on one level of links by the machine's figures, all together."""

    latency_seconds: float = 0.0
    transfer_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Labels:
    """What the tasks of a graph are for.

    causes       in the order in which they first appear
    of_task[T]   the number of each task's cause
    edges        by region
    crossings    of each cause's transfers by level, empty where it has none
    """

    causes: tuple[Cause, ...]
    of_task: np.ndarray
    edges: Mapping[str, Edge]
    crossings: tuple[Mapping[str, Crossing], ...]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where a step's time goes; C causes, P processors, R of them one for each role, times in picoseconds.

    labels           what tasks are for
    makespan         of the step
    role[P]          which of the R does the same as each processor
    num_tasks[C]     tasks of each cause
    moved_bytes[C]   that its transfers bring from one processor to another
    total[C]         for how long its tasks run on their processors, all together
    spent[R, C]      what each processor does: computing goes before transfers beside it, of transfers the earlier one
    awaited[R, C]    how long nothing runs on a processor before a task that begins when one of that cause ends
    idle[R]          how long nothing runs there after its last task
    chain[C]         the longest chain: tasks that follow one another without a gap from the step's begin to its end

    For each processor spent, awaited and idle add up to the makespan; so does the chain.
    """

    labels: Labels
    makespan: int
    role: np.ndarray
    num_tasks: np.ndarray
    moved_bytes: np.ndarray
    total: np.ndarray
    spent: np.ndarray
    awaited: np.ndarray
    idle: np.ndarray
    chain: np.ndarray

    @property
    def causes(self) -> tuple[Cause, ...]:
        return self.labels.causes

    def on_all(self, of: np.ndarray) -> np.ndarray:
        """int64[C]: what is told of each role, on all processors together."""
        copies = np.bincount(self.role, minlength=len(of))
        total: np.ndarray = copies @ of
        return total

    def of_kind(self, kind: str) -> np.ndarray:
        """bool[C]: the causes of a kind."""
        return np.array([cause.kind == kind for cause in self.causes], dtype=bool)


def explain(evaluator: Evaluator, strategy: Strategy) -> Explanation:
    """Simulate a plan and account for its step. Raises ValueError where it is none for this graph and machine, or has
    too many transfers to look at.
    """
    step = evaluator.step_of(strategy)
    return account(step, label(step, evaluator.cost), evaluator.cost)


def label(step: SimulatedStep, cost: CostModel) -> Labels:
    """What the tasks of a simulated plan are for; one that stands for several is for what all of them are for."""
    tasks, (causes, names, of_task) = step.tasks, _named(step)
    # Tasks for the same at one price are looked at together.
    group, firsts = first_seen_numbers(of_task * len(tasks.cost_keys) + tasks.cost)
    between = edges(step.lowering.program(step.strategy))
    numbers: dict[Cause, int] = {}
    found: list[int] = []
    crossings: dict[int, dict[str, Crossing]] = {}
    for first, count in zip(firsts.tolist(), np.bincount(group, step.count).tolist(), strict=True):
        each, key = [causes[number] for number in names[of_task[first]]], tasks.cost_keys[tasks.cost[first]]
        cause, way = each[-1], cost.way(key) if key.link else None
        if len(each) > 1:
            cause = cause._replace(name=f"{cause.name} and {len(each) - 1} more")
        if cause.is_transfer:
            cause = cause._replace(link=level_name(key.link), algorithm=way.algorithm if way else "")
            between.setdefault(cause.name, _joined([between[one.name] for one in each]))
        number = numbers.setdefault(cause, len(numbers))
        found.append(number)
        levels = crossings.setdefault(number, {})
        for stage in way.stages if way else ():
            latency, transfer = levels.get(stage.level, Crossing())
            levels[stage.level] = Crossing(
                latency + count * stage.latency_seconds, transfer + count * stage.transfer_seconds
            )
    by_cause = tuple(crossings[number] for number in range(len(numbers)))
    return Labels(tuple(numbers), np.array(found, np.int64)[group], between, by_cause)


def _named(step: SimulatedStep) -> tuple[list[Cause], list[tuple[int, ...]], np.ndarray]:
    """Causes, without how transfers go; the numbers of some at a time, as they first come; and for each task which of
    these it is for.
    """
    into = step.folded.into.astype(np.int64)
    causes, cause = _each(step.lowering, step.strategy, step.folded.plain)
    first = np.unique(into * len(causes) + cause, return_index=True)[1]
    first = first[np.lexsort((first, into[first]))]
    begin, found = row_pointers(np.bincount(into[first], minlength=step.tasks.num_tasks)), cause[first]
    names = {(number,): number for number in range(len(causes))}
    of_task, every = found[begin[:-1]], found.tolist()
    for task in np.flatnonzero(np.diff(begin) > 1).tolist():
        of_task[task] = names.setdefault(tuple(every[begin[task] : begin[task + 1]]), len(names))
    return causes, [*names], of_task


def _each(lowering: Lowering, strategy: Strategy, which: np.ndarray) -> tuple[list[Cause], np.ndarray]:
    """Causes, without how transfers go, and int64[n] the number of that of each of these tasks of a plan."""
    steps, flows = lowering.instances(strategy)
    base = row_pointers([*(step.num_tasks for step in steps), *(flow.num_tasks for flow in flows)])
    owner = np.searchsorted(base, which, side="right") - 1
    numbers: dict[Cause, int] = {}

    def number(cause: Cause) -> int:
        return numbers.setdefault(cause, len(numbers))

    nodes = [(step.step.node, step.step.form) for step in steps]
    of_step = [number(Cause(node.name, form, op=node.op.name, members=node.members)) for node, form in nodes]
    found, is_flow = np.empty(len(which), np.int64), owner >= len(steps)
    found[~is_flow] = np.array(of_step, np.int64)[owner[~is_flow]]
    of_flows = np.flatnonzero(is_flow)
    of_flows = of_flows[np.argsort(owner[of_flows], kind="stable")]
    ends = np.searchsorted(owner[of_flows], np.arange(len(steps), len(base)))
    for flow, first, tasks in zip(flows, base[len(steps) : -1], np.split(of_flows, ends[1:-1]), strict=True):
        region = _MICRO.sub("", flow.flow.region)
        forms = [flow.keys[local].name.partition(".")[0] for local in (which[tasks] - first).tolist()]
        of_form = {form: number(Cause(region, form, is_transfer=True)) for form in dict.fromkeys(forms)}
        found[tasks] = [of_form[form] for form in forms]
    return list(numbers), found


def _joined(each: Sequence[Edge]) -> Edge:
    """Edges as one."""
    makers, readers = (tuple(dict.fromkeys(chain.from_iterable(names))) for names in zip(*each, strict=True))
    return Edge(makers, readers)


def edges(program: Program) -> dict[str, Edge]:
    """The edges of a program by region, those of all microbatches as one."""
    found: dict[str, Edge] = {}
    for flow in program.flows:
        made = [program.steps[slot].node.name for slot, _ in flow.producers]
        made += [flow.home.node.name] if flow.home is not None else [HOST] if flow.role == "input" else []
        read = [program.steps[slot].node.name for slot, _ in flow.readers]
        read += [HOST] if flow.role == "output" else []
        region = _MICRO.sub("", flow.region)
        found[region] = _joined([found.get(region, Edge((), ())), Edge(tuple(made), tuple(read))])
    return found


def account(step: SimulatedStep, labels: Labels, cost: CostModel) -> Explanation:
    """Account for a simulated step."""
    of_task, tasks, num_causes = labels.of_task, step.tasks, len(labels.causes)
    moves = np.array([key_moves(key) for key in tasks.cost_keys], dtype=np.int64)
    owner, proc_of = np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.lane_ptr)), tasks.lanes // NUM_LANES

    def per_cause(task: np.ndarray, of: np.ndarray) -> np.ndarray:
        total = np.zeros(num_causes, np.int64)
        np.add.at(total, of_task[task], of)
        return total

    every, found = np.arange(tasks.num_tasks), step.ledger(of_task, num_causes)
    step.show_stretches(cost, found.enter)
    return Explanation(
        labels, found.until, step.role, per_cause(every, step.count),
        per_cause(every, moves[tasks.cost] * step.count),
        per_cause(owner, step.lasts[owner] * step.copies[proc_of]), found.spent, found.awaited,
        found.until - found.done, found.critical_path,
    )  # fmt: skip
