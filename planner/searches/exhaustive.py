"""Exhaustive search: all plans of a small case, without those that a bound rules out.

It does not know moves: its result is the best plan of the space, updates and accumulators left to their defaults.
"""

from __future__ import annotations

from functools import partial
from math import inf, log10, prod

import numpy as np

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.ladder import Ladder
from castile.planner.bounds.relaxed import Relaxed
from castile.planner.search import Run
from castile.runtime.timeline import PICOSECONDS

# Plans, ruled out or not; about ten minutes of them in the worst case.
BUDGET = "100000"
# Each limit is so many times the one before.
RAISE = 1.01
# For each processor and two Configs of neighbours there are entries in tables of bounds: with more they take gigabytes.
MOST_ENTRIES = 2**27
# Larger numbers are told by their magnitude.
READABLE = 10**12


def search(run: Run) -> None:
    """Branch and bound over the nodes in topological order, of each node's Configs the most promising first.

    Raises ValueError where the space holds more plans than the budget or than can be bounded, or a budget of seconds
    ends before it is done.
    """
    graph, num_procs = run.lowering.piece, run.lowering.machine.num_procs
    spaces = {name: run.spaces[name].configs for name in graph.nodes}
    size, most = prod(map(len, spaces.values())), run.budget.proposals
    refusal = f"exhaustive search: {graph.name} has {_readable(size)} plans on {num_procs} processors, more than"
    if most is not None and size > most:
        raise ValueError(f"{refusal} the budget of {most:,}: use --search mcmc, or raise --budget")
    model = Additive(run.lowering, run.evaluator.cost)
    pairs = sum(prod(len(spaces[name]) for name in edge.nodes) for edge in model.edges)
    if pairs * num_procs > MOST_ENTRIES:
        raise ValueError(f"{refusal} its bounds have room for: use --search mcmc")
    Descent(run, Relaxed(model, list(spaces.values()), partial(_refuse_late, run))).run_all()


def _readable(size: int) -> str:
    """A number that may have thousands of digits, as people read it."""
    return f"{size:,}" if size < READABLE else f"about 10^{log10(size):.0f}"


class Descent:
    """Branch and bound, again and again below a higher limit, until no plan under the best one is left.

    A limit little above the least bound keeps the search out of plans that only look good half way.
    """

    def __init__(self, run: Run, relaxed: Relaxed) -> None:
        self.run, self.relaxed, self.ladder = run, relaxed, Ladder(relaxed)
        self.limit, self.next = 0.0, float("inf")
        self.done: set[tuple[int, ...]] = set()
        # Bounds are of time: of memory they know nothing.
        self.is_bounded = run.evaluator.objective != "memory"

    @property
    def most(self) -> float:
        """The picoseconds that a plan must stay below to be of interest."""
        if not self.is_bounded or not self.run.best.fits:
            return float("inf")
        return round(self.run.best.seconds * PICOSECONDS)

    def run_all(self) -> None:
        """Raise the limit until it reaches the best plan, or cuts nothing off."""
        self.limit = float(self.relaxed.bounds({}, 0).min())
        while self.limit < self.most:
            self.limit, self.next = self.limit * RAISE, float("inf")
            self.descend({})
            self.limit = self.next

    def descend(self, chosen: dict[int, int]) -> None:
        """All plans with the Configs chosen so far that are bounded by less than the limit."""
        _refuse_late(self.run)
        node, point = len(chosen), tuple(chosen.values())
        if node == len(self.relaxed.names):
            if point not in self.done:
                self.done.add(point)
                plan = zip(self.relaxed.names, self.relaxed.choices, point, strict=True)
                self.run.propose({name: configs[number] for name, configs, number in plan})
            return
        open_ = []
        quick_bounds = np.maximum(self.relaxed.bounds(chosen, node), self.ladder.bounds(chosen, node))
        for number, quick in enumerate(quick_bounds.tolist()):
            if self.is_open(quick) and self.is_open(bound := self.bound({**chosen, node: number}, quick)):
                open_.append((bound, number))
        for bound, number in sorted(open_):
            # The others are bounded by no less, and meanwhile a better plan may have been found.
            if self.is_open(bound):
                self.descend({**chosen, node: number})

    def bound(self, chosen: dict[int, int], quick: int) -> int:
        bound, ends = self.relaxed.served(chosen)
        return max(quick, bound, self.ladder.bound(chosen, ends))

    def is_open(self, bound: int) -> bool:
        """Whether plans bounded so are looked at now; those that the limit alone cuts off are not forgotten."""
        if self.limit <= bound < self.most:
            self.next = min(self.next, bound)
        return bound < min(self.limit, self.most)


def _refuse_late(run: Run) -> None:
    if run.budget.is_over():
        # What others left of a time is not what was given.
        seconds = run.budget.before + min(run.elapsed_seconds, run.budget.seconds or inf)
        raise ValueError(
            f"exhaustive search: not done after {seconds:.3g} s and {run.num_proposals:,} plans: use "
            "--search mcmc, or raise --budget"
        )
