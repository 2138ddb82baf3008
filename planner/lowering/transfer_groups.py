"""Groups of transfers over the same processors, of bounded size, as the buckets of data parallelism are.

Small all-reduces become one, over contiguous arrays. Other transfers start together, as in an NCCL group: their arrays
are apart, and nothing can be put between the pieces. It does not know how either is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from castile.planner.lowering.instances import FlowInstance, FlowTemplate, StepInstance
from castile.planner.lowering.stages import last_slots
from castile.planner.step.program import one_micro
from castile.runtime.dependence import Version
from castile.runtime.task import AT_ONCE, Comm, Kind
from castile.runtime.transfer import Pattern

END_TO_END = "all_reduce"


class Joinable(NamedTuple):
    """A transfer that others can join.

    task, first_buffer   its number, and that of the first buffer of its version
    procs                the processors of its members
    made, read           the last slot of a pass that it waits for, directly or through `last_slots`, -1 for none; and
                         the first slot of a pass that reads the result
    at                   the slot that it follows in the program
    micro                its microbatch, -1 for the whole batch
    """

    task: int
    first_buffer: int
    pattern: Pattern
    procs: tuple[int, ...]
    made: int
    read: int
    at: int
    micro: int = -1

    @property
    def comm(self) -> Comm:
        assert isinstance(self.pattern.how, Comm)
        return self.pattern.how

    @property
    def elements(self) -> int:
        return sum(self.comm.counts[0])


def joinable(steps: Sequence[StepInstance], flows: Sequence[FlowInstance]) -> list[Joinable]:
    """The transfers that can be grouped, in the order of the program."""
    task, buffer, found, end = sum(len(s.config.procs) for s in steps), 0, list[Joinable](), last_slots(steps)
    known: dict[tuple[FlowTemplate, bool], list[tuple[int, tuple[int, ...]]]] = {}
    for flow in flows:
        template, is_read = flow.template, bool(flow.flow.readers)
        if (template, is_read) not in known:
            known[template, is_read] = _of(template, is_read)
        if known[template, is_read]:
            made = max([end[slot] for slot, _ in flow.flow.producers], default=-1)
            read = min(slot for slot, _ in flow.flow.readers)
            micro = one_micro(steps[slot].step for slot in flow.slots)
            for n, procs in known[template, is_read]:
                found.append(Joinable(task + n, buffer, flow.version.patterns[n], procs, made, read, flow.slot, micro))
        task, buffer = task + flow.num_tasks, buffer + flow.num_buffers
    return sorted(found, key=lambda one: (one.at, one.task))


def _of(template: FlowTemplate, is_read: bool) -> list[tuple[int, tuple[int, ...]]]:
    """(number, processors) of the transfers of such flows that can be grouped. They wait for no other transfer of the
    flow.
    """
    patterns, found, brought = template.version.patterns, list[int](), set[int]()
    if patterns and all(pattern.name == END_TO_END for pattern in patterns):
        if not template.role and not template.version.is_strided:
            found = [n for n, pattern in enumerate(patterns) if _is_whole(pattern, template.version)]
    else:
        for n, pattern in enumerate(patterns):
            waits = not brought.isdisjoint(pattern.reads)
            if pattern.name in AT_ONCE and not waits and is_read:
                found.append(n)
            if waits or pattern.kind >= Kind.MOVE:
                brought.update(pattern.writes)
    return [(n, tuple([template.procs[slot] for slot in patterns[n].procs])) for n in found]


def _is_whole(pattern: Pattern, version: Version) -> bool:
    """Whether all views of an all-reduce are whole buffers, each another one."""
    assert isinstance(pattern.how, Comm)
    views = [v for v in (*pattern.how.send, *pattern.how.receive) if v is not None]
    boxes = [version.instances[v.buffer].box for v in views]
    alone = len({v.buffer for v in views}) == len(views) == 2 * len(pattern.how.group)
    return alone and all(v.box == box and box.volume for v, box in zip(views, boxes, strict=True))


def groups_of(ones: Sequence[Joinable], size: int) -> list[list[Joinable]]:
    """Groups of transfers of one form over the same processors, at most `size` bytes each, in the order of the program.

    All passes that contribute to a group come before any that reads it, so no task can come to wait for itself: the
    group stands between them in the program. Transfers of the whole batch form groups of their own: joined with those
    of the first or the last microbatch, they would make it differ from the others, which are copied from one another.
    """
    latest: dict[str, int] = {}
    for one in ones:
        latest[one.pattern.name] = max(one.made, latest.get(one.pattern.name, -1))
    found: list[list[Joinable]] = []
    # By key the latest group, its bytes, and the first slot that reads any transfer of it.
    current: dict[tuple[object, ...], tuple[list[Joinable], int, int]] = {}
    for one in ones:
        form, nbytes = one.pattern.name, one.pattern.key.nbytes
        if nbytes > size:
            continue
        # transfers that wait for no pass are not joined with those that do
        key = form, one.procs, one.pattern.key.dtype, one.read > latest[form], one.made < 0, one.micro
        group, held, read = current.get(key, ([], 0, one.read))
        if not group or held + nbytes > size or one.made >= read:
            group, held, read = [], 0, one.read
            found.append(group)
        group.append(one)
        current[key] = group, held + nbytes, min(read, one.read)
    return [group for group in found if len(group) > 1]
