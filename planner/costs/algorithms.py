"""Collective algorithms: the seconds of a transfer by each of them, level by level, from latencies and bandwidths.

exchange       the runtime's own over messages: every member to every other, a broadcast by a binomial tree
ring           rings through all members, one for each link that a group has to itself: the least traffic
tree           two binary trees, each for half of the data (all-reduce), or one binomial tree (broadcast): few steps
hierarchical   within the nearest groups first, then between them, each member with its own part of the data

Contention is in the widths of a `Spread`: the bandwidth of a shared link is divided evenly among its possible users. It
does not know which transfers there are, who uses the links, nor what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from castile.runtime import forms
from castile.runtime.levels import Level, Spread
from castile.runtime.machine import EXCHANGE, Machine
from castile.runtime.task import CostKey


class Stage(NamedTuple):
    """A transfer's seconds on one level, where `members` groups of the level below meet in each group of this one."""

    level: str
    members: int
    latency_seconds: float
    transfer_seconds: float


class Way(NamedTuple):
    """An algorithm for a transfer, with its seconds on each level that it crosses, the nearest first.

    at_once        whether all levels carry data at the same time, so that the slowest one decides; else in turn
    more_seconds   the part of the latency that several transfers have beyond one of all their bytes
    """

    algorithm: str
    stages: tuple[Stage, ...]
    at_once: bool = False
    more_seconds: float = 0.0

    @property
    def latency_seconds(self) -> float:
        """The latencies of all steps, which follow one another."""
        return sum(stage.latency_seconds for stage in self.stages)

    @property
    def transfer_seconds(self) -> float:
        """Bytes over bandwidth; where members sum by themselves, over that of their memory too."""
        times = [stage.transfer_seconds for stage in self.stages]
        return max(times, default=0.0) if self.at_once else sum(times)

    @property
    def seconds(self) -> float:
        return self.latency_seconds + self.transfer_seconds


class Transfer(NamedTuple):
    """A collective, or `num_begun` that begin together; nbytes as in CostKey.

    summed_per_second   memory bandwidth of the slowest processor
    task_seconds        overhead a task, where processors send by themselves and are occupied with it
    """

    form: str
    nbytes: float
    members: int
    spread: Spread
    num_begun: int
    summed_per_second: float
    task_seconds: float

    @property
    def rounds(self) -> int:
        """How often all of the data goes round: twice in an all-reduce, which sums it and then spreads it."""
        return 2 if self.form == "all_reduce" else 1

    @property
    def summed_bytes(self) -> float:
        """Bytes that each member reads and writes to sum its part, where members sum by themselves."""
        is_sum = self.form in ("all_reduce", "reduce_scatter")
        return 3 * (self.members - 1) / self.members * self.nbytes if is_sum else 0.0


class Crossed(NamedTuple):
    """A level that a transfer crosses.
    fan        how many groups of the level below meet in one group of this level
    inner      members in such a group of the level below
    outer      members in one group of this level
    rate       bytes per second that a group of the level below can send
    one_rate   bytes per second that one member can send
    """

    level: Level
    fan: int
    inner: int
    outer: int
    rate: float
    one_rate: float

    def stage(self, steps: int, nbytes: float, one: bool = False) -> Stage:
        """A stage of `steps` one after another on this level.

        nbytes   bytes that leave a group in all, or `one` member
        """
        rate = self.one_rate if one else self.rate
        return Stage(self.level.name, self.fan, steps * self.level.latency_seconds, nbytes / rate)


def ways(machine: Machine, key: CostKey) -> tuple[Way, ...]:
    """All ways in which the machine can carry out a transfer, in the order of its algorithms.

    Raises ValueError where it does not have the key's link.
    """
    spread = machine.spread(key.link, key.members)
    slowest = min(p.bytes_per_second for p in machine.kinds)
    task = max(p.task_overhead_seconds for p in machine.kinds) if EXCHANGE in machine.algorithms else 0.0
    t = Transfer(key.name.partition(".")[0], key.nbytes, key.members, spread, key.num_begun, slowest, task)
    if t.form == "move":
        last = crossed(spread, everything=True)[-1].stage(1, t.nbytes, one=True)
        return (Way("direct", (last._replace(latency_seconds=last.latency_seconds + task),)),)
    found = (WAYS[algorithm](t) for algorithm in machine.algorithms)
    return tuple(way for way in found if way is not None)


