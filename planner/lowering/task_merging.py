"""Merges tasks: those that make the same call on many small arrays, one each, become one task that does it for all.

So a few kernel launches cast hundreds of parameters to 16 bits as a step begins, compute and clip gradient norms, and
update parameters; and one launch sums an array to which many tasks of one processor would add. The vocabulary says
which kernels can do so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter

import msgspec
import numpy as np

from castile.planner.bodies import vocabulary
from castile.planner.lowering.contraction import Contracted, Contraction
from castile.planner.lowering.instances import FlowInstance, StepInstance
from castile.planner.lowering.ragged import LazySequence, ranges, to_csr
from castile.planner.lowering.template import StepTemplate, Work
from castile.planner.step.program import WHOLE_BATCH
from castile.runtime.task import Arg, Body, Call, CostKey, Kind, Task, TaskGraph, View

# A joined task takes at most so many arrays, and touches at most so many bytes: so it can begin early, and what it
# reads is soon freed.
MOST = 16
MOST_BYTES = 100_000_000
_FOR_SEVERAL = (vocabulary.takes_many, vocabulary.sums_many)


def tasks_of_passes(steps: Sequence[StepInstance]) -> Iterator[list[tuple[int, int]]]:
    """For each pass the tasks of a graph of the whole machine: pairs of the number within the pass and in the graph."""
    base = 0
    for step in steps:
        yield list(enumerate(range(base, base + step.num_tasks)))
        base += step.num_tasks


def mergeable_calls(
    steps: Sequence[StepInstance], flows: Sequence[FlowInstance], tasks: Iterable[Sequence[tuple[int, int]]],
    calls: Sequence[Sequence[Call | None]],
) -> list[tuple[int, Call]]:  # fmt: skip
    """The tasks of the whole batch that consist of a single call of a kernel that can also take the arrays of several
    such calls; each with that call.

    tasks   of each pass, from `tasks_of_passes`
    calls   from `only_calls` Two sorts are left out. Tasks that add to existing numbers: one call accumulates all of
            its results or none. And tasks of microbatches: the first and the last wait for fewer others than those
            between, so they would be merged differently.
    """
    adding: defaultdict[int, set[int]] = defaultdict(set)
    for flow in flows:
        for user, _, adders in flow.template.adding:
            adding[flow.slots[user]].update(adders.tolist())
    found: list[tuple[int, Call]] = []
    for slot, (own, those) in enumerate(zip(calls, tasks, strict=True)):
        if any(own) and steps[slot].step.micro == WHOLE_BATCH:
            replicas, alone = steps[slot].config.replicas, adding.get(slot, ())
            each = ((number, own[local // replicas]) for local, number in those if local not in alone)
            found += [(number, call) for number, call in each if call and vocabulary.takes_many(call.kernel)]
    return found


def sum_chains(
    steps: Sequence[StepInstance], flows: Sequence[FlowInstance], tasks: Iterable[Sequence[tuple[int, int]]],
    calls: Sequence[Sequence[Call | None]],
) -> list[list[tuple[int, Call | None]]]:  # fmt: skip
    """The chains of tasks that add to one array, one after the other. Each task has its call if that is its only one
    and its kernel can also sum over the arrays of several such calls, else None.

    tasks   of each pass, from `tasks_of_passes`
    calls   from `only_calls`
    """
    sums = [[call if call and vocabulary.sums_many(call.kernel) else None for call in own] for own in calls]
    able = {slot for slot, own in enumerate(sums) if any(own)}
    numbers = [dict(those) for those in tasks] if able else []
    chains: list[list[tuple[int, Call | None]]] = []
    for flow in flows:
        if able.isdisjoint(flow.slots) or not flow.template.adding:
            continue
        into: defaultdict[int, list[tuple[int, Call | None]]] = defaultdict(list)
        ports = zip(flow.touches(flow.template.writing), flow.version.made.tolist(), strict=True)
        for (slot, local, _), instance in ports:
            if local in numbers[slot]:
                into[instance].append((numbers[slot][local], sums[slot][local // steps[slot].config.replicas]))
        chains += into.values()
    return chains


def only_calls(steps: Sequence[StepInstance]) -> list[list[Call | None]]:
    """For each pass the `only_call` of each of its parts."""
    known: dict[Work, Call | None] = {}

    def each(works: Sequence[Work]) -> list[Call | None]:
        known.update([(work, only_call(work)) for work in works if work not in known])
        return [known[work] for work in works]

    of_parts: dict[StepTemplate, list[Call | None]] = {}
    for template in dict.fromkeys([step.template for step in steps]):
        # Parts with the same work differ in literals at most: all of them are such a call, or none is.
        is_any = any(each(template.does.each))
        of_parts[template] = each([p.work for p in template.parts]) if is_any else [None] * template.num_parts
    return [of_parts[step.template] for step in steps]


def only_call(work: Work) -> Call | None:
    """The only call of a part, if its kernel can take the arrays of several; else None."""
    calls = work.body((False,) * len(work.outputs)).calls
    return calls[0] if len(calls) == 1 and any(d(calls[0].kernel) for d in _FOR_SEVERAL) else None


def groups_of_equal_calls(tasks: TaskGraph, calls: Sequence[tuple[int, Call]]) -> list[list[int]]:
    """Groups of tasks of one processor that make the same call and wait for the same collectives.

    Three sorts are grouped separately: tasks that wait for none, tasks for which none waits, and tasks for which only
    tasks of the second sort wait. So no group can come to wait for itself. They are taken in the order in which what
    they wait for comes, then in the program's.
    """
    waiting = _depths(tasks)
    # A task that waits for nobody may have any tasks wait for it.
    waiting[(waiting > 0) & (np.diff(tasks.need_ptr) == 0)] = -1
    every = np.array([task for task, _ in calls], np.int64)
    able = np.flatnonzero(waiting[every] < 2)
    numbers = every[able]
    who, needs = _needs(tasks, numbers)
    last = np.zeros(len(numbers), np.int64)
    np.maximum.at(last, who, tasks.order[needs])
    awaited = _collectives(tasks, who, needs, len(numbers))
    same = _merge_keys(tasks, numbers, [calls[n][1] for n in able.tolist()])
    after, tasks_of = waiting[numbers].tolist(), numbers.tolist()
    ordered = np.lexsort((tasks.order[numbers], last)).tolist()
    rows = [(tasks_of[n], (after[n], same[n], awaited[n])) for n in ordered if same[n] is not None]
    return _bounded_groups(tasks, rows)


def _needs(tasks: TaskGraph, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The needs of these tasks, concatenated: for each the task (by its index) and the task needed."""
    counts = tasks.need_ptr[numbers + 1] - tasks.need_ptr[numbers]
    return np.repeat(np.arange(len(numbers)), counts), tasks.needs[ranges(tasks.need_ptr[numbers], counts)]


