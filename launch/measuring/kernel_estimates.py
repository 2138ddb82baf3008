"""Estimates of each kind of task of a model on GPUs that are not here, from kernels compiled for them.

It does not know how a kernel's time is estimated, nor which plans are any good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from castile.kernels import tuning
from castile.kernels.estimates.calls import Estimate, estimates
from castile.kernels.table import Table
from castile.launch.measuring.profile_report import Row
from castile.launch.measuring.task_kinds import is_among, of_pass
from castile.launch.measuring.tuning import TunedCall, called
from castile.planner.costs.snapshot import Measured
from castile.planner.lower import Lowering
from castile.planner.lowering.instances import StepInstance
from castile.planner.strategy import Strategy
from castile.runtime.region import Box
from castile.runtime.task import CostKey


class Kinds(NamedTuple):
    """Kinds of compute tasks.

    calls   the kernel calls of each
    steps   by plan, how many tasks of each kind a step has
    nodes   by plan, the nodes that have such tasks
    """

    calls: dict[CostKey, tuple[str, ...]]
    steps: dict[str, Counter[CostKey]]
    nodes: dict[str, dict[CostKey, dict[str, None]]]


def kinds(lowering: Lowering, plans: Mapping[str, Strategy], only: Container[CostKey] | None = None) -> Kinds:
    """The kinds of tasks in the steps of these plans; only those in `only`, if given. Raises ValueError for an invalid
    plan.
    """
    # What one microbatch computes all do.
    found, table, few = Kinds({}, {}, {}), Table("triton"), lowering.shortened(2)
    for name, plan in plans.items():
        dtypes, counts = few.program(plan).dtypes, found.steps.setdefault(name, Counter())
        nodes = found.nodes.setdefault(name, {})
        for step in few.steps(plan):
            for key, part, count in of_pass(step):
                if not is_among(key, only):
                    continue
                counts[key] += count * step.step.micro.times
                nodes.setdefault(key, {})[step.step.node.name] = None
                if key not in found.calls:
                    found.calls[key] = tuple(_calls(table, step, part, dtypes))
    return found


def estimate(
    kinds: Kinds, kind: str, known: Mapping[CostKey, Measured], tell: Callable[[int, int], object],
    keep: Callable[[Measured], object],
) -> list[Row]:  # fmt: skip
    """A row for each kind of task with an estimate: none of its kernels is left to its slow definition.

    kind    of processor that they would run on
    known   earlier estimates, whose kernels are not compiled again
    tell    called with the number of kernel calls that are done, and their number in all
    keep    called with each new estimate
    """
    waiting = {key: set(calls) for key, calls in kinds.calls.items() if key not in known}
    users: dict[str, list[CostKey]] = {}
    for key, calls in waiting.items():
        for call in calls:
            users.setdefault(call, []).append(key)
    estimated: dict[str, Estimate | None] = {}
    rows = {key: row for key, row in known.items() if key in kinds.calls}
    tell(0, len(users))
    for call, found in estimates(list(users), kind):
        estimated[call] = found
        tell(len(estimated), len(users))
        for key in users[call]:
            waiting[key].discard(call)
            if not waiting[key] and (made := _sum(key, [estimated[each] for each in kinds.calls[key]])):
                rows[key] = made
                keep(made)
    return [*_rows(kinds, rows, estimated, waiting.keys())]


def _rows(
    kinds: Kinds, rows: Mapping[CostKey, Measured], estimated: Mapping[str, Estimate | None], new: Container[CostKey]
) -> Iterator[Row]:
    """Rows of estimates, each kind as the first plan has it."""
    seen: set[CostKey] = set()
    for plan, counts in kinds.steps.items():
        spent = {key: rows[key].seconds * count for key, count in counts.items() if key in rows}
        total = sum(spent.values())
        for key in spent.keys() - seen:
            kernels = _tuned_calls(kinds.calls[key], estimated)
            nodes = tuple(kinds.nodes[plan][key])
            yield Row(rows[key], plan, counts[key], spent[key] / total, key in new, "same", kernels, nodes)
        seen |= spent.keys()


def _calls(table: Table, step: StepInstance, part: int, dtypes: Mapping[str, str]) -> Iterable[str]:
    """The kernel calls of a part, on contiguous arrays that are written, not added to."""
    piece, ports = step.template.part(part), (*step.step.inputs, *step.step.outputs)
    boxes: tuple[Box | None, ...] = (*piece.inputs, *piece.outputs)
    views = [
        tuning.dense(box.shape, dtypes[port.region]) for box, port in zip(boxes, ports, strict=True) if box is not None
    ]
    return called(table, piece.body((False,) * len(step.step.outputs)), views)


def _sum(key: CostKey, parts: Iterable[Estimate | None]) -> Measured | None:
    """What a task takes, given its calls; None where one of them has no estimate, or there are none."""
    each = [part.seconds if part else None for part in parts]
    seconds = [one for one in each if one is not None]
    return Measured(key, sum(seconds)) if seconds and len(seconds) == len(each) else None


def _tuned_calls(calls: Iterable[str], estimated: Mapping[str, Estimate | None]) -> tuple[TunedCall, ...]:
    """The kernels that are called, each once, and what bounds them, where that was estimated now."""
    found: dict[str, TunedCall] = {}
    for call in calls:
        one, kernel = estimated.get(call), tuning.kernel_of(call)
        found.setdefault(kernel, TunedCall(kernel, "triton", "", (), one.binds if one else ""))
    return tuple(found.values())
