"""Timelines: when each task ran, or would run: the simulator and the executor return the same type.

It does not know which of the two made it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PICOSECONDS = 10**12


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans of tasks in picoseconds since the step began: task[N], start[N], end[N], ordered by task number.

    delayed   the most picoseconds that a rank was ready to run while other programs had the cores, though there are
              enough cores for all ranks
    """

    task: np.ndarray
    start: np.ndarray
    end: np.ndarray
    delayed: int = 0

    def __post_init__(self) -> None:
        if not len(self.task) == len(self.start) == len(self.end):
            raise ValueError(f"timeline of {len(self.task)} tasks has {len(self.start)} starts, {len(self.end)} ends")

    @property
    def seconds(self) -> float:
        """Seconds from the step's beginning to the last end."""
        return float(self.end.max()) / PICOSECONDS if len(self.end) else 0.0

    def durations(self) -> np.ndarray:
        """int64[N]: picoseconds that each task took."""
        return self.end - self.start

    def longest_pause(self) -> tuple[int, int]:
        """(begin, end) in picoseconds of the longest time in which no task runs, the first of equal ones."""
        order = np.argsort(self.start, kind="stable")
        ends = np.maximum.accumulate(np.append(0, self.end[order]))
        begins = np.append(self.start[order], ends[-1])
        longest = int((begins - ends).argmax())
        return int(ends[longest]), int(max(begins[longest], ends[longest]))


def merge(timelines: list[Timeline]) -> Timeline:
    """Merge the timelines of several ranks. A task of several ranks spans from the latest start to the latest end: a
    transfer begins when its last member has arrived; before that, members wait.
    """
    task = np.concatenate([t.task for t in timelines])
    numbers, inverse = np.unique(task, return_inverse=True)
    start = np.full(len(numbers), np.iinfo(np.int64).min)
    end = start.copy()
    np.maximum.at(start, inverse, np.concatenate([t.start for t in timelines]))
    np.maximum.at(end, inverse, np.concatenate([t.end for t in timelines]))
    return Timeline(numbers, start, end, max(t.delayed for t in timelines))
