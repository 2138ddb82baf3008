"""Sparing: walks through sketches for plans that need little memory.

What a sketch says that processors hold leaves out copies of what lies otherwise where it is read: walks that look at
bytes alone end with many of these. To move them takes time, so longer steps count against a plan, in some walks little
and in others much, and what each ends with is simulated. It does not know what plans take.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from castile.planner.known.pieces import in_pieces
from castile.planner.search import Run
from castile.planner.sketch.chains import Chain, Chains
from castile.planner.sketch.sieve import Sieve, num_parts
from castile.planner.strategy import Config

# Walks are made in rounds of so many, of so many proposals each, the last of them coarse; each round goes on from so
# many of the best plans.
ROUND, WALK, MOST_STARTS = 10, 500, 3
# For half of the memory a step may take so many times as long as the soonest of the known plans, in turn.
LONGER = (1.0, 10.0)
# Of what the walks of a round end with the best are simulated, so many parts of nodes together.
JUDGED_PARTS = 30_000

Configs = dict[str, Config]
Key = frozenset[tuple[str, Config]]


@dataclass
class Sparing:
    """Rounds of walks, and what they ended with that was simulated."""

    run: Run
    sieve: Sieve
    chains: Chains
    number: int = 0
    judged: set[Key] = field(default_factory=set)

    def search(self, until: float) -> None:
        """Rounds until that share of the budget is spent."""
        while self.run.spent < until:
            self.judge(self.walk(until))

    def walk(self, until: float) -> list[Configs]:
        """A round of walks from the best plans in turn: what they end with, without what was simulated before, the best
        first, of which each gains most on where it began.
        """
        starts = self.starts()
        longer = min(one.seconds for one in self.sieve.seen.values())
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
