"""Metropolis search: random changes to a plan, kept when they shorten the step or, now and then, when they do not.

After Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019, section 6, with the
temperature relative to the plan's own time, moves over several nodes, and starts from the best seeds. Most of the walk
goes through sketches of plans (`planner/sketch`), which take microseconds; what it finds is simulated, and a last part
of the walk goes on with simulated plans. It does not know what a step takes, nor which moves there are.
"""

from __future__ import annotations

import numpy as np

from castile.planner.moves import Moves
from castile.planner.search import Evaluated, Run
from castile.planner.sketch.sieve import DEAR, num_parts
from castile.planner.sketch.sketch import NUM_DRAWS, Sketch
from castile.planner.strategy import Config
from castile.planner.walks import walk

BUDGET = "20000"
# Of a plan's own time: at first, a plan that takes so much longer is kept with probability 1/e.
TEMPERATURE = 0.02
# The same for plans that are good already.
REFINING = 0.002
# The chains from the seeds share this part of the budget; one from the best plan found has the rest.
SEED_SHARE = 0.5
# Chains begin at so many of the seeds: with more, each is too short.
MOST_STARTS = 3
# Of what a walk through sketches finds, so many plans are simulated.
NUM_JUDGED = 3
# Of the budget this share at most is for simulated plans, and no more than so many of them, and of parts of nodes.
SIMULATED_SHARE, MOST_SIMULATED, MOST_PARTS = 0.25, 10, 50_000
# A search of fewer proposals does without sketches: compiling them takes longer than it.
LEAST = 1000
# By so much a patient search goes on each time.
FURTHER = 1.3
# Proposals of a walk whose end is given by time.
ROUND = 1000


def search(run: Run) -> None:
    """A chain from each of the best seeds, then one from the best plan that these found."""
    moves, heat, share = Moves.of(run.lowering, run.spaces), TEMPERATURE, _simulated_share(run)
    if _is_sketchable(run):
        _Sketched(run).search(1 - share)
        heat = REFINING
    else:
        starts = _best_seeds(run)
        for number, start in enumerate(starts):
            walk(run, moves, start, SEED_SHARE * (number + 1) / len(starts), lambda left: TEMPERATURE * left)
    if num_parts(run.evaluator) < DEAR:
        until = run.spent * (1 + share) if run.spent > 1 else 1.0
        walk(run, moves, run.best, until, lambda left: heat * left)


def _is_sketchable(run: Run) -> bool:
    """Whether sketches help: they know whole batches, rank by time, and know roughly what memory a plan takes."""
    is_long = run.budget.proposals is None or run.budget.proposals >= LEAST
    is_roomy = run.frontier is None and (num_parts(run.evaluator) > DEAR or any(s.fits for s in run.seeds.values()))
    return is_long and is_roomy and run.evaluator.objective != "memory" and run.lowering.microbatches == 1


def _simulated_share(run: Run) -> float:
    if run.budget.proposals is None:
        return SIMULATED_SHARE
    most = max(1.0, min(MOST_SIMULATED, MOST_PARTS / num_parts(run.evaluator)))
    return min(SIMULATED_SHARE, most / run.budget.proposals)


class _Sketched:
    """Walks through sketches."""

    def __init__(self, run: Run) -> None:
        names = run.lowering.piece.nodes
        self.run = run
        self.starts = [{n: seed.strategy.configs[n] for n in names} for seed in _best_seeds(run)]
        self.sketch = Sketch(run.lowering, run.evaluator.cost, run.spaces, self.starts)
        self.rng = np.random.default_rng(run.rng.getrandbits(64))
        self.best, self.energy = self.starts[0], float("inf")

    def search(self, until: float) -> None:
        """Walk until that share of the budget is spent."""
        for number, start in enumerate(self.starts):
            self.walk(start, until * SEED_SHARE * (number + 1) / len(self.starts))
        self.walk(self.best, until)
        while self.run.is_restless:
            self.walk(self.best, self.run.spent * FURTHER)
        if num_parts(self.run.evaluator) >= DEAR:
            self.run.propose(self.best)

    def walk(self, start: dict[str, Config], until: float) -> None:
        """A chain from a plan, in one go or in rounds where time says when it ends."""
        begun = self.run.spent
        while self.run.spent < until:
            count, left = ROUND, (until - self.run.spent) / (until - begun)
            if self.run.budget.proposals is not None:
                count = max(1, round((until - self.run.spent) * self.run.budget.proposals) - NUM_JUDGED)
            heats = TEMPERATURE * left * np.linspace(1, 0, count)
            walked = self.sketch.walk(start, self.rng.random((count, NUM_DRAWS)), heats, self.run.evaluator.capacity)
            self.run.adopt(count, [])
            # Where a plan takes seconds to simulate, only the best of all is.
            for configs in walked.plans[:NUM_JUDGED] if num_parts(self.run.evaluator) < DEAR else ():
                if self.run.spent < until:
                    self.run.propose(configs)
            start = walked.plans[0]
            if walked.energy < self.energy:
                self.best, self.energy = start, walked.energy


def _best_seeds(run: Run) -> list[Evaluated]:
    return sorted(run.seeds.values(), key=lambda seed: seed.energy)[:MOST_STARTS]
