"""Streams: in which order the tasks of a process's processors are put onto them, and where one waits for another.

It does not know what the calls do, nor when a step is run.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy

from castile.runtime.executor import Program
from castile.runtime.worker import Action

# A call, and where in the program the task stands that it is for.
Placed = tuple[int, Action]
# What a transfer puts onto streams: phases, each of which begins when the one before has ended on all of its streams.
Phase = Sequence[tuple[Any, Action]]
# Of each of some streams, by id, a piece of work by number: it and all before it on that stream have been done.
Moment = dict[int, int]


@dataclass(frozen=True, eq=False)
class Seat:
    """A processor: its program, its kernels by task, and the stream onto which they put their work."""

    steps: Program
    kernels: Mapping[int, Action]
    compute: Any


@dataclass(frozen=True, eq=False)
class Piece:
    """Work for a stream: where its task stands in the program, and the pieces of other streams that it comes after."""

    at: int
    stream: Any
    action: Action
    waits: tuple[int, ...]


def together(programs: Sequence[Program]) -> Program:
    """The programs of several processors as one, in which a transfer between them stands once, where all come to it.

    Raises AssertionError where transfers stand in different orders.
    """
    order = _order(programs)
    waits: dict[int, set[int]] = defaultdict(set)
    after: dict[int, int] = defaultdict(int)
    moves = {task: flag for program in programs for task, flag in zip(program.tasks, program.asynchronous)}
    kernels = [task for task in order if not moves[task]]
    reached = {task: n for n, task in enumerate(kernels, 1)}
    for program in programs:
        own = [0, *(reached[task] for task in program.tasks if not moves[task])]
        for task, others, count in zip(program.tasks, program.waits, program.after):
            waits[task].update(others)
            after[task] = max(after[task], own[count])
    return Program(
        tuple(order),
        tuple(moves[task] for task in order),
        tuple(tuple(sorted(waits[task])) for task in order),
        tuple(after[task] for task in order),
    )


def _order(programs: Sequence[Program]) -> list[int]:
    """All tasks once, each where the last of its processors comes to it."""
    sharers = Counter(task for program in programs for task in program.tasks)
    queues = [deque(program.tasks) for program in programs]
    came: dict[int, set[int]] = defaultdict(set)
    order: list[int] = []
    while any(queues):
        before = sum(map(len, queues))
        for n, queue in enumerate(queues):
            while queue:
                task = queue[0]
                if sharers[task]:
                    came[task].add(n)
                    if len(came[task]) < sharers[task]:
                        break
                    sharers[task] = 0
                    order.append(task)
                queue.popleft()
        assert sum(map(len, queues)) < before, "transfers stand in different orders on processors"
    return order


def pieces(steps: Program, seats: Sequence[Seat], transfers: Mapping[int, Sequence[Phase]]) -> list[Piece]:
    """A step's work in the order of `steps`, which is that of all seats together; what each piece waits for.

    A kernel comes after its processor's kernels before it, and what its program waits for; a transfer after what the
    programs of all its processors wait for.
    """
    lines = _Lines()
    seats_of: dict[int, list[int]] = defaultdict(list)
    rows = []
    for n, seat in enumerate(seats):
        p = seat.steps
        rows.append({task: (waits, after) for task, waits, after in zip(p.tasks, p.waits, p.after, strict=True)})
        for task in p.tasks:
            seats_of[task].append(n)
    done: dict[int, Moment] = {}
    # Of each seat, what its transfers wait for: whoever comes later in its program comes after all of it.
    waited: list[Moment] = [{} for _ in seats]
    kernels: list[list[int]] = [[] for _ in seats]
    for at, (task, moves) in enumerate(zip(steps.tasks, steps.asynchronous, strict=True)):
        if not moves:
            (n,) = seats_of[task]
            wanted = _later(*(done[other] for other in rows[n][task][0]))
            kernels[n].append(lines.put(at, seats[n].compute, seats[n].kernels[task], wanted))
            continue
        for n in seats_of[task]:
            waits, after = rows[n][task]
            kernel = {id(seats[n].compute): kernels[n][after - 1]} if after else {}
            waited[n] = _later(waited[n], kernel, *(done[other] for other in waits))
        wanted = _later(*(waited[n] for n in seats_of[task]))
        for phase in transfers[task]:
            wanted = _later(wanted, *({id(s): lines.put(at, s, action, wanted)} for s, action in phase))
        done[task] = wanted
    return lines.pieces


class _Lines:
    """Pieces in the order in which they are put onto their streams."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._known: dict[int, Moment] = defaultdict(dict)
        # What was known to have been done where a piece begins.
        self._known_at: list[Moment] = []

    def put(self, at: int, stream: Any, action: Action, wanted: Moment) -> int:
        """The piece's number. It waits for no more than it takes: a stream knows what those knew that it waited for."""
        known, waits = self._known[id(stream)], []
        for other, number in sorted(wanted.items(), key=lambda item: -item[1]):
            if other != id(stream) and known.get(other, -1) < number:
                waits.append(number)
                known = _later(known, {other: number}, self._known_at[number])
        self._known[id(stream)] = known
        self._known_at.append(known)
        self.pieces.append(Piece(at, stream, action, tuple(sorted(waits))))
        return len(self.pieces) - 1


def _later(*moments: Moment) -> Moment:
    """All of them."""
    found: Moment = {}
    for moment in moments:
        for stream, number in moment.items():
            if found.get(stream, -1) < number:
                found[stream] = number
    return found


def issued(found: Sequence[Piece], origin: Any) -> list[Placed]:
    """The calls that put a step onto its streams; all of it begins and ends on `origin`."""
    streams = {id(piece.stream): piece.stream for piece in found}
    others = [stream for key, stream in streams.items() if key != id(origin)]
    calls: list[Placed] = []

    def mark(at: int, stream: Any) -> Any:
        event = cupy.cuda.Event(disable_timing=True)
        calls.append((at, partial(event.record, stream)))
        return event

    if others:
        begun = mark(0, origin)
        calls += [(0, partial(stream.wait_event, begun)) for stream in others]
    awaited = {number for piece in found for number in piece.waits}
    ended: dict[int, Any] = {}
    for number, piece in enumerate(found):
        calls += [(piece.at, partial(piece.stream.wait_event, ended[other])) for other in piece.waits]
        calls.append((piece.at, piece.action))
        if number in awaited:
            ended[number] = mark(piece.at, piece.stream)
    for stream in others:
        last = found[-1].at
        calls.append((last, partial(origin.wait_event, mark(last, stream))))
    return calls
