"""Watching: what every task of a step makes is looked at, so that it is known where numbers stop being finite, and how
long each parameter's gradient is.

It does not know how steps are run, nor what becomes of what it finds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from castile.launch.jobs.execution import Prepared, gradients_of, read_by, written_by
from castile.launch.jobs.sample_checks import is_finite
from castile.planner.graph import Graph
from castile.planner.step.program import AGAIN, GRADIENT
from castile.runtime.task import Task

# Behind a node's name in that of a task: which pass of it that is, and of which microbatch.
TASK = re.compile(rf"(?P<node>.+?)(?:{AGAIN})?\.(?P<pass_>[FBW])(?:@\d+)?\[")
PASSES = {"F": "", "B": ", gradients of its inputs,", "W": ", gradients of its parameters,"}
# Of so many operands the range is told, and of so many parameters the gradient.
MOST_OPERANDS, MOST_GRADIENTS = 3, 4


class Trouble(msgspec.Struct, frozen=True):
    """Where numbers that are not finite were made of others, in words that follow a step.

    begun     when that task begins in the simulated step
    sample    of which sample of the batch, None where that is not to be told
    is_nan    whether it is no number, and not just infinite
    """

    begun: int
    words: str
    sample: int | None = None
    is_nan: bool = False


class Report(msgspec.Struct):
    """What a rank has seen in a step.

    squares   sums of squares of gradients: of a parameter, from and to which place of it
    spoilt    whether parameters or their state are not finite any more
    origin    of that, as far as this rank knows; else the first that may be
    """

    squares: list[tuple[str, tuple[int, ...], tuple[int, ...], float]]
    spoilt: str = ""
    origin: Trouble | None = None


class _Views(NamedTuple):
    """Of a task's views, by number: those that are read and written, and gradients with their parameters."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    gradients: tuple[tuple[int, str], ...]


