"""Metropolis search (MCMC): random changes to a plan, kept if they shorten the step, and now and then if they do not.

After Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019, section 6, with the
temperature relative to the plan's own time, moves over several nodes, and starts from the best seeds. A long search
makes many short walks ("chains") through sketches of plans (`planner/sketch`), which take microseconds, and simulates
the plans at their ends: sketches err by some percent, so the best of several ends is worth more than a longer walk.
Where plans are small, or time is left, a last walk simulates every plan. It does not know how long a step takes, nor
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
from castile.planner.searching.memory_walks import Configs, Key, MemoryWalks
from castile.planner.searching.walks import walk
from castile.planner.sketch.chains import TEMPERATURE, Chain, Chains
from castile.planner.sketch.sketched_plans import SketchedPlans, num_parts
from castile.planner.strategy import Strategy

BUDGET, WALKS = "20000", True
# The initial temperature of the last walk, whose plans are good already; that of other walks is TEMPERATURE.
LAST_TEMPERATURE = 0.002
# Chains start from this many of the best seeds in turn: with more, each would get too few proposals.
MOST_STARTS = 3
# Without sketches, walks from the seeds share this part of the budget; one from the best plan found has the rest.
SEED_SHARE = 0.5
# Through sketches, the first NUM_CHAINS chains have CHAIN proposals each, the next NUM_CHAINS twice that, and so on.
NUM_CHAINS, CHAIN = 10, 2000
# The end of a chain is a candidate for simulation if by its sketch it is faster than the best known plan, and by this
# share faster than the start of the chain; half of that share for chains twice as long, and so on.
LEAST_GAIN = 0.005
# The best end is also simulated without those of its changes that by the sketch gain no more than SMALL_GAIN each and
# SMALL_TOTAL together: the simulator says whether they gained anything.
SMALL_GAIN, SMALL_TOTAL = 2e-3, 4e-3
# One of this many chains is coarse.
COARSE_EVERY = 5
# The best ends of chains are simulated, up to this many parts of nodes in all; and as many again where no plan is known
# to fit, in a walk from the plan that comes nearest.
SIMULATED_PARTS = 30_000
# After walks through sketches, SIMULATED_SHARE of a budget of seconds is for a walk through simulated plans;
# SMALL_SHARE where plans have at most SMALL_PARTS, and there MOST_SIMULATED of a budget of proposals: to simulate a
# larger plan takes as long as thousands of sketches.
SIMULATED_SHARE, SMALL_PARTS, SMALL_SHARE, MOST_SIMULATED = 0.25, 64, 0.75, 100
# The factor by which a patient search extends its budget each time.
EXTENSION = 1.3


def search(run: Run) -> None:
    """Walk from the best seeds, through sketches if there are any, then from the best plan so far."""
    if run.sieve is not None and run.chains is not None:
        _search_sketches(run, run.sieve, run.chains)
        return
    moves = Moves.of(run.lowering, run.spaces)
    starts = sorted(run.seeds.values(), key=lambda seed: seed.energy)[:MOST_STARTS]
    for number, start in enumerate(starts):
        walk(run, moves, start, SEED_SHARE * (number + 1) / len(starts), lambda left: TEMPERATURE * left)
    walk(run, moves, run.best, 1.0, lambda left: TEMPERATURE * left)


def _search_sketches(run: Run, sieve: SketchedPlans, chains: Chains) -> None:
    share = _simulated_share(run.evaluator, run.budget, any(seed.fits for seed in run.seeds.values()))
    if sieve.is_joined:
        run.choose_bucket_size()
    walks = (MemoryWalks if sieve.is_sparing else _SketchedChains)(run, sieve, chains)
    walks.search(1 - share)
    if share:
        # A patient search has already spent more than its budget.
        until = run.spent * (1 + share) if run.budget.patient and run.spent > 1 else 1.0
        walk(run, Moves.of(run.lowering, run.spaces), run.best, until, lambda left: LAST_TEMPERATURE * left)


def begin(
    sieve: SketchedPlans, evaluator: Evaluator, budget: Budget, plans: Mapping[str, Strategy], rng: random.Random
) -> Chains:
    """The chains of a search, the first of them already running while known plans are simulated.

    They start from the plans with the best sketches, which are the right ones if the simulator confirms these.
    """
    chains = Chains(sieve.sketch, evaluator.capacity, rng.getrandbits(64))
    if sieve.is_sparing:
        # Memory walks start from simulated plans.
        return chains
    starts = _starts(sieve, plans, sieve.energy, set(plans))
    until, count = 1 - _simulated_share(evaluator, budget), NUM_CHAINS
    if budget.proposals is not None:
        count = min(count, int(until * budget.proposals) // CHAIN)
    chains.prefetch([_chain(starts[number % len(starts)], number, CHAIN) for number in range(count)])
    return chains


def _simulated_share(evaluator: Evaluator, budget: Budget, has_fitting: bool = True) -> float:
    """The share of the budget for a walk through simulated plans, after those through sketches.

    has_fitting   whether a known plan fits; if none does more is simulated, as sketches know memory only roughly
    """
    parts = num_parts(evaluator)
    is_small = parts <= SMALL_PARTS
    if budget.proposals is None:
        return SMALL_SHARE if is_small else SIMULATED_SHARE
    if is_small:
        num_simulated = MOST_SIMULATED
    else:
        num_simulated = 0 if has_fitting else SIMULATED_PARTS // parts
    return min(SIMULATED_SHARE, num_simulated / budget.proposals)


class _Start(NamedTuple):
    """A plan from which chains start.

    energy         by its sketch
    kept           its Configs of nodes that sketches leave out, such as updates: plans that chains find get them too
    in_pieces      whether these are updates in pieces; then plans that chains find have their own updates in pieces
    bucket_bytes   the plan's best bucket size, with which plans that chains find are simulated
    """

    configs: Configs
    energy: float
    kept: Configs
    in_pieces: bool
    bucket_bytes: int


class _End(NamedTuple):
    """The best plan of a chain, its energy by the sketch, the number of its proposal, and the start of the chain."""

    energy: float
    number: int
    plan: Configs
    start: _Start


class _SketchedChains:
    """Chains through sketches, whose best ends are simulated.

    to_beat         the energy of the best known plan, by the sketch or the simulator, whichever is more
    num_simulated   how many of the best ends are simulated; more where early ones were that later ones overtook
    simulated       the ends that were simulated
    best            the best simulated end, as evaluated
    """

    def __init__(self, run: Run, sieve: SketchedPlans, chains: Chains) -> None:
        self.run, self.chains = run, chains
        plans = {name: seed.strategy for name, seed in run.seeds.items()}
        plans |= {name: sieve.plans[name] for name in sieve.begun() if name not in plans}
        energy = sieve.energy | {name: seed.energy for name, seed in run.seeds.items()}
        fitting = {name for name in plans if name not in run.seeds or run.seeds[name].fits}
        self.starts = _starts(sieve, plans, energy, fitting)
        self.to_beat = max(self.starts[0].energy, min(seed.energy for seed in run.seeds.values()))
        self.num_chains, self.num_simulated = 0, max(1, SIMULATED_PARTS // num_parts(run.evaluator))
        self.ends: dict[Key, _End] = {}
        self.simulated: set[Key] = set()
        self.best: tuple[Evaluated, _End] | None = None

    def search(self, until: float) -> None:
        """Walk until the share `until` of the budget is spent, and simulate the best ends."""
        self.walk(until)
        self.simulate_best((1 + until) / 2)
        while self.run.should_continue:
            self.walk(self.run.spent * EXTENSION)
            self.simulate_best(self.run.spent)

    def walk(self, until: float) -> None:
        """Run chains from the starts in turn, until the share `until` of the budget is spent."""
        # Read once for each chain, as time passes between two reads.
        while (left := until - self.run.spent) > 0:
            start = self.starts[self.num_chains % len(self.starts)]
            factor = 2 ** (self.num_chains // NUM_CHAINS)
            count = CHAIN * factor
            if self.run.budget.proposals is not None:
                count = min(count, round(left * self.run.budget.proposals) or 1)
            walked = self.chains.walk(_chain(start, self.num_chains, count))
            if walked.energy < min(start.energy * (1 - LEAST_GAIN / factor), self.to_beat):
                number = self.run.num_proposals + walked.number
                self.add(_End(walked.energy, number, start.kept | walked.plan, start))
            self.num_chains += 1
            self.run.adopt(count, [])
            # So that a larger budget simulates all plans that a smaller one does.
            if self.num_chains == NUM_CHAINS and self.run.spent < until:
                self.simulate_trimmed()

    def add(self, end: _End) -> None:
        """Keep an end, and simulate it at once while other chains run, if it is one of the first and all of these are
        simulated anyway.
        """
        is_new = self.ends.setdefault(frozenset(end.plan.items()), end) is end
        is_early = self.num_chains < NUM_CHAINS <= self.num_simulated
        if is_new and self.run.budget.proposals is not None and is_early:
            self.simulate(end)

    def simulate_best(self, until: float) -> None:
        """Simulate the best ends of chains, as many as a budget of seconds leaves time for."""
        best = sorted(self.ends.values(), key=lambda end: end.energy)[: self.num_simulated]
        for end in sorted(best, key=lambda end: end.number):
            if self.has_time(until):
                self.simulate(end)
        if self.has_time(until):
            self.simulate_trimmed()

    def simulate_trimmed(self) -> None:
        """Simulate the best end without those of its changes that gain little."""
        if self.best is not None:
            self.simulate(self.without_useless_changes(self.best[1]))

    def has_time(self, until: float) -> bool:
        """Whether there is time to simulate one more end."""
        return self.run.budget.proposals is not None or self.run.budget.is_over() or self.run.spent < until

    def without_useless_changes(self, end: _End) -> _End:
        """An end without those of its changes that gain little by the sketch; the same if there are none."""
        chain = Chain(end.start.configs, end.start.in_pieces, 0, False)
        configs = {name: end.plan[name] for name in end.start.configs}
        plan = end.start.kept | self.chains.without_useless_changes(chain, configs, SMALL_GAIN, SMALL_TOTAL)
        return self.ends.setdefault(frozenset(plan.items()), end._replace(plan=plan))

    def simulate(self, end: _End) -> None:
        """Simulate an end, unless that was done before."""
        key = frozenset(end.plan.items())
        if key not in self.simulated:
            self.simulated.add(key)
            plan = in_pieces(self.run.lowering, end.plan) if end.start.in_pieces else end.plan
            found = self.run.simulate(plan, end.number, end.start.bucket_bytes)
            if found is not None and (self.best is None or found.rank < self.best[0].rank):
                self.best = found, end


def _chain(start: _Start, number: int, count: int) -> Chain:
    return Chain(start.configs, start.in_pieces, count, number % COARSE_EVERY == COARSE_EVERY - 1)


def _starts(
    sieve: SketchedPlans, plans: Mapping[str, Strategy], energy: Mapping[str, float], fitting: Container[str]
) -> list[_Start]:
    """The best plans that differ in the Configs of nodes that sketches have, the best first. Of several that differ in
    other Configs only, such as those of updates, the one without any, if it fits.

    Ranked by their sketches, which are known before plans are simulated: so chains started before that can be used.
    """
    starts: dict[Key, _Start] = {}
    for name in sorted(plans, key=lambda name: energy[name]):
        configs, size = sieve.configs[name], plans[name].bucket_bytes
        kept = {node: config for node, config in plans[name].configs.items() if node not in configs}
        key = frozenset(configs.items())
        if key not in starts or (name in fitting and not kept):
            starts[key] = _Start(configs, sieve.energy[name], kept, name in sieve.in_pieces, size)
    return sorted([*starts.values()][:MOST_STARTS], key=lambda start: start.energy)
