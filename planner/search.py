"""Search for plans: runs an algorithm within its budget, and holds it to the law that no result is worse than a seed.

It does not know how an algorithm moves through the plans: each is a file of `searches/`, found by its name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import msgspec

from castile.planner.choices.pins import Pins, pinned
from castile.planner.choices.spaces import Spaces
from castile.planner.evaluation.budget import Budget, clock, parse_budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.frontier import Frontier
from castile.planner.evaluation.sizes import variants
from castile.planner.known.seeds import seeds as known_plans
from castile.planner.lower import Lowering
from castile.planner.searches import find
from castile.planner.searching.results import NoPlanFits, SearchResult, best_fitting, complete_plan, matching_seed
from castile.planner.sketch.chains import Chains
from castile.planner.sketch.sketched_plans import FAR, NEAR, SketchedPlans, is_long, should_sketch
from castile.planner.strategy import Config, Strategy, same_tasks
from castile.runtime.transfer import TOO_MANY, TooManyTransfers

NUM_FINALISTS = 32
# The known plan that every result is compared with, whatever a search starts from.
DATA_PARALLEL = "data_parallel"
# The gain in time that makes a patient search go on.
LEAST_GAIN = 1e-3
# Once this share of the budget is spent, seeds keep the buckets that they have: the rest is for the search itself.
BUCKETS_SHARE = 0.5

Configs = Mapping[str, Config]
Plans = Mapping[str, Strategy]
# Called with the share of the budget that is spent, the best plan so far, and the number of proposals since last time.
Progress = Callable[[float, Evaluated, int], None]


@dataclass
class Run:
    """The state of a search: its budget, the plans it evaluated, and the best of them.

    seeds           the known plans to start from, evaluated
    frontier        collects the Pareto front of time and memory, if one is asked for
    num_processes   in which a search may walk in parallel
    pins            of every plan: proposals that violate them are changed
    sieve           sketches of the known plans; None where none were computed
    chains          walks through such sketches, for a search that makes some
    sizes           bucket sizes, of which `choose_bucket_size` chooses
    bucket_bytes    bucket size with which plans are simulated by default
    history         (number of proposals, seconds) whenever a better plan was found
    finalists       the best plans, the best first; at most NUM_FINALISTS
    began           start of the search, on the clock
    """

    evaluator: Evaluator
    budget: Budget
    rng: random.Random
    seeds: dict[str, Evaluated]
    progress: Progress | None = None
    frontier: Frontier[Evaluated] | None = None
    num_processes: int = 1
    pins: Pins | None = None
    sieve: SketchedPlans | None = None
    chains: Chains | None = None
    sizes: Sequence[int] = ()
    bucket_bytes: int = 0
    num_proposals: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)
    finalists: list[Evaluated] = field(default_factory=list)
    began: float = field(default_factory=clock)

    def __post_init__(self) -> None:
        for seed in self.seeds.values():
            self._record(seed)

    @property
    def lowering(self) -> Lowering:
        return self.evaluator.lowering

    @cached_property
    def spaces(self) -> Spaces:
        """The Configs from which a search should choose, by node."""
        return Spaces(self.lowering, self.evaluator.cost, self.pins) if self.sieve is None else self.sieve.spaces

    @property
    def best(self) -> Evaluated:
        return self.finalists[0]

    @property
    def elapsed_seconds(self) -> float:
        return clock() - self.began

    @property
    def spent(self) -> float:
        """The share of the budget that is used up, from 0; 1 or more once it is over."""
        if self.budget.is_over():
            return 1.0
        if self.budget.proposals is not None:
            return self.num_proposals / self.budget.proposals
        assert self.budget.seconds is not None
        return self.elapsed_seconds / self.budget.seconds

    @property
    def should_continue(self) -> bool:
        """Whether a patient search should go on: its plan gained LEAST_GAIN in the second half of the proposals."""
        late = [seconds for number, seconds in self.history if 2 * number > self.num_proposals]
        early = [seconds for number, seconds in self.history if 2 * number <= self.num_proposals]
        if self.budget.is_over() or not self.budget.patient or not late or not early:
            return False
        return late[-1] < early[-1] * (1 - LEAST_GAIN)

    def propose(self, configs: Configs, most_energy: float = inf) -> Evaluated | None:
        """Simulate a plan, at the cost of a proposal; None if it has too many transfers to simulate, or if a bound
        shows that its energy is more than `most_energy`.
        """
        self.num_proposals += 1
        found, configs = None, pinned(configs, self.pins)
        # Updates in a bucket take less time than a bound counts for each of them.
        if most_energy == inf or self.bucket_bytes or self.evaluator.bound(configs) <= most_energy:
            found = self.simulate(configs, self.num_proposals)
        if self.progress is not None:
            self.progress(min(1.0, self.spent), self.best, 1)
        return found

    def simulate(self, configs: Configs, number: int, bucket_bytes: int | None = None) -> Evaluated | None:
        """Simulate a plan that was counted elsewhere as proposal `number`; None if it has too many transfers.

        The plan has buckets of this size, but none where they would make equal processors of a large machine differ.
        """
        plain = self.lowering.plan(pinned(configs, self.pins))
        size = self.bucket_bytes if bucket_bytes is None else bucket_bytes
        bucketed = msgspec.structs.replace(plain, bucket_bytes=size)
        try:
            has_buckets = size and self.evaluator.is_small(bucketed)
            if not has_buckets and not self.evaluator.is_small(plain):
                return None
            found = self.evaluator.evaluate(bucketed if has_buckets else plain)
        except TooManyTransfers:
            return None
        self._record(found, number)
        return found

    def choose_bucket_size(self) -> None:
        """Give each seed its best bucket size, the best seeds first as long as there is time, and simulate plans from
        now on with that of the best seed: of the best one with default updates, if there is any.

        Call it before anything is proposed.
        """
        known = {}
        for name in sorted(self.seeds, key=lambda name: self.seeds[name].rank):
            plan = self.seeds[name].strategy
            # Proposed plans begin no microbatches ahead either.
            known[name] = variants(self.evaluator, plan, self.sizes, lambda: self.spent >= BUCKETS_SHARE, most=0.0)
        self.seeds = {name: min(known[name], key=lambda one: one.rank) for name in self.seeds}
        self.history, self.finalists = [], []
        self.__post_init__()
        num_nodes = len(self.lowering.piece.nodes)
        best = min(self.seeds.values(), key=lambda seed: (len(seed.strategy.configs) > num_nodes, seed.rank))
        self.bucket_bytes = best.strategy.bucket_bytes

    def adopt(self, num_proposals: int, best: Sequence[Evaluated]) -> None:
        """Count proposals that were made elsewhere, and record the best of them."""
        self.num_proposals += num_proposals
        for found in best:
            if pinned(found.strategy.configs, self.pins) == found.strategy.configs:
                self._record(found)
            else:
                self.simulate(found.strategy.configs, self.num_proposals, found.strategy.bucket_bytes)
        if self.progress is not None:
            self.progress(min(1.0, self.spent), self.best, num_proposals)

    def insist(self, name: str) -> Evaluated:
        """The known plan of this name, whether it is better than others or not: the result of the search of that name.

        Raises TooManyTransfers where it has too many transfers to simulate.
        """
        known = known_plans(self.lowering, [name], self.evaluator.cost, self.pins)
        found = self.propose(known[name].configs)
        if found is None:
            raise TooManyTransfers(f"plan {name}: {TOO_MANY}")
        return found

    def _record(self, found: Evaluated, number: int | None = None) -> None:
        """Keep the plan if it is among the best; of equally good plans the first stays first."""
        if self.frontier is not None:
            self.frontier.add(found)
        # A plan with another bucket size has other tasks: it may be faster, or fit where this one does not.
        if any(same_tasks(found.strategy, one.strategy) for one in self.finalists):
            return
        if not self.finalists or found.rank < self.best.rank:
            self.history.append((self.num_proposals if number is None else number, found.seconds))
        self.finalists = sorted([*self.finalists, found], key=lambda e: e.rank)[:NUM_FINALISTS]


def budget_of(name: str, lowering: Lowering, budget: str | Budget) -> Budget:
    """The budget of a search: its own by default, if "" is given. Raises ValueError for text that is no budget."""
    return budget if isinstance(budget, Budget) else parse_budget(budget or find(name, lowering).BUDGET)


def search(
    name: str,
    evaluator: Evaluator,
    budget: str | Budget = "",
    seed: int = 0,
    *,
    progress: Progress | None = None,
    start: Plans | None = None,
    frontier: Frontier[Evaluated] | None = None,
    num_processes: int = 1,
    seeds: Sequence[str] | None = None,
    pins: Pins | None = None,
    sizes: Sequence[int] = (),
) -> SearchResult:
    """Search for the best plan that fits into memory, by the evaluator's objective.

    budget     "5000" proposals or "10s"; "" is the search's own. Counted in proposals a search repeats bit for bit.
    progress   first called once the known plans are evaluated
    start      further plans to start from, by name, which count as seeds
    frontier   is given every plan that is evaluated
    num_processes   in which a search may walk in parallel, if it can; the result is the same
    seeds      names of the known plans to start from, all by default; data parallelism is always evaluated
    pins       of every plan; known plans are changed to respect them
    sizes      bucket sizes: where buckets pay, a search may simulate its plans with them
    Known plans that a sketch puts far behind others are left out if the search walks through sketches anyway or if
    simulating takes seconds; so are those with more transfers than can be simulated (`folding.MOST_TRANSFERS`), and,
    once the budget is over and a plan fits, those that were not asked for.
    The plan is never ranked behind data parallelism or another seed that fits, unless the search insists on a plan.
    Raises ValueError in one sentence for an unknown search or seed or a bad budget, and NoPlanFits, which names the
    largest owners of memory.
    """
    lowering, cost, began = evaluator.lowering, evaluator.cost, clock()
    algorithm = find(name, lowering)
    limits = budget_of(name, lowering, budget).begun()
    starts = _starts(evaluator, seeds, start or {}, pins)
    begin = getattr(algorithm, "begin", None) if is_long(evaluator, limits) else None
    is_sketched = should_sketch(evaluator, begin is not None)
    sieve = SketchedPlans(evaluator, starts.plans, Spaces(lowering, cost, pins), sizes) if is_sketched else None
    most = FAR if frontier is not None or evaluator.objective == "memory" else NEAR
    rng, chains = random.Random(seed), None
    if begin is not None and sieve is not None:
        likely = {*starts.base, *starts.required, *sieve.within(most)}
        plans = {label: plan for label, plan in starts.plans.items() if label in likely}
        chains = begin(sieve, evaluator, limits, plans, rng)
    try:
        known = _evaluated(evaluator, starts, sieve, most, limits.is_over)
        begins = {label: found for label, found in known.items() if label in starts.plans}
        run = Run(
            evaluator, limits, rng, begins, progress, frontier, num_processes, pins, sieve, chains, sizes, began=began
        )
        if progress is not None:
            progress(min(1.0, run.spent), run.best, 0)
        insisted = algorithm.search(run)
    finally:
        if chains is not None:
            chains.stop()
    candidates = [insisted] if insisted else [*known.values(), *run.finalists]
    try:
        best, arena = best_fitting(evaluator, candidates, is_pinned=pins is not None)
    except NoPlanFits as error:
        raise NoPlanFits(str(error), run.num_proposals) from None
    plan, equals = complete_plan(evaluator, best, arena, name, seed), matching_seed(lowering, known, best)
    return SearchResult(
        plan, replace(best, strategy=plan), arena, known, equals, insisted is not None, run.num_proposals,
        run.elapsed_seconds, tuple(run.history), tuple(run.finalists),
    )  # fmt: skip


class _Starts(NamedTuple):
    """Plans to start from, by name.

    required   those asked for, which are evaluated whatever their sketches say
    base       data parallelism, which is evaluated even where it is no start
    """

    plans: Plans
    required: Plans
    base: Plans


def _starts(evaluator: Evaluator, names: Sequence[str] | None, further: Plans, pins: Pins | None) -> _Starts:
    """The known plans of these names, None for all, and further plans, all made to respect the pins."""
    known = known_plans(evaluator.lowering, names, evaluator.cost, pins)
    parallel = known.get(DATA_PARALLEL)
    if parallel is None:
        parallel = known_plans(evaluator.lowering, [DATA_PARALLEL], evaluator.cost, pins)[DATA_PARALLEL]
    base = {DATA_PARALLEL: parallel}
    given = {n: msgspec.structs.replace(plan, configs=pinned(plan.configs, pins)) for n, plan in further.items()}
    plans = known | given or base
    return _Starts(plans, given if names is None else plans, base)


def _evaluated(
    evaluator: Evaluator, starts: _Starts, sieve: SketchedPlans | None, most: float, is_over: Callable[[], bool]
) -> dict[str, Evaluated]:
    """The plans whose energy, by its sketch, is at most `most` times the best one's; up to FAR times if none of them
    fits. Those with the best sketches are evaluated first.

    Plans with too many transfers or tasks to simulate are left out, and so are all others once a plan fits and the
    budget is over. The required plans and the base never are.
    """
    every, required = {**starts.base, **starts.plans}, {**starts.base, **starts.required}
    wanted = list(starts.plans) if sieve is None else sorted(sieve.promising(most), key=sieve.energy.__getitem__)
    found: dict[str, Evaluated] = {}
    for name in (*required, *(name for name in wanted if name not in required)):
        if name not in required and is_over() and any(plan.fits for plan in found.values()):
            break
        try:
            if name in required or evaluator.is_small(every[name]):
                found[name] = evaluator.evaluate(every[name])
        except TooManyTransfers as error:
            if name in required:
                raise TooManyTransfers(f"plan {name}: {error}") from error
    if sieve is not None and most < FAR and not any(plan.fits for plan in found.values()):
        return _evaluated(evaluator, starts, sieve, FAR, is_over)
    return {name: found[name] for name in every if name in found}
