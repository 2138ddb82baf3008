"""Metropolis search: random changes to a plan, kept when they shorten the step or, now and then, when they do not.

After Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019, section 6, with the
temperature relative to the plan's own time, moves over several nodes, and starts from the best seeds. A long search
makes many short walks through sketches of plans (`planner/sketch`), which take microseconds, and simulates the plans
that these end with: sketches err by some percent, so the best of several ends is worth more than a longer walk. Where
plans are small, or time is left, a last walk goes on with simulated plans. It does not know what a step takes, nor
which moves there are.
"""

from __future__ import annotations

import random
from collections.abc import Container, Mapping
from typing import NamedTuple

from castile.planner.choices.moves import Moves
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.pieces import in_pieces
from castile.planner.search import Run
from castile.planner.searching.sparing import Sparing
from castile.planner.searching.walks import walk
from castile.planner.sketch.chains import TEMPERATURE, Chain, Chains
from castile.planner.sketch.sieve import Sieve, num_parts
from castile.planner.strategy import Config, Strategy

BUDGET = "20000"
# As TEMPERATURE, for plans that are good already.
REFINING = 0.002
# Chains begin at so many of the seeds in turn: with more, each has too little.
MOST_STARTS = 3
# Of simulated plans, the chains from the seeds share this part of the budget; one from the best found has the rest.
SEED_SHARE = 0.5
# Through sketches so many chains are of so many proposals, as many are twice as long, and so on.
NUM_CHAINS, CHAIN = 10, 2000
# What a chain ends with is simulated if by the sketch it takes less than the best known plan, and by this share less
# than where the chain began; of chains that are twice as long by half of it, and so on.
WORTH = 0.005
# Of the best of these what gains no more by the sketch, one change and all together, is taken back too: the simulator
# says whether it gained anything.
LITTLE, LITTLE_OF_ALL = 2e-3, 4e-3
# One chain in so many is a coarse one.
COARSE_EVERY = 5
# Of what chains end with the best are simulated, so many parts of nodes together; and as many more where no plan is
# known to fit, in a walk that goes on from the nearest.
JUDGED_PARTS = 30_000
# After sketches, this share of a budget of seconds is for simulated plans. Where plans have at most so many parts it is
# the other one, and of a budget of proposals so many are simulated: of larger plans each takes as long as thousands
# of sketches.
SIMULATED_SHARE, SMALL_PARTS, SMALL_SHARE, MOST_SIMULATED = 0.25, 64, 0.75, 100
# By so much a patient search goes on each time.
FURTHER = 1.3

Configs = dict[str, Config]


def search(run: Run) -> None:
    """Chains from the best seeds, then one from the best plan that these found."""
    if run.sieve is not None and run.chains is not None:
        share = _simulated_share(run.evaluator, run.budget, any(seed.fits for seed in run.seeds.values()))
        if run.sieve.is_joined:
            run.settle()
        walks = (Sparing if run.sieve.is_sparing else _Sketched)(run, run.sieve, run.chains)
        walks.search(1 - share)
        if share:
            # A patient search has gone on for longer than its budget.
            until = run.spent * (1 + share) if run.budget.patient and run.spent > 1 else 1.0
            walk(run, Moves.of(run.lowering, run.spaces), run.best, until, lambda left: REFINING * left)
        return
    moves = Moves.of(run.lowering, run.spaces)
    starts = sorted(run.seeds.values(), key=lambda seed: seed.energy)[:MOST_STARTS]
    for number, start in enumerate(starts):
        walk(run, moves, start, SEED_SHARE * (number + 1) / len(starts), lambda left: TEMPERATURE * left)
    walk(run, moves, run.best, 1.0, lambda left: TEMPERATURE * left)


