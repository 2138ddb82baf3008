"""Transfers: every plan brings every reader what it wants, and each special form equals the general one bit for bit."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from castile.runtime import collectives, region
from castile.runtime.collectives import plan
from castile.runtime.comm.local import LocalCommunicator, LocalWorld
from castile.runtime.forms import SPECIAL_FORMS
from castile.runtime.machine import Level
from castile.runtime.region import Box, blocks, bounding, contains, disjoint, intersect, overlap, uncovered, whole
from castile.runtime.runs import Run
from castile.runtime.task import Comm, CostKey, Kind
from castile.runtime.transfer import Links, Recipe, Source, Transfer
from tests.effort import examples
from tests.transfers import KINDS, Read, expected, groups, links, results, situations

# Of what is drawn each form is in so many at least.
ONE_IN = 200


def moved(t: Transfer) -> list[tuple[str, int]]:
    """Form and elements that each transfer sends from one processor to another."""
    found = []
    for pattern in t.patterns:
        if pattern.comm:
            counts, form = pattern.comm.counts, pattern.comm.form
            n = len(counts)
            each = sum(counts[i][j] for i in range(n) for j in range(n) if i != j)
            each = 2 * (n - 1) * sum(counts[0]) if form == "all_reduce" else each
            found.append((form, (n - 1) * counts[0][0] if form == "broadcast" else each))
    return found


@settings(max_examples=examples(600))
@given(situations(), st.sampled_from(((), SPECIAL_FORMS, *((form,) for form in SPECIAL_FORMS))), st.booleans())
def test_every_reader_gets_the_sum_of_all_sources(situation, forms, has_trees: bool) -> None:
    sources, reads, held = situation
    t = plan(sources, reads, "float64", links(has_trees=has_trees), forms)
    for found, (_, box) in zip(results(t, held, reads), reads, strict=True):
        assert np.allclose(found, expected(sources, held, box), rtol=1e-13, atol=1e-13)


def test_each_special_form_equals_the_general_one_to_the_last_bit() -> None:
    seen, drawn = Counter[str](), examples(2000, 0.15)

    @settings(max_examples=drawn, derandomize=True)
    @given(situations((groups, groups, groups, *KINDS)))
    def check(situation) -> None:
        sources, reads, held = situation
        general = None
        for form in SPECIAL_FORMS:
            special = plan(sources, reads, "float64", links(), (form,))
            used = {p.comm.form for p in special.patterns if p.comm}
            assert used <= {form, "move"}
            seen.update(used)
            if form in used:
                general = general or results(plan(sources, reads, "float64", links(), ()), held, reads)
                for a, b in zip(results(special, held, reads), general, strict=True):
                    assert a.tobytes() == b.tobytes(), form

    check()
    assert all(seen[form] >= drawn // ONE_IN for form in SPECIAL_FORMS), seen


@settings(max_examples=examples(300))
@given(situations())
def test_plans_say_what_they_touch_in_an_order_that_works(situation) -> None:
    sources, reads, _ = situation
    t = plan(sources, reads, "float64", links())
    there = set(range(sum(len(s.procs) for s in sources)))
    for pattern in t.patterns:
        assert set(pattern.reads) <= there, "read before it was written"
        assert not set(pattern.writes) & there, "a piece is written once"
        assert {t.pieces[b].proc for b in (*pattern.reads, *pattern.writes)} <= set(pattern.procs)
        there |= set(pattern.writes)
    assert set(t.located) <= there


@settings(max_examples=examples(300))
@given(situations((groups, groups, *KINDS)), st.sampled_from(((), SPECIAL_FORMS)))
def test_tasks_cost_what_they_copy_add_clear_and_send(situation, forms) -> None:
    sources, reads, _ = situation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "to_pack", property(lambda run: pytest.fail("written out to be priced")))
        t = plan(sources, reads, "float64", links(), forms)
    for pattern in t.patterns:
        if isinstance(recipe := pattern.how, Recipe):
            frames = [] if recipe.cleared is None else [recipe.cleared.volume]
            boxes = [written.box for _, written, _ in recipe.copies]
            copied = [box.volume for box in boxes]
            added = sum(n for n, (_, _, adds) in zip(copied, recipe.copies, strict=True) if adds)
            assert pattern.key.flops == added
            assert pattern.key.nbytes == (sum(frames) + 2 * sum(copied) + added) * 8
            assert all(prod(read.shape or read.box.shape) == written.box.volume for read, written, _ in recipe.copies)
            if recipe.cleared is not None:
                assert recipe.cleared not in boxes[:1] and (uncovered(recipe.cleared, boxes) or not disjoint(boxes))
        else:
            assert pattern.comm is not None
            _assert_is_counted(pattern.comm, pattern.key)


def _assert_is_counted(comm: Comm, key: CostKey) -> None:
    """A transfer's counts are the sizes of its arrays; its key tells the most that a member sends, or has gathered."""
    ends = (comm.send, comm.receive, comm.scratch)
    sent, got, scratch = ([view.box.volume if view else 0 for view in views] for views in ends)
    n, counts = len(comm.group), np.array(comm.counts)
    assert counts.shape == (n, n) and key.nbytes == 8 * max(got if comm.form == "all_gather" else sent)
    assert key.members == n and key.flops == 0
    if comm.form == "move":
        assert counts.tolist() == [[0, sent[0]], [0, 0]] and sent == got[::-1]
    elif comm.form == "broadcast":
        assert (counts == sent[0]).all() and got[1:] == sent[:1] * (n - 1)
    elif comm.form == "all_gather":
        assert (counts.T == sent).all() and got == counts.sum(axis=0).tolist()
    else:
        assert sent == counts.sum(axis=1).tolist()
        assert got == (sent if comm.form == "all_reduce" else counts[0].tolist() if comm.form == "reduce_scatter"
                       else counts.sum(axis=0).tolist())  # fmt: skip
        adds = comm.form != "all_to_all"
        # members of an all-reduce hold as much, so that none is unlike others
        room = [max(counts[0])] * n if comm.form == "all_reduce" else counts[0].tolist()
        assert scratch == [(n - 1) * each if adds else 0 for each in room]
        assert not adds or (counts == counts[0]).all()
        assert comm.form != "all_reduce" or np.ptp(counts[0]) <= 1


