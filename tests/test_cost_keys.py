"""What a cost is looked up by says what is done: tasks of one key read and write as many arrays of the same shapes.

It does not say what anything costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest

from castile.planner.lowering.template import PartTemplate, Templates
from castile.planner.op import available
from castile.planner.step.program import Port, Step
from castile.runtime.task import CostKey
from tests.op_cases import Case, cases_of
from tests.op_laws import Whole, node_of, passes, targets, telling_splits

Touched = tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]]]


def some(numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every choice of them."""
    for count in range(len(numbers) + 1):
        yield from combinations(numbers, count)


def steps(case: Case) -> Iterator[Step]:
    """Every pass with every choice of gradients that are wanted, and of those that are added to others."""
    node = node_of(case)
    xs = [Port("x", i, f"x{i}") for i in range(len(node.inputs))]
    ys = [Port("y", j, f"y{j}") for j in range(len(node.outputs))]
    pulls = [Port("dy", j, f"y{j}") for j in range(case.op.flows)]
    for which in passes(case):
        if which == "F":
            yield Step(0, node, which, tuple(xs), tuple(ys), which)
            continue
        kept = ys if "y" in case.op.asks(which) else []
        numbers = [i for i in targets(case, which) if case.tensors[i].floating]
        for wanted in filter(None, some(numbers)):
            able = [i for i in wanted if which == "B" and case.op.apart(i, node.alignment) is not None]
            for added in some(able):
                onto = [Port("onto", i, f"x{i}") for i in added]
                made = tuple(Port("dx", i, f"x{i}") for i in wanted)
                yield Step(0, node, which, (*pulls, *xs, *kept, *onto), made, which)


def works(case: Case) -> Iterator[PartTemplate]:
    """The parts of all these steps under some splits."""
    node, templates = node_of(case), Templates()
    dtypes = {f"x{i}": t.dtype for i, t in enumerate(case.tensors)}
    dtypes |= {f"y{j}": y.dtype.name for j, y in enumerate(Whole(case).y)}
    for step in steps(case):
        for split in telling_splits(node):
            yield from templates.get(step, split, dtypes.__getitem__).parts


def touched(part: PartTemplate) -> Touched:
    """Of each shape how many arrays are read, and how many written."""
    read, written = ([b.shape for b in boxes if b is not None] for boxes in (part.inputs, part.outputs))
    return Counter(read), Counter(written)


@pytest.mark.parametrize("name", available())
def test_tasks_of_one_key_read_and_write_the_same(name: str) -> None:
    known: dict[CostKey, Touched] = {}
    for case in cases_of(name):
        for part in works(case):
            assert known.setdefault(part.key, touched(part)) == touched(part), f"{case}: {part.key}"
    for key in known:
        for n, _ in enumerate(key.shapes.partition("|")[0].split(";")):
            assert key.strided({n: (3, 5)}).dense == key


def test_gradients_that_are_added_to_others_are_among_them() -> None:
    """Else what is said above would be said of fewer tasks than there are."""
    names = ("add", "linear", "conv2d", "layer_norm", "mul")
    assert all(any(has_onto(step) for case in cases_of(name) for step in steps(case)) for name in names)


def has_onto(step: Step) -> bool:
    return any(port.role == "onto" for port in step.inputs)
