"""What a sketch takes for alike is alike: transfers of one pattern take as long, contents are who holds what."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.sketch import contents, transfer_costs
from castile.planner.sketch.sketch import Sketch
from castile.planner.strategy import Config, Strategy
from castile.runtime.task import Kind
from castile.runtime.timeline import PICOSECONDS
from tests.test_sketch import MACHINES, SMALL, UNEQUAL, shaken, sketched

# A layout, a Config, and how many axes the Config's space has.
Lies = tuple[int, int, int]


def lying(sketch: Sketch, rng: random.Random, count: int) -> list[Lies]:
    """Some of the ways in which what is made or read may lie, each number of contents found."""
    p, found = sketch.program, list[Lies]()
    every = [*zip(p.made.tolist(), p.owner.tolist()), *zip(p.layout.tolist(), sketch.uses.reader.tolist())]
    for layout, node in rng.choices(every, k=count):
        space = p.space[node]
        c = rng.randrange(sketch.spaces.first[space], sketch.spaces.first[space + 1])
        contents.contents(layout, c, sketch.axes_of[space], sketch.spaces, sketch.layouts, sketch.prices, sketch.room)
        found.append((layout, c, int(sketch.axes_of[space])))
    return found


def number(of: np.ndarray, sketch: Sketch, lies: Lies) -> int:
    return int(of[sketch.layouts.base[lies[0]] + lies[1]])


def alike(of: np.ndarray, sketch: Sketch, every: list[Lies]) -> list[tuple[Lies, Lies]]:
    """Pairs that have one number, and are not the same."""
    by_number = sorted(set(every), key=lambda lies: number(of, sketch, lies))
    groups = itertools.groupby(by_number, key=lambda lies: number(of, sketch, lies))
    return [pair for _, group in groups for pair in itertools.pairwise(group)]


def boxes(sketch: Sketch, lies: Lies) -> Counter[object]:
    """Which processor holds which box how often."""
    (layout, c, num_axes), spaces, layouts = lies, sketch.spaces, sketch.layouts
    found: Counter[object] = Counter()
    for part, coords in enumerate(np.ndindex(*spaces.degree[c, :num_axes])):
        box = []
        for d in range(layouts.dims[layout]):
            a = layouts.axis[layout, d]
            at = layouts.table[layout, d, spaces.rank[c, a] if a >= 0 else 0] + (coords[a] if a >= 0 else 0)
            box.append((int(layouts.lo[at]), int(layouts.hi[at])))
        for r in range(spaces.replicas[c]):
            at = spaces.proc_ptr[c] + part * spaces.replicas[c] + r
            found[tuple(box), int(spaces.procs[at])] += 1
    return found


@pytest.mark.parametrize("model", SMALL)
def test_transfers_between_ends_of_the_same_patterns_take_as_long(model: str) -> None:
    (sketch, _), rng = sketched(model), random.Random(4)
    every = lying(sketch, rng, 600)
    pairs = alike(sketch.prices.pattern, sketch, every)
    rng.shuffle(pairs)
    assert len(pairs) > 20

    def price(made: Lies, how: int, read: Lies) -> float:
        axes = (made[2], read[2])
        tables = (sketch.spaces, sketch.layouts, sketch.links._replace(bucket=1e4), sketch.room)
        return transfer_costs.price(made[0], made[1], how, read[0], read[1], 4, axes, *tables)

    compared = 0
    for one, other in pairs[:60]:
        for how in range(transfer_costs.NUM_HOWS):
            # Ends of one flow are of as many dims.
            dims = sketch.layouts.dims
            end = rng.choice([lies for lies in every if dims[lies[0]] == dims[one[0]]])
            assert price(one, how, end) == price(other, how, end)
            assert price(end, how, one) == price(end, how, other)
            compared += price(one, how, end) > 0
    assert compared > 20


@pytest.mark.parametrize("machine", [*MACHINES, UNEQUAL])
def test_contents_have_one_number_where_the_same_processors_hold_the_same(machine: object) -> None:
    for model in SMALL:
        (sketch, _), rng = sketched(model, machine), random.Random(5)
        every = lying(sketch, rng, 150)
        numbers = {lies: number(sketch.prices.content, sketch, lies) for lies in every}
        held = {lies: frozenset(boxes(sketch, lies).items()) for lies in every}
        assert len(set(numbers.values())) == len(set(held.values())) == len(set(zip(numbers.values(), held.values())))
        assert all(numbers[one] == numbers[other] for one, other in alike(sketch.prices.pattern, sketch, every))


@pytest.mark.parametrize("model", SMALL)
def test_numbers_that_ask_arrays_lie_within_them(model: str) -> None:
    """Compiled loops do not look: whoever writes past an end breaks what lies behind it."""
    sketch, _ = sketched(model)
    p = sketch.program
    ends = zip([*p.made, *p.layout], [*p.space[p.owner], *p.space[sketch.uses.reader]], strict=True)
    for layout, space in set(ends):
        for c in range(sketch.spaces.first[space], sketch.spaces.first[space + 1]):
            args = sketch.axes_of[space], sketch.spaces, sketch.layouts, sketch.prices, sketch.room
            assert 0 < contents.contents(layout, c, *args) < len(sketch.room.last_read)
    found = sketch.prices.content.nonzero()[0]
    assert found[-1] == len(sketch.prices.content) - 1, "the last number of all was not among them"


@pytest.mark.parametrize("model", SMALL)
def test_of_reads_that_lie_alike_the_nearest_before_has_fetched_for_the_next(model: str) -> None:
    (sketch, start), rng, num_shared = sketched(model), random.Random(6), 0
    for _ in range(5):
        plan = shaken(sketch, start, rng)
        sketch.seconds(plan)
        numbers, p, room = sketch.number(plan), sketch.program, sketch.room
        contents = sketch.prices.content[sketch.layouts.base[p.layout] + numbers[sketch.uses.reader]]
        made = sketch.prices.content[sketch.layouts.base[p.made] + numbers[p.owner]].tolist()
        last: dict[tuple[int, int], int] = {}
        for e, key in enumerate(zip(p.flow.tolist(), contents.tolist(), strict=True)):
            assert max(-1, room.brought_by[e]) == last.get(key, -1)
            assert room.brought_by[e] < 0 or room.transfer[e] == 0
            last[key], num_shared = e, num_shared + (key in last)
        for flow in set(p.flow.tolist()):
            begin, end = p.made_ptr[flow], p.made_ptr[flow + 1]
            firsts = [m for m in range(begin, end) if made[m] not in made[begin:m]]
            assert room.ends[begin : begin + room.num_ends[flow]].tolist() == firsts
    assert num_shared > 0


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("num_readers", [1, 2])
def test_what_some_who_add_to_a_sum_read_is_made_by_all_and_what_one_holds_goes_to_all_at_once(
    machine: str, num_readers: int
) -> None:
    """A layer cut along what it sums up, and behind it layers on one processor, or on two that do the same."""
    sketch, _ = sketched("mlp:width=2048", machine)
    evaluator, num_procs = Evaluator(sketch.lowering, sketch.cost), sketch.lowering.machine.num_procs
    plan = {name: Config({}, num_readers, tuple(range(num_readers))) for name in sketch.names}
    cut = {"fc1": "o", "relu1": "o", "fc2": "i"}
    plan |= {name: Config({axis: num_procs}, 1, tuple(range(num_procs))) for name, axis in cut.items()}
    assert sketch.seconds(plan) == pytest.approx(evaluator.evaluate(Strategy(plan)).seconds, rel=0.15)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("num_parts", [2, 4])
def test_a_step_takes_no_less_than_what_is_sent_from_each_to_each(machine: str, num_parts: int, is_apart: bool) -> None:
    """Slices of what all made, read by several each, are no collective: nobody passes on what it got."""
    sketch, plan = sketched("mlp:width=2048", machine)
    evaluator, num_procs = Evaluator(sketch.lowering, sketch.cost), sketch.lowering.machine.num_procs
    every = (
        np.arange(num_procs).reshape(num_parts, -1) if not is_apart else np.arange(num_procs).reshape(-1, num_parts).T
    )
    plan |= {"relu1": Config({"o": num_parts}, num_procs // num_parts, tuple(every.reshape(-1).tolist()))}
    tasks, simulated = evaluator.simulate(Strategy(plan))
    lasts = (simulated.timeline.end - simulated.timeline.start)[tasks.kind == Kind.MOVE]
    assert sketch.seconds(plan) >= lasts.sum() / PICOSECONDS / num_procs


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["relu1", "relu2"])
def test_what_is_packed_waits_for_the_kernels_that_could_begin_sooner(machine: str, name: str) -> None:
    """Columns of what lies in rows: a gradient's are packed once the parameter's gradient, ready before, is there."""
    sketch, plan = sketched("mlp:width=2048", machine)
    evaluator, num_procs = Evaluator(sketch.lowering, sketch.cost), sketch.lowering.machine.num_procs
    plan |= {name: Config({"o": num_procs}, 1, tuple(range(num_procs)))}
    assert sketch.seconds(plan) == pytest.approx(evaluator.evaluate(Strategy(plan)).seconds, rel=0.05)