def cheapest(machine: Machine, key: CostKey) -> Way:
    """The cheapest way; of equal ones that of the machine's first algorithm. Raises ValueError as `ways` does."""
    return min(ways(machine, key), key=lambda way: way.seconds)


def crossed(spread: Spread, everything: bool = False) -> list[Crossed]:
    """The levels on which members meet; with `everything`, all levels between them."""
    inner, found = 1, []
    for level, fan, width in zip(*spread, strict=True):
        if fan > 1 or everything:
            rate = level.bytes_per_second
            found.append(Crossed(level, fan, inner, inner * fan, rate * width, rate * min(1.0, width)))
        inner *= fan
    return found


def _exchange(t: Transfer) -> Way:
    """All members at once over the farthest level: the model by which the forms of transfers are chosen.

    Members are occupied with each of several that begin together, and with its messages from and to every other member.
    """
    last = crossed(t.spread, everything=True)[-1]
    latency = forms.seconds(t.form, 0, t.members, last.level)
    moved = forms.seconds(t.form, t.nbytes, t.members, last.level) - latency
    contended = last.level.bytes_per_second / last.one_rate
    summed = t.summed_bytes / t.summed_per_second
    each = last.level.collective_seconds + 2 * (t.members - 1) * last.level.message_seconds
    more = (t.num_begun - 1) * each
    stage = Stage(last.level.name, t.members, latency + more + t.task_seconds, moved * contended + summed)
    return Way(EXCHANGE, (stage,), more_seconds=more)


def _ring(t: Transfer) -> Way:
    """Pieces go from member to member; a ring has one edge out of every group that it passes (Patarasuk and Yuan 2009).

    Latencies are counted as in NCCL's model of its rings: each hop by its own level. A broadcast is a chain of small
    pieces; an all-to-all has members - 1 rounds, and in round k every member sends to the k-th after it.
    """
    levels = crossed(t.spread)
    if t.form == "all_to_all":
        return Way("ring", tuple(_crossing(t, at) for at in levels))
    volume = t.nbytes if t.form == "broadcast" else t.rounds * (t.members - 1) / t.members * t.nbytes
    total = levels[-1].outer if levels else 1
    stages = (at.stage(t.rounds * (at.fan - 1) * (total // at.outer), volume) for at in levels)
    return Way("ring", tuple(stages), at_once=True)


def _crossing(t: Transfer, at: Crossed) -> Stage:
    """The part of an all-to-all that crosses this level and no farther one."""
    others = at.outer - at.inner
    return at.stage(others, at.inner * others / math.prod(t.spread.counts) * t.nbytes)


def _tree(t: Transfer) -> Way | None:
    """Two trees (Sanders, Speck, Traeff 2009), or a binomial one (Thakur, Rabenseifner, Gropp 2005)."""
    if t.form not in ("all_reduce", "broadcast"):
        return None
    depths = [(at, math.ceil(math.log2(at.fan))) for at in crossed(t.spread)]
    if t.form == "broadcast":
        return Way("tree", tuple(at.stage(depth, depth * t.nbytes, one=True) for at, depth in depths))
    return Way("tree", tuple(at.stage(2 * depth, 2 * t.nbytes) for at, depth in depths), at_once=True)


def _hierarchical(t: Transfer) -> Way | None:
    """A ring on each level: sums are scattered on the way out, gathered on the way back (Cho et al. 2019)."""
    levels = crossed(t.spread)
    if t.form == "broadcast" or len(levels) < 2:
        return None
    if t.form == "all_to_all":
        each = tuple(at.stage(at.fan - 1, at.inner * (at.fan - 1) / at.fan * t.nbytes) for at in levels)
        return Way("hierarchical", each)
    stages = (at.stage(t.rounds * (at.fan - 1), t.rounds * (at.fan - 1) / at.fan * t.nbytes) for at in levels)
    return Way("hierarchical", tuple(stages))


WAYS: dict[str, Callable[[Transfer], Way | None]] = {
    EXCHANGE: _exchange,
    "ring": _ring,
    "tree": _tree,
    "hierarchical": _hierarchical,
}
