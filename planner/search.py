"""Searching for plans: the budget, what every plan must have, and the law that no search ends behind a seed.

It does not know how a search moves through the plans: each is a file of `searches/`, found by its name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from operator import ge

import msgspec

from castile.planner.choices.pins import Pins, pinned
from castile.planner.choices.spaces import Spaces
from castile.planner.evaluation.budget import Budget, clock, parse_budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.frontier import Frontier
from castile.planner.evaluation.sizes import variants
from castile.planner.known.seeds import seeds as known_plans
from castile.planner.known.seeds import stamped
from castile.planner.lower import Lowering
from castile.planner.searches import find
from castile.planner.sketch.chains import Chains
from castile.planner.sketch.sieve import FAR, NEAR, Sieve, helps, is_long
from castile.planner.strategy import Config, Predicted, Strategy, same_tasks
from castile.runtime.transfer import TOO_MANY, TooManyTransfers

NUM_FINALISTS = 32
# The known plan that no search ends behind, whatever it starts from.
DATA_PARALLEL = "data_parallel"
# What counts as better where a search asks whether it still gets anywhere: a thousandth.
LEAST_GAIN = 1e-3
# Once this share of the budget is spent, seeds keep the buckets that they have: the rest is for the search itself.
SETTLED = 0.5

Configs = Mapping[str, Config]
Plans = Mapping[str, Strategy]
# What is told how much of the budget is spent, the best plan so far, and how many proposals were made since.
Progress = Callable[[float, Evaluated, int], None]


class NoPlanFits(ValueError):
    """No plan that was found fits into memory; the message says what takes most of it in the nearest one.

    num_proposals   how many plans were proposed before it was raised
    """

    def __init__(self, words: str, num_proposals: int = 0) -> None:
        super().__init__(words)
        self.num_proposals = num_proposals


@dataclass
class Run:
    """A search under way: what it may spend, what it has seen, and the best of it.

    seeds      the known plans to start from, evaluated
    sieve      sketches of these and of the known plans that they put far behind; None where none were drawn
    chains     walks through such sketches, for a search that makes some
    frontier   keeps the plans that none beats in both time and memory, where someone asks for them
    num_processes   in how many processes a search may walk in parallel
    pins       what every plan must have: proposals that lack it are changed
    sizes      of buckets, on which a search may `settle`
    bucket_bytes    bucket size with which plans are judged by default
    spaces     the Configs from which a search should choose, by node
    began      when, on the clock
    spent      the share of the budget that is used up, from 0
    history    (number of proposals, seconds) whenever a better plan was found
    """

    evaluator: Evaluator
    budget: Budget
    rng: random.Random
    seeds: dict[str, Evaluated]
    progress: Progress | None = None
    frontier: Frontier[Evaluated] | None = None
    num_processes: int = 1
    pins: Pins | None = None
    sieve: Sieve | None = None
    chains: Chains | None = None
    sizes: Sequence[int] = ()
    bucket_bytes: int = 0
    num_proposals: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)
    finalists: list[Evaluated] = field(default_factory=list)
    began: float = field(default_factory=clock)

    def __post_init__(self) -> None:
        for seed in self.seeds.values():
            self._judge(seed)

    @property
    def lowering(self) -> Lowering:
        return self.evaluator.lowering

    @cached_property
    def spaces(self) -> Spaces:
        return Spaces(self.lowering, self.evaluator.cost, self.pins) if self.sieve is None else self.sieve.spaces

    @property
    def best(self) -> Evaluated:
        return self.finalists[0]

    @property
    def elapsed_seconds(self) -> float:
        return clock() - self.began

    @property
    def spent(self) -> float:
        if self.budget.is_over():
            return 1.0
        if self.budget.proposals is not None:
            return self.num_proposals / self.budget.proposals
        assert self.budget.seconds is not None
        return self.elapsed_seconds / self.budget.seconds

    @property
    def is_restless(self) -> bool:
        """Whether a patient search should go on: the plan has become better by a thousandth in its second half."""
        late = [seconds for number, seconds in self.history if 2 * number > self.num_proposals]
        early = [seconds for number, seconds in self.history if 2 * number <= self.num_proposals]
        if self.budget.is_over() or not self.budget.patient or not late or not early:
            return False
        return late[-1] < early[-1] * (1 - LEAST_GAIN)

    def propose(self, configs: Configs, most: float = inf) -> Evaluated | None:
        """Evaluate a plan, which costs a proposal; None if a bound shows that its energy is more than `most`, or if it
        has too many transfers to simulate.
        """
        self.num_proposals += 1
        found, configs = None, pinned(configs, self.pins)
        # Updates that come together take less than what a bound counts for each.
        if most == inf or self.bucket_bytes or self.evaluator.bound(configs) <= most:
            found = self.judge(configs, self.num_proposals)
        if self.progress is not None:
            self.progress(min(1.0, self.spent), self.best, 1)
        return found

    def judge(self, configs: Configs, number: int, bucket_bytes: int | None = None) -> Evaluated | None:
        """Evaluate a plan that was counted elsewhere as proposal `number`; None as by `propose`.

        It has buckets of that size, unless processors of a large machine would differ by them that are alike without.
        """
        plain = self.lowering.plan(pinned(configs, self.pins))
        size = self.bucket_bytes if bucket_bytes is None else bucket_bytes
        joined = msgspec.structs.replace(plain, bucket_bytes=size)
        try:
            of_size = size and self.evaluator.is_small(joined)
            if not of_size and not self.evaluator.is_small(plain):
                return None
            found = self.evaluator.evaluate(joined if of_size else plain)
        except TooManyTransfers:
            return None
        self._judge(found, number)
        return found

    def settle(self) -> None:
        """Give seeds their best bucket sizes, and judge plans from now on with that of the best seed: of the best one
        with default updates, if there is any.

        Called before anything is proposed. The best seeds come first, as long as there is time.
        """
        known = {}
        for name in sorted(self.seeds, key=lambda name: self.seeds[name].rank):
            plan = self.seeds[name].strategy
            # Plans that are proposed begin nothing ahead either.
            known[name] = variants(self.evaluator, plan, self.sizes, lambda: self.spent >= SETTLED, most=0.0)
        self.seeds = {name: min(known[name], key=lambda one: one.rank) for name in self.seeds}
        self.history, self.finalists = [], []
        self.__post_init__()
        num_nodes = len(self.lowering.piece.nodes)
        best = min(self.seeds.values(), key=lambda seed: (len(seed.strategy.configs) > num_nodes, seed.rank))
        self.bucket_bytes = best.strategy.bucket_bytes

    def adopt(self, num_proposals: int, best: Sequence[Evaluated]) -> None:
        """Count proposals that were made elsewhere, and keep the best of them."""
        self.num_proposals += num_proposals
        for found in best:
            if pinned(found.strategy.configs, self.pins) == found.strategy.configs:
                self._judge(found)
            else:
                self.judge(found.strategy.configs, self.num_proposals, found.strategy.bucket_bytes)
        if self.progress is not None:
            self.progress(min(1.0, self.spent), self.best, num_proposals)

    def insist(self, name: str) -> Evaluated:
        """The known plan of that name, whatever it costs: the result of a search of that name.

        Raises TooManyTransfers where it has too many transfers to simulate.
        """
        known = known_plans(self.lowering, [name], self.evaluator.cost, self.pins)
        found = self.propose(known[name].configs)
        if found is None:
            raise TooManyTransfers(f"plan {name}: {TOO_MANY}")
        return found

    def _judge(self, found: Evaluated, number: int | None = None) -> None:
        """Keep the plan if it is among the best few; of equal ones the first comes first."""
        if self.frontier is not None:
            self.frontier.add(found)
        # With another bucket size it is another plan, which may be faster, or fit where this one does not.
        if any(same_tasks(found.strategy, one.strategy) for one in self.finalists):
            return
        if not self.finalists or found.rank < self.best.rank:
            self.history.append((self.num_proposals if number is None else number, found.seconds))
        self.finalists = sorted([*self.finalists, found], key=lambda e: e.rank)[:NUM_FINALISTS]


@dataclass(frozen=True)
class Found:
    """What a search found.

    strategy           the plan, complete with what it was made for and what is predicted of it
    evaluated          the same as the simulator saw it
    arena_bytes        of each processor, as they will be allocated
    seeds              the known plans that were evaluated too; none that fits is ranked before the plan found
    equals             the seed that the plan is the same as, "" where it is none
    is_insisted        whether the search was for this very plan, whatever others are worth
    history            (number of proposals, seconds) whenever a better plan was found
    finalists          the best few plans that it judged, some of which may be better in another order
    """

    strategy: Strategy
    evaluated: Evaluated
    arena_bytes: tuple[int, ...]
    seeds: dict[str, Evaluated]
    equals: str
    is_insisted: bool
    num_proposals: int
    elapsed_seconds: float
    history: tuple[tuple[int, float], ...]
    finalists: tuple[Evaluated, ...] = ()

    @property
    def lacks_room(self) -> bool:
        """Whether a known plan that does not fit would take less."""
        seconds = self.evaluated.seconds
        return any(seed.seconds < seconds and not seed.fits for seed in self.seeds.values())


def budget_of(name: str, lowering: Lowering, budget: str | Budget) -> Budget:
    """How long a search may look: as it is told, by default its own. Raises ValueError for what is no budget."""
    return budget if isinstance(budget, Budget) else parse_budget(budget or find(name, lowering).BUDGET)


def search(
    name: str,
    evaluator: Evaluator,
    budget: str | Budget = "",
    seed: int = 0,
    *,
    progress: Progress | None = None,
    start: Mapping[str, Strategy] | None = None,
    frontier: Frontier[Evaluated] | None = None,
    num_processes: int = 1,
    seeds: Sequence[str] | None = None,
    pins: Pins | None = None,
    sizes: Sequence[int] = (),
) -> Found:
    """Search for the best plan by the evaluator's objective among those that fit into memory.

    budget     "5000" proposals or "10s"; "" is the search's own. Counted in proposals a search repeats bit for bit.
    progress   called with the share of the budget that is spent, the best plan so far, and how many proposals are new;
               first with what the known plans are worth
    start      further plans to start from, by name, which count as seeds
    frontier   is given every plan that is evaluated
    num_processes   in how many processes a search may walk in parallel, if it can; what it finds is the same
    seeds      the known plans to start from, by name; all by default. Data parallelism counts even where it is not one.
    pins       what every plan must have, known ones too, which are made so
    sizes      of buckets: where these pay, a search may walk and judge with them in mind
    Known plans that a sketch puts far behind others are left out if the search walks through sketches anyway or if
    simulating takes seconds; so are those with more transfers than can be simulated (`folding.MOST_TRANSFERS`), and,
    once the budget is over and a plan fits, those that were not asked for.
    The plan is never ranked behind data parallelism or another seed that fits, unless the search returns one that it
    insists on. Raises ValueError in one sentence for an unknown search or seed, a budget that is none, and NoPlanFits,
    with the largest owners of memory named.
    """
    lowering, cost, began = evaluator.lowering, evaluator.cost, clock()
    module = find(name, lowering)
    limits = budget_of(name, lowering, budget).begun()
    known = known_plans(lowering, seeds, cost, pins)
    parallel = known.get(DATA_PARALLEL) or known_plans(lowering, [DATA_PARALLEL], cost, pins)[DATA_PARALLEL]
    base = {DATA_PARALLEL: parallel}
    begun = (start or {}).items()
    given = {n: msgspec.structs.replace(plan, configs=pinned(plan.configs, pins)) for n, plan in begun}
    plans = known | given or base
    # What is asked for by name is evaluated whatever a sketch says of it.
    given = given if seeds is None else plans
    begin = getattr(module, "begin", None) if is_long(evaluator, limits) else None
    is_sketched = helps(evaluator, begin is not None)
    sieve = Sieve(evaluator, plans, Spaces(lowering, cost, pins), sizes) if is_sketched else None
    rng, chains, is_far = random.Random(seed), None, frontier is not None or evaluator.objective == "memory"
    if begin is not None and sieve is not None:
        wanted = {*base, *given, *sieve.within(FAR if is_far else NEAR)}
        chains = begin(sieve, evaluator, limits, {n: plan for n, plan in plans.items() if n in wanted}, rng)
    try:
        worth = _evaluated(evaluator, base, given, plans, sieve, FAR if is_far else NEAR, limits.is_over)
        starts = {label: found for label, found in worth.items() if label in plans}
        run = Run(
            evaluator, limits, rng, starts, progress, frontier, num_processes, pins, sieve, chains, sizes, began=began
        )
        if progress is not None:
            progress(min(1.0, run.spent), run.best, 0)
        insisted = module.search(run)
    finally:
        if chains is not None:
            chains.stop()
    candidates = [insisted] if insisted else [*worth.values(), *run.finalists]
    try:
        best, arena = fitting(evaluator, candidates, is_pinned=pins is not None)
    except NoPlanFits as error:
        raise NoPlanFits(str(error), run.num_proposals) from None
    plan = finished(evaluator, best, arena, name, seed)
    equals = same(lowering, worth, best)
    return Found(
        plan, replace(best, strategy=plan), arena, worth, equals, insisted is not None, run.num_proposals,
        run.elapsed_seconds, tuple(run.history), tuple(run.finalists),
    )  # fmt: skip


def _evaluated(
    evaluator: Evaluator, base: Plans, given: Plans, known: Plans, sieve: Sieve | None, times: float,
    is_over: Callable[[], bool],
) -> dict[str, Evaluated]:  # fmt: skip
    """The known plans that no sketch puts far behind; where none of them fits, others that are not very far.

    Those with too many transfers or tasks to simulate are left out, unless they were asked for; `base` never is. So are
    those that were not asked for once a plan fits and no time is left. The best by their sketches come first.
    """
    every, asked = {**base, **known}, {**base, **given}
    wanted = list(known) if sieve is None else sorted(sieve.promising(times), key=sieve.energy.__getitem__)
    found: dict[str, Evaluated] = {}
    for name in (*asked, *(name for name in wanted if name not in asked)):
        if name not in asked and is_over() and any(plan.fits for plan in found.values()):
            break
        try:
            if name in asked or evaluator.is_small(every[name]):
                found[name] = evaluator.evaluate(every[name])
        except TooManyTransfers as error:
            if name in asked:
                raise TooManyTransfers(f"plan {name}: {error}") from error
    if sieve is not None and times < FAR and not any(plan.fits for plan in found.values()):
        return _evaluated(evaluator, base, given, known, sieve, FAR, is_over)
    return {name: found[name] for name in every if name in found}


def finished(evaluator: Evaluator, best: Evaluated, arena: tuple[int, ...], name: str, seed: int) -> Strategy:
    """The plan with what it was made for, by which search, and what is predicted of it."""
    # What is predicted in a plan is its training step, of which a forward pass says nothing.
    is_step = evaluator.lowering.mode == "train"
    return msgspec.structs.replace(
        stamped(evaluator.lowering, dict(best.strategy.configs), name, seed),
        recompute=best.strategy.recompute,
        bucket_bytes=best.strategy.bucket_bytes,
        order=best.strategy.order,
        ahead=best.strategy.ahead,
        cost_snapshot=evaluator.cost_snapshot,
        predicted=Predicted(best.seconds, max(arena), best.moved_bytes) if is_step else None,
    )


def fitting(
    evaluator: Evaluator, candidates: Sequence[Evaluated], is_pinned: bool = False
) -> tuple[Evaluated, tuple[int, ...]]:
    """The best plan whose arenas fit, and their bytes: bytes that are alive are only a lower bound of these.

    Where arenas are too long no other order of the same tasks is tried in which as much is alive: to pack a large plan
    takes seconds. Raises NoPlanFits in one sentence, with the largest owners of memory named.
    """
    refused: list[tuple[Evaluated, ValueError]] = []
    for candidate in sorted(candidates, key=lambda e: e.rank):
        # Those that do not fit come last, and the first of them has said why.
        if refused and not candidate.fits:
            break
        if any(_is_as_full(candidate, one) for one, _ in refused):
            continue
        try:
            return candidate, evaluator.pack(candidate.strategy)
        except ValueError as error:
            refused.append((candidate, error))
    limits = " with what is pinned" if is_pinned else ""
    raise NoPlanFits(f"no plan fits{limits}; the nearest one: {refused[0][1]}")


def _is_as_full(one: Evaluated, other: Evaluated) -> bool:
    """Whether it is another order of the same tasks, with as much alive on every processor."""
    ordered = msgspec.structs.replace(one.strategy, order=other.strategy.order, ahead=other.strategy.ahead)
    return same_tasks(ordered, other.strategy) and all(map(ge, one.peak_bytes, other.peak_bytes))


def same(lowering: Lowering, known: Mapping[str, Evaluated], best: Evaluated) -> str:
    """The known plan with the same Configs, also of nodes that either leaves to their defaults; "" if there is none."""
    configs = lowering.configs(best.strategy)
    alike = {n: seed.strategy for n, seed in known.items() if seed.strategy.configs.items() <= configs.items()}
    return next((name for name, plan in alike.items() if lowering.configs(plan) == configs), "")
