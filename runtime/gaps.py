"""Gaps: where each block of an arena lies, in the tightest gap that those leave which live at the same time.

It does not know what blocks hold, nor whose they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from castile.runtime.compiled import compiled

Keys = tuple[np.ndarray, ...]
# In what order blocks of these sizes, beginnings and ends are placed: the last key counts most.
ORDERS: tuple[Callable[[np.ndarray, np.ndarray, np.ndarray], Keys], ...] = (
    lambda size, begin, end: (begin, -size),
    lambda size, begin, end: (begin, -(size.astype(float) * (end - begin))),
    lambda size, begin, end: (-size, begin),
    lambda size, begin, end: (begin, -(end - begin)),
)
# Of so many blocks, which take half a second in each order, an arena will do that is longer than what lives at one time
# by this share. Of 113 such arenas none came out longer by more than .22 %, and all together by .03.
MANY, NEAR = 10_000, 0.005


def placed(size: np.ndarray, begin: np.ndarray, end: np.ndarray, live: int) -> np.ndarray:
    """int64[n]: offsets of n blocks, by the placing order that needs the shortest arena; of MANY by the first that
    comes NEAR to what none can undercut.

    size         bytes, of each block
    begin, end   when each comes and goes: others may take its bytes from its end on
    live         the most bytes that live at one time, which no arena undercuts
    """
    best, shortest = np.zeros(len(size), np.int64), np.iinfo(np.int64).max
    enough = live * (1 + NEAR) if len(size) >= MANY else live
    ranks = np.unique(np.concatenate([begin, end]), return_inverse=True)[1].astype(np.int32)
    first, last = ranks[: len(begin)], ranks[len(begin) :]
    for keys in ORDERS:
        places, length = compiled(best_fit)(size, first, last, np.lexsort(keys(size, begin, end)), shortest)
        if length < shortest:
            best, shortest = places, length
        if shortest <= enough:
            break
    return best


def best_fit(size, begin, end, sequence, limit):  # type: ignore[no-untyped-def]
    """Places blocks in that sequence, each in the tightest gap that its contemporaries leave; and the arena's length.

    begin, end   numbers from 0 on that come as the times do
    Once the length is not below the limit the rest is not placed.
    """
    num_blocks, length = len(sequence), 0
    places = np.empty(num_blocks, np.int64)
    # Blocks placed so far, ascending by offset, in lines of at most so many, each at least half full but the first:
    # offset, end, and from when till when they live. What is empty never lives.
    most = 128
    most_lines = 2 * num_blocks // most + 2
    low, high = np.empty((most_lines, most), np.int64), np.empty((most_lines, most), np.int64)
    since, until = np.zeros((most_lines, most), np.int32), np.full((most_lines, most), -1, np.int32)
    counts, order, num_lines = np.zeros(most_lines, np.int64), np.zeros(most_lines, np.int64), 1
    # Who lives at the same time is asked of a line at once; eight who do not are passed over together.
    lives = np.zeros(most, np.bool_)
    eights, there = lives.view(np.uint64), np.empty(most, np.int64)
    for block in sequence:
        need, first, last = size[block], begin[block], end[block]
        top, offset, tightest = 0, 0, -1
        for number in range(num_lines):
            line = order[number]
            lows, highs, begins, ends = low[line], high[line], since[line], until[line]
            for i in range(most):
                lives[i] = (begins[i] < last) & (ends[i] > first)
            met = 0
            for eight in range(most // 8):
                if eights[eight]:
                    for i in range(8 * eight, 8 * eight + 8):
                        there[met] = i
                        met += lives[i]
            for which in range(met):
                i = there[which]
                gap = lows[i] - top
                if gap >= need and (tightest < 0 or gap < tightest):
                    offset, tightest = top, gap
                top = max(top, highs[i])
            if tightest == need:
                # None is tighter.
                break
        place = offset if tightest >= 0 else top
        places[block] = place
        length = max(length, place + need)
        if length >= limit:
            break
        number = num_lines - 1
        while number > 0 and low[order[number], 0] > place:
            number -= 1
        line = order[number]
        if counts[line] == most:
            half = most // 2
            for i in range(half):
                low[num_lines, i], high[num_lines, i] = low[line, half + i], high[line, half + i]
                since[num_lines, i], until[num_lines, i] = since[line, half + i], until[line, half + i]
                until[line, half + i] = -1
            counts[line] = counts[num_lines] = half
            # Not slices: what tells that these differ in length takes longer to compile than the rest.
            for after in range(num_lines, number + 1, -1):
                order[after] = order[after - 1]
            order[number + 1] = num_lines
            num_lines += 1
            if low[order[number + 1], 0] <= place:
                line = order[number + 1]
        hole = counts[line]
        while hole > 0 and low[line, hole - 1] > place:
            low[line, hole], high[line, hole] = low[line, hole - 1], high[line, hole - 1]
            since[line, hole], until[line, hole] = since[line, hole - 1], until[line, hole - 1]
            hole -= 1
        low[line, hole], high[line, hole], since[line, hole], until[line, hole] = place, place + need, first, last
        counts[line] += 1
    return places, length
