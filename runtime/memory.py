"""Memory: where in a processor's arena each buffer of a task graph lies, and which waits make the reuse of bytes safe.

It does not know what the bytes mean, nor how an arena is allocated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, TaskGraph
from castile.runtime.timeline import Timeline

ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Packing:
    """Byte offsets in the processors' arenas, multiples of 64; B buffers, T tasks, P processors.

    offset[B]            where a buffer begins, -1 on processors that were not packed
    private_offset[T]    where a task's private memory begins, -1 where it has none or lies elsewhere
    peak_bytes[P]        length of the arena, 0 where not packed; persistent buffers lie below all others
    live_bytes[P]        the most bytes that live at one time: no arena can be shorter
    edges[E, 2]          (before, after): task `after` must wait for `before`, whose bytes it takes over
    """

    offset: np.ndarray
    private_offset: np.ndarray
    peak_bytes: np.ndarray
    live_bytes: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The n blocks of one processor that come and go; buffer[n] is -1 for the private memory of task `first`."""

    buffer: np.ndarray
    first: np.ndarray
    size: np.ndarray
    begin: np.ndarray
    end: np.ndarray


def pack(graph: TaskGraph, timeline: Timeline, procs: Sequence[int] | None = None) -> Packing:
    """Places the buffers and private memory of these processors (default: all) for a timeline of all tasks.

    Sizes are rounded up to 64 bytes. Persistent buffers come first; the rest is placed block after block, each in the
    tightest gap between the blocks that live at the same time: by size, as in Pisarchyk and Lee, "Efficient Memory
    Management for Deep Neural Net Inference", 2020, and by area, begin and length of life, of which the best counts.

    Real times deviate from the timeline: in every execution that respects needs and `edges`, blocks that share bytes
    live one after the other. An edge leads from a task to one that begins at its end or later.
    """
    assert len(timeline.task) == graph.num_tasks, "packing needs the times of all tasks"
    last, homes = _last_ends(graph, timeline), _homes(graph)
    offset, private_offset = np.full(graph.num_buffers, -1), np.full(graph.num_tasks, -1)
    peak, live = np.zeros(graph.num_procs, np.int64), np.zeros(graph.num_procs, np.int64)
    edges = [np.empty((0, 2), np.int64)]
    finals = _final_users(graph)
    for proc in range(graph.num_procs) if procs is None else procs:
        lasting = _persistent(graph, proc)
        sizes = _aligned(graph.buffer_bytes[lasting])
        floor = int(sizes.sum())
        offset[lasting] = np.cumsum(sizes) - sizes
        blocks = _blocks(graph, timeline, last, homes, proc)
        live[proc] = floor + _most_alive(blocks)[0]
        places = floor + _place(blocks, int(live[proc]) - floor)
        peak[proc] = (places + blocks.size).max(initial=floor)
        whole = blocks.buffer >= 0
        offset[blocks.buffer[whole]] = places[whole]
        private_offset[blocks.first[~whole]] = places[~whole]
        edges.append(_reuse(blocks, places, finals))
    return Packing(offset, private_offset, peak, live, _new_edges(graph, np.concatenate(edges)))


def largest(graph: TaskGraph, timeline: Timeline, proc: int, n: int = 5) -> list[tuple[str, int]]:
    """The `n` owners of most bytes when most bytes live on a processor, by region or task name, the largest first."""
    blocks = _blocks(graph, timeline, _last_ends(graph, timeline), _homes(graph), proc)
    owners: Counter[str] = Counter()
    for b in _persistent(graph, proc):
        owners[graph.buffers[b].region] += int(_aligned(graph.buffer_bytes[b]))
    when = _most_alive(blocks)[1]
    for i in np.flatnonzero((blocks.begin <= when) & (when < blocks.end)):
        task, b = blocks.first[i], blocks.buffer[i]
        name = f"temporaries of {graph.tasks[task].name}" if b < 0 else graph.buffers[b].region
        owners[name] += int(blocks.size[i])
    return sorted(owners.items(), key=lambda owner: (-owner[1], owner[0]))[:n]