def begin(
    sieve: Sieve, evaluator: Evaluator, budget: Budget, plans: Mapping[str, Strategy], rng: random.Random
) -> Chains:
    """The chains of a search, the first of them under way while known plans are simulated.

    They go from where they will begin if these plans take what the sketch says of them, and fit.
    """
    chains = Chains(sieve.sketch, evaluator.capacity, rng.getrandbits(64))
    if sieve.is_sparing:
        # Where those begin follows from what is simulated.
        return chains
    starts = _starts(sieve, plans, sieve.energy, set(plans))
    until, count = 1 - _simulated_share(evaluator, budget), NUM_CHAINS
    if budget.proposals is not None:
        count = min(count, int(until * budget.proposals) // CHAIN)
    chains.foresee([_chain(starts[number % len(starts)], number, CHAIN) for number in range(count)])
    return chains


def _simulated_share(evaluator: Evaluator, budget: Budget, is_roomy: bool = True) -> float:
    """Of the budget what is for simulated plans after sketches.

    is_roomy   whether a known plan fits: sketches know but roughly what memory a plan takes
    """
    parts = num_parts(evaluator)
    if budget.proposals is None:
        return SMALL_SHARE if parts <= SMALL_PARTS else SIMULATED_SHARE
    most = MOST_SIMULATED if parts <= SMALL_PARTS else 0 if is_roomy else JUDGED_PARTS // parts
    return min(SIMULATED_SHARE, most / budget.proposals)


class _Start(NamedTuple):
    """Where chains begin.

    kept        Configs of which sketches know nothing: plans that are found have them too
    in_pieces   whether these are of updates in pieces, as are those of the plans that are found then
    bucket_bytes    with which the plan is best, and those that are found then are judged
    """

    configs: Configs
    energy: float
    kept: Configs
    in_pieces: bool
    bucket_bytes: int


class _End(NamedTuple):
    """The best plan of a chain, which proposal it was, and where the chain began."""

    energy: float
    number: int
    plan: Configs
    start: _Start


class _Sketched:
    """Walks through sketches.

    to_beat  what the best known plan takes, as the sketch or the simulator says, whichever says more
    most     so many of chains' ends, the best, are simulated; more where first ones were before they fell behind
    judged   those that were
    best     the best of these, as it was simulated
    """

    def __init__(self, run: Run, sieve: Sieve, chains: Chains) -> None:
        self.run, self.chains = run, chains
        plans = {name: seed.strategy for name, seed in run.seeds.items()}
        plans |= {name: sieve.plans[name] for name in sieve.begun() if name not in plans}
        energy = sieve.energy | {name: seed.energy for name, seed in run.seeds.items()}
        fitting = {name for name in plans if name not in run.seeds or run.seeds[name].fits}
        self.starts = _starts(sieve, plans, energy, fitting)
        self.to_beat = max(self.starts[0].energy, min(seed.energy for seed in run.seeds.values()))
        self.num_chains, self.most = 0, max(1, JUDGED_PARTS // num_parts(run.evaluator))
        self.ends: dict[frozenset[tuple[str, Config]], _End] = {}
        self.judged: set[frozenset[tuple[str, Config]]] = set()
        self.best: tuple[Evaluated, _End] | None = None

    def search(self, until: float) -> None:
        """Walk until that share of the budget is spent, and simulate the best that was found."""
        self.walk(until)
        self.judge((1 + until) / 2)
        while self.run.is_restless:
            self.walk(self.run.spent * FURTHER)
            self.judge(self.run.spent)

    def walk(self, until: float) -> None:
        """Chains from the seeds in turn."""
        # Once: it may be told to end at any time.
        while (left := until - self.run.spent) > 0:
            start, times = self.starts[self.num_chains % len(self.starts)], 1 << self.num_chains // NUM_CHAINS
            count = CHAIN * times
            if self.run.budget.proposals is not None:
                count = min(count, round(left * self.run.budget.proposals) or 1)
            walked = self.chains.walk(_chain(start, self.num_chains, count))
            most = min(start.energy * (1 - WORTH / times), self.to_beat)
            if walked.energy < most:
                plan = start.kept | walked.plan
                found = _End(walked.energy, self.run.num_proposals + walked.number, plan, start)
                is_new = self.ends.setdefault(frozenset(plan.items()), found) is found
                # The first ends are simulated while others are walked, if there is room for all of them anyway.
                if is_new and self.run.budget.proposals is not None and self.num_chains < NUM_CHAINS <= self.most:
                    self.simulate(found)
            self.num_chains += 1
            self.run.adopt(count, [])
            # What a smaller budget ends with is not missing from what a larger one has seen.
            if self.num_chains == NUM_CHAINS and self.run.spent < until:
                self.end()

    def judge(self, until: float) -> None:
        """Simulate the best of the chains' ends, as many as a budget of seconds leaves time for."""
        best = sorted(self.ends.values(), key=lambda end: end.energy)[: self.most]
        for end in sorted(best, key=lambda end: end.number):
            if self.has_time(until):
                self.simulate(end)
        if self.has_time(until):
            self.end()

    def end(self) -> None:
        """Simulate the best that was found without what gains it little."""
        if self.best is not None:
            self.simulate(self.plainer(self.best[1]))

    def has_time(self, until: float) -> bool:
        """Whether there is time to simulate what was found."""
        return self.run.budget.proposals is not None or self.run.budget.is_over() or self.run.spent < until

    def plainer(self, end: _End) -> _End:
        """What a chain ends with, without what gains little by the sketch; the end itself where nothing does."""
        chain = Chain(end.start.configs, end.start.in_pieces, 0, False)
        found = self.chains.trimmed(chain, {name: end.plan[name] for name in end.start.configs}, LITTLE, LITTLE_OF_ALL)
        plan = end.start.kept | found
        return self.ends.setdefault(frozenset(plan.items()), end._replace(plan=plan))

    def simulate(self, end: _End) -> None:
        """Simulate what a chain ends with, if that was not done before."""
        key = frozenset(end.plan.items())
        if key not in self.judged:
            self.judged.add(key)
            plan = in_pieces(self.run.lowering, end.plan) if end.start.in_pieces else end.plan
            found = self.run.judge(plan, end.number, end.start.bucket_bytes)
            if found is not None and (self.best is None or found.rank < self.best[0].rank):
                self.best = found, end


def _chain(start: _Start, number: int, count: int) -> Chain:
    return Chain(start.configs, start.in_pieces, count, number % COARSE_EVERY == COARSE_EVERY - 1)


def _starts(
    sieve: Sieve, plans: Mapping[str, Strategy], energy: Mapping[str, float], fitting: Container[str]
) -> list[_Start]:
    """The best plans whose nodes differ; of those that differ in other Configs the one without these, if it fits.

    In the sketch's order, which is known before they are simulated: chains that were begun then are those asked for.
    """
    found: list[_Start] = []
    for name in sorted(plans, key=lambda name: energy[name]):
        configs = sieve.configs[name]
        kept = {node: config for node, config in plans[name].configs.items() if node not in configs}
        at = next((n for n, start in enumerate(found) if start.configs == configs), len(found))
        if at == len(found) or (name in fitting and not kept):
            is_cut, size = name in sieve.in_pieces, plans[name].bucket_bytes
            found[at : at + 1] = [_Start(configs, sieve.energy[name], kept, is_cut, size)]
    return sorted(found[:MOST_STARTS], key=lambda start: start.energy)
