"""Which known plans are worth simulating: not those that a sketch puts far behind.

It does not know what they take; of those that are left the simulator says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from castile.planner.budget import Budget
from castile.planner.evaluator import PENALTY, Evaluator
from castile.planner.pieces import in_pieces
from castile.planner.sketch.sketch import Sketch
from castile.planner.spaces import Spaces
from castile.planner.strategy import Config, Strategy

# A search of fewer proposals does without sketches, as compiling them takes longer than it, unless plans have so many
# parts that one takes a second to simulate.
LEAST, SLOW = 1000, 2_000
# A plan that a sketch puts so many times behind another, memory that it lacks counted in, is not simulated; where plans
# are wanted that are slow but small, that many times.
NEAR, FAR = 1.1, 3.0


class Sieve:
    """Known plans as one sketch sees them.

    spaces    from which the sketch chooses
    sketch    in which all of their Configs are
    configs   of their nodes, by name of the plan
    in_pieces which have their updates in pieces, of which a sketch knows what memory they take
    energy    seconds, and for plans that do not fit a penalty
    """

    def __init__(self, evaluator: Evaluator, plans: Mapping[str, Strategy], spaces: Spaces) -> None:
        self.spaces, nodes = spaces, evaluator.lowering.piece.nodes
        self.configs: dict[str, dict[str, Config]] = {
            name: {node: plan.configs[node] for node in nodes} for name, plan in plans.items()
        }
        self.in_pieces = {
            name
            for name, plan in plans.items()
            if len(plan.configs) > len(nodes) and plan.configs == in_pieces(evaluator.lowering, plan.configs)
        }
        self.sketch = Sketch(evaluator.lowering, evaluator.cost, spaces, list(self.configs.values()))
        self.energy: dict[str, float] = {}
        for name, configs in self.configs.items():
            self.sketch.update(name in self.in_pieces)
            seconds = self.sketch.seconds(configs)
            overflow = max(0.0, float((self.sketch.room.held / evaluator.capacity).max()) - 1)
            self.energy[name] = seconds * (1 + PENALTY * overflow)

    def within(self, times: float) -> list[str]:
        """The plans that take at most so many times as long as the best.

        And the latency of a message for each flow: how many messages there are is what a sketch knows worst.
        """
        latency = float(self.sketch.links.latency.max(initial=0.0)) * len(self.sketch.program.itemsize)
        most = times * min(self.energy.values()) + latency
        return [name for name, energy in self.energy.items() if energy <= most]


def helps(evaluator: Evaluator, is_sketched: bool) -> bool:
    """Whether known plans are sketched first: a search does so anyway, or plans take a second to simulate.

    Sketches know whole batches only, and little of memory.
    """
    knows = evaluator.objective != "memory" and evaluator.lowering.microbatches == 1
    return knows and (is_sketched or num_parts(evaluator) >= SLOW)


def is_long(budget: Budget) -> bool:
    """Whether compiling sketches pays."""
    return budget.proposals is None or budget.proposals >= LEAST


def num_parts(evaluator: Evaluator) -> int:
    """Into how many parts the nodes of a graph are cut where each is cut for all processors."""
    return len(evaluator.lowering.piece.nodes) * evaluator.lowering.machine.num_procs