def refuse(
    graph: TaskGraph, timeline: Timeline, packing: Packing, capacities: Sequence[int], names: Sequence[int] = ()
) -> None:
    """Raises ValueError where a processor's arena exceeds its capacity in bytes, with the largest owners named.

    names   what the processors of a folded graph are called on the whole machine
    """
    excess = packing.peak_bytes - np.asarray(capacities)
    proc = int(excess.argmax())
    if excess[proc] > 0:
        owners = ", ".join(f"{name} ({written(size)})" for name, size in largest(graph, timeline, proc))
        need, have = written(int(packing.peak_bytes[proc])), written(int(capacities[proc]))
        raise ValueError(
            f"processor {names[proc] if names else proc} needs {need} but has {have}; most of it is {owners}: "
            "split these over more processors or take a smaller batch"
        )


def written(nbytes: int) -> str:
    """Bytes as people read them."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


def _aligned(nbytes: np.ndarray) -> np.ndarray:
    return -(-nbytes.astype(np.int64) // ALIGNMENT) * ALIGNMENT


def _persistent(graph: TaskGraph, proc: int) -> np.ndarray:
    return np.flatnonzero((graph.buffer_proc == proc) & (graph.buffer_first < 0))


def _homes(graph: TaskGraph) -> np.ndarray:
    """The processor of every task's private memory, -1 where it has none."""
    homes = np.full(graph.num_tasks, -1)
    task = np.repeat(np.arange(graph.num_tasks), np.diff(graph.lane_ptr))
    procs = graph.lanes // NUM_LANES
    homes[task] = procs
    assert not graph.private_bytes[task[homes[task] != procs]].any(), "private memory lies on one processor"
    homes[graph.private_bytes == 0] = -1
    return homes


def _last_ends(graph: TaskGraph, timeline: Timeline) -> np.ndarray:
    """The last end of a task that uses it, for every buffer."""
    last = np.zeros(graph.num_buffers, np.int64)
    np.maximum.at(last, graph.uses, np.repeat(timeline.end, np.diff(graph.use_ptr)))
    return last


def _blocks(graph: TaskGraph, timeline: Timeline, last: np.ndarray, homes: np.ndarray, proc: int) -> _Blocks:
    """What comes and goes on a processor: its transient buffers and its tasks' private memory, empty ones left out."""
    buffers = np.flatnonzero((graph.buffer_proc == proc) & (graph.buffer_first >= 0) & (graph.buffer_bytes > 0))
    tasks = np.flatnonzero(homes == proc)
    first = graph.buffer_first[buffers]
    return _Blocks(
        buffer=np.concatenate([buffers, np.full(len(tasks), -1)]),
        first=np.concatenate([first, tasks]),
        size=_aligned(np.concatenate([graph.buffer_bytes[buffers], graph.private_bytes[tasks]])),
        begin=np.concatenate([timeline.start[first], timeline.start[tasks]]),
        end=np.concatenate([last[buffers], timeline.end[tasks]]),
    )


def _most_alive(blocks: _Blocks) -> tuple[int, int]:
    """The most bytes alive at one time, and that time; what ends at a time has gone before anything begins then."""
    if not len(blocks.size):
        return 0, 0
    moment = np.concatenate([2 * blocks.end, 2 * blocks.begin + 1])
    order = np.argsort(moment, kind="stable")
    alive = np.cumsum(np.concatenate([-blocks.size, blocks.size])[order])
    most = int(alive.argmax())
    return int(alive[most]), int(moment[order[most]]) // 2


# In what order blocks are placed: the last key counts most.
ORDERS: tuple[Callable[[_Blocks], tuple[np.ndarray, ...]], ...] = (
    lambda blocks: (blocks.begin, -blocks.size),
    lambda blocks: (blocks.begin, -(blocks.size.astype(float) * (blocks.end - blocks.begin))),
    lambda blocks: (-blocks.size, blocks.begin),
    lambda blocks: (blocks.begin, -(blocks.end - blocks.begin)),
)


def _place(blocks: _Blocks, live: int) -> np.ndarray:
    """Offsets of the blocks, by the placing order that needs the shortest arena; `live` bytes cannot be beaten."""
    best, shortest = np.zeros(len(blocks.size), np.int64), -1
    for keys in ORDERS:
        places = compiled(_best_fit)(blocks.size, blocks.begin, blocks.end, np.lexsort(keys(blocks)))
        length = int((places + blocks.size).max(initial=0))
        if shortest < 0 or length < shortest:
            best, shortest = places, length
        if shortest == live:
            break
    return best


