"""Refinement, the end of a search: tries bucket sizes, task orders and updates in pieces for the plan that was found,
for known plans and for finalists, and keeps the best.

It does not know how buckets are made, what an order is, nor how plans are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter

import msgspec

from castile.planner.choices.pins import Pins, pinned
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import SIZES, evaluated, variants
from castile.planner.known.pieces import in_pieces
from castile.planner.known.seeds import seeds
from castile.planner.lowering.stages import num_stages
from castile.planner.search import DATA_PARALLEL
from castile.planner.searching.results import SearchResult, best_fitting, complete_plan, matching_seed
from castile.planner.sketch.sketched_plans import num_parts
from castile.planner.strategy import ORDERS, PATH, READY, Strategy

# Refinement may take this share of a search's time budget in addition.
REFINEMENT_SHARE = 0.1
# Beginning microbatches ahead was seen to save up to a third: it is not tried with known plans that take more than
# MOST_SLOWDOWN times as long as the plan that was found; nor are other orders where plans have more than QUICK_PARTS,
# as each order then takes seconds.
MOST_SLOWDOWN, QUICK_PARTS = 1.5, 10_000
# Where plans have more than SEARCHED_PARTS a search takes a minute and gains a percent: a known plan is taken as it is.
# Each of their pipelines takes seconds to simulate in any order, so known ones are tried in KNOWN_PLAN_ORDERS only.
SEARCHED_PARTS, KNOWN_PLAN_ORDERS = 50_000, (READY, PATH)
# Buckets and an order were seen to save up to a third with one plan and nothing with the next: they are tried with
# finalists that take at most this many times as long as the best finalist.
FINALIST_SLOWDOWN = 1.25
# The same for memory, of which buckets and an order save little.
FINALIST_MEMORY = 1.02


def with_best_buckets(evaluator: Evaluator, plan: Strategy, sizes: Sequence[int] = SIZES) -> Strategy:
    """The plan with the best of these bucket sizes or none, in its best order; unchanged if nothing fits.

    Raises ValueError where it is no plan for this graph and machine, or has too many transfers.
    """
    every = variants(evaluator, plan, sizes, orders=ORDERS)
    try:
        return best_fitting(evaluator, every)[0].strategy
    except ValueError:
        return plan


def refine(
    evaluator: Evaluator, result: SearchResult, sizes: Sequence[int] = SIZES,
    is_over: Callable[[], bool] = lambda: False, orders: Sequence[str] = ORDERS, pins: Pins | None = None,
) -> SearchResult:  # fmt: skip
    """The best of the plan found, the known plans and the close finalists, each with its best bucket size in its best
    order; with its updates in pieces if that is better.

    A plan that is not ranked behind data parallelism without buckets is not ranked behind it with them either.

    sizes     of buckets, in bytes
    is_over   once true, nothing further is tried but bucket sizes of data parallelism, if it competes
    pins      of updates in pieces
    """
    tuner = _Tuner(evaluator, result, sizes, orders, is_over)
    parallel = [] if result.is_insisted else tuner.tried(result.seeds[DATA_PARALLEL].strategy, is_base=True)
    own = tuner.tried(result.strategy)
    known = tuner.known_plans(parallel, own)
    # The plan found has a bucket size too, which may not have been tried for lack of time.
    every = [*own, *(() if result.is_insisted else chain(*known.values())), result.evaluated]
    if not result.is_insisted:
        every += [*tuner.close_finalists(every)]
        every += () if is_over() else with_updates_in_pieces(evaluator, _best(every), sizes, pins)
    best, arena = best_fitting(evaluator, every)
    plan = complete_plan(evaluator, best, arena, result.strategy.search, result.strategy.seed)
    best_of = {name: _best(each) for name, each in known.items()}
    return replace(
        result, strategy=plan, evaluated=replace(best, strategy=plan), arena_bytes=arena, seeds=best_of,
        equals=matching_seed(evaluator.lowering, best_of, best),
    )  # fmt: skip


@dataclass(frozen=True)
class _Tuner:
    """Tries bucket `sizes` and task `orders` of plans at the end of the search that returned `result`.

    Where plans have many parts a plan's kernels are bounded first. If they keep a processor busy for longer than the
    best plan takes, no order, buckets or microbatches begun ahead make the plan better.
    """

    evaluator: Evaluator
    result: SearchResult
    sizes: Sequence[int]
    orders: Sequence[str]
    is_over: Callable[[], bool]

    def tried(
        self, plan: Strategy, sizes: Sequence[int] | None = None, is_base: bool = False, is_far: bool = False
    ) -> list[Evaluated]:
        """The plan with buckets of each size, in each order that is worth trying; only in the first if `is_far`."""
        is_other = self._num_parts > SEARCHED_PARTS and plan.configs != self.result.strategy.configs
        is_long = is_other and num_stages(plan, self.evaluator.lowering.graph.nodes) > 1
        orders = [order for order in self.orders if order in KNOWN_PLAN_ORDERS] if is_long else self.orders
        orders = orders[:1] if is_far else orders
        sizes = self.sizes if sizes is None else sizes
        return variants(self.evaluator, plan, sizes, self.is_over, orders, is_base, self._most_energy)

    def known_plans(self, parallel: list[Evaluated], own: list[Evaluated]) -> dict[str, list[Evaluated]]:
        """The variants tried of each known plan, by name. The best known plan is tried first.

        parallel   variants tried of data parallelism, if any
        own        variants tried of the plan that was found
        """
        every = {DATA_PARALLEL: parallel} if parallel else {}
        best = _best([self.result.evaluated, *own, *parallel])
        for name, one in sorted(self.result.seeds.items(), key=lambda pair: pair[1].rank):
            if self._is_for_memory and one.energy > self._most_ratio * self.result.evaluated.energy:
                every[name] = [one]
            elif name not in every:
                is_far = self._is_slow and one.fits and one.energy > self._most_energy
                every[name] = [one] if self._is_beaten(one, best) else self.tried(one.strategy, is_far=is_far)
            best = _best([best, *every[name]])
        return {name: every[name] for name in self.result.seeds}

    def close_finalists(self, others: Sequence[Evaluated]) -> Iterator[Evaluated]:
        """Variants of the finalists close to the best finalist: each with its own bucket size and with that of the best
        of `others` that has buckets; then with all sizes, the best first, while that beats all others.
        """
        best, every = _best(others), list[tuple[Evaluated, Strategy]]()
        finalists = [one for one in self.result.finalists if not self._is_beaten(one, best)]
        with_buckets = (one for one in others if one.strategy.bucket_bytes)
        best_size = min(with_buckets, key=attrgetter("rank"), default=best).strategy.bucket_bytes
        most = self._most_ratio * min((one.energy for one in finalists), default=0.0)
        for plan in [one.strategy for one in finalists if one.energy <= most]:
            if self.is_over():
                break
            tried = self.tried(plan, (plan.bucket_bytes, best_size))
            yield from tried
            every.append((_best(tried), plan))
        for quick, plan in sorted(every, key=lambda pair: pair[0].rank):
            if quick.rank >= best.rank or self.is_over():
                break
            tried = self.tried(plan)
            yield from tried
            best = _best([best, *tried])

    def _is_beaten(self, one: Evaluated, by: Evaluated) -> bool:
        """Whether no order and no buckets make a plan better than another."""
        if not (self._is_slow and by.fits):
            return False
        # Only nodes of the graph: buckets change what updates take.
        nodes = {name: one.strategy.configs[name] for name in self.evaluator.lowering.piece.nodes}
        return self.evaluator.bound(nodes) > by.energy

    @property
    def _most_energy(self) -> float:
        return MOST_SLOWDOWN * self.result.evaluated.energy

    @property
    def _most_ratio(self) -> float:
        return FINALIST_MEMORY if self._is_for_memory else FINALIST_SLOWDOWN

    @property
    def _is_for_memory(self) -> bool:
        return self.evaluator.objective == "memory"

    @property
    def _is_slow(self) -> bool:
        return self._num_parts > QUICK_PARTS

    @cached_property
    def _num_parts(self) -> int:
        return num_parts(self.evaluator)


def _best(every: Iterable[Evaluated]) -> Evaluated:
    return min(every, key=attrgetter("rank"))


def refine_known(
    evaluator: Evaluator, plan: Strategy, pins: Pins | None, is_over: Callable[[], bool], orders: Sequence[str]
) -> SearchResult:
    """The result of refining a known plan as if a search had found it, reported under the plan's own name."""
    (base,) = seeds(evaluator.lowering, [DATA_PARALLEL], evaluator.cost, pins).values()
    known = {DATA_PARALLEL: evaluator.evaluate(base), plan.search: evaluator.evaluate(plan)}
    result = SearchResult(plan, known[plan.search], (), known, plan.search, False, 1, 0.0, (), ())
    return refine(evaluator, result, (), is_over, orders, pins)


def with_updates_in_pieces(
    evaluator: Evaluator, best: Evaluated, sizes: Sequence[int], pins: Pins | None
) -> Iterator[Evaluated]:
    """The plan with its updates in pieces, with its own buckets and, where that is better, with those of other sizes.

    Nothing if its updates are in pieces already.
    """
    configs = pinned(in_pieces(evaluator.lowering, best.strategy.configs), pins)
    plan = msgspec.structs.replace(best.strategy, configs=configs)
    if plan.configs == best.strategy.configs:
        return
    for one in evaluated(evaluator, [plan]):
        yield one
        if one.rank < best.rank:
            others = sorted({0, *sizes} - {plan.bucket_bytes})
            bucketed = (msgspec.structs.replace(plan, bucket_bytes=size) for size in others)
            yield from evaluated(evaluator, filter(evaluator.is_small, bucketed))
