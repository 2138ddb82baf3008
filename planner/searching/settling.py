"""Settling, the end of a search: bucket size and order of tasks for what was found and for known plans, the best of
these, and whether that is better with its updates in pieces.

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
from castile.planner.search import DATA_PARALLEL, Found, finished, fitting, same
from castile.planner.sketch.sieve import num_parts
from castile.planner.strategy import ORDERS, PATH, READY, Strategy

# Settling may take this share of a search's time budget in addition.
SETTLING = 0.1
# Beginning microbatches ahead was seen to save up to a third: it is not tried with known plans that take more than NEAR
# times what was found; nor are other orders where plans have more than QUICK_PARTS, as each then takes seconds.
NEAR, QUICK_PARTS = 1.5, 10_000
# Where plans have more than SEARCHED_PARTS a search takes a minute and gains a percent: a known plan is taken as it is.
# Each of their pipelines takes seconds to simulate in any order, so known ones are tried in OF_KNOWN only.
SEARCHED_PARTS, OF_KNOWN = 50_000, (READY, PATH)
# Buckets and an order were seen to save up to a third with one plan and nothing with the next: they are tried with
# finalists that take at most so many times as long as the best one without.
CLOSE = 1.25
# The same for memory, of which buckets and an order save little.
SMALL_CLOSE = 1.02


def sized(evaluator: Evaluator, plan: Strategy, sizes: Sequence[int] = SIZES) -> Strategy:
    """The plan with the best of these bucket sizes or none, in its best order; as it is if nothing fits.

    Raises ValueError where it is no plan for this graph and machine, or one of too many transfers.
    """
    every = variants(evaluator, plan, sizes, orders=ORDERS)
    try:
        return fitting(evaluator, every)[0].strategy
    except ValueError:
        return plan


def settled(
    evaluator: Evaluator, found: Found, sizes: Sequence[int] = SIZES, is_over: Callable[[], bool] = lambda: False,
    orders: Sequence[str] = ORDERS, pins: Pins | None = None,
) -> Found:  # fmt: skip
    """The best of what was found, the known plans and those finalists that came near, each with its best bucket size in
    its best order; with its updates in pieces if it is better so.

    is_over   once it is true nothing further is tried, but bucket sizes of data parallelism if it competes
    pins      what updates in pieces must have
    So a plan that is not ranked behind data parallelism without buckets is not ranked behind it with them.
    """
    end = _Settling(evaluator, found, sizes, orders, is_over)
    parallel = [] if found.is_insisted else end.tried(found.seeds[DATA_PARALLEL].strategy, is_base=True)
    mine = end.tried(found.strategy)
    known = end.known(parallel, mine)
    # What was found has a bucket size too, which may not have been tried for lack of time.
    every = [*mine, *(() if found.is_insisted else chain(*known.values())), found.evaluated]
    if not found.is_insisted:
        every += [*end.near(every)]
        every += () if is_over() else pieced(evaluator, _best(every), sizes, pins)
    best, arena = fitting(evaluator, every)
    plan = finished(evaluator, best, arena, found.strategy.search, found.strategy.seed)
    best_of = {name: _best(each) for name, each in known.items()}
    return replace(
        found, strategy=plan, evaluated=replace(best, strategy=plan), arena_bytes=arena, seeds=best_of,
        equals=same(evaluator.lowering, best_of, best),
    )  # fmt: skip


@dataclass(frozen=True)
class _Settling:
    """Tries bucket `sizes` and `orders` of plans as a search ends, which returned `found`.

    Where plans have many parts a plan's kernels are bounded first: one that keeps a processor busy for longer than the
    best plan takes cannot be better in any order, with any buckets or with microbatches begun ahead.
    """

    evaluator: Evaluator
    found: Found
    sizes: Sequence[int]
    orders: Sequence[str]
    is_over: Callable[[], bool]

    def tried(
        self, plan: Strategy, sizes: Sequence[int] | None = None, is_base: bool = False, is_far: bool = False
    ) -> list[Evaluated]:
        """The plan with buckets of each size, in each order that is worth it."""
        is_other = self._parts > SEARCHED_PARTS and plan.configs != self.found.strategy.configs
        is_long = is_other and num_stages(plan, self.evaluator.lowering.graph.nodes) > 1
        ways = [order for order in self.orders if order in OF_KNOWN] if is_long else self.orders
        tried = self.sizes if sizes is None else sizes
        return variants(self.evaluator, plan, tried, self.is_over, ways[:1] if is_far else ways, is_base, self._most)

    def known(self, parallel: list[Evaluated], mine: list[Evaluated]) -> dict[str, list[Evaluated]]:
        """The variants of each known plan that were tried, by name; the best plan is tried first.

        parallel   the variants of data parallelism, if any were tried
        mine       those of the plan that was found
        """
        every = {DATA_PARALLEL: parallel} if parallel else {}
        best = _best([self.found.evaluated, *mine, *parallel])
        for name, one in sorted(self.found.seeds.items(), key=lambda pair: pair[1].rank):
            if self._is_sparing and one.energy > self._close * self.found.evaluated.energy:
                every[name] = [one]
            elif name not in every:
                is_far = self._is_dear and one.fits and one.energy > self._most
                every[name] = [one] if self._is_beaten(one, best) else self.tried(one.strategy, is_far=is_far)
            best = _best([best, *every[name]])
        return {name: every[name] for name in self.found.seeds}

    def near(self, known: Sequence[Evaluated]) -> Iterator[Evaluated]:
        """The finalists close to the best of them, each with its own bucket size and that of the best of `known` that
        has buckets; then the best of these with all sizes, as long as it beats all that were tried with all.
        """
        best, every = _best(known), list[tuple[Evaluated, Strategy]]()
        finalists = [one for one in self.found.finalists if not self._is_beaten(one, best)]
        with_buckets = (one for one in known if one.strategy.bucket_bytes)
        like = min(with_buckets, key=attrgetter("rank"), default=best).strategy.bucket_bytes
        most = self._close * min((one.energy for one in finalists), default=0.0)
        for plan in [one.strategy for one in finalists if one.energy <= most]:
            if self.is_over():
                break
            ways = self.tried(plan, (plan.bucket_bytes, like))
            yield from ways
            every.append((_best(ways), plan))
        for worth, plan in sorted(every, key=lambda pair: pair[0].rank):
            if worth.rank >= best.rank or self.is_over():
                break
            ways = self.tried(plan)
            yield from ways
            best = _best([best, *ways])

    def _is_beaten(self, one: Evaluated, by: Evaluated) -> bool:
        """Whether no order and no buckets make a plan better than another."""
        if not (self._is_dear and by.fits):
            return False
        # Only nodes of the graph: buckets change what updates take.
        nodes = {name: one.strategy.configs[name] for name in self.evaluator.lowering.piece.nodes}
        return self.evaluator.bound(nodes) > by.energy

    @property
    def _most(self) -> float:
        return NEAR * self.found.evaluated.energy

    @property
    def _close(self) -> float:
        return SMALL_CLOSE if self._is_sparing else CLOSE

    @property
    def _is_sparing(self) -> bool:
        return self.evaluator.objective == "memory"

    @property
    def _is_dear(self) -> bool:
        return self._parts > QUICK_PARTS

    @cached_property
    def _parts(self) -> int:
        return num_parts(self.evaluator)


def _best(every: Iterable[Evaluated]) -> Evaluated:
    return min(every, key=attrgetter("rank"))


def settled_known(
    evaluator: Evaluator, plan: Strategy, pins: Pins | None, is_over: Callable[[], bool], orders: Sequence[str]
) -> Found:
    """A known plan, without buckets, settled as if a search had found it, and reported under its own name."""
    (base,) = seeds(evaluator.lowering, [DATA_PARALLEL], evaluator.cost, pins).values()
    worth = {DATA_PARALLEL: evaluator.evaluate(base), plan.search: evaluator.evaluate(plan)}
    found = Found(plan, worth[plan.search], (), worth, plan.search, False, 1, 0.0, (), ())
    return settled(evaluator, found, (), is_over, orders, pins)


def pieced(evaluator: Evaluator, best: Evaluated, sizes: Sequence[int], pins: Pins | None) -> Iterator[Evaluated]:
    """The plan with its updates in pieces, in its order, with its buckets and, where that is better, with others."""
    configs = pinned(in_pieces(evaluator.lowering, best.strategy.configs), pins)
    plan = msgspec.structs.replace(best.strategy, configs=configs)
    for one in evaluated(evaluator, [plan] if plan.configs != best.strategy.configs else []):
        yield one
        if one.rank < best.rank:
            others = {0, *sizes} - {plan.bucket_bytes}
            joined = (msgspec.structs.replace(plan, bucket_bytes=size) for size in sorted(others))
            yield from evaluated(evaluator, filter(evaluator.is_small, joined))