def _best_fit(size, begin, end, sequence):  # type: ignore[no-untyped-def]
    """Places blocks in that sequence, each in the tightest gap that its contemporaries leave."""
    places = np.empty(len(sequence), np.int64)
    # The blocks placed so far, ascending by offset.
    placed = np.empty(len(sequence), np.int64)
    for count in range(len(sequence)):
        block = sequence[count]
        top, offset, tightest = 0, 0, -1
        for i in range(count):
            other = placed[i]
            if begin[other] < end[block] and end[other] > begin[block]:
                gap = places[other] - top
                if gap >= size[block] and (tightest < 0 or gap < tightest):
                    offset, tightest = top, gap
                top = max(top, places[other] + size[other])
        places[block] = offset if tightest >= 0 else top
        hole = count
        while hole > 0 and places[placed[hole - 1]] > places[block]:
            placed[hole], hole = placed[hole - 1], hole - 1
        placed[hole] = block
    return places


def _final_users(graph: TaskGraph) -> Callable[[int], np.ndarray]:
    """For a buffer the users that no other user needs: when these have ended, all have."""
    num_tasks = graph.num_tasks
    counts = np.diff(graph.use_ptr)
    task = np.repeat(np.arange(num_tasks), counts)
    needs_of_user = np.diff(graph.need_ptr)[task]
    # Every need of every use, as (buffer, needed task): uses of that name are not final.
    within = np.arange(needs_of_user.sum()) - np.repeat(np.cumsum(needs_of_user) - needs_of_user, needs_of_user)
    needed = graph.needs[np.repeat(graph.need_ptr[task], needs_of_user) + within]
    name = graph.uses.astype(np.int64) * num_tasks + task
    covered = np.repeat(graph.uses.astype(np.int64), needs_of_user) * num_tasks + needed
    final = np.sort(_absent(name, covered))
    ptr = np.searchsorted(final, np.arange(graph.num_buffers + 1) * num_tasks)
    return lambda buffer: final[ptr[buffer] : ptr[buffer + 1]] % num_tasks


def _reuse(blocks: _Blocks, places: np.ndarray, finals: Callable[[int], np.ndarray]) -> np.ndarray:
    """(user, first task) for every block and the blocks whose bytes it takes over from them directly."""
    pairs: list[tuple[int, int]] = []
    for old, new in _successions(places, places + blocks.size, np.lexsort((places, blocks.begin))):
        users = finals(blocks.buffer[old]) if blocks.buffer[old] >= 0 else blocks.first[old : old + 1]
        assert blocks.end[old] <= blocks.begin[new], "blocks alive together share bytes"
        pairs.extend((int(user), int(blocks.first[new])) for user in users)
    return np.array(pairs, np.int64).reshape(-1, 2)


def _successions(low: np.ndarray, high: np.ndarray, sequence: np.ndarray) -> Iterator[tuple[int, int]]:
    """Former and new owner, wherever a block takes bytes over; what a block in between took over is implied by it."""
    starts, owners = [0], [-1]
    for new in sequence.tolist():
        lo, hi = int(low[new]), int(high[new])
        i, j = bisect_right(starts, lo) - 1, bisect_left(starts, hi)
        for old in set(owners[i:j]) - {-1}:
            yield old, new
        above = [(hi, owners[j - 1])] if j == len(starts) or starts[j] > hi else []
        below = [(starts[i], owners[i])] if starts[i] < lo else []
        parts = [*below, (lo, new), *above]
        starts[i:j] = [start for start, _ in parts]
        owners[i:j] = [owner for _, owner in parts]


def _absent(names: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The names that are not among others: by a sort, as numpy's sets of millions of numbers take ten times as long."""
    ordered = np.append(np.sort(among), -1)
    return names[ordered[np.searchsorted(ordered[:-1], names)] != names]


def _new_edges(graph: TaskGraph, edges: np.ndarray) -> np.ndarray:
    """The edges once each, without those that needs already state."""
    task = np.repeat(np.arange(graph.num_tasks, dtype=np.int64), np.diff(graph.need_ptr))
    stated = graph.needs.astype(np.int64) * graph.num_tasks + task
    wanted = np.unique(edges[:, 0] * graph.num_tasks + edges[:, 1])
    wanted = _absent(wanted, stated)
    return np.stack(np.divmod(wanted, max(1, graph.num_tasks)), axis=1).astype(np.int32)
