"""Levels of links: how far processors are from each other, and how the members of a transfer lie on the links.

It does not know what processors are, what a transfer carries, or how long it takes. Levels come nearest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A level of the link hierarchy: processors p and q of one group (p // group == q // group) reach each other so.

    bytes_per_second: one link's, in one direction. shared_by: processors of a group of the level below (a node, a
    switch) that go through one such link, and divide it among those of them that may use it at once.
    message_seconds, collective_seconds: how long a processor is occupied with each message of a collective (LogP's
    overhead, Culler et al. 1993), and with each round of one besides; latency_seconds has that of a message by itself.
    step_factor: how many times as long as by itself a transfer takes in a step, whose members work and come to it one
    after the other, until it was measured there.
    """

    name: str
    group: int
    latency_seconds: float
    bytes_per_second: float
    shared_by: int = 1
    message_seconds: float = 0.0
    collective_seconds: float = 0.0
    step_factor: float = 1.0


# By level, nearest first: how many processors share the links that leave each group of the level below.
Users = Sequence[Mapping[int, int]]


class Spread(NamedTuple):
    """How the members of a transfer lie on the levels that it crosses, the nearest first.

    counts[k]: groups of the level below (for the nearest: processors) that have members, in one group of level k.
    widths[k]: how many links of level k the members in one group of the level below have to themselves; a half where
    another transfer may use the same link at once.
    """

    levels: tuple[Level, ...]
    counts: tuple[int, ...]
    widths: tuple[float, ...]


def level_name(link: str) -> str:
    """The level of a link's name, without how its members lie."""
    return link.partition(":")[0]


def check(name: str, levels: tuple[Level, ...], num_procs: int) -> None:
    """Raise ValueError where figures are not positive, or levels do not nest or do not hold all processors."""
    inner = 1
    for i, level in enumerate(levels):
        where = f"machine {name!r}: level {level.name!r}"
        if not level.name or level.name in [other.name for other in levels[:i]]:
            raise ValueError(f"{where}: every level needs a name of its own")
        if ":" in level.name:
            raise ValueError(f"{where}: a level's name has no colon; what follows one says how members lie")
        if level.group <= inner or (level.group % inner and level.group < num_procs):
            raise ValueError(f"{where}: group {level.group} must be a multiple of the {inner} below it, and larger")
        if not (math.isfinite(level.bytes_per_second) and level.bytes_per_second > 0):
            raise ValueError(f"{where}: bytes_per_second must be above 0 and finite, not {level.bytes_per_second}")
        seconds = dict.fromkeys(("latency_seconds", "message_seconds", "collective_seconds"), 0)
        for field, least in {**seconds, "step_factor": 1}.items():
            value = getattr(level, field)
            if not (math.isfinite(value) and value >= least):
                raise ValueError(f"{where}: {field} must be at least {least} and finite, not {value}")
        if level.shared_by < 1:
            raise ValueError(f"{where}: shared_by must be at least 1, not {level.shared_by}")
        inner = level.group
    if num_procs > 1 and inner < num_procs:
        raise ValueError(f"machine {name!r}: its outermost level must hold all {num_procs} processors: give "
                         "the last [[level]] no group, or one as large")


def distance(levels: Sequence[Level], p: int, q: int) -> int:
    """0 on one processor, else 1 + the number of the nearest level that joins them."""
    if p == q:
        return 0
    for i, level in enumerate(levels):
        if p // level.group == q // level.group:
            return 1 + i
    raise AssertionError(f"no level joins {p} and {q}")


