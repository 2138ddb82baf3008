"""Known plans estimated by a sketch: plans whose estimates are far behind the best are not simulated.

It does not know how the plans that are left are simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from castile.planner.choices.spaces import Spaces
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluated import PENALTY
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.pieces import in_pieces
from castile.planner.sketch.blocking import blocked_seconds
from castile.planner.sketch.sketch import Sketch
from castile.planner.strategy import Config, Strategy

# A search that proposes fewer than LEAST parts in all uses no sketch: simulating these takes a second, compiling a
# sketch's loops several. Known plans of SLOW parts are sketched first in any search: simulating each takes a second.
LEAST, SLOW = 10_000, 2_000
# No search begins with a plan whose estimated energy is more than NEAR times the best one's; FAR times where slow but
# small plans are wanted.
NEAR, FAR = 1.1, 3.0
# Of the plans from which a search begins only those within CLOSE of the best are simulated, and those with Configs of
# updates and fetches, which a sketch leaves out and which may make them faster.
CLOSE = 1.02
# Sketches join gradient sums in buckets only if the best known plan gains this share, as plans then take longer to
# simulate.
WORTH = 0.01


class Estimate(NamedTuple):
    """A sketch's estimate of a plan.

    plain     seconds of a step, as walks estimate them
    blocked   further seconds for which pipeline stages exchange data (`blocking`), which walks leave out
    nbytes    bytes on the fullest processor
    share     the largest share of its memory that a processor needs
    """

    plain: float
    blocked: float
    nbytes: float
    share: float

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return self.plain + self.blocked

    def energy(self, worth: float) -> float:
        """`worth`, seconds or bytes, with a penalty for a plan that does not fit."""
        return worth * (1 + PENALTY * max(0.0, self.share - 1))


class SketchedPlans:
    """Known plans, all estimated by one sketch.

    spaces      the Configs among which the sketch chooses
    sketch      knows all Configs of the plans
    plans       by name
    configs     by plan, those of the graph's nodes
    unseen      names of plans with Configs of updates or fetches, so that the estimate may be wrong
    in_pieces   names of those of them whose updates are in pieces, the memory of which a sketch knows
    estimates   by plan
    is_sparing  whether plans are ranked by memory
    is_joined   whether the sketch joins gradient sums in buckets, as it does where that pays
    """

    def __init__(
        self, evaluator: Evaluator, plans: Mapping[str, Strategy], spaces: Spaces, sizes: Sequence[int] = ()
    ) -> None:
        self.spaces, self.plans, nodes = spaces, plans, evaluator.lowering.piece.nodes
        self.configs: dict[str, dict[str, Config]] = {
            name: {node: plan.configs[node] for node in nodes} for name, plan in plans.items()
        }
        self.unseen = {name for name, plan in plans.items() if len(plan.configs) > len(nodes)}
        self.in_pieces = {
            name for name in self.unseen if plans[name].configs == in_pieces(evaluator.lowering, plans[name].configs)
        }
        bucket = max(sizes, default=0)
        self.sketch = Sketch(evaluator.lowering, evaluator.cost, spaces, list(self.configs.values()), bucket)
        self._capacity, self.is_sparing = evaluator.capacity, evaluator.objective == "memory"
        self.estimates, self.is_joined = self._estimates(), False
        if bucket:
            self.sketch.join(True)
            joined = self._estimates()
            least, before = (min(one.energy(one.plain) for one in seen.values()) for seen in (joined, self.estimates))
            self.is_joined = least < (1 - WORTH) * before
            self.sketch.join(self.is_joined)
            self.estimates = joined if self.is_joined else self.estimates

    def _estimates(self) -> dict[str, Estimate]:
        """The sketch's estimate of each plan, with its present setting of buckets."""
        found: dict[str, Estimate] = {}
        for name, configs in self.configs.items():
            self.sketch.update(name in self.in_pieces)
            seconds = self.sketch.seconds(configs)
            held = self.sketch.held
            share = float((held / self._capacity).max())
            found[name] = Estimate(seconds, blocked_seconds(self.sketch, configs), float(held.max()), share)
        return found

    @property
    def energy(self) -> dict[str, float]:
        """The energy of each plan, as walks estimate it."""
        return {name: one.energy(one.nbytes if self.is_sparing else one.plain) for name, one in self.estimates.items()}

    def within(self, times: float) -> list[str]:
        """The plans of at most `times` the least energy, plus the latency of one message for each flow: a sketch's
        largest error is in the number of messages.
        """
        if self.is_sparing:
            return [name for name, worth in self.energy.items() if worth <= times * min(self.energy.values())]
        latency = float(self.sketch.links.latency.max(initial=0.0)) * len(self.sketch.program.itemsize)
        energy = {name: one.energy(one.seconds) for name, one in self.estimates.items()}
        most = times * min(energy.values()) + latency
        return [name for name, worth in energy.items() if worth <= most]

    def promising(self, times: float) -> list[str]:
        """The plans of `within` that are worth simulating: all of them where slow plans are wanted too."""
        close = {*self.within(CLOSE if times <= NEAR else times), *self.unseen}
        return [name for name in self.within(times) if name in close]

    def begun(self) -> list[str]:
        """The plans from which a search begins though they are not worth simulating."""
        promising = self.promising(NEAR)
        return [name for name in self.within(NEAR) if name not in promising]


def should_sketch(evaluator: Evaluator, is_sketched: bool) -> bool:
    """Whether known plans are sketched first: if a search uses sketches anyway, or plans take a second to simulate."""
    return is_sketched or num_parts(evaluator) >= SLOW


def is_long(evaluator: Evaluator, budget: Budget) -> bool:
    """Whether the budget is long enough for compiling sketches to pay."""
    return budget.proposals is None or budget.proposals * num_parts(evaluator) >= LEAST


def shortest_long_budget(evaluator: Evaluator) -> Budget:
    """The smallest budget of proposals that `is_long`."""
    return Budget(proposals=-(-LEAST // num_parts(evaluator)))


def num_parts(evaluator: Evaluator) -> int:
    """The number of parts of a plan whose nodes are all cut for all processors."""
    return len(evaluator.lowering.piece.nodes) * evaluator.lowering.machine.num_procs
