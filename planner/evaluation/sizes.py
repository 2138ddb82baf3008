"""Sizes: variants of a plan in bucket size, kernel order and microbatches begun ahead, evaluated by simulation.

It does not know how buckets are made, what an order is, nor how plans are found.
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

# The most bytes of a bucket: that of PyTorch's DDP (Li et al., VLDB 2020); a larger one, for collectives of high
# latency; smaller ones, where a step waits for the last bucket.
SIZES = (25 * 2**20, 100 * 2**20, 5 * 2**20, 2**20)
# A plan that exceeds memory by this share without buckets is not tried with any. The peak with buckets was 0.86 to 1.69
# of that without (small models in 16 bits on 8 processors): less where updates come sooner.
HOPELESS = 1.0
# With equal microbatches begun ahead PATH needs about as much memory as READY: of 1,177 pipelines that it made faster
# (of 2,813) 9 needed less by more than this share.
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
    """Evaluate variants of a plan: with each bucket size and none, in several orders, with microbatches begun ahead.

    All sizes are tried in READY. In the other orders only sizes are tried whose results in READY differ by more than a
    thousandth, and a result is kept if it is better by a thousandth than the same size in READY. The best of each order
    is tried with more and more microbatches begun ahead, as long as each time it is better by a thousandth.

    Sizes are left out that would make processors of one role differ on a large machine, since all tasks of a step would
    have to be written out; and all sizes if the plan without buckets is far from fitting, as they save little memory.

    is_over   called before each variant: once true, no further one is tried
    orders    READY, and those to try after it
    is_base   whether every size is tried in READY even once `is_over`
    most      seconds, or bytes: nothing is begun ahead where the best plan without exceeds this
    Raises ValueError where the plan does not fit graph and machine.
    """
    plain = evaluator.evaluate(msgspec.structs.replace(plan, bucket_bytes=0, order=READY))
    if plain.overflow > HOPELESS:
        return [plain]

    def tried(sizes: Iterable[int], orders: Iterable[str]) -> Iterator[Evaluated]:
        plans = (msgspec.structs.replace(plan, bucket_bytes=s, order=o) for s, o in product(sizes, orders))
        left = (one for one in plans if (is_base and one.order == READY) or not is_over())
        return evaluated(evaluator, filter(evaluator.is_small, left), longest)

    def longest(one: Strategy) -> float:
        """Seconds beyond which a plan is not evaluated: PATH is of no use where it is worse than READY."""
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
    """Whether the energies of two variants differ by at most `least`, so that only one is tried in other orders. A plan
    with buckets and one without must be equal, as they are where there is nothing to join.
    """
    are_both = bool(one.strategy.bucket_bytes) == bool(other.strategy.bucket_bytes)
    return abs(one.energy - other.energy) <= (least if are_both else 0.0)


def _begun_ahead(
    evaluator: Evaluator, found: Sequence[Evaluated], is_over: Callable[[], bool], most: float
) -> list[Evaluated]:
    """The best of each order with as many microbatches begun ahead as pay; each trial more than doubles their number.

    Trials have no buckets, which take longest to simulate. PATH, which begins kernels of later microbatches first, is
    left out where it is worse than READY with nothing begun ahead, which never paid, and where READY lacks much memory,
    which never fitted.
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
    """The plan with `ahead` microbatches begun ahead; `one` itself if that is not better by a thousandth."""
    return next(evaluated(evaluator, [_with(one.strategy, 0, ahead)], lambda plan: (1 - WORTH) * one.energy), one)


def evaluated(
    evaluator: Evaluator, plans: Iterable[Strategy], longest: Callable[[Strategy], float] = lambda plan: inf
) -> Iterator[Evaluated]:
    """Evaluate plans; those that are too large to simulate are left out.

    longest   seconds by plan: slower plans may be left out too, unless plans are ranked by memory
    """
    for plan in plans:
        with suppress(TooManyTransfers):
            found = evaluator.evaluate_within(plan, inf if evaluator.objective == "memory" else longest(plan))
            if found is not None:
                yield found


def _with(plan: Strategy, bucket_bytes: int, ahead: int) -> Strategy:
    return msgspec.structs.replace(plan, bucket_bytes=bucket_bytes, ahead=ahead)
