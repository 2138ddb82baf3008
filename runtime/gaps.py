"""Best fit: places the blocks of an arena, each in the tightest gap between the blocks that live at the same time.

It does not know what blocks hold, nor whose they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from castile.runtime.compiled import assembled, can_compile

# The rank of a block that lay too high is multiplied by this for the next attempt.
SOONER = 0.8
# The most attempts, and where the arena has no room; the most blocks placed in all attempts together.
TURNS, TURNS_FOR_ROOM = 4, 64
PLACED, PLACED_FOR_ROOM = 2**18, 2**19
# An arena of this many blocks may exceed the bytes alive at one time by this share: large plans have hundreds of such
# arenas, and an attempt takes 20 ms.
MANY, NEAR = 4_096, 0.005

# The placed blocks are in lines of at most this many, ascending by offset, each at least half full but the first.
LINE = 128
# As most blocks live shortly, the blocks of a part of all times are also on a shelf of their own. One shelf is for all
# times; a level with n halves has a shelf for each pair of neighbouring halves, if there are LEAST_EACH blocks a half.
HALVES, LEAST_EACH = (16, 128, 1024), 512


def placed(size: np.ndarray, begin: np.ndarray, end: np.ndarray, live: int, room: float = np.inf) -> np.ndarray:
    """int64[n]: the offsets of n blocks in the shortest arena that several attempts find.

    size         bytes of each block
    begin, end   when each is allocated and freed: others may take its bytes from its end on
    live         the most bytes alive at one time, a lower bound of the arena
    room         bytes of memory: where an arena is longer more attempts are made, unless `live` is more

    Each attempt places block after block by best fit. Blocks are ordered by size, as in Pisarchyk and Lee, "Efficient
    Memory Management for Deep Neural Net Inference", 2020, and by the bytes alive beside them, as in Maas et al.,
    "TelaMalloc", ASPLOS 2022, in alternation. Blocks that lay too high come sooner in the next attempt, as in Joslin
    and Clements, "Squeaky Wheel Optimization", JAIR 1999.
    """
    best, shortest = np.zeros(len(size), np.int64), np.inf
    good = live if len(size) < MANY else int(live * (1 + NEAR))
    room = room if room >= live else np.inf
    enough, most = _times(len(size), TURNS, PLACED), _times(len(size), TURNS_FOR_ROOM, PLACED_FOR_ROOM)
    # The attempts do not depend on the room, so more room is never found to be too little.
    for number, (places, length) in enumerate(islice(_arenas(size, begin, end, live), most), 1):
        if length < shortest:
            best, shortest = places, length
        if shortest <= room and (shortest <= good or number >= enough):
            break
    return best


def _arenas(size: np.ndarray, begin: np.ndarray, end: np.ndarray, live: int) -> Iterator[tuple[np.ndarray, int]]:
    """Attempts without end: offsets of blocks, and the length of the arena. Blocks in the upper half of its excess over
    `live` come sooner the next time.
    """
    first, last = _numbered(begin, end)
    area, beside = size.astype(float) * (end - begin), _most_beside(size, first, last)
    # The ranks of blocks in two orders; the last key of `lexsort` is the first criterion.
    turns = [np.argsort(np.lexsort(keys)).astype(float) for keys in ((-area, -beside, -size), (first, -beside))]
    for turn in cycle(turns):
        places, length = best_fit(size, first, last, np.argsort(turn, kind="stable"))
        yield places, length
        turn[places + size > (live + length) // 2] *= SOONER


def _times(num_blocks: int, most: int, placed: int) -> int:
    """The number of attempts: `most`, or fewer if they would place more than `placed` blocks in all; at least one."""
    return max(1, min(most, placed // max(1, num_blocks)))


def _numbered(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int32[n] each: begin and end times replaced by their ranks among all times."""
    ranks = np.unique(np.concatenate([begin, end]), return_inverse=True)[1].astype(np.int32)
    return ranks[: len(begin)], ranks[len(begin) :]


def _most_beside(size: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """int64[n]: the most bytes alive at one time during each block's life, its own included. A block that lives for no
    time counts as living for one moment.

    Range maxima by a sparse table: the maximum over a life of 2^k to 2^(k + 1) - 1 moments is that over its first and
    its last 2^k.
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
    """Place blocks in a sequence, each in the tightest gap between the blocks that live at the same time.

    Returns the offsets, and the length of the arena.

    begin, end   ranks of times
    """
    places, lives = np.empty(len(size), np.int64), np.zeros(LINE, np.bool_)
    scratch = lives, lives.view(np.uint64), np.empty(LINE, np.int64)
    length = _loop()(size, begin, end, sequence, places, _shelves(begin, end), *scratch)
    return places, int(length)


class Shelves(NamedTuple):
    """The placed blocks: levels k of shelves s, which have lines of blocks.

    step[k], begins[k]   the width of half a shelf, in ranks of times, and the level's first shelf
    last[k]              the level's last half
    room[s], num[s]      a shelf's first line, and the number of its lines in use
    order, filled        the lines of each shelf in order; the number of blocks of each line
    low, high            int64[lines, LINE]: begin and end offset of each block
    since, until         int32[lines, LINE]: begin and end of its life; empty places have none
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
    """Empty shelves for these blocks."""
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
    """Place blocks in a sequence; returns the length of the arena. The last four arguments are working memory."""
    length = 0
    for block in sequence:
        need, first, last = size[block], begin[block], end[block]
        # the smallest shelf with all blocks that live at the same time
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
    """The offset of the tightest gap of at least `need` bytes between the blocks of a shelf alive in [first, last).

    lives, eights   bool[LINE], and the same memory as uint64: which blocks of a line live then is computed at once, and
                    eight that do not are skipped together
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
            # no gap is tighter
            break
    return offset if tightest >= 0 else top


def put(shelves, shelf, place, end, first, last):  # type: ignore[no-untyped-def]
    """Insert a block into a shelf; a full line is split in two."""
    begin, order, filled = shelves.room[shelf], shelves.order, shelves.filled
    low, high, since, until = shelves.low, shelves.high, shelves.since, shelves.until
    # the last line that begins no higher, or the first
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
