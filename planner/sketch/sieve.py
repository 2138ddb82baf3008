"""Which known plans are worth simulating, where that takes seconds each: not those that a sketch puts far behind.

It does not know what they take; of those that are left the simulator says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from castile.planner.evaluator import PENALTY, Evaluator
from castile.planner.sketch.sketch import Sketch
from castile.planner.spaces import Spaces
from castile.planner.strategy import Strategy

# From so many parts of nodes on a plan takes seconds to simulate for the first time, and from so many a second.
DEAR, SLOW = 100_000, 2_000
# A plan that a sketch puts so many times behind another, memory that it lacks counted in, is not simulated.
FAR = 3.0


def num_parts(evaluator: Evaluator) -> int:
    """Into how many parts the nodes of a graph are cut where each is cut for all processors."""
    return len(evaluator.lowering.piece.nodes) * evaluator.lowering.machine.num_procs


def promising(evaluator: Evaluator, plans: Mapping[str, Strategy], spaces: Spaces) -> dict[str, Strategy]:
    """The plans without those that are far behind; all of them where simulating is cheap, or sketches do not help."""
    if num_parts(evaluator) < SLOW or evaluator.objective == "memory" or evaluator.lowering.microbatches > 1:
        return dict(plans)
    nodes = evaluator.lowering.piece.nodes
    configs = {name: {n: plan.configs[n] for n in nodes} for name, plan in plans.items()}
    sketch = Sketch(evaluator.lowering, evaluator.cost, spaces, list(configs.values()))
    worth = {}
    for name, of_plan in configs.items():
        seconds = sketch.seconds(of_plan)
        overflow = max(0.0, float((sketch.room.held / evaluator.capacity).max()) - 1)
        worth[name] = seconds * (1 + PENALTY * overflow)
    return {name: plan for name, plan in plans.items() if worth[name] <= FAR * min(worth.values())}
