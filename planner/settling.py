"""Settling: with buckets of which size a plan is best, and whether a known plan is better then than what was found.

It does not know how buckets are made, nor how plans are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from castile.planner.evaluator import Evaluator
from castile.planner.search import Found, finished, fitting, same
from castile.planner.sizes import SIZES, variants
from castile.planner.strategy import Strategy


def sized(evaluator: Evaluator, plan: Strategy, sizes: Sequence[int] = SIZES) -> Strategy:
    """The plan with buckets of the best of these sizes; without any where that is better, or nothing fits.

    Raises ValueError where it is no plan for this graph and machine, or one of too many transfers.
    """
    every = variants(evaluator, plan, sizes)
    try:
        return fitting(evaluator, every)[0].strategy
    except ValueError:
        return plan


def settled(evaluator: Evaluator, found: Found, sizes: Sequence[int] = SIZES) -> Found:
    """What was found, and the known plans, each with buckets of its best size; the best of all, as by `search`.

    So what was not ranked behind data parallelism without buckets is not ranked behind it with them.
    """
    known = {name: variants(evaluator, worth.strategy, sizes) for name, worth in found.seeds.items()}
    others = () if found.is_insisted else chain.from_iterable(known.values())
    best, arena = fitting(evaluator, [*variants(evaluator, found.strategy, sizes), *others])
    plan = finished(evaluator, best, arena, found.strategy.search, found.strategy.seed)
    seeds = {name: min(each, key=lambda one: one.rank) for name, each in known.items()}
    return replace(
        found, strategy=plan, evaluated=replace(best, strategy=plan), arena_bytes=arena, seeds=seeds,
        equals=same(evaluator.lowering, seeds, best),
    )  # fmt: skip
