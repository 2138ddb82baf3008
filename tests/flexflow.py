"""FlexFlow's worked example of simulation: figure 4 of Jia, Zaharia, Aiken, MLSys 2019, before and after its change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from castile.runtime.task import Lane, TaskGraph
from tests.graphs import Draft

FIGURE = json.loads((Path(__file__).parent / "data" / "flexflow_fig4.json").read_text())


@dataclass(frozen=True)
class Example:
    """One side of the figure.

    exe         by task its device and seconds, in order of creation, by which ties are broken
    needs       (before, after)
    expected    by task when it is ready and when it starts
    makespan    when all is done
    """

    exe: dict[str, tuple[str, int]]
    needs: set[tuple[str, str]]
    expected: dict[str, tuple[int, int]]
    makespan: int

    @cached_property
    def graph(self) -> tuple[TaskGraph, np.ndarray, dict[str, int]]:
        """The task graph, with a processor for each device, its durations, and the number of each task."""
        devices = sorted({device for device, _ in self.exe.values()})
        number = {name: i for i, name in enumerate(self.exe)}
        draft = Draft(len(devices))
        for name, (device, seconds) in self.exe.items():
            needs = [number[a] for a, b in self.needs if b == name]
            draft.task([(devices.index(device), Lane.COMPUTE)], needs, seconds)
        return draft.graph(), np.array(sorted({seconds for _, seconds in self.exe.values()})), number


def before() -> Example:
    """Every operator in two parts."""
    side = FIGURE["before"]
    exe = {name: (device, side["exe"][device]) for name, (device, _, _) in side["tasks"].items()}
    expected = {name: (ready, start) for name, (_, ready, start) in side["tasks"].items()}
    return Example(exe, _needs(side["deps"]), expected, side["makespan"])


def after() -> Example:
    """Task t3:1 computes the whole of operator o3: t3:2 and c3:2 are gone."""
    old, side = before(), FIGURE["after_o3_degree_1"]
    exe, expected = {}, {}
    for name, (device, seconds) in old.exe.items():
        if name not in ("t3:2", "c3:2"):
            changed = side.get(name, {})
            exe[name] = (device, changed.get("exe", seconds))
            ready, start = old.expected[name]
            expected[name] = (changed.get("r", ready), changed.get("s", start))
    kept = [chain for chain in FIGURE["before"]["deps"] if "t3" not in chain]
    heads, tails = ["t1:1>c1:1", "t1:2>c1:2"], ["t4:1>c4:1>t6:1", "t4:2>c4:2>t6:1"]
    return Example(exe, _needs([*kept, *heads, *tails, *side["deps_changed"]]), expected, side["makespan"])


def _needs(chains: list[str]) -> set[tuple[str, str]]:
    return {pair for chain in chains for pair in zip(chain.split(">"), chain.split(">")[1:])}
