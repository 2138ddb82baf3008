"""Together: tasks that do the same to one small array after the other become one that does it to them all.

So are parameters cast to 16 bits when a step begins, their gradients clipped when it ends, and they updated: hundreds
of vectors by a few launches. It does not know which kernels can do so; the vocabulary does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from castile.planner import vocabulary
from castile.planner.compose import _Lazy, _rows
from castile.planner.contraction import Contracted, Contraction
from castile.planner.instances import FlowInstance, StepInstance
from castile.planner.template import PartTemplate, Work
from castile.runtime.task import Arg, Body, Call, CostKey, Kind, Task, TaskGraph, View

# Of so many arrays' parameters, and so many bytes that it touches, is one task at most: then it still begins early, and
# what it reads is soon given back.
MOST = 16
MOST_BYTES = 100_000_000


def every_task(steps: Sequence[StepInstance]) -> Iterator[list[tuple[int, int]]]:
    """The tasks of each step in a graph of the whole machine: which of the step's it is, and its number."""
    base = 0
    for step in steps:
        yield list(enumerate(range(base, base + step.num_tasks)))
        base += step.num_tasks


def repeatable(
    steps: Sequence[StepInstance], flows: Sequence[FlowInstance], tasks: Iterable[Sequence[tuple[int, int]]]
) -> list[tuple[int, Call]]:
    """The tasks of steps that consist of one call of a kernel that takes the arrays of several, with that call.

    tasks   those of each step, as `every_task` says them
    Those that add to what is there are left out: a call adds to all of its results or to none.
    """
    adding: defaultdict[int, set[int]] = defaultdict(set)
    for flow in flows:
        for user, _, adders in flow.template.adding:
            adding[flow.slots[user]].update(adders.tolist())
    found: list[tuple[int, Call]] = []
    known: dict[Work, Call | None] = {}
    for slot, (step, those) in enumerate(zip(steps, tasks, strict=True)):
        calls = []
        for piece in step.template.parts:
            if piece.work not in known:
                known[piece.work] = only_call(piece)
            calls.append(known[piece.work])
        if any(calls):
            alone = adding.get(slot, ())
            each = ((number, calls[local // step.config.replicas]) for local, number in those if local not in alone)
            found += [(number, call) for number, call in each if call is not None]
    return found


def only_call(piece: PartTemplate) -> Call | None:
    """The call of a kernel that takes the arrays of several, where a part consists of just that."""
    calls = piece.body((False,) * len(piece.outputs)).calls
    return calls[0] if len(calls) == 1 and vocabulary.takes_many(calls[0].kernel) else None


def alike(tasks: TaskGraph, calls: Sequence[tuple[int, Call]]) -> list[list[int]]:
    """Tasks of one processor that call the same, and wait for the same collectives: of those that wait for nobody, of
    those for which nobody waits, and of those for which only such tasks wait. So no group can come to wait for itself.

    In the order in which what they wait for comes, and in the program's.
    """
    waiting = _waiting(tasks)
    rows = []
    for task, call in calls:
        key, needs, after = tasks.cost_keys[tasks.cost[task]], tasks.needs_of(task), int(waiting[task])
        after = -1 if after and needs.size == 0 else after
        if after > 1 or key.dense or key.nbytes > MOST_BYTES:
            continue
        collectives = tuple(needs[tasks.kind[needs] == Kind.COLLECTIVE].tolist())
        same = (int(tasks.lanes_of(task)[0]), key.name, call.params, key.dtype, after, collectives)
        rows.append((int(tasks.order[needs].max(initial=0)), int(tasks.order[task]), task, same, key.nbytes))
    found: list[list[int]] = []
    current: dict[object, tuple[list[int], int]] = {}
    for _, _, task, same, nbytes in sorted(rows, key=lambda row: row[:2]):
        group, held = current.get(same, ([], 0))
        if not group or len(group) == MOST or held + nbytes > MOST_BYTES:
            group, held = [], 0
            found.append(group)
        group.append(task)
        current[same] = group, held + nbytes
    return [sorted(group) for group in found if len(group) > 1]


def _waiting(tasks: TaskGraph) -> np.ndarray:
    """int[T]: how many tasks, one after the other, wait for each task at most: 0, 1, or 2 for more."""
    before, after = tasks.needs, np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.need_ptr))
    found = np.zeros(tasks.num_tasks, np.int64)
    for _ in range(2):
        np.maximum.at(found, before, np.minimum(found[after] + 1, 2))
    return found


def together(tasks: TaskGraph, groups: Sequence[Sequence[int]]) -> Contracted:
    """The graph with each of these groups of tasks as one task."""
    c = Contraction(tasks, groups)
    if not groups:
        return Contracted(tasks, c.number)
    of_number = {int(c.number[group[-1]]): group for group in groups}
    keys = {key: n for n, key in enumerate(tasks.cost_keys)}
    cost = tasks.cost[c.kept]
    for number, group in of_number.items():
        key = _key([tasks.cost_keys[tasks.cost[task]] for task in group])
        cost[number] = keys.setdefault(key, len(keys))
    use_ptr, uses = _rows(np.repeat(c.number, np.diff(tasks.use_ptr)), tasks.uses, len(c.kept))
    first = tasks.buffer_first

    def task(number: int) -> Task:
        if number in of_number:
            return _one(number, [tasks.tasks[t] for t in of_number[number]])
        return replace(tasks.tasks[int(c.kept[number])], index=number)

    graph = replace(
        tasks, **c.fields(), cost=cost, cost_keys=tuple(keys), use_ptr=use_ptr, uses=uses,
        buffer_first=np.where(first < 0, -1, c.number[first]), private_bytes=tasks.private_bytes[c.kept],
        tasks=_Lazy(task, len(c.kept)),
    )  # fmt: skip
    return Contracted(graph, c.number)


def _key(keys: Sequence[CostKey]) -> CostKey:
    """What tasks cost as one: arrays of one shape are told once, with how many there are; of transfers all bytes."""
    if keys[0].link:
        return replace(keys[0], shapes=f"{len(keys)} at once", nbytes=sum(key.nbytes for key in keys))
    counts = Counter(key.shapes.partition("|")[0] for key in keys)
    shapes = "+".join(f"{count}*{shape}" if count > 1 else shape for shape, count in sorted(counts.items()))
    settings = keys[0].shapes.partition("|")[2]
    flops, nbytes = sum(key.flops for key in keys), sum(key.nbytes for key in keys)
    return replace(keys[0], shapes=f"{shapes}|{settings}", flops=flops, nbytes=nbytes)


def _one(number: int, each: Sequence[Task]) -> Task:
    """The tasks as one whose call takes the arrays of all; transfers as one that begins them all."""
    name = f"{each[0].name} and {len(each) - 1} more"
    if each[0].comms:
        return replace(each[0], index=number, name=name, comms=tuple(comm for task in each for comm in task.comms))
    views: list[View] = []
    args: list[object] = []
    outs: list[Arg] = []
    for task in each:
        call, shift = task.body.calls[0], len(views)
        args += [replace(a, index=a.index + shift) if isinstance(a, Arg) else a for a in call.args]
        outs += [replace(a, index=a.index + shift) for a in call.outs]
        views += task.views
    body = Body((replace(each[0].body.calls[0], args=tuple(args), outs=tuple(outs)),))
    return Task(number, name, each[0].kind, each[0].procs, tuple(views), body)