@settings(max_examples=examples(300))
@given(situations())
def test_readers_of_a_processor_share_what_comes_to_it(situation) -> None:
    sources, reads, _ = situation
    once, twice = (plan(sources, asked, "float64", links(), ()) for asked in (reads, [*reads, *reads]))
    assert moved(once) == moved(twice)
    assert twice.located == [*once.located, *once.located]


@settings(max_examples=examples(300))
@given(situations())
def test_what_lies_on_a_processor_already_does_not_travel(situation) -> None:
    sources, reads, _ = situation
    t = plan(sources, reads, "float64", links(), ())
    for pattern in t.patterns:
        if pattern.comm:
            source, target = pattern.procs
            assert source != target
    alone = [(proc, s.box) for s in sources for proc in s.procs if _is_alone(s, sources)]
    assert not plan(sources, alone, "float64", links()).patterns if alone else True


@settings(max_examples=examples(200))
@given(st.integers(2, 4), st.lists(st.integers(0, 1), min_size=1, max_size=3), st.integers(0, 1),
       st.sampled_from(((), SPECIAL_FORMS)))  # fmt: skip
def test_of_rows_and_columns_that_are_added_only_what_is_read_elsewhere_travels(n, along, wanted, forms) -> None:
    def strips(axis: int) -> list[Box]:
        cuts = blocks(4 * n, n)
        return [Box((lo, 0), (hi, 4 * n)) if axis == 0 else Box((0, lo), (4 * n, hi)) for lo, hi in cuts]

    sources = [Source(box, (proc,)) for axis in along for proc, box in enumerate(strips(axis))]
    reads = list(enumerate(strips(wanted)))
    t = plan(sources, reads, "float64", links(), forms)
    # What lies the other way is cut once more, however many times it is added.
    lacking = (n - 1) * (4 * 4) * n
    assert sum(elements for _, elements in moved(t)) == (lacking if any(axis != wanted for axis in along) else 0)
    held = [np.random.default_rng(i).random(s.box.shape) for i, s in enumerate(sources)]
    for found, (_, box) in zip(results(t, held, reads), reads, strict=True):
        assert np.allclose(found, expected(sources, held, box), rtol=1e-13, atol=1e-13)


