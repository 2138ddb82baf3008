"""What a cost is looked up by says what is done: tasks of one key read and write as many arrays of the same shapes.

It does not say what anything costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest

from castile.planner.lowering.template import PartTemplate, Templates
from castile.planner.op import Tensor, available
from castile.planner.ops.conv1d import Conv1d
from castile.planner.ops.conv2d import Conv2d
from castile.planner.ops.conv_transpose2d import ConvTranspose2d
from castile.planner.ops.max_pool2d import MaxPool2d
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


SLID = [
    # images; the operator; its weights; rows of them and of what is made of them, each as often as it is brought
    ((2, 4, 8, 6), Conv2d(padding=(1, 1)), (4, 4, 3, 3), 2 * 4 * 8 + 2 * 4 * 8),
    ((2, 4, 8, 6), Conv2d(stride=(2, 2), padding=(1, 1)), (6, 4, 3, 3), 2 * (2 * 4 * 8) + 2 * 6 * 4),
    ((2, 4, 8, 6), Conv2d(padding=(1, 1), g=4), (4, 1, 3, 3), 2 * 4 * 8 + 2 * 4 * 8),
    # images are matrices as they lie, of which a group's channels are no rows that follow each other
    ((2, 4, 8, 6), Conv2d(), (6, 4, 1, 1), 0),
    ((2, 4, 8, 6), Conv2d(g=2), (4, 2, 1, 1), 2 * 4 * 8 + 2 * 4 * 8),
    ((2, 4, 8, 6), Conv2d(stride=(2, 2)), (6, 4, 1, 1), 2 * (2 * 4 * 8) + 2 * 6 * 4),
    ((2, 4, 6), Conv1d(), (6, 4, 3), 2 * 4 + 2 * 6),
    ((2, 4, 8, 6), ConvTranspose2d(stride=(2, 2)), (4, 3, 2, 2), 2 * (2 * 3 * 16) + 2 * 4 * 8),
    ((2, 4, 8, 6), MaxPool2d(), None, 2 * 4 * 8 + 2 * 4 * 4),
]


@pytest.mark.parametrize(("x", "op", "w", "rows"), SLID)
def test_rows_of_images_are_those_that_windows_slide_over_and_those_that_they_make(x, op, w, rows) -> None:
    """In every pass, and of half of the samples half as many."""
    shapes = [x] if w is None else [x, w]
    axes = [tuple(f"{n}{d}" for d in range(len(shape))) for n, shape in enumerate(shapes)]
    tensors = [Tensor(f"x{n}", shapes[n], "float32", of, param=n == 1) for n, of in enumerate(axes)]
    for step in steps(Case(op, tuple(tensors), ())):
        for parts in (1, 2):
            each = Templates().get(step, {"b": parts}, lambda name: "float32").parts
            assert {part.key.rows for part in each} == {rows // parts}


def test_gradients_that_are_added_to_others_are_among_them() -> None:
    """Else what is said above would be said of fewer tasks than there are."""
    names = ("add", "linear", "conv2d", "layer_norm", "mul")
    assert all(any(has_onto(step) for case in cases_of(name) for step in steps(case)) for name in names)


def has_onto(step: Step) -> bool:
    return any(port.role == "onto" for port in step.inputs)
