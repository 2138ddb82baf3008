"""Sizes: how large the buckets of a plan may be, and what the plan is worth with each, in each order and with how many
microbatches begun ahead, by simulation.

It does not know how buckets are made, nor what an order is, nor how plans are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import inf

import msgspec

from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import WORTH, Evaluator
from castile.planner.strategy import ORDERS, PATH, READY, Strategy
from castile.runtime.transfer import TooManyTransfers

# The most bytes of one sum: what PyTorch's DDP takes (Li et al., VLDB 2020); more, where a sum takes long to begin; and
# less, where the last one to be made would keep all waiting.
SIZES = (25 * 2**20, 100 * 2**20, 5 * 2**20, 2**20)
# A plan that exceeds memory by this share without buckets is taken not to fit with any. Of small models in 16 bits on 8
# processors the peak with buckets was 0.86 to 1.69 of that without: less, where updates come sooner.
HOPELESS = 1.0
# With as many microbatches begun ahead PATH needs as much memory as READY: where it made pipelines
# faster (1,177 of 2,813) it needed less by this share 9 times.
SPARED = 0.02


def variants(
    evaluator: Evaluator,
    plan: Strategy,
    sizes: Sequence[int],
    is_over: Callable[[], bool] = lambda: False,
    orders: Sequence[str] = (READY,),
    is_base: bool = False,
    most: float = inf,
) -> list[Evaluated]:
    """The plan evaluated with each bucket size and without, in several orders, and with microbatches begun ahead.

    All sizes are tried in READY. In the other orders those are tried that differ there by more than a thousandth; of
    their results those are kept that are better by as much than the same size in READY. The best of each order is tried
    with more and more microbatches begun ahead, as long as each time it is better by a thousandth. Raises ValueError
    for what is no plan for this graph and machine.

    is_over   asked before each variant: once it is true no further one is tried
    orders    READY, and those to try after it
    is_base   whether in READY every size is tried even then
    most      nothing is begun ahead where the best plan without takes more seconds, or bytes

    Left out are sizes with which processors of a large machine would differ that are alike without: all tasks of a step
    would have to be written out; there all but the first if a plan has many tasks; and all sizes if the plan without
    buckets is far from fitting, as they save little memory.
    """
    plain = evaluator.evaluate(msgspec.structs.replace(plan, bucket_bytes=0, order=READY))
    if plain.overflow > HOPELESS:
        return [plain]

    def tried(sizes: Iterable[int], orders: Iterable[str]) -> Iterator[Evaluated]:
        plans = (msgspec.structs.replace(plan, bucket_bytes=s, order=o) for s, o in product(sizes, orders))
        left = (one for one in plans if (is_base and one.order == READY) or not is_over())
        return evaluated(evaluator, filter(evaluator.is_small, left), longest)

    def longest(one: Strategy) -> float:
        """Seconds beyond which a plan is not evaluated: in PATH none is of use that is worse than in READY."""
        return ready[one.bucket_bytes] if one.order == PATH else inf

    found = [plain, *tried(dict.fromkeys(size for size in sizes if size), (READY,))]
    unlike = [plain]
    for one in sorted(found, key=lambda one: one.energy):
        if not any(_are_alike(one, other, WORTH * plain.energy) for other in unlike):
            unlike.append(one)
    ready = {one.strategy.bucket_bytes: one.energy for one in found}
    found += tried([one.strategy.bucket_bytes for one in unlike], orders[1:])
    found += _begun_ahead(evaluator, found, is_over, most)
    for one in found:
        if one.strategy.order == READY:
            size = one.strategy.bucket_bytes
            ready[size] = min(ready[size], one.energy)

    def is_worth(one: Evaluated) -> bool:
        return one.strategy.order == READY or one.energy < (1 - WORTH) * ready.get(one.strategy.bucket_bytes, inf)

    return list(filter(is_worth, found))


def _are_alike(one: Evaluated, other: Evaluated, least: float) -> bool:
    """Whether two variants are so near each other, within `least`, that one of them is enough to try in other orders. A
    plan with buckets and one without must be worth the same, as they are where there is nothing to join.
    """
    are_both = bool(one.strategy.bucket_bytes) == bool(other.strategy.bucket_bytes)
    return abs(one.energy - other.energy) <= (least if are_both else 0.0)


def _begun_ahead(
    evaluator: Evaluator, found: Sequence[Evaluated], is_over: Callable[[], bool], most: float
) -> list[Evaluated]:
    """The best of each order with as many microbatches begun ahead as pay; each trial more than doubles their number.

    Trials have no buckets, which take longest to make. In PATH kernels of the later microbatches go first: that never
    paid where PATH was worse than READY without it, nor did it fit where READY lacked much memory.
    """
    ahead, count = found[0].strategy.ahead, found[0].strategy.microbatches
    if count == 1:
        return []
    best: dict[str, Evaluated] = {}
    for one in sorted(found, key=lambda one: one.energy):
        best.setdefault(one.strategy.order, one)
    path = min(most, best[READY].energy)
    near = [one.strategy for order, one in best.items() if one.energy <= (path if order == PATH else most)]
    plain = evaluated(evaluator, (_with(one, 0, ahead) for one in near))
    climbing = {one.strategy.order: one for one in plain}
    reached, better = dict.fromkeys(climbing, ahead), list[Evaluated]()
    lacks = 0.0
    while climbing and (ahead := 2 * ahead + 1) < count:
        for order in sorted(climbing, key=ORDERS.index):
            one = climbing[order]
            is_full = not one.fits or (order == PATH and lacks > SPARED)
            further = one if is_over() or is_full else _further(evaluator, one, ahead)
            lacks = further.overflow if order == READY else lacks
            if further.energy < (1 - WORTH) * one.energy:
                climbing[order], reached[order] = further, ahead
                better.append(further)
            else:
                del climbing[order]
    rows = ((best[order].strategy, ahead) for order, ahead in reached.items())
    sized = (_with(one, one.bucket_bytes, ahead) for one, ahead in rows if ahead > one.ahead)
    return [*better, *evaluated(evaluator, sized)]


def _further(evaluator: Evaluator, one: Evaluated, ahead: int) -> Evaluated:
    """The plan with so many microbatches begun ahead; `one` itself if that is not better by a thousandth."""
    return next(evaluated(evaluator, [_with(one.strategy, 0, ahead)], lambda plan: (1 - WORTH) * one.energy), one)


def evaluated(
    evaluator: Evaluator, plans: Iterable[Strategy], longest: Callable[[Strategy], float] = lambda plan: inf
) -> Iterator[Evaluated]:
    """These plans, evaluated; without those that are too large to simulate, and without some of those that take longer
    than `longest` says, unless plans are ranked by memory.
    """
    for plan in plans:
        with suppress(TooManyTransfers):
            found = evaluator.evaluate_within(plan, inf if evaluator.objective == "memory" else longest(plan))
            if found is not None:
                yield found


def _with(plan: Strategy, bucket_bytes: int, ahead: int) -> Strategy:
    return msgspec.structs.replace(plan, bucket_bytes=bucket_bytes, ahead=ahead)