def _collectives(tasks: TaskGraph, who: np.ndarray, needs: np.ndarray, count: int) -> list[tuple[int, ...]]:
    """The collectives among the needs of each of `count` tasks; who, needs: as `_needs` gives them."""
    is_collective = tasks.kind[needs] == Kind.COLLECTIVE
    found, ends = needs[is_collective].tolist(), np.cumsum(np.bincount(who[is_collective], minlength=count)).tolist()
    return [tuple(found[begin:end]) for begin, end in pairwise([0, *ends])]


def groups_in_chains(tasks: TaskGraph, chains: Sequence[Sequence[tuple[int, Call | None]]]) -> list[list[int]]:
    """Groups of consecutive tasks of a chain of `sum_chains` that make the same call, where a group waits for no more
    collectives than its first task does, with those before it in the chain.

    Only the last task of a group is needed by tasks outside, so no group can come to wait for itself.
    """
    which = np.repeat(np.arange(len(chains)), [len(chain) for chain in chains])
    numbers = np.array([task for chain in chains for task, _ in chain], np.int64)
    same = _merge_keys(tasks, numbers, [call for chain in chains for _, call in chain])
    keys = zip(which.tolist(), same, _collectives_before(tasks, numbers, which), strict=True)
    found = enumerate(groupby(zip(keys, numbers.tolist(), strict=True), key=itemgetter(0)))
    return _bounded_groups(tasks, [(task, run) for run, (key, each) in found if key[1] is not None for _, task in each])


def _collectives_before(tasks: TaskGraph, numbers: np.ndarray, which: np.ndarray) -> list[int]:
    """For each task, a counter of the collectives that it or one before it in its chain waits for, over all chains."""
    who, needs = _needs(tasks, numbers)
    is_collective = tasks.kind[needs] == Kind.COLLECTIVE
    who, needs = who[is_collective], needs[is_collective]
    _, first = np.unique(which[who] * tasks.num_tasks + needs, return_index=True)
    found: list[int] = np.cumsum(np.bincount(who[first], minlength=len(numbers))).tolist()
    return found


def _merge_keys(tasks: TaskGraph, numbers: np.ndarray, calls: Sequence[Call | None]) -> list[tuple[int, int] | None]:
    """For each task (processor, number of its call), equal within a group; None where it can be in none."""
    known: dict[tuple[int, int], int | None] = {}
    kinds: dict[tuple[object, ...], int] = {}

    def kind(cost: int, call: Call) -> int | None:
        key = tasks.cost_keys[cost]
        if key.dense or key.nbytes > MOST_BYTES:
            return None
        return kinds.setdefault((key.name, call.params, key.dtype), len(kinds))

    found: list[tuple[int, int] | None] = []
    lanes, costs = tasks.lanes[tasks.lane_ptr[numbers]].tolist(), tasks.cost[numbers].tolist()
    for lane, cost, call in zip(lanes, costs, calls, strict=True):
        if call is not None and (cost, id(call)) not in known:
            known[cost, id(call)] = kind(cost, call)
        same = None if call is None else known[cost, id(call)]
        found.append(None if same is None else (lane, same))
    return found


