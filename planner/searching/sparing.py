"""Sparing: walks through sketches for plans that need little memory.

The bytes of a sketch leave out copies that a processor makes to read what lies in another layout, and walks that look
at bytes alone end with many such copies. Moving data takes time, so longer steps count against a plan, in some walks
little and in others much, and the best ends of walks are simulated. It does not know what plans take.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from castile.planner.known.pieces import in_pieces
from castile.planner.search import Run
from castile.planner.sketch.chains import Chain, Chains
from castile.planner.sketch.sieve import Sieve, num_parts
from castile.planner.strategy import Config

# A round is so many walks of so many proposals each, the last one coarse, from at most so many of the best plans.
ROUND, WALK, MOST_STARTS = 10, 500, 3
# Walks in turn trade half of the memory for steps of so many times the fastest known plan's.
LONGER = (1.0, 10.0)
# Of the plans with which the walks of a round end the best are simulated, up to so many parts of nodes in all.
JUDGED_PARTS = 30_000

Configs = dict[str, Config]
Key = frozenset[tuple[str, Config]]


@dataclass
class Sparing:
    """Rounds of walks, and the plans at their ends that were simulated."""

    run: Run
    sieve: Sieve
    chains: Chains
    number: int = 0
    judged: set[Key] = field(default_factory=set)

    def search(self, until: float) -> None:
        """Rounds until the share `until` of the budget is spent."""
        while self.run.spent < until:
            self.judge(self.walk(until))

    def walk(self, until: float) -> list[Configs]:
        """A round of walks from the best plans in turn: the plans with which they end and that were not simulated yet,
        the best by the measure of its own walk first.
        """
        starts = self.starts()
        longer = min(one.seconds for one in self.sieve.estimates.values())
        ends: dict[Key, tuple[float, Configs]] = {}
        for number in range(ROUND):
            if self.run.spent >= until:
                break
            start, times = starts[number % len(starts)], LONGER[number % len(LONGER)]
            count = WALK
            if self.run.budget.proposals is not None:
                count = min(count, self.run.budget.proposals - self.run.num_proposals)
            walk = Chain(start, True, count, number == ROUND - 1, times * longer)
            walked = self.chains.walk(walk)
            key = frozenset(walked.plan.items())
            if key not in self.judged:
                ends.setdefault(key, (walked.energy / (1 + times), walked.plan))
            self.run.adopt(count, [])
        return [plan for _, plan in sorted(ends.values(), key=lambda end: end[0])]

    def starts(self) -> list[Configs]:
        """The best plans whose nodes differ."""
        nodes = self.run.lowering.piece.nodes
        found: dict[Key, Configs] = {}
        for one in sorted([*self.run.seeds.values(), *self.run.finalists], key=lambda one: one.rank):
            configs = {node: one.strategy.configs[node] for node in nodes}
            found.setdefault(frozenset(configs.items()), configs)
        return list(found.values())[:MOST_STARTS]

    def judge(self, ends: list[Configs]) -> None:
        """Simulate the first, updates in pieces."""
        for plan in ends[: max(1, JUDGED_PARTS // num_parts(self.run.evaluator))]:
            if not self.run.budget.is_over():
                self.judged.add(frozenset(plan.items()))
                self.run.judge(in_pieces(self.run.lowering, plan), self.run.num_proposals)