@st.composite
def _twice(draw: st.DrawFn, shape: tuple[int, ...], num_procs: int) -> list[tuple[Box, tuple[int, ...]]]:
    """Two groups, most often over one axis: what two products read or make of one array."""
    first = draw(groups(shape, num_procs))
    return [*first, *draw(st.one_of(groups(shape, num_procs), st.just(first)))]


@settings(max_examples=examples(300))
@given(situations((_twice, *KINDS)), st.sampled_from((SPECIAL_FORMS, ())))
def test_nothing_that_travels_waits_for_what_is_read_only_where_it_lies(situation, forms) -> None:
    sources, reads, _ = situation
    t = plan(sources, reads, "float64", links(), forms)
    waits: dict[int, set[int]] = {piece: {number} for (number, _), piece in t.instances.items()}
    travels = set[int]()
    for pattern in t.patterns:
        behind = {number for piece in pattern.reads for number in waits[piece]}
        travels |= behind if pattern.comm else set()
        waits.update((piece, waits.get(piece, set()) | behind) for piece in pattern.writes)
    for a in sources:
        elsewhere = [s for s in sources if s.procs == a.procs and overlap(s.box, a.box) and not _stays(s, reads)]
        assert not (elsewhere and _stays(a, reads) and sources.index(a) in travels)


def _stays(source: Source, reads: list[Read]) -> bool:
    return all(proc in source.procs for proc, box in reads if overlap(box, source.box))


def _is_alone(source: Source, sources: list[Source]) -> bool:
    return all(s is source or intersect(s.box, source.box) is None for s in sources)


@settings(max_examples=examples(300))
@given(situations(), st.randoms(use_true_random=False))
def test_boxes_of_replicas_lie_alike(situation, random) -> None:
    sources, reads, held = situation
    twins = [random.randrange(3) for _ in reads]
    # replicas read the same box
    reads = [(proc, next(b for (_, b), other in zip(reads, twins, strict=True) if other == n)) for (proc, _), n in
             zip(reads, twins, strict=True)]  # fmt: skip
    t = plan(sources, reads, "float64", links(), twins=twins)
    for number in set(twins):
        assert len({t.pieces[p].box for p, n in zip(t.located, twins, strict=True) if n == number}) == 1
    for found, (_, box) in zip(results(t, held, reads), reads, strict=True):
        assert np.allclose(found, expected(sources, held, box), rtol=1e-13, atol=1e-13)


# What each form moves, and when it is chosen.

