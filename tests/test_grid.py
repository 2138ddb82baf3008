"""Grids: what they say of all parts together is what each part says of itself, for all operators and splits.

And a work that stands for several parts differs from that of each in literals only, where operators may tell kernels
where a part lies, else in nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from castile.planner.graph import Node
from castile.planner.lowering.grid import Grid, Layout, distinct, refinement
from castile.planner.lowering.template import Templates
from castile.planner.op import Tensor, available, find
from castile.planner.step.program import WHOLE_BATCH, Micro, Port
from castile.planner.strategy import parts
from castile.runtime.region import moved
from castile.runtime.task import Arg, Body
from tests.op_cases import Case, cases_of
from tests.op_laws import Whole, node_of, telling_splits
from tests.test_cost_keys import steps


def grids(case: Case) -> Iterator[tuple[Grid, dict[str, int], str, Micro]]:
    """Grids of a case under some splits, of the whole batch and of the second of two microbatches."""
    node = node_of(case)
    a = node.alignment
    for split in telling_splits(node):
        yield Grid(node, split, "", WHOLE_BATCH), split, "", WHOLE_BATCH
        for axis in a.axes[:1]:
            if a.extents[axis] % 2 == 0 and split.get(axis, 1) <= a.extents[axis] // 2 and axis not in a.frozen:
                yield Grid(node, split, axis, Micro(1, 2)), split, axis, Micro(1, 2)


def ports(node: Node) -> Iterator[Port]:
    yield from (Port("x", n, f"x{n}") for n in range(len(node.alignment.operands)))
    yield from (Port("y", n, f"y{n}") for n in range(len(node.alignment.results)))


@pytest.mark.parametrize("name", available())
def test_grids_say_of_all_parts_what_each_says_of_itself(name: str) -> None:
    for case in cases_of(name):
        for grid, split, axis, micro in grids(case):
            node, own = grid.node, parts(grid.node, split, axis, (micro.number, micro.count))
            assert [grid.part(n) for n in range(grid.count)] == own
            lengths = [[hi - lo for lo, hi in part.ranges.values()] for part in own]
            assert same(grid.by_length.of, lengths)
            for which in (which for which in "FBW" if case.op.has(which)):
                assert [grid.flops(which, n) for n in range(grid.count)] == [case.op.flops(which, p) for p in own]
            for port in ports(node):
                boxes = [part.reads(port.index) if port.of_operand else part.writes(port.index) for part in own]
                layout = grid.layout(port)
                assert list(layout.by_part) == boxes, f"{case} {split} {port}"
                assert not layout.is_even or all(
                    one.shape == other.shape
                    for (one, m), (other, n) in product(zip(boxes, lengths), repeat=2)
                    if m == n
                )
                begin = tuple(range(len(boxes[0].lo)))
                further = grid.layout(Port(port.role, port.index, port.region, None, begin))
                assert list(further.by_part) == [moved(box, begin) for box in boxes]


def test_parts_touch_as_much_whatever_settings_bodies_do_not_look_at() -> None:
    cases = [case for name in available() for case in cases_of(name) if case.op.unrecorded]
    others = [replace(case, op=replace(case.op, **dict.fromkeys(case.op.unrecorded, 0))) for case in cases]
    assert cases
    for one, other in zip(map(node_of, cases), map(node_of, others), strict=True):
        for split in telling_splits(one):
            mine, theirs = (Grid(node, split, "", WHOLE_BATCH) for node in (one, other))
            for port in ports(one):
                layouts = [grid.layout(port) for grid in (mine, theirs)]
                assert len({tuple(map(of.shape, range(mine.count))) for of in layouts}) == 1, f"{one.op} {split}"


def test_operations_of_parts_are_told_beyond_63_bits() -> None:
    op = find("topk")(2)
    rows = Tensor("x", (2**40, 2**40), "float32", ("b", "v"))
    node = Node("best", op, ("x",), ("y", "places"), op.bind((rows,), "best"))
    grid = Grid(node, {"b": 4}, "", WHOLE_BATCH)
    assert [grid.flops("F", n) for n in range(4)] == [op.flops("F", part) for part in parts(node, {"b": 4})]


def same(of: tuple[int, ...], told: list) -> bool:
    """Whether those of one number are told alike, and no others."""
    pairs = product(zip(of, told), repeat=2)
    return all((m == n) == (one == other) for (m, one), (n, other) in pairs)


def test_parts_are_alike_jointly_where_they_are_in_both() -> None:
    rows = list(product("ab", "cd", "ef"))
    for one, other in product(product((0, 1), repeat=3), repeat=2):
        picked = [distinct([tuple(row[n] for n in range(3) if of[n]) for row in rows]) for of in (one, other)]
        both = [tuple(row[n] for n in range(3) if one[n] or other[n]) for row in rows]
        assert same(refinement(*picked).of, both)


def test_a_layout_tells_shapes_of_its_boxes() -> None:
    for name in ("conv2d", "concat"):
        for case in cases_of(name):
            for grid, *_ in grids(case):
                layouts: list[Layout] = [grid.layout(port) for port in ports(grid.node)]
                for layout in layouts:
                    shapes = [box.shape for box in layout.by_part]
                    assert [layout.shape(n) for n in range(grid.count)] == shapes and same(layout.by_shape.of, shapes)


def unsaid(body: Body) -> object:
    """All of a body but the literals of its calls."""
    calls = [
        (c.kernel, [a if isinstance(a, Arg) else None for a in c.args], c.outs, [n for n, _ in c.params], c.accumulate,
         c.scratch_offset, c.scratch_bytes) for c in body.calls
    ]  # fmt: skip
    return calls, body.temps, body.private_bytes


@pytest.mark.parametrize("name", available())
def test_works_stand_for_parts_that_do_the_same(name: str) -> None:
    for case in cases_of(name):
        templates = Templates()
        dtypes = {f"x{i}": t.dtype for i, t in enumerate(case.tensors)}
        dtypes |= {f"y{j}": y.dtype.name for j, y in enumerate(Whole(case).y)}
        for step, split in product(steps(case), telling_splits(node_of(case))):
            template = templates.get(step, split, dtypes.__getitem__)
            for number, part in enumerate(template.parts):
                work, told = template.does.of(number), case.op.place_in_literals
                assert (work.key, work.inputs, work.outputs) == (part.key, part.work.inputs, part.work.outputs)
                for adds in (False, True):
                    one, other = (of.body((adds,) * len(step.outputs)) for of in (work, part))
                    assert unsaid(one) == unsaid(other) if told else one == other, f"{case} {split} {step.which}"


def test_some_operators_only_tell_kernels_where_parts_lie() -> None:
    """Else what is said above would be said of no work that stands for others."""
    told = [case for name in available() for case in cases_of(name) if case.op.place_in_literals]
    assert {case.op.name for case in told} >= {"dropout", "attention", "rotary", "reshape", "transpose"}