def _bounded_groups(tasks: TaskGraph, rows: Sequence[tuple[int, object]]) -> list[list[int]]:
    """Groups of tasks with an equal key, in their order, of bounded size; rows: pairs of a task and its key."""
    found: list[list[int]] = []
    current: dict[object, tuple[list[int], int]] = {}
    costs = tasks.cost[np.array([task for task, _ in rows], np.int64)].tolist()
    for (task, same), cost in zip(rows, costs, strict=True):
        nbytes = tasks.cost_keys[cost].nbytes
        group, held = current.get(same, ([], 0))
        if not group or len(group) == MOST or held + nbytes > MOST_BYTES:
            group, held = [], 0
            found.append(group)
        group.append(task)
        current[same] = group, held + nbytes
    return [sorted(group) for group in found if len(group) > 1]


def _depths(tasks: TaskGraph) -> np.ndarray:
    """int[T]: the length of the longest chain of tasks that wait for each task: 0, 1, or 2 for more."""
    before, after = tasks.needs, np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.need_ptr))
    found = np.zeros(tasks.num_tasks, np.int64)
    for _ in range(2):
        np.maximum.at(found, before, np.minimum(found[after] + 1, 2))
    return found


def merged(tasks: TaskGraph, groups: Sequence[Sequence[int]]) -> Contracted:
    """The graph with each of these groups of tasks as one task."""
    c = Contraction(tasks, groups)
    if not groups:
        return Contracted(tasks, c.number)
    of_number = {int(c.number[group[-1]]): group for group in groups}
    keys = {key: n for n, key in enumerate(tasks.cost_keys)}
    cost, private = tasks.cost[c.kept], tasks.private_bytes[c.kept]
    for number, group in of_number.items():
        # The arrays are worked on one after the other, in the same working memory.
        private[number] = tasks.private_bytes[np.array(group)].max()
        key = _key([tasks.cost_keys[tasks.cost[task]] for task in group])
        cost[number] = keys.setdefault(key, len(keys))
    use_ptr, uses = to_csr(np.repeat(c.number, np.diff(tasks.use_ptr)), tasks.uses, len(c.kept))
    first = tasks.buffer_first

    def task(number: int) -> Task:
        if number in of_number:
            return _merged_task(number, [tasks.tasks[t] for t in of_number[number]])
        return replace(tasks.tasks[int(c.kept[number])], index=number)

    graph = replace(
        tasks, **c.fields(), cost=cost, cost_keys=tuple(keys), use_ptr=use_ptr, uses=uses,
        buffer_first=np.where(first < 0, -1, c.number[first]), private_bytes=private,
        tasks=LazySequence(task, len(c.kept)),
    )  # fmt: skip
    return Contracted(graph, c.number)


def _key(keys: Sequence[CostKey]) -> CostKey:
    """The cost key of merged tasks: arrays of one shape appear once, with their number."""
    if keys[0].link:
        return keys[0].begun_with(keys[1:])
    counts = Counter(key.shapes.partition("|")[0] for key in keys)
    shapes = "+".join(f"{count}*{shape}" if count > 1 else shape for shape, count in sorted(counts.items()))
    settings = keys[0].shapes.partition("|")[2]
    flops, nbytes = sum(key.flops for key in keys), sum(key.nbytes for key in keys)
    return msgspec.structs.replace(keys[0], shapes=f"{shapes}|{settings}", flops=flops, nbytes=nbytes)


def _merged_task(number: int, each: Sequence[Task]) -> Task:
    """The tasks as one: its call takes the arrays of all, and sums what all add to one array; transfers as one task
    that starts them all.
    """
    name = f"{each[0].name} and {len(each) - 1} more"
    if each[0].comms:
        return replace(each[0], index=number, name=name, comms=tuple(comm for task in each for comm in task.comms))
    views: list[View] = []
    args: list[object] = []
    outs: list[Arg] = []
    for task in each:
        call, shift = task.body.calls[0], len(views)
        args += [msgspec.structs.replace(a, index=a.index + shift) if isinstance(a, Arg) else a for a in call.args]
        outs += [msgspec.structs.replace(a, index=a.index + shift) for a in call.outs]
        views += task.views
    first = each[0].body.calls[0]
    made = first.outs if vocabulary.sums_many(first.kernel) else tuple(outs)
    most = max((task.body.calls[0] for task in each), key=lambda call: call.scratch_bytes)
    body = Body((msgspec.structs.replace(most, args=tuple(args), outs=made),))
    return Task(number, name, each[0].kind, each[0].procs, tuple(views), body)
