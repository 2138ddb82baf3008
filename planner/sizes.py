"""Sizes: how large the buckets of a plan are, chosen by simulation once a search, which knows none, has ended.

It does not know how buckets are made, nor how plans are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import msgspec

from castile.planner.evaluator import Evaluated, Evaluator
from castile.planner.search import Found, finished, fitting, same
from castile.planner.strategy import Strategy

# The most bytes of one sum: what PyTorch's DDP takes (Li et al., VLDB 2020); more, where a sum takes long to begin; and
# less, where the last one to be made would keep all waiting.
SIZES = (25 * 2**20, 100 * 2**20, 5 * 2**20, 2**20)


def sized(evaluator: Evaluator, plan: Strategy, sizes: Sequence[int] = SIZES) -> Strategy:
    """The plan with buckets of the best of these sizes; without any where that is better, or nothing fits."""
    try:
        return fitting(evaluator, variants(evaluator, plan, sizes))[0].strategy
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


def variants(evaluator: Evaluator, plan: Strategy, sizes: Sequence[int]) -> list[Evaluated]:
    """What the plan is worth without buckets and with those of each size. Raises ValueError where it is none.

    Sizes that tell processors of large machines apart are left out: all tasks of a step would be written out.
    """
    every = [msgspec.structs.replace(plan, bucket_bytes=size) for size in dict.fromkeys((0, *sizes))]
    return [evaluator.evaluate(one) for one in every if evaluator.is_small(one)]