@dataclass
class Watch:
    """Looks at what this rank's tasks make in each step of a plan of this graph."""

    graph: Graph
    prepared: Prepared
    _views: dict[int, _Views] = field(default_factory=dict)
    # By buffer, of those that hold what is not finite: where that began, None where it came from elsewhere.
    _origins: dict[int, Trouble | None] = field(default_factory=dict)
    _troubles: list[Trouble] = field(default_factory=list)
    _squares: dict[tuple[str, tuple[int, ...], tuple[int, ...]], float] = field(default_factory=dict)
    _spoilt: dict[str, Trouble | None] = field(default_factory=dict)

    def __call__(self, task: Task, arrays: Sequence[np.ndarray]) -> None:
        """A task has run, whose views are these arrays now."""
        views = self._views.get(task.index)
        if views is None:
            views = self._views[task.index] = self._views_of(task)
        for n, name in views.gradients:
            box = task.views[n].box
            self._squares[name, box.lo, box.hi] = float(np.square(arrays[n].astype(np.float64)).sum())
        odd = [n for n in views.writes if not is_finite(arrays[n])]
        before = {task.views[n].buffer: self._origins.get(task.views[n].buffer) for n in views.reads} if odd else {}
        for n in views.writes:
            self._origins.pop(task.views[n].buffer, None)
        if odd:
            self._judge(task, views, arrays, odd, before)

    def report(self) -> Report:
        """What there was in the step that has ended."""
        spoilt = next(iter(self._spoilt), "")
        nans = [trouble for trouble in self._troubles if trouble.is_nan]
        origin = self._spoilt.get(spoilt) or next(iter([*nans, *self._troubles]), None)
        found = Report([(*key, value) for key, value in self._squares.items()], spoilt, origin)
        self._squares, self._troubles, self._spoilt = {}, [], {}
        return found

    def _views_of(self, task: Task) -> _Views:
        gradients = gradients_of(self.graph, self.prepared.tasks, task)
        return _Views(tuple(sorted(read_by(task))), tuple(sorted(written_by(task))), tuple(gradients.items()))

    def _region(self, task: Task, n: int) -> str:
        return str(self.prepared.tasks.buffers[task.views[n].buffer].region)

    def _judge(
        self, task: Task, views: _Views, arrays: Sequence[np.ndarray], odd: Sequence[int],
        before: dict[int, Trouble | None],
    ) -> None:  # fmt: skip
        """A task has made what is not finite: find where that began."""
        written = {task.views[n].buffer for n in views.writes}
        # what is written in place is not what was read any more
        still = [n for n in views.reads if task.views[n].buffer not in written and not is_finite(arrays[n])]
        causes = [before[task.views[n].buffer] for n in still] + [before[b] for b in written if before.get(b)]
        is_nan = any(_has_nan(arrays[n]) for n in odd)
        was_nan = any(_has_nan(arrays[n]) for n in still) or any(c is not None and c.is_nan for c in causes)
        known = next(iter(sorted(filter(None, causes), key=lambda c: not c.is_nan)), None)
        origin = known
        if not causes or (is_nan and not was_nan):
            origin = self._trouble(task, views, arrays, odd[0], still, known, is_nan)
            self._troubles.append(origin)
        for n in odd:
            buffer = task.views[n].buffer
            self._origins[buffer] = origin
            made = self.prepared.tasks.buffers[buffer]
            if made.role == "carried":
                self._spoilt.setdefault(made.region, origin)

    def _trouble(
        self, task: Task, views: _Views, arrays: Sequence[np.ndarray], n: int, still: Sequence[int],
        cause: Trouble | None, is_nan: bool,
    ) -> Trouble:  # fmt: skip
        timeline = self.prepared.simulated.timeline
        begun = int(timeline.start[np.searchsorted(timeline.task, task.index)])
        region, found, at = self._region(task, n), arrays[n], np.argwhere(~np.isfinite(arrays[n]))[0]
        value = float(found[tuple(at)])
        if found.shape == task.views[n].box.shape:
            at = at + np.array(task.views[n].box.lo, np.int64)
        node, of = self._node(task, region)
        where = f" in {region!r}" if not node.startswith(repr(region)) else ""
        place = f" at [{', '.join(map(str, at.tolist()))}]" if at.size else ""
        words = f"{node} makes {value}{place}{where}"
        if still:
            words += f" of infinities in {self._region(task, still[0])!r}"
            words += f", where {cause.words}" if cause is not None else ""
        elif ranges := self._ranges(task, views, arrays, of):
            words += f" of {ranges}"
        sample = cause.sample if cause is not None else self._sample(region, at.tolist(), found.ndim)
        return Trouble(begun, words, sample, is_nan)

    def _node(self, task: Task, region: str) -> tuple[str, str]:
        """Who makes a region, in words, and how the names begin of what that is made of."""
        found = TASK.match(task.name)
        node = self.graph.nodes.get(found["node"]) if found else None
        if found is not None and node is not None:
            return f"{node.name!r} ({node.op.name}){PASSES[found['pass_']]}", ""
        # several updates may be one task
        renewed = next((param.name for param in self.graph.params if f"{region}/".startswith(f"{param.name}/")), "")
        updates = renewed and "/update" in task.name
        return (f"the update of {renewed!r}", renewed) if updates else (f"the task {task.name!r}", "")

    def _ranges(self, task: Task, views: _Views, arrays: Sequence[np.ndarray], of: str) -> str:
        """From where to where the numbers go that a task was given, of regions whose names begin so."""
        written = {task.views[n].buffer for n in views.writes}
        given = [n for n in views.reads if task.views[n].buffer not in written and arrays[n].dtype.kind in "fV"]
        ranges = [
            f"{self._region(task, n)!r} from {float(arrays[n].min()):.4g} to {float(arrays[n].max()):.4g}"
            for n in given if arrays[n].size and self._region(task, n).startswith(of)
        ]  # fmt: skip
        return ", ".join(ranges[:MOST_OPERANDS])

    def _sample(self, region: str, at: Sequence[int], ndim: int) -> int | None:
        """The number in the batch of the sample that a result's element belongs to."""
        name, _, micro = region.rpartition("@")
        tensor = self.graph.tensors.get((name or region).removesuffix(GRADIENT))
        first = next(iter(self.graph.inputs), None)
        is_each = tensor is not None and tensor.shape[:1] == (self.graph.batch,) and len(tensor.shape) == ndim
        if tensor is None or first is None or not is_each or tensor.axes[0] != self.graph.tensors[first].axes[0]:
            return None
        number, count = map(int, micro.split(":")) if name else (0, 1)
        order = self.graph.orders.get(tensor.name)
        return number * self.graph.batch // count + int(at[order.index(0) if order else 0])


def norms(reports: Sequence[Report]) -> dict[str, float]:
    """The norm of each parameter's gradient as its update took it, from what all ranks have seen; longest first."""
    squares = {(name, lo, hi): value for each in reports for name, lo, hi, value in each.squares}
    total: dict[str, float] = {}
    for (name, _, _), value in squares.items():
        total[name] = total.get(name, 0.0) + value
    return {name: float(np.sqrt(value)) for name, value in sorted(total.items(), key=lambda item: -item[1])}


def first(reports: Sequence[Report]) -> Trouble | None:
    """The first trouble that any rank has seen; where something is no number any more the first that made that."""
    found = [each.origin for each in reports if each.origin is not None]
    return min(found, key=lambda trouble: (not trouble.is_nan, trouble.begun), default=None)


def longest(gradients: dict[str, float]) -> str:
    """The longest gradients in words; "" for none."""
    lengths = [f"{name} {value:.3g}" for name, value in list(gradients.items())[:MOST_GRADIENTS]]
    rest = len(gradients) - len(lengths)
    return ", ".join(lengths) + (f" and {rest} more" if rest else "")


def _has_nan(array: np.ndarray) -> bool:
    return bool(np.isnan(array).any())