ROWS = [Box((2 * n, 0), (2 * n + 2, 8)) for n in range(4)]
COLUMNS = [Box((0, 2 * n), (8, 2 * n + 2)) for n in range(4)]
WHOLE = whole((8, 8))
N, VOLUME = 4, 64
SITUATIONS: dict[str, tuple[list[Source], list[Read], int]] = {
    "all_reduce": ([Source(WHOLE, (p,)) for p in range(N)], [(p, WHOLE) for p in range(N)], 2 * (N - 1) * VOLUME),
    "reduce_scatter": ([Source(WHOLE, (p,)) for p in range(N)], list(enumerate(ROWS)), (N - 1) * VOLUME),
    "all_gather": ([Source(r, (p,)) for p, r in enumerate(ROWS)], [(p, WHOLE) for p in range(N)], (N - 1) * VOLUME),
    "all_to_all": ([Source(r, (p,)) for p, r in enumerate(ROWS)], list(enumerate(COLUMNS)), (N - 1) * VOLUME // N),
    "broadcast": ([Source(WHOLE, (0,))], [(p, WHOLE) for p in range(1, N)], (N - 1) * VOLUME),
}


@pytest.mark.parametrize("form", SPECIAL_FORMS)
def test_a_form_is_one_task_that_moves_what_it_must(form: str) -> None:
    sources, reads, elements = SITUATIONS[form]
    t = plan(sources, reads, "float64", links())
    assert moved(t) == [(form, elements)]
    [task] = [p for p in t.patterns if p.kind >= Kind.MOVE]
    assert task.kind == Kind.COLLECTIVE and task.key.members == N and set(task.procs) == set(range(N))


class Counting(LocalCommunicator):
    """A rank that counts the bytes it sends to others."""

    sent = 0

    def send(self, array, peer, tag):
        self.sent += array.nbytes * (peer != self.rank)
        return super().send(array, peer, tag)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_an_all_reduce_sends_twice_n_minus_one_nths_of_its_bytes(n: int) -> None:
    volume, world = 60, LocalWorld(n)
    ranks = [Counting(world, rank) for rank in range(n)]
    counts = ((volume // n,) * n,) * n
    data, total = [np.full(volume, 2.0**r) for r in range(n)], np.zeros((n, volume))
    requests = [
        rank.collective("all_reduce", range(n), data[r], total[r], np.zeros((n - 1) * (volume // n)), counts, 0)
        for r, rank in enumerate(ranks)
    ]
    while not all([request.poll() for request in requests]):
        pass
    assert (total == 2.0**n - 1).all()
    assert {rank.sent for rank in ranks} == {2 * (n - 1) * (volume // n) * 8}


@pytest.mark.parametrize("form", SPECIAL_FORMS)
def test_a_form_is_chosen_where_it_is_cheaper(form: str) -> None:
    """With tasks that take long; also where memory is slow, as no form adds or copies more than the general one."""
    sources, reads, _ = SITUATIONS[form]
    for known in (links(), replace(links(), copy_bytes_per_second=1.0)):
        assert [p.comm.form for p in plan(sources, reads, "float64", known).patterns if p.comm] == [form]


ENDS = st.lists(st.integers(2, 18), min_size=3, max_size=3, unique=True).map(sorted)


def columns(*ends: int) -> list[Box]:
    return [Box((0, lo), (2, hi)) for lo, hi in itertools.pairwise(ends)]


@settings(max_examples=examples(100))
@given(st.permutations(range(4)), ENDS, ENDS)
def test_tiles_that_are_read_as_other_tiles_are_exchanged_in_one_task(procs, made, read) -> None:
    """However little each has of what another wants; nothing is packed before it is packed to be sent."""
    assume(not {*made} & {*read})
    held, wanted = columns(0, *made, 20), columns(1, *read, 19)
    assume(not any(contains(held[proc], box) for proc, box in zip(procs, wanted)))
    t = plan([Source(box, (n,)) for n, box in enumerate(held)], list(zip(procs, wanted)), "float64", links())
    common = [intersect(mine, box) for n, mine in enumerate(held) for proc, box in zip(procs, wanted) if proc != n]
    assert moved(t) == [("all_to_all", sum(box.volume for box in common if box))]
    packed = [piece for pattern in t.patterns if pattern.kind == Kind.PACK for piece in pattern.reads]
    assert all(t.pieces[piece].kind == "source" for piece in packed)


@given(ENDS, st.integers(1, 2))
def test_boxes_of_which_one_has_slipped_are_no_tiles(made, slipped: int) -> None:
    """It meets one neighbour and leaves a hole before the other, though all together hold as much as the array."""
    held, frame = columns(0, *made, 20), Box((0, 0), (2, 20))
    held[slipped] = region.moved(held[slipped], (0, 1))
    for made_of, wanted in ((held, [frame] * 4), ([frame] * 4, held)):
        sources, reads = [Source(box, (n,)) for n, box in enumerate(made_of)], list(enumerate(wanted))
        arrays = [np.full(box.shape, 2.0**n) for n, box in enumerate(made_of)]
        for found, box in zip(results(plan(sources, reads, "float64", links()), arrays, reads), wanted, strict=True):
            assert np.array_equal(found, expected(sources, arrays, box))


def test_a_sum_of_two_is_one_task_where_to_add_up_is_dearer_than_a_message() -> None:
    sources, reads = [Source(WHOLE, (p,)) for p in range(2)], [(p, WHOLE) for p in range(2)]
    latency = Level("link", 8, 1e-6, 1e15)
    kinds = []
    for task_seconds in (0.5e-6, 1.5e-6):
        known = Links(lambda slot: (0,), lambda slots: latency, 1e15, task_seconds)
        kinds.append([p.name for p in plan(sources, reads, "float64", known).patterns])
    # A message and a sum each, or two messages' time and no sum of its own.
    assert kinds == [["move", "move", "fold", "fold"], ["all_reduce"]]


def test_where_some_want_one_box_of_a_sum_and_some_another_each_is_summed_by_all() -> None:
    count, halves = 8, [Box((0, 0), (4, 8)), Box((4, 0), (8, 8))]
    sources, reads = [Source(WHOLE, (p,)) for p in range(count)], [(p, halves[p % 2]) for p in range(count)]
    slow = Level("link", count, 1e-6, 1e6)
    known = Links(lambda slot: (0,), lambda slots: slow, 1e15, 1e-6)
    found, general = (plan(sources, reads, "float64", known, forms) for forms in (SPECIAL_FORMS, ()))
    assert [p.name for p in found.patterns] == ["all_reduce"] * 2
    assert len(general.patterns) == count * (count - 1) + count
    held = [np.random.default_rng(p).random((8, 8)) for p in range(count)]
    for mine, other in zip(results(found, held, reads), results(general, held, reads), strict=True):
        assert np.array_equal(mine, other)


def test_a_sum_counts_one_replica_of_each_part() -> None:
    sources, held = [Source(WHOLE, (0, 1)), Source(WHOLE, (3, 2))], [np.full((8, 8), value) for value in (1.0, 2.0)]
    for shared in ([(p, WHOLE) for p in range(N)], list(enumerate(ROWS))):
        for found in results(plan(sources, shared, "float64", links()), held, shared):
            assert (found == 3).all()


def test_a_reader_takes_the_nearest_replica() -> None:
    # two groups of two; each group has its replica
    t = plan([Source(WHOLE, (0, 2))], [(1, WHOLE), (3, WHOLE)], "float64", links(group=2), ())
    assert sorted(p.procs for p in t.patterns) == [(0, 1), (2, 3)]


@settings(max_examples=examples(200))
@given(st.integers(4, 12), st.data())
def test_shares_are_summed_by_those_who_lie_as_often(n: int, data) -> None:
    """Gradients' squares are such shares: some lie on one processor each, some on all of a group, some everywhere."""
    sizes = data.draw(st.lists(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]), min_size=1, unique=True))
    near, sources, groups = data.draw(st.sampled_from((2, 3, n))), list[Source](), set[tuple[int, ...]]()
    for often in sizes:
        each, is_strided = n // often, data.draw(st.booleans())
        rows = np.arange(n).reshape(often, each).T if is_strided else np.arange(n).reshape(each, often)
        sources += [Source(WHOLE, tuple(row)) for row in rows.tolist()]
        # Who are at one place of their rows are a group, unless others who have the same are nearer.
        if each > 1 and (often == 1 or near == n):
            groups |= {tuple(group) for group in rows.T.tolist()}
    reads, held = [(p, WHOLE) for p in range(n)], [np.full(WHOLE.shape, 2.0**k) for k in range(len(sources))]
    found = data.draw(st.permutations(range(len(sources))))
    t = plan([sources[k] for k in found], reads, "float64", links(group=near))
    summed = {tuple(sorted(p.comm.group)) for p in t.patterns if p.comm and p.comm.form == "all_reduce"}
    assert groups <= summed
    if near == n:
        assert groups == summed and not [p for p in t.patterns if p.kind == Kind.MOVE]
    for got in results(t, [held[k] for k in found], reads):
        assert (got == 2.0 ** len(sources) - 1).all()


def test_who_reads_what_lies_on_many_does_not_look_at_all_of_them() -> None:
    """Of squares in pieces, in copies and on all of a stage the work to find out who sends whom grows as they do."""
    stages, width, work = 2, 4, []
    for copies in (16, 32):
        ranks = np.arange(stages * width * copies).reshape(stages, copies, width)
        shared = [*ranks.transpose(0, 2, 1).reshape(-1, copies), *ranks.reshape(stages, -1)]
        sources = [Source(WHOLE, tuple(procs.tolist())) for procs in (*ranks.reshape(-1, 1), *shared)]
        reads = [(proc, WHOLE) for proc in range(ranks.size)]
        work.append(lines_run(lambda sources=sources, reads=reads: plan(sources, reads, "float64", links(group=width))))
    assert work[1] <= 2.2 * work[0], work


def lines_run(what: Callable[[], object]) -> int:
    """How many lines of Python run, those of loops as often as they do."""
    count = itertools.count()

    def traced(frame: object, event: str, arg: object) -> object:
        next(count)
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        what()
    finally:
        sys.settrace(before)
    return next(count)


def test_copies_are_no_larger_than_what_is_read_of_them() -> None:
    sources = [Source(WHOLE, (0,))]
    reads = [(1, Box((0, 0), (3, 8))), (1, Box((2, 0), (5, 8))), (1, Box((7, 0), (8, 8)))]
    t = plan(sources, reads, "float64", links())
    copies = [p.box for p in t.pieces if p.kind == "copy"]
    assert copies == [bounding([reads[0][1], reads[1][1]]), reads[2][1]]


def test_where_others_want_a_sum_too_it_is_made_once_and_passed_on() -> None:
    rng = np.random.default_rng(0)
    for num_holders, num_readers in ((2, 8), (3, 5), (4, 16)):
        sources = [Source(WHOLE, (p,)) for p in range(num_holders)]
        held = [rng.normal(size=WHOLE.shape) for _ in sources]
        reads = [(p, WHOLE) for p in range(num_readers)]
        passed, general = (plan(sources, reads, "float64", links(), forms) for forms in (SPECIAL_FORMS, ()))
        assert [p.comm.group for p in passed.patterns if p.name == "all_reduce"] == [tuple(range(num_holders))]
        assert sum(n for _, n in moved(passed)) < sum(n for _, n in moved(general))
        for a, b in zip(results(passed, held, reads), results(general, held, reads), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("firsts", [(0, 8), (0, 8, 20)])
def test_several_boxes_that_each_wants_are_exchanged_in_a_task_each(firsts: tuple[int, ...]) -> None:
    """Of tables cut along features lie the vectors' gradients so, where others are between them."""
    n, rng = 4, np.random.default_rng(0)
    sources = [Source(Box((2 * p, 0), (2 * p + 2, 24)), (p,)) for p in range(n)]
    reads = [(p, Box((0, first + p), (2 * n, first + p + 1))) for p in range(n) for first in firsts]
    held = [rng.normal(size=source.box.shape) for source in sources]
    found, general = (plan(sources, reads, "float64", links(), forms) for forms in (SPECIAL_FORMS, ()))
    assert [form for form, _ in moved(found)] == ["all_to_all"] * len(firsts)
    assert {form for form, _ in moved(general)} == {"move"} and len(moved(general)) == n * (n - 1) * len(firsts)
    for a, b in zip(results(found, held, reads), results(general, held, reads), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("num_rows", "often"), [(4, 2), (2, 2), (8, 3)])
def test_rows_of_a_sum_that_several_want_are_scattered_once_and_passed_on(num_rows: int, often: int) -> None:
    """At most half of those who contribute get nothing, beyond which each row is summed by itself."""
    n, rows, rng = num_rows * often, blocks(8, num_rows), np.random.default_rng(0)
    sources = [Source(WHOLE, (p,)) for p in range(n)]
    reads = [(p, Box((rows[p % num_rows][0], 0), (rows[p % num_rows][1], 8))) for p in range(n)]
    held = [rng.normal(size=WHOLE.shape) for _ in sources]
    found, general = (plan(sources, reads, "float64", links(group=n), forms) for forms in (SPECIAL_FORMS, ()))
    if often == 2:
        assert [p.comm.group for p in found.patterns if p.comm and p.comm.form != "move"] == [tuple(range(n))]
        passed = [p.procs for p in found.patterns if p.kind == Kind.MOVE]
        assert sorted(passed) == [(p, p + num_rows) for p in range(num_rows)]
    assert sum(m for _, m in moved(found)) < sum(m for _, m in moved(general))
    for a, b in zip(results(found, held, reads), results(general, held, reads), strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_sum_of_little_takes_a_tree_where_there_are_trees() -> None:
    slow = Level("slow", 8, 1e-3, 1e12)
    sources, reads, _ = SITUATIONS["all_reduce"]
    for num, forms in ((4, (["all_reduce"], None)), (2, (None, None))):
        for has_trees, form in zip((True, False), forms, strict=True):
            known = Links(lambda slot: (0,), lambda slots: slow, 1e12, 5e-4, has_trees)
            t = plan(sources[:num], reads[:num], "float64", known)
            assert [p.name for p in t.patterns if p.comm] == (form or ["move"] * num * (num - 1))


CUTS = ((), (0,), (1,))  # of which dims


@settings(max_examples=200)
@given(st.permutations(range(6)), st.integers(2, 6), st.sampled_from(CUTS), st.sampled_from(CUTS), st.data())
def test_what_comes_from_all_is_made_as_any_other(procs, count: int, made, read, data) -> None:
    def cut(dims: tuple[int, ...]) -> list[Box]:
        runs = [blocks(extent, count if dim in dims else 1) for dim, extent in enumerate((7, 8))]
        each = [Box(*zip(*ends)) for ends in itertools.product(*runs)]
        return each * (1 if dims else count)

    sources = [Source(box, (p,)) for p, box in zip(procs, cut(made))]
    wanting = data.draw(st.sampled_from((procs, procs[::-1])))
    reads = data.draw(st.lists(st.sampled_from(list(zip(wanting, cut(read)))), min_size=1))
    forms = SPECIAL_FORMS if data.draw(st.booleans()) else ()
    with pytest.MonkeyPatch.context() as patch:
        at_once = plan(sources, reads, "float64", links(), forms)
        patch.setattr(collectives, "_from_all", lambda sources, reads: [])
        looked_at = plan(sources, reads, "float64", links(), forms)
    assert at_once.pieces == looked_at.pieces and at_once.located == looked_at.located
    told = [[astuple(pattern)[:6] for pattern in t.patterns] for t in (at_once, looked_at)]
    assert told[0] == told[1]
    assert [pattern.views for pattern in at_once.patterns] == [pattern.views for pattern in looked_at.patterns]
    assert [pattern.comm for pattern in at_once.patterns] == [pattern.comm for pattern in looked_at.patterns]
