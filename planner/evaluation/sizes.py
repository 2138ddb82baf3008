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
    """What the plan is worth without buckets and with those of each size in READY, and, without and with the best of
    those sizes that differ by more than a thousandth there, or of all, in those other orders in which it is as much
    better; and the best of each order with more and more microbatches begun ahead, as long as each time that is better
    by a thousandth. Raises ValueError where it is none.

    is_over   asked before each: once it says so no further one is tried
    orders    READY, and those to try after it
    is_base   whether in READY every size is tried even then
    most      nothing is begun ahead where what is best without is worth more seconds, or bytes

    Sizes that tell processors of large machines apart are left out: all tasks of a step would be written out; and of a
    plan of many tasks there all but the first. So are all of them for a plan that is far from fitting without any: they
    save little memory.
    """
    plain = evaluator.evaluate(msgspec.structs.replace(plan, bucket_bytes=0, order=READY))
    if plain.overflow > HOPELESS:
        return [plain]

    def tried(sizes: Iterable[int], orders: Iterable[str]) -> Iterator[Evaluated]:
        plans = (msgspec.structs.replace(plan, bucket_bytes=s, order=o) for s, o in product(sizes, orders))
        left = (one for one in plans if (is_base and one.order == READY) or not is_over())
        return seen(evaluator, filter(evaluator.is_small, left), longest)

    def longest(one: Strategy) -> float:
        """Seconds after which a plan is not looked at further: by PATH none is told that is worse than by READY."""
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
    """Whether what differs by no more than that is taken to be as good in other orders, too; buckets and none are only
    where they are worth the same, as where there is nothing to join.
    """
    are_both = bool(one.strategy.bucket_bytes) == bool(other.strategy.bucket_bytes)
    return abs(one.energy - other.energy) <= (least if are_both else 0.0)


def _begun_ahead(
    evaluator: Evaluator, found: Sequence[Evaluated], is_over: Callable[[], bool], most: float
) -> list[Evaluated]:
    """The best of each order with as many microbatches more begun ahead as pay, each time more than twice as many.

    How many do is seen without buckets, which take longest to make. By PATH kernels of the later microbatches go first:
    none was seen to pay where it is worse without, nor to fit where READY lacks much.
    """
    ahead, count = found[0].strategy.ahead, found[0].strategy.microbatches
    if count == 1:
        return []
    best: dict[str, Evaluated] = {}
    for one in sorted(found, key=lambda one: one.energy):
        best.setdefault(one.strategy.order, one)
    path = min(most, best[READY].energy)
    near = [one.strategy for order, one in best.items() if one.energy <= (path if order == PATH else most)]
    plain = seen(evaluator, (_with(one, 0, ahead) for one in near))
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
    return [*better, *seen(evaluator, sized)]


def _further(evaluator: Evaluator, one: Evaluated, ahead: int) -> Evaluated:
    """The plan with so many microbatches begun ahead; the same where it is seen not to be better by a thousandth."""
    return next(seen(evaluator, [_with(one.strategy, 0, ahead)], lambda plan: (1 - WORTH) * one.energy), one)


def seen(
    evaluator: Evaluator, plans: Iterable[Strategy], longest: Callable[[Strategy], float] = lambda plan: inf
) -> Iterator[Evaluated]:
    """What these plans are worth, but for those that are too large to look at, and, unless they are ranked by memory,
    some of those that take longer than so many seconds.
    """
    for plan in plans:
        with suppress(TooManyTransfers):
            found = evaluator.evaluate_within(plan, inf if evaluator.objective == "memory" else longest(plan))
            if found is not None:
                yield found


def _with(plan: Strategy, bucket_bytes: int, ahead: int) -> Strategy:
    return msgspec.structs.replace(plan, bucket_bytes=bucket_bytes, ahead=ahead)
