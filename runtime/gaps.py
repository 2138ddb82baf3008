"""Gaps: where each block of an arena lies, in the tightest gap that those leave which live at the same time.

It does not know what blocks hold, nor whose they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from castile.runtime.compiled import assembled, can_compile

# What came to lie too high has its turn so much sooner the next time.
SOONER = 0.8
# So often blocks are placed until they lie well, and until they have room; of many so many together.
TURNS, TURNS_FOR_ROOM = 4, 64
PLACED, PLACED_FOR_ROOM = 2**18, 2**19
# Of so many blocks an arena will do that is longer than what lives at one time by this share: large plans have hundreds
# of such arenas, which take 20 ms each in each turn.
MANY, NEAR = 4_096, 0.005

# Blocks placed so far lie ascending by offset in lines of at most so many, each at least half full but the first.
LINE = 128
# Those of a part of all times lie on a shelf apart, as most blocks live shortly: of all times there is one shelf, and
# as many halves of one as here, each pair of neighbours a shelf, where there are so many blocks to each.
HALVES, LEAST_EACH = (16, 128, 1024), 512


def placed(size: np.ndarray, begin: np.ndarray, end: np.ndarray, live: int, room: float = np.inf) -> np.ndarray:
    """int64[n]: offsets of n blocks in the shortest arena that is found, each in its turn in the tightest gap.

    size         bytes, of each block
    begin, end   when each comes and goes: others may take its bytes from its end on
    live         the most bytes that live at one time, which no arena undercuts
    room         bytes that there are: where an arena is longer more is tried, unless more than that live at one time
    Turns go by size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, and by
    how much lives beside a block, as in Maas et al., "TelaMalloc", ASPLOS 2022. What came to lie too high has its turn
    sooner the next time, as in Joslin and Clements, "Squeaky Wheel Optimization", JAIR 1999.
    """
    best, shortest = np.zeros(len(size), np.int64), np.inf
    good = live if len(size) < MANY else int(live * (1 + NEAR))
    room = room if room >= live else np.inf
    enough, most = _times(len(size), TURNS, PLACED), _times(len(size), TURNS_FOR_ROOM, PLACED_FOR_ROOM)
    # What is tried does not depend on the room, so more room is never found to be too little.
    for number, (places, length) in enumerate(islice(_arenas(size, begin, end, live), most), 1):
        if length < shortest:
            best, shortest = places, length
        if shortest <= room and (shortest <= good or number >= enough):
            break
    return best


def _arenas(size: np.ndarray, begin: np.ndarray, end: np.ndarray, live: int) -> Iterator[tuple[np.ndarray, int]]:
    """Places of blocks, and the length of their arena, again and again: those that lie in the upper half of what it is
    longer than `live` have their turn sooner the next time.
    """
    first, last = _numbered(begin, end)
    area, beside = size.astype(float) * (end - begin), _most_beside(size, first, last)
    # When a block has its turn, by two orders; of what an order is by the last counts most.
    turns = [np.argsort(np.lexsort(keys)).astype(float) for keys in ((-area, -beside, -size), (first, -beside))]
    for turn in cycle(turns):
        places, length = best_fit(size, first, last, np.argsort(turn, kind="stable"))
        yield places, length
        turn[places + size > (live + length) // 2] *= SOONER


def _times(num_blocks: int, most: int, placed: int) -> int:
    """So many, but fewer times where that would place more blocks together."""
    return max(1, min(most, placed // max(1, num_blocks)))


def _numbered(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The beginnings and ends by numbers from 0 on that come as the times do: int32[n] each."""
    ranks = np.unique(np.concatenate([begin, end]), return_inverse=True)[1].astype(np.int32)
    return ranks[: len(begin)], ranks[len(begin) :]


