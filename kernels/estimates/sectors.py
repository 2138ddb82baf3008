"""Memory sectors that a program touches: which it touched before, how long ago, and which bytes it wrote.

Repeated iterations of a loop are accounted for at once. It does not know what a program is, nor which iterations
repeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

# Bytes that memory is fetched in.
SECTOR = 32
# Sectors that a processor's own cache keeps for one program.
_OWN = 1024
# Arrays lie so many sectors apart at least.
_APART = 39
_NEVER = -1
# All bytes of a sector.
_WHOLE = 2**SECTOR - 1


@dataclass(frozen=True)
class Touch:
    """What threads read or wrote at once, at these addresses; `fresh` are sectors that had not been touched before.

    wrote   of each sector the bytes that were written, a bit each
    """

    addresses: Any
    sectors: Any
    fresh: Any
    wrote: Any


class Memory:
    """What a program did to memory.

    tally    requests of warps; sectors that were asked for, touched, written, written in part; and by ("again", num)
             those that were touched once more, by how many others were touched in between
    """

    def __init__(self) -> None:
        self.tally = Counter[Any]()
        # How many sectors had been touched, those again counted again.
        self.clock = 0
        # When each was touched last.
        self._last: dict[int, int] = {}
        self._runs: list[_Run] = []
        # Of each sector the bytes that were written, a bit each.
        self._written: dict[int, int] = {}

    def copied(self) -> Memory:
        """One that goes on from here by itself."""
        other = copy(self)
        other.tally, other._last, other._written = self.tally.copy(), self._last.copy(), self._written.copy()
        other._runs = self._runs.copy()
        return other

    def fetched(self, nbytes: int) -> None:
        """Bytes came from where nothing else is touched."""
        num = nbytes // SECTOR
        self.clock += num
        self.tally["asked"] += num
        self.tally["touched"] += num

    def asked(self, addresses: Any, warps: Any, nbytes: int, writes: bool, past: bool) -> Touch:
        """Threads of these warps read or write so many bytes from addresses on, maybe past the cache of their
        processor."""
        sectors = np.unique(np.concatenate([addresses, addresses + nbytes - 1]) // SECTOR)
        wrote = self._writes(addresses, nbytes) if writes else np.zeros(len(sectors), np.int64)
        now, last, tally = self.clock, self._touched(sectors), self.tally
        for sector, when in zip(sectors.tolist(), last.tolist(), strict=True):
            if when != _NEVER:
                tally["again", now - when] += 1
            self._last[sector] = now
        is_fresh = last == _NEVER
        tally["requests"] += len(np.unique(warps))
        tally["asked"] += len(sectors) if past else int((is_fresh | (now - last > _OWN)).sum())
        tally["touched"] += int(is_fresh.sum())
        self.clock += len(sectors)
        return Touch(addresses, sectors, sectors[is_fresh], wrote)

    def _writes(self, addresses: Any, nbytes: int) -> Any:
        """The bytes of each sector that are written, a bit each."""
        addresses = np.sort(addresses)
        sectors, begins = np.unique(addresses // SECTOR, return_index=True)
        bits = np.bitwise_or.reduceat((1 << nbytes) - 1 << addresses % SECTOR, begins)
        known = self._bytes(sectors)
        for sector, before, more in zip(sectors.tolist(), known.tolist(), bits.tolist(), strict=True):
            self._written[sector] = after = before | more
            self.tally["wrote"] += not before
            self.tally["partly"] += (after < _WHOLE) - (0 < before < _WHOLE)
        return bits

    def _bytes(self, sectors: Any) -> Any:
        """The bytes of these that were written, a bit each."""
        found = np.array([self._written.get(sector, 0) for sector in sectors.tolist()])
        for run in self._runs:
            found |= run.written(sectors)
        return found

    def _touched(self, sectors: Any) -> Any:
        """When these were touched last."""
        last = np.array([self._last.get(sector, _NEVER) for sector in sectors.tolist()])
        for run in self._runs:
            last = np.maximum(last, run.touched(sectors))
        return last

    def repeat(self, touches: Sequence[tuple[Touch, int]], num: int, ticks: int) -> bool:
        """What the touches of a turn were to memory so many more turns are, each so many sectors further on than in the
        turn before; the clock goes on by so many `ticks` a turn. What is counted is left to whoever asks.

        False, and nothing is done, where some of them would meet what was touched elsewhere.
        """
        runs = _runs(touches, self._last, num, ticks)
        if runs is None or any(self._meets(run, fresh) for run, fresh in runs):
            return False
        still = {one for touch, shift in touches if not shift for one in touch.sectors.tolist()}
        self._last |= {one: self._last[one] + num * ticks for one in still}
        self._runs += [run for run, _ in runs]
        self.clock += num * ticks
        return True

    def _meets(self, run: _Run, fresh: Any) -> bool:
        """Whether sectors on the way of those that were touched for the first time have been touched before."""
        others = [other for other in self._runs if other.array == run.array]
        if any(other.shift != run.shift for other in others):
            return bool(len(fresh))
        known = np.fromiter(self._last, np.int64, len(self._last))
        ends = [other.sectors + turn * other.shift for other in others for turn in (1, other.num)]
        return run.is_ahead(np.concatenate([known[known >> _APART == run.array], *ends]), fresh) or any(
            bool((other.touched(fresh + run.shift) != _NEVER).any()) for other in others
        )


def _runs(
    touches: Sequence[tuple[Touch, int]], last: dict[int, int], num: int, ticks: int
) -> list[tuple[_Run, Any]] | None:
    """What is touched on the way, by array, and of each what was touched for the first time; None where what lies in
    one array moves at unlike paces.
    """
    by_array: dict[int, list[tuple[Touch, int]]] = {}
    for touch, shift in touches:
        by_array.setdefault(int(touch.sectors[0]) >> _APART, []).append((touch, shift))
    found = []
    for array, each in by_array.items():
        if len({shift for _, shift in each}) > 1:
            return None
        if shift := each[0][1]:
            sectors = np.unique(np.concatenate([touch.sectors for touch, _ in each]))
            fresh = np.concatenate([touch.fresh for touch, _ in each])
            wrote = np.zeros(len(sectors), np.int64)
            for touch, _ in each:
                wrote[np.searchsorted(sectors, touch.sectors)] |= touch.wrote
            times = [last[one] for one in sectors.tolist()]
            found.append((_Run.of(array, sectors, times, wrote, shift, num, ticks), fresh))
    return found


@dataclass(frozen=True)
class _Run:
    """Sectors of one array that were touched at some times, some of their bytes written, and so many times further on.

    Each has a code, its rest by the shift and then how many shifts it is from the array's beginning, so that one is
    `num` codes behind another where it comes there with the last turn.
    """

    array: int
    sectors: Any
    times: Any
    wrote: Any
    codes: Any
    shift: int
    num: int
    ticks: int

    @classmethod
    def of(
        cls, array: int, sectors: Any, times: Iterable[int], wrote: Any, shift: int, num: int, ticks: int
    ) -> _Run:
        """Of sectors, whose order is theirs, when each was touched, and which bytes of it a turn writes."""
        bare = cls(array, sectors, np.array(times), wrote, sectors, shift, num, ticks)
        codes = bare.code(sectors)
        order = np.argsort(codes)
        return cls(array, sectors[order], bare.times[order], wrote[order], codes[order], shift, num, ticks)

    def code(self, sectors: Any) -> Any:
        """The codes of sectors of the array."""
        step = abs(self.shift)
        along = (sectors - (self.array << _APART)) * (1 if self.shift > 0 else -1)
        return along % step * (2 * ((1 << _APART) // step + self.num + 1)) + along // step

    def touched(self, sectors: Any) -> Any:
        """When these were touched last on the way, _NEVER where they were not."""
        codes = self.code(sectors)
        # Of all that come by a place the last is the one that comes from furthest behind.
        first = np.minimum(np.searchsorted(self.codes, codes - self.num), len(self.codes) - 1)
        turns = codes - self.codes[first]
        is_met = (turns > 0) & (turns <= self.num) & (sectors >> _APART == self.array)
        return np.where(is_met, self.times[first] + turns * self.ticks, _NEVER)

    def written(self, sectors: Any) -> Any:
        """The bytes of these that were written on the way, a bit each: by all that came by."""
        if not self.wrote.any():
            return np.zeros(len(sectors), np.int64)
        codes = self.code(sectors)
        begins, ends = (np.searchsorted(self.codes, each).tolist() for each in (codes - self.num, codes))
        came_by = (self.wrote[begin:end] for begin, end in zip(begins, ends, strict=True))
        bits = np.fromiter((np.bitwise_or.reduce(each) for each in came_by), np.int64, len(sectors))
        return np.where(sectors >> _APART == self.array, bits, 0)

    def is_ahead(self, known: Any, sectors: Any) -> bool:
        """Whether any of what is known lies on the way of these sectors."""
        ahead, codes = np.sort(self.code(known)), self.code(sectors)
        next_ones = np.searchsorted(ahead, codes, side="right")
        is_any = next_ones < len(ahead)
        return bool((ahead[next_ones[is_any]] <= codes[is_any] + self.num).any())
