"""Memory planning: the offset of each buffer of a task graph in its processor's arena, and the edges between tasks that
make the reuse of bytes safe.

It does not know what the bytes mean, nor how an arena is allocated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from castile.runtime import gaps
from castile.runtime.machine import num_cores
from castile.runtime.task import NUM_LANES, TaskGraph
from castile.runtime.timeline import Timeline

ALIGNMENT = 64
MOST_TOLD = 5  # of the largest owners of a memory
# The beginning of the names of owners that are tasks, not regions.
TEMPORARIES = "temporaries of "


@dataclass(frozen=True, eq=False)
class Packing:
    """Byte offsets in the processors' arenas, multiples of 64; B buffers, T tasks, P processors.

    offset[B]           of each buffer, -1 on processors that were not packed
    private_offset[T]   of each task's private memory, -1 where it has none or was not packed
    peak_bytes[P]       length of the arena, 0 where not packed; persistent buffers lie below all others
    live_bytes[P]       the most bytes alive at one time, a lower bound of the arena
    edges[E, 2]         (before, after): task `after` must wait for `before`, whose bytes it reuses
    """

    offset: np.ndarray
    private_offset: np.ndarray
    peak_bytes: np.ndarray
    live_bytes: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The n transient blocks of a processor; buffer[n] is -1 for the private memory of task `first`."""

    buffer: np.ndarray
    first: np.ndarray
    size: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    @property
    def lives(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Size, begin and end, on which placement depends."""
        return self.size, self.begin, self.end

    @property
    def sums(self) -> tuple[int, ...]:
        """A quick hash: equal for blocks with equal `lives`."""
        return len(self.size), *[int(column.sum()) for column in self.lives]

    def lie_like(self, other: _Blocks) -> bool:
        """Whether other blocks have the same sizes and lives, so that they are placed alike."""
        return all(map(np.array_equal, self.lives, other.lives))


def pack(
    graph: TaskGraph, timeline: Timeline, procs: Sequence[int] | None = None, capacities: np.ndarray | float = np.inf
) -> Packing:
    """Place the buffers and private memory of these processors (default: all) for a timeline of all tasks.

    Sizes are rounded up to 64 bytes. Persistent buffers come first; all others are placed by `gaps.placed`.

    capacities   bytes[P]: where an arena is longer more is tried; once one stays longer, no other is packed

    Real times deviate from the timeline: in every execution that respects needs and `edges`, blocks that share bytes
    live one after the other. An edge leads from a task to one that begins at its end or later.
    """
    packing, placed = _placed(graph, timeline, range(graph.num_procs) if procs is None else procs, capacities)
    finals = _final_users(graph)
    edges = [np.empty((0, 2), np.int64), *(_reuse(blocks, places, finals) for blocks, places in placed)]
    return replace(packing, edges=_new_edges(graph, np.concatenate(edges)))


def arenas(graph: TaskGraph, timeline: Timeline, capacities: np.ndarray | float = np.inf) -> Packing:
    """As `pack`, but without the edges, which take as long again: for the lengths of arenas."""
    return _placed(graph, timeline, range(graph.num_procs), capacities)[0]


def _placed(
    graph: TaskGraph, timeline: Timeline, procs: Sequence[int], capacities: np.ndarray | float = np.inf
) -> tuple[Packing, list[tuple[_Blocks, np.ndarray]]]:
    """A packing without edges; and the blocks of each packed processor with their offsets."""
    assert len(timeline.task) == graph.num_tasks, "packing needs the times of all tasks"
    lives = _Lives(graph, timeline)
    offset, private_offset = np.full(graph.num_buffers, -1), np.full(graph.num_tasks, -1)
    peak, live, floor = np.zeros((3, graph.num_procs), np.int64)
    for proc in procs:
        lasting = lives.persistent(proc)
        sizes = aligned(graph.buffer_bytes[lasting])
        floor[proc] = sizes.sum()
        offset[lasting] = np.cumsum(sizes) - sizes
    every = [lives.blocks(proc) for proc in procs]
    distinct, which = _distinct(every)
    room = np.full(len(distinct), np.inf)
    np.minimum.at(room, which, (capacities - floor)[list(procs)])
    fitted, placed = _fitted(distinct, room.tolist()), []
    for proc, blocks, number in zip(procs, every, which, strict=True):
        if number not in fitted:
            continue
        # empty buffers lie anywhere above persistent ones
        offset[lives.transient(proc)] = floor[proc]
        most, places = fitted[number]
        live[proc], places = floor[proc] + most, floor[proc] + places
        peak[proc] = (places + blocks.size).max(initial=floor[proc])
        whole = blocks.buffer >= 0
        offset[blocks.buffer[whole]] = places[whole]
        private_offset[blocks.first[~whole]] = places[~whole]
        placed.append((blocks, places))
    return Packing(offset, private_offset, peak, live, np.empty((0, 2), np.int32)), placed


def _distinct(every: Sequence[_Blocks]) -> tuple[list[_Blocks], list[int]]:
    """The distinct blocks, and by processor the number of those that are like its own: most processors of a plan are
    alike to the last byte and picosecond.
    """
    found, which, known = list[_Blocks](), list[int](), dict[tuple[int, ...], list[int]]()
    for blocks in every:
        alike = known.setdefault(blocks.sums, [])
        number = next((number for number in alike if blocks.lie_like(found[number])), len(found))
        if number == len(found):
            found.append(blocks)
            alike.append(number)
        which.append(number)
    return found, which


def _fitted(every: Sequence[_Blocks], room: Sequence[float]) -> dict[int, tuple[int, np.ndarray]]:
    """By number of distinct blocks: the most bytes alive at one time, and the offsets.

    room   bytes for each: the tightest are placed first, and once some do not fit, no others are placed
    """
    found: dict[int, tuple[int, np.ndarray]] = {}
    # in threads: this is most of the time of a large plan, and does not hold the interpreter's lock
    with ThreadPoolExecutor(num_cores()) as threads:
        most = list(threads.map(lambda blocks: _most_alive(blocks)[0], every))
        order = sorted(range(len(every)), key=lambda number: room[number] - most[number])
        placing = threads.map(lambda n: gaps.placed(*every[n].lives, most[n], room[n]), order)
        for number, places in zip(order, placing, strict=True):
            found[number] = most[number], places
            if (places + every[number].size).max(initial=0) > room[number]:
                threads.shutdown(cancel_futures=True)
                break
    return found


def lasting(graph: TaskGraph, but: str = "") -> np.ndarray:
    """int64[P]: the bytes of persistent buffers, without those of role `but`."""
    there = np.flatnonzero(graph.buffer_first < 0)
    counted = there[[graph.buffers[b].role != but for b in there.tolist()]]
    sizes = aligned(graph.buffer_bytes[counted])
    return np.bincount(graph.buffer_proc[counted], sizes, graph.num_procs).astype(np.int64)


def largest(graph: TaskGraph, timeline: Timeline, procs: Iterable[int]) -> list[list[tuple[str, int]]]:
    """By processor (owner, bytes) at the time when most bytes are alive, by region or task name, the largest first."""
    lives = _Lives(graph, timeline)
    return [_owners(graph, lives, proc) for proc in procs]


def _owners(graph: TaskGraph, lives: _Lives, proc: int) -> list[tuple[str, int]]:
    blocks, lasting = lives.blocks(proc), lives.persistent(proc)
    owners: Counter[str] = Counter()
    for b, size in zip(lasting.tolist(), aligned(graph.buffer_bytes[lasting]).tolist(), strict=True):
        owners[graph.buffers[b].region] += size
    when = _most_alive(blocks)[1]
    here = (blocks.begin <= when) & (when < blocks.end)
    of = (column[here].tolist() for column in (blocks.first, blocks.buffer, blocks.size))
    for task, b, size in zip(*of, strict=True):
        owners[f"{TEMPORARIES}{graph.tasks[task].name}" if b < 0 else graph.buffers[b].region] += size
    return sorted(owners.items(), key=lambda owner: (-owner[1], owner[0]))


def courses(graph: TaskGraph, timeline: Timeline) -> list[tuple[np.ndarray, np.ndarray]]:
    """By processor its bytes alive over time: picoseconds[N], ascending from 0, and bytes[N] from each of these on.

    All changes at one time are one. Tasks that take no time may hold more memory for no time.
    """
    lives, found = _Lives(graph, timeline), []
    for proc in range(graph.num_procs):
        moments, alive = _alive(lives.blocks(proc))
        moments = np.concatenate([[0], moments // 2])
        alive = int(aligned(graph.buffer_bytes[lives.persistent(proc)]).sum()) + np.concatenate([[0], alive])
        last = np.append(moments[1:] != moments[:-1], True)
        found.append((moments[last], alive[last]))
    return found


def refuse(
    graph: TaskGraph, timeline: Timeline, lengths: np.ndarray, capacities: np.ndarray, names: Sequence[int] = ()
) -> None:
    """Raises ValueError, naming the largest owners, where an arena exceeds its processor's capacity, bytes[P].

    names   the numbers of a folded graph's processors on the whole machine
    """
    if lack := lacking(lengths, capacities):
        proc, need = lack
        heaviest = largest(graph, timeline, [proc])[0][:MOST_TOLD]
        owners = ", ".join(f"{name} ({written(size)})" for name, size in heaviest)
        raise ValueError(
            f"processor {names[proc] if names else proc} needs {need}; most of it is {owners}: "
            "split these over more processors or take a smaller batch"
        )


def lacking(lengths: np.ndarray, capacities: np.ndarray) -> tuple[int, str] | None:
    """The processor whose arena exceeds its capacity most, with what it needs and has in words; None if all fit."""
    excess = lengths - capacities
    proc = int(excess.argmax())
    return (proc, _need_and_room(int(lengths[proc]), int(capacities[proc]))) if excess[proc] > 0 else None


def written(nbytes: int) -> str:
    """A number of bytes for people."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


def _need_and_room(need: int, have: int) -> str:
    """What is needed and what there is, in words; in bytes where both would read the same."""
    words = written(need), written(have)
    needed, there = words if words[0] != words[1] else (f"{need:,} bytes", f"{have:,}")
    return f"{needed} but has {there}"


def aligned(nbytes: np.ndarray) -> np.ndarray:
    """Sizes rounded up to multiples of ALIGNMENT."""
    return -(-nbytes.astype(np.int64) // ALIGNMENT) * ALIGNMENT


class _Lives:
    """The buffers and private memory of each processor, with their lives."""

    def __init__(self, graph: TaskGraph, timeline: Timeline) -> None:
        self._graph, self._buffers = graph, _by_proc(graph.buffer_proc, graph.num_procs)
        # transient buffers and tasks' private memory, without empty ones
        homes, is_there = _homes(graph), (graph.buffer_first >= 0) & (graph.buffer_bytes > 0)
        buffers, tasks = np.flatnonzero(is_there), np.flatnonzero(homes >= 0)
        order, self._ends = _by_proc(np.concatenate([graph.buffer_proc[buffers], homes[tasks]]), graph.num_procs)
        first = np.concatenate([graph.buffer_first[buffers], tasks])[order]
        self._blocks = _Blocks(
            buffer=np.concatenate([buffers, np.full(len(tasks), -1)])[order],
            first=first,
            size=aligned(np.concatenate([graph.buffer_bytes[buffers], graph.private_bytes[tasks]]))[order],
            begin=timeline.start[first],
            end=np.concatenate([_last_ends(graph, timeline)[buffers], timeline.end[tasks]])[order],
        )

    def persistent(self, proc: int) -> np.ndarray:
        mine = self._on(proc)
        return mine[self._graph.buffer_first[mine] < 0]

    def transient(self, proc: int) -> np.ndarray:
        mine = self._on(proc)
        return mine[self._graph.buffer_first[mine] >= 0]

    def blocks(self, proc: int) -> _Blocks:
        """The transient blocks of a processor."""
        here, of = slice(self._ends[proc], self._ends[proc + 1]), self._blocks
        return _Blocks(of.buffer[here], of.first[here], of.size[here], of.begin[here], of.end[here])

    def _on(self, proc: int) -> np.ndarray:
        """All buffers of a processor."""
        order, ends = self._buffers
        return order[ends[proc] : ends[proc + 1]]


def _by_proc(procs: np.ndarray, num_procs: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices of each processor, ascending, one processor after the other, and where those of each begin,
    int64[num_procs + 1].
    """
    # radix sort of short integers is ten times as fast
    short = procs.astype(np.min_scalar_type(num_procs))
    return np.argsort(short, kind="stable"), np.cumsum(np.bincount(procs + 1, minlength=num_procs + 1))


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
    """int64[B]: picoseconds at which the last task that uses each buffer ends."""
    last = np.zeros(graph.num_buffers, np.int64)
    np.maximum.at(last, graph.uses, np.repeat(timeline.end, np.diff(graph.use_ptr)))
    return last


def _most_alive(blocks: _Blocks) -> tuple[int, int]:
    """The most bytes alive at one time, and that time. At equal times blocks end before others begin."""
    if not len(blocks.size):
        return 0, 0
    moments, alive = _alive(blocks)
    most = int(alive.argmax())
    return int(alive[most]), int(moments[most]) // 2


def _alive(blocks: _Blocks) -> tuple[np.ndarray, np.ndarray]:
    """The events in order, as twice the time of an end and one more than twice that of a begin; and the bytes alive
    from each on.
    """
    moment = np.concatenate([2 * blocks.end, 2 * blocks.begin + 1])
    order = np.argsort(moment, kind="stable")
    return moment[order], np.cumsum(np.concatenate([-blocks.size, blocks.size])[order])


def _final_users(graph: TaskGraph) -> tuple[np.ndarray, np.ndarray]:
    """The users of each buffer that no other user of it needs, in CSR form: when these have ended, all have."""
    num_tasks, counts = graph.num_tasks, np.diff(graph.use_ptr)
    uses = graph.uses.astype(np.int64)
    name = uses * num_tasks + np.repeat(np.arange(num_tasks), counts)
    after, before = np.repeat(np.arange(num_tasks), np.diff(graph.need_ptr)), graph.needs.astype(np.int64)
    # A use is not final where another user of the buffer needs that user. For each need, the buffers of the task that
    # uses fewer are looked up among those of the other.
    fewer = counts[before] <= counts[after]
    edge, at = _every(graph.use_ptr, np.where(fewer, before, after))
    of_other = uses[at] * num_tasks + np.where(fewer, after, before)[edge]
    both = ~_is_absent(of_other, name)
    covered = uses[at[both]] * num_tasks + before[edge[both]]
    final = np.sort(name[_is_absent(name, covered)])
    return final % max(1, num_tasks), np.searchsorted(final, np.arange(graph.num_buffers + 1) * num_tasks)


def _every(ptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of some CSR rows in turn: the position in `rows` of each one's row, and its index in the array."""
    counts = np.diff(ptr)[rows]
    row = np.repeat(np.arange(len(rows)), counts)
    return row, np.arange(len(row)) - (np.cumsum(counts) - counts - ptr[rows])[row]


def _reuse(blocks: _Blocks, places: np.ndarray, finals: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Edges (user, first task) from the last users of each block to the blocks that directly reuse its bytes."""
    pairs = _successions(places, places + blocks.size, np.lexsort((places, blocks.begin)))
    old, new = np.array(pairs, np.int64).reshape(-1, 2).T
    assert (blocks.end[old] <= blocks.begin[new]).all(), "blocks alive together share bytes"
    buffer, first = blocks.buffer[old], blocks.first[new]
    is_buffer = buffer >= 0
    users, ptr = finals
    row, at = _every(ptr, buffer[is_buffer])
    return np.concatenate(
        [
            np.stack([users[at], first[is_buffer][row]], axis=1),
            np.stack([blocks.first[old[~is_buffer]], first[~is_buffer]], axis=1),
        ]
    )


def _successions(low: np.ndarray, high: np.ndarray, sequence: np.ndarray) -> list[tuple[int, int]]:
    """Pairs (former owner, new owner) of blocks, wherever one directly reuses bytes of another."""
    starts, owners, pairs = [0], [-1], []
    for new, lo, hi in zip(sequence.tolist(), low[sequence].tolist(), high[sequence].tolist()):
        i, j = bisect_right(starts, lo) - 1, bisect_left(starts, hi)
        pairs += [(old, new) for old in owners[i:j] if old >= 0]
        begins, theirs = [lo], [new]
        if starts[i] < lo:
            begins, theirs = [starts[i], lo], [owners[i], new]
        if j == len(starts) or starts[j] > hi:
            begins.append(hi)
            theirs.append(owners[j - 1])
        starts[i:j] = begins
        owners[i:j] = theirs
    return pairs


def _is_absent(names: np.ndarray, among: np.ndarray) -> np.ndarray:
    """bool: which names are not among others; by a sort, as NumPy's set functions take ten times as long."""
    ordered = np.append(np.sort(among), -1)
    return ordered[np.searchsorted(ordered[:-1], names)] != names


def _new_edges(graph: TaskGraph, edges: np.ndarray) -> np.ndarray:
    """The edges, each once, without those that are needs already."""
    task = np.repeat(np.arange(graph.num_tasks, dtype=np.int64), np.diff(graph.need_ptr))
    stated = graph.needs.astype(np.int64) * graph.num_tasks + task
    wanted = np.sort(edges[:, 0] * graph.num_tasks + edges[:, 1])
    wanted = wanted[np.diff(wanted, prepend=-1) > 0]
    wanted = wanted[_is_absent(wanted, stated)]
    return np.stack(np.divmod(wanted, max(1, graph.num_tasks)), axis=1).astype(np.int32)