def _most_beside(size: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """int64[n]: the most bytes that live at one time while a block does, its own too; of what lives for no time: as if
    for a moment.

    Of the moments of a life, 2^k and more but no 2^(k + 1), those of the greatest of the first and of the last 2^k.
    """
    last = np.maximum(last, first + 1)
    moments = int(last.max(initial=0)) + 1
    alive = np.cumsum(np.bincount(first, size, moments) - np.bincount(last, size, moments)).astype(np.int64)
    found, power = np.zeros(len(size), np.int64), np.frexp(last - first)[1] - 1
    for k in range(power.max(initial=-1) + 1):
        mine = np.flatnonzero(power == k)
        found[mine] = np.maximum(alive[first[mine]], alive[last[mine] - 2**k])
        alive = np.maximum(alive[: -(2**k)], alive[2**k :])
    return found


def best_fit(size: np.ndarray, begin: np.ndarray, end: np.ndarray, sequence: np.ndarray) -> tuple[np.ndarray, int]:
    """Places blocks in that sequence, each in the tightest gap that its contemporaries leave; and the arena's length.

    begin, end   numbers from 0 on that come as the times do
    """
    places, lives = np.empty(len(size), np.int64), np.zeros(LINE, np.bool_)
    scratch = lives, lives.view(np.uint64), np.empty(LINE, np.int64)
    length = _loop()(size, begin, end, sequence, places, _shelves(begin, end), *scratch)
    return places, int(length)


class Shelves(NamedTuple):
    """The lines of all shelves.

    step[k], begins[k]   how many ranks half a shelf of a level has, and which shelf is the level's first
    last[k]              the last of its halves with which a shelf begins
    room[s], num[s]      the first line of a shelf, and how many of its lines hold something
    order, filled        of each shelf its lines in order; how many blocks each line has
    low, high            int64[lines, LINE]: offset and end of each block
    since, until         int32[lines, LINE]: from when till when it lives; what is empty never lives
    """

    step: np.ndarray
    begins: np.ndarray
    last: np.ndarray
    room: np.ndarray
    num: np.ndarray
    order: np.ndarray
    filled: np.ndarray
    low: np.ndarray
    high: np.ndarray
    since: np.ndarray
    until: np.ndarray


def _shelves(begin: np.ndarray, end: np.ndarray) -> Shelves:
    """Empty ones, with room for these blocks."""
    most = int(end.max(initial=0)) + 1
    halves = (1, *(number for number in HALVES if number * LEAST_EACH <= len(begin)))
    step = np.array([-(-most // number) for number in halves])
    begins = np.cumsum([0, *halves[:-1]])
    counts = [np.array([len(begin)])]
    for number, each in zip(halves[1:], step[1:], strict=True):
        firsts, lasts = np.maximum(begin // each - 1, 0), np.maximum(end - 1, begin) // each
        come = np.bincount(firsts, minlength=number + 1) - np.bincount(lasts + 1, minlength=number + 1)
        counts.append(np.cumsum(come[:number]))
    lines = 2 * np.concatenate(counts) // LINE + 2
    room, total = np.cumsum(lines) - lines, int(lines.sum())
    order, filled = np.zeros((2, total), np.int64)
    order[room] = room
    low, high = np.empty((2, total, LINE), np.int64)
    since, until = np.zeros((total, LINE), np.int32), np.full((total, LINE), -1, np.int32)
    num = np.ones(len(room), np.int64)
    return Shelves(step, begins, np.array(halves) - 1, room, num, order, filled, low, high, since, until)


@cache
def _loop() -> Any:
    """`fill`, compiled where numba is installed."""
    return assembled([fill], [gap, put], [], nogil=True)[0] if can_compile() else fill


def fill(size, begin, end, sequence, places, shelves, lives, eights, there):  # type: ignore[no-untyped-def]
    """The length of the arena in which blocks have been placed in that sequence; the rest is room to work in."""
    length = 0
    for block in sequence:
        need, first, last = size[block], begin[block], end[block]
        # The smallest shelf with all that live at the same time.
        shelf = 0
        for level in range(1, len(shelves.step)):
            half = first // shelves.step[level]
            if last <= (half + 2) * shelves.step[level]:
                shelf = shelves.begins[level] + half
        place = gap(shelves, shelf, need, first, last, lives, eights, there)
        places[block] = place
        length = max(length, place + need)
        put(shelves, 0, place, place + need, first, last)
        for level in range(1, len(shelves.step)):
            step = shelves.step[level]
            for half in range(max(first // step - 1, 0), max(last - 1, first) // step + 1):
                put(shelves, shelves.begins[level] + half, place, place + need, first, last)
    return length


def gap(shelves, shelf, need, first, last, lives, eights, there):  # type: ignore[no-untyped-def]
    """The offset of the tightest gap of so many bytes between those of a shelf that live at these times.

    lives, eights   bool[LINE], and the same memory as uint64: who lives at the same time is asked of a line at once;
                    eight who do not are passed over together
    there           int64[LINE]
    """
    top, offset, tightest = 0, 0, -1
    begin = shelves.room[shelf]
    for number in range(begin, begin + shelves.num[shelf]):
        line = shelves.order[number]
        lows, highs, begins, ends = shelves.low[line], shelves.high[line], shelves.since[line], shelves.until[line]
        for i in range(LINE):
            lives[i] = (begins[i] < last) & (ends[i] > first)
        met = 0
        for eight in range(LINE // 8):
            if eights[eight]:
                for i in range(8 * eight, 8 * eight + 8):
                    there[met] = i
                    met += lives[i]
        for which in range(met):
            i = there[which]
            between = lows[i] - top
            if between >= need and (tightest < 0 or between < tightest):
                offset, tightest = top, between
            top = max(top, highs[i])
        if tightest == need:
            # None is tighter.
            break
    return offset if tightest >= 0 else top


def put(shelves, shelf, place, end, first, last):  # type: ignore[no-untyped-def]
    """A block takes its place on a shelf; a line that is full becomes two."""
    begin, order, filled = shelves.room[shelf], shelves.order, shelves.filled
    low, high, since, until = shelves.low, shelves.high, shelves.since, shelves.until
    # The last line that begins no higher, or the first.
    number, last_one = begin, begin + shelves.num[shelf] - 1
    while number < last_one:
        middle = (number + last_one + 1) // 2
        if low[order[middle], 0] > place:
            last_one = middle - 1
        else:
            number = middle
    line = order[number]
    if filled[line] == LINE:
        half, new = LINE // 2, begin + shelves.num[shelf]
        for i in range(half):
            low[new, i], high[new, i] = low[line, half + i], high[line, half + i]
            since[new, i], until[new, i] = since[line, half + i], until[line, half + i]
            until[line, half + i] = -1
        filled[line] = filled[new] = half
        for after in range(new, number + 1, -1):
            order[after] = order[after - 1]
        order[number + 1] = new
        shelves.num[shelf] += 1
        if low[new, 0] <= place:
            line = new
    hole = filled[line]
    while hole > 0 and low[line, hole - 1] > place:
        low[line, hole], high[line, hole] = low[line, hole - 1], high[line, hole - 1]
        since[line, hole], until[line, hole] = since[line, hole - 1], until[line, hole - 1]
        hole -= 1
    low[line, hole], high[line, hole], since[line, hole], until[line, hole] = place, end, first, last
    filled[line] += 1
