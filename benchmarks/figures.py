"""Figures of benchmarks: a name that ends in its unit, a value and a target; a benchmark's last line is all of them.

It does not know what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

import numpy as np


@dataclass(frozen=True)
class Figure:
    """A figure beside its target: at least `least`, at most `most`, or with neither told only.

    value   None where it could not be measured, for the reason in `note`
    """

    name: str
    value: float | None
    least: float | None = None
    most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none, or nothing was measured."""
        if self.value is None or (self.least is None and self.most is None):
            return None
        # what is not a number meets no target
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def target(self) -> str:
        """As in `<= 1.5`."""
        bounds = ((">=", self.least), ("<=", self.most))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    @property
    def verdict(self) -> str:
        """One word or two: met, not met, not run, told."""
        if self.value is None:
            return "not run"
        return {True: "met", False: "not met", None: "told"}[self.met]

    @property
    def line(self) -> str:
        """The figure, its target, and how they compare."""
        value = "-" if self.value is None else f"{self.value:.4g}" if abs(self.value) < 1e4 else f"{self.value:.0f}"
        note = f"  ({self.note})" if self.note else ""
        return f"{self.name:44} {value:>10}  {self.target:12} {self.verdict:8}{note}".rstrip()


def tell(figures: Sequence[Figure]) -> None:
    """Print a line for each, then one JSON list of all for `read`."""
    for figure in figures:
        print(figure.line)
    print(json.dumps([asdict(f) for f in figures]), flush=True)


def read(output: str) -> list[Figure]:
    """The figures in a benchmark's last line. Raises ValueError where there are none."""
    last = (output.strip().splitlines() or [""])[-1]
    try:
        return [Figure(**fields) for fields in json.loads(last)]
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"the last line holds no figures: {last[:200]!r}") from error


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 3) -> dict[str, np.ndarray]:
    """Seconds of each call in each round [rounds]; they take turns, so that a disturbance of the host strikes all."""
    seconds = {name: np.empty(rounds) for name in calls}
    for number in range(-warm_up, rounds):
        for name, call in calls.items():
            began = perf_counter()
            call()
            if number >= 0:
                seconds[name][number] = perf_counter() - began
    return seconds


def spread(seconds: np.ndarray) -> float:
    """Half the distance of the quartiles, as a share of the median."""
    low, middle, high = np.percentile(seconds, (25, 50, 75))
    return float((high - low) / 2 / middle)