def groups(levels: Sequence[Level], p: int) -> tuple[int, ...]:
    """The number of a processor's group at each level."""
    return tuple([p // level.group for level in levels])


def users(levels: Sequence[Level], procs: Sequence[int]) -> Users:
    """How many of these processors share the links of each group; nothing for levels whose links are not shared."""
    return [
        Counter(p // _sharing(levels, k) for p in set(procs)) if level.shared_by > 1 else {}
        for k, level in enumerate(levels)
    ]


def crowd(levels: Sequence[Level], p: int, among: Users) -> tuple[int, ...]:
    """How many share the links of each level that lead away from a processor, itself included; 0 where none does."""
    return tuple([users.get(p // _sharing(levels, k), 0) for k, users in enumerate(among)])


def link(levels: Sequence[Level], procs: Sequence[int], among: Users | None = None) -> Level:
    """The farthest level that a transfer over these (at least two different) processors crosses, as they see it.

    Latency and bandwidth are those of a hop of rings through all of them: on average, and of the slowest level. The
    name says, after a colon, how they lie where that is not what `spread` takes for granted. among: those that may use
    the links at once; every processor where it is not given.
    """
    far = max(distance(levels, procs[0], q) for q in procs)
    assert far > 0, f"a transfer over {procs} crosses no link"
    crossed = tuple(levels[:far])
    if (far == 1 or len(procs) == 2) and all(level.shared_by == 1 for level in crossed):
        return crossed[-1]
    lies = _lies(crossed, procs, among)
    hops = [(count - 1) * math.prod(lies.counts[k + 1 :]) for k, count in enumerate(lies.counts)]
    rates = [level.bytes_per_second * width for level, width in zip(crossed, lies.widths, strict=True)]
    return msgspec.structs.replace(
        crossed[-1],
        name=_name(lies, len(procs)),
        latency_seconds=sum(n * level.latency_seconds for n, level in zip(hops, crossed, strict=True)) / sum(hops),
        bytes_per_second=min(rate for n, rate in zip(hops, rates, strict=True) if n),
    )


def spread(levels: Sequence[Level], name: str, members: int) -> Spread:
    """How members lie by the name of their link: `infiniband:8x2` is 8 in each of 2 groups of the level below.

    By the bare name they lie as evenly as they can, on as many groups as they can, and every processor may use the
    links at once; `:1x2@1,0.25` states the widths. Raises ValueError for a name that says something else.
    """
    counts, _, widths = name.partition(":")[2].partition("@")
    try:
        count = tuple(map(int, counts.split("x"))) if counts else _even(levels, members)
        width = tuple(map(float, widths.split(","))) if widths else _widths(levels, count)
    except ValueError as error:
        raise ValueError(f"link {name!r}: {error}; its name ends as in :8x2 or :8x2@1,0.5") from error
    if not len(count) == len(width) == len(levels) or min(*count, *width) <= 0 or math.prod(count) < members:
        raise ValueError(f"link {name!r} crosses {len(levels)} levels; state as many numbers, each above 0, "
                         f"with room for {members} members")  # fmt: skip
    return Spread(tuple(levels), count, width)


def _below(levels: Sequence[Level], k: int) -> int:
    """Processors in a group of the level below level k."""
    return levels[k - 1].group if k else 1


def _sharing(levels: Sequence[Level], k: int) -> int:
    """Processors in the groups within which links of level k are shared: those of the level below, or larger ones."""
    below = _below(levels, k)
    return below if levels[k].shared_by <= below else levels[k].group


def _share(levels: Sequence[Level], k: int, p: int, among: Users | None) -> float:
    """How much of a link of level k processor p has to itself."""
    shared_by = levels[k].shared_by
    if among is None or shared_by == 1:
        return 1 / shared_by
    group = _sharing(levels, k)
    return min(1.0, max(1.0, group / shared_by) / among[k][p // group])


def _lies(levels: Sequence[Level], procs: Sequence[int], among: Users | None) -> Spread:
    counts, widths = [], []
    for k, level in enumerate(levels):
        below = _below(levels, k)
        width: dict[int, float] = {}
        for p in procs:
            width[p // below] = width.get(p // below, 0.0) + _share(levels, k, p, among)
        counts.append(max(Counter(inner * below // level.group for inner in width).values()))
        widths.append(min(width.values()))
    return Spread(tuple(levels), tuple(counts), tuple(widths))


def _name(lies: Spread, members: int) -> str:
    plain = _widths(lies.levels, lies.counts)
    stated = any(not math.isclose(a, b, rel_tol=1e-5) for a, b in zip(lies.widths, plain, strict=True))
    name = lies.levels[-1].name
    if stated or lies.counts != _even(lies.levels, members):
        name += ":" + "x".join(map(str, lies.counts))
    return name + "@" + ",".join(f"{width:g}" for width in lies.widths) if stated else name


def _even(levels: Sequence[Level], members: int) -> tuple[int, ...]:
    """Counts of members that lie on as many groups as they can, as evenly as they can."""
    counts: list[int] = []
    for k in reversed(range(len(levels))):
        fan = min(members, math.ceil(levels[k].group / _below(levels, k))) if k else members
        counts.append(fan)
        members = math.ceil(members / fan)
    return tuple(counts[::-1])


def _widths(levels: Sequence[Level], counts: Sequence[int]) -> tuple[float, ...]:
    """Widths where every processor may use the links at once."""
    return tuple(math.prod(counts[:k]) / level.shared_by for k, level in enumerate(levels[: len(counts)]))
