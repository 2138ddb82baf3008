"""Memory walks: walks through sketches for plans that need little memory.

The bytes of a sketch leave out copies that a processor makes to read what lies in another layout, and walks that look
at bytes alone end with many such copies. Moving data takes time, so longer steps count against a plan, in some walks
little and in others much. The best ends of walks are simulated. It does not know how long a plan takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from castile.planner.known.pieces import in_pieces
from castile.planner.search import Run
from castile.planner.sketch.chains import Chain, Chains
from castile.planner.sketch.sketched_plans import SketchedPlans, num_parts
from castile.planner.strategy import Config

# A round has NUM_WALKS walks of WALK proposals each, the last one coarse, from at most MOST_STARTS of the best plans.
NUM_WALKS, WALK, MOST_STARTS = 10, 500, 3
# Walks in turn trade half of the memory for a step longer by this many times the fastest known plan's.
SLOWDOWNS = (1.0, 10.0)
# After each round the best ends of its walks are simulated, up to this many parts of nodes in all.
SIMULATED_PARTS = 30_000

Configs = dict[str, Config]
Key = frozenset[tuple[str, Config]]


@dataclass
class MemoryWalks:
    """Rounds of walks.

    simulated   the ends of walks that were simulated
    """

    run: Run
    sieve: SketchedPlans
    chains: Chains
    simulated: set[Key] = field(default_factory=set)

    def search(self, until: float) -> None:
        """Make rounds until the share `until` of the budget is spent."""
        while self.run.spent < until:
            self.simulate(self.walk(until))

    def walk(self, until: float) -> list[Configs]:
        """A round of walks from the best plans in turn: the plans at their ends that were not simulated yet, those
        first that are best by the measure of their own walk.
        """
        starts = self.starts()
        fastest = min(one.seconds for one in self.sieve.estimates.values())
        ends: dict[Key, tuple[float, Configs]] = {}
        for number in range(NUM_WALKS):
            if self.run.spent >= until:
                break
            start, slowdown = starts[number % len(starts)], SLOWDOWNS[number % len(SLOWDOWNS)]
            count = WALK
            if self.run.budget.proposals is not None:
                count = min(count, self.run.budget.proposals - self.run.num_proposals)
            walked = self.chains.walk(Chain(start, True, count, number == NUM_WALKS - 1, slowdown * fastest))
            key = frozenset(walked.plan.items())
            if key not in self.simulated:
                ends.setdefault(key, (walked.energy / (1 + slowdown), walked.plan))
            self.run.adopt(count, [])
        return [plan for _, plan in sorted(ends.values(), key=lambda end: end[0])]

    def starts(self) -> list[Configs]:
        """The best plans that differ in the Configs of their nodes."""
        nodes = self.run.lowering.piece.nodes
        found: dict[Key, Configs] = {}
        for one in sorted([*self.run.seeds.values(), *self.run.finalists], key=lambda one: one.rank):
            configs = {node: one.strategy.configs[node] for node in nodes}
            found.setdefault(frozenset(configs.items()), configs)
        return list(found.values())[:MOST_STARTS]

    def simulate(self, ends: list[Configs]) -> None:
        """Simulate the first of these plans, with updates in pieces, as long as the budget lasts."""
        for plan in ends[: max(1, SIMULATED_PARTS // num_parts(self.run.evaluator))]:
            if not self.run.budget.is_over():
                self.simulated.add(frozenset(plan.items()))
                self.run.simulate(in_pieces(self.run.lowering, plan), self.run.num_proposals)
