"""Exhaustive search by branch and bound: all plans of a small model, without those that a bound rules out.

Its result is the best plan of the space, with updates and accumulators left to their defaults. It does not know moves.
"""

from __future__ import annotations

from functools import partial
from math import inf, log10, prod

import numpy as np

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.partial_bounds import PartialBounds
from castile.planner.bounds.path_bounds import PathBounds
from castile.planner.search import Run
from castile.runtime.timeline import PICOSECONDS

# Plans, ruled out or not; about ten minutes of them in the worst case.
BUDGET = "100000"
# Each limit is this many times the one before.
RAISE = 1.01
# Tables of bounds have an entry for each processor and each pair of Configs of neighbours: with more they take
# gigabytes.
MOST_ENTRIES = 2**27
# Larger numbers are written as a power of ten.
READABLE = 10**12


def search(run: Run) -> None:
    """Branch and bound over the nodes in topological order, the most promising Configs of each node first.

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
    Descent(run, PartialBounds(model, list(spaces.values()), partial(_refuse_late, run))).run_all()


def _readable(size: int) -> str:
    """A number of plans, which may have thousands of digits, in a short form."""
    return f"{size:,}" if size < READABLE else f"about 10^{log10(size):.0f}"


class Descent:
    """Branch and bound by iterative deepening: repeated below a higher limit until no better plan can be left.

    A limit little above the least bound keeps the search out of plans that look good only while incomplete.

    limit    picoseconds: plans with a larger bound are left to a later descent
    next     the least bound that the limit cut off
    tried    plans that were proposed, as numbers of Configs
    """

    def __init__(self, run: Run, relaxed: PartialBounds) -> None:
        self.run, self.relaxed, self.ladder = run, relaxed, PathBounds(relaxed)
        self.limit, self.next = 0.0, float("inf")
        self.tried: set[tuple[int, ...]] = set()
        # Bounds are of time, not of memory.
        self.is_bounded = run.evaluator.objective != "memory"

    @property
    def most(self) -> float:
        """Picoseconds of the incumbent, below which a plan must stay; inf if there is none, or memory is ranked."""
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
        """Propose all plans with the Configs chosen so far whose bound is less than the limit.

        chosen   the number of each node's Config, by the number of the node
        """
        _refuse_late(self.run)
        node, point = len(chosen), tuple(chosen.values())
        if node == len(self.relaxed.names):
            if point not in self.tried:
                self.tried.add(point)
                plan = zip(self.relaxed.names, self.relaxed.choices, point, strict=True)
                self.run.propose({name: configs[number] for name, configs, number in plan})
            return
        open_ = []
        quick_bounds = np.maximum(self.relaxed.bounds(chosen, node), self.ladder.bounds(chosen, node))
        for number, quick in enumerate(quick_bounds.tolist()):
            if self.is_open(quick) and self.is_open(bound := self.bound({**chosen, node: number}, quick)):
                open_.append((bound, number))
        for bound, number in sorted(open_):
            # Meanwhile a better plan may have been found.
            if self.is_open(bound):
                self.descend({**chosen, node: number})

    def bound(self, chosen: dict[int, int], quick: int) -> int:
        """A lower bound in picoseconds of all plans with these Configs, at least `quick`."""
        bound, ends = self.relaxed.served(chosen)
        return max(quick, bound, self.ladder.bound(chosen, ends))

    def is_open(self, bound: int) -> bool:
        """Whether plans with this bound are tried in this descent; `next` remembers those cut off by the limit."""
        if self.limit <= bound < self.most:
            self.next = min(self.next, bound)
        return bound < min(self.limit, self.most)


def _refuse_late(run: Run) -> None:
    if run.budget.is_over():
        # Searches before this one may have spent part of the budget that the user gave.
        seconds = run.budget.before + min(run.elapsed_seconds, run.budget.seconds or inf)
        raise ValueError(
            f"exhaustive search: not done after {seconds:.3g} s and {run.num_proposals:,} plans: use "
            "--search mcmc, or raise --budget"
        )
