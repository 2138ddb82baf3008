"""No two blocks alive at once share a byte, in the simulated order and in every other that respects the edges."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise, permutations
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.simulate import simulate
from castile.runtime import gaps
from castile.runtime.gaps import best_fit, placed
from castile.runtime.memory import ALIGNMENT, arenas, largest, pack, refuse, written
from castile.runtime.task import NUM_LANES, Kind, Lane
from castile.runtime.timeline import Timeline
from tests.effort import examples, rare
from tests.graphs import Draft, engine_maps, task_graphs, timings

EMPTY = np.zeros(0, np.int64)


def blocks_of(graph, packing, proc):
    """(offset, bytes, users) of all that lies on a processor; persistent blocks have no users."""
    blocks = []
    for b in np.flatnonzero((graph.buffer_proc == proc) & (graph.buffer_bytes > 0)):
        users = {t for t in range(graph.num_tasks) if b in graph.uses_of(t)}
        lasting = graph.buffer_first[b] < 0
        blocks.append((int(packing.offset[b]), int(graph.buffer_bytes[b]), None if lasting else users))
    for t in np.flatnonzero(graph.private_bytes):
        if graph.lanes_of(t)[0] // NUM_LANES == proc:
            blocks.append((int(packing.private_offset[t]), int(graph.private_bytes[t]), {int(t)}))
    return blocks


def check_disjoint(graph, packing, start, end):
    """Blocks that share bytes live one after the other; a block lives from its users' first start to their last end."""
    for proc in range(graph.num_procs):
        blocks = blocks_of(graph, packing, proc)
        for i, (low, size, users) in enumerate(blocks):
            assert low % ALIGNMENT == 0
            assert 0 <= low <= low + size <= packing.peak_bytes[proc]
            for other_low, other_size, other_users in blocks[:i]:
                if low < other_low + other_size and other_low < low + size:
                    assert users and other_users, "a persistent block shares its bytes"
                    before = max(end[t] for t in users) <= min(start[t] for t in other_users)
                    after = max(end[t] for t in other_users) <= min(start[t] for t in users)
                    assert before or after


def random_topological_order(data, graph, edges):
    """Any order of single tasks in which needs and edges point backwards."""
    before = [set(graph.needs_of(t).tolist()) for t in range(graph.num_tasks)]
    for a, b in edges.tolist():
        before[b].add(a)
    order, rest = [], set(range(graph.num_tasks))
    while rest:
        ready = sorted(t for t in rest if not before[t] & rest)
        assert ready, "the edges close a cycle"
        order.append(data.draw(st.sampled_from(ready)))
        rest.remove(order[-1])
    return order


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_arenas_are_as_long_as_those_that_are_packed(data):
    graph, engines = one_home(data.draw(task_graphs())), data.draw(engine_maps)
    simulated = simulate(graph, data.draw(timings(graph)), engines)
    packed, asked = pack(graph, simulated.timeline), arenas(graph, simulated.timeline)
    for name in ("offset", "private_offset", "peak_bytes", "live_bytes"):
        assert np.array_equal(getattr(packed, name), getattr(asked, name)), name


def test_nothing_more_is_packed_once_an_arena_has_not_room(tell: Callable[[str], None]) -> None:
    """What was packed lies as if all were, and those with least room come first."""
    seen: Counter[str] = Counter()

    @settings(max_examples=examples(100), derandomize=True, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        graph = one_home(data.draw(task_graphs()))
        timeline = simulate(graph, data.draw(timings(graph)), data.draw(engine_maps)).timeline
        every = arenas(graph, timeline)
        # Room that is just enough is enough, on all of them.
        assert np.array_equal(arenas(graph, timeline, every.peak_bytes).peak_bytes, every.peak_bytes)
        share = st.sampled_from((0.5, 0.8, 0.99, 1.0, 1.01, 2.0))
        capacities = np.array([int(data.draw(share) * peak) for peak in every.peak_bytes.tolist()], np.int64)
        found, lacks = arenas(graph, timeline, capacities), every.peak_bytes > capacities
        # What nothing lies on is like all that nothing comes to and goes from.
        packed = (found.peak_bytes > 0) | (every.peak_bytes == 0)
        assert (found.live_bytes[packed] == every.live_bytes[packed]).all()
        # Where room lacks more is tried, else nothing.
        assert (found.peak_bytes <= every.peak_bytes).all()
        assert (found.peak_bytes == every.peak_bytes)[packed & ~lacks].all()
        assert (found.peak_bytes[~packed] == 0).all() and (found.live_bytes[~packed] == 0).all()
        assert packed.all() or (found.peak_bytes > capacities).any()
        assert lacks.any() or packed.all()
        if not packed.all():
            room = capacities - every.live_bytes
            assert room[packed & (every.peak_bytes > 0)].min() <= room[~packed].min()
        seen["all" if packed.all() else "some"] += 1

    check()
    tell(f"packed: {seen['all']} times all, {seen['some']} times some")
    assert seen["some"] > examples(100) // 10


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_a_processor_is_packed_alone_as_with_all_others(data):
    graph = one_home(data.draw(task_graphs()))
    timeline = simulate(graph, data.draw(timings(graph)), data.draw(engine_maps)).timeline
    packed = pack(graph, timeline)
    for proc in range(graph.num_procs):
        alone, mine = pack(graph, timeline, [proc]), graph.buffer_proc == proc
        assert np.array_equal(alone.offset[mine], packed.offset[mine])
        assert alone.peak_bytes[proc] == packed.peak_bytes[proc]
        assert alone.live_bytes[proc] == packed.live_bytes[proc]


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_no_two_blocks_alive_at_once_share_bytes(data):
    graph, engines = data.draw(task_graphs()), data.draw(engine_maps)
    graph = one_home(graph)
    simulated = simulate(graph, data.draw(timings(graph)), engines)
    packing = pack(graph, simulated.timeline)
    check_disjoint(graph, packing, simulated.timeline.start, simulated.timeline.end)
    # also what is empty has a place
    assert (packing.offset >= 0).all()
    assert (packing.peak_bytes >= packing.live_bytes).all()
    assert (packing.live_bytes >= simulated.peak_bytes).all()
    before, after = packing.edges[:, 0], packing.edges[:, 1]
    assert (simulated.timeline.end[before] <= simulated.timeline.start[after]).all()


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_reuse_is_safe_in_any_order_that_respects_the_edges(data):
    graph, engines = one_home(data.draw(task_graphs())), data.draw(engine_maps)
    packing = pack(graph, simulate(graph, data.draw(timings(graph)), engines).timeline)
    place = np.argsort(random_topological_order(data, graph, packing.edges))
    check_disjoint(graph, packing, place, place + 1)


def one_home(graph):
    """The graph without private memory of tasks that span processors, which no task has."""
    spans = [len(set((graph.lanes_of(t) // NUM_LANES).tolist())) > 1 for t in range(graph.num_tasks)]
    graph.private_bytes[np.array(spans, bool)] = 0
    return graph


def interpreted(*problem):
    """`best_fit` as Python runs it."""
    with patch.object(gaps, "_loop", lambda: gaps.fill):
        return best_fit(*problem)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(1, 5)), max_size=30))
def test_compiled_placing_equals_plain(drawn):
    size, begin, length = (np.array(column, np.int64) for column in zip(*drawn, strict=True)) if drawn else [EMPTY] * 3
    sequence, ranks = np.arange(len(size)), np.concatenate([begin, begin + length]).astype(np.int32)
    plain, fast = (form(size, ranks[: len(size)], ranks[len(size) :], sequence) for form in (interpreted, best_fit))
    assert plain[0].tolist() == fast[0].tolist()
    assert plain[1] == fast[1] == int((plain[0] + size).max(initial=0))


@pytest.mark.parametrize("halves", [(), (16,), (3, 16, 128)])
@pytest.mark.parametrize("longest", [5, 100, 2000])
@pytest.mark.parametrize("num_blocks", [127, 128, 129, *rare(700)])
def test_each_block_lies_in_the_tightest_gap(num_blocks: int, longest: int, halves: tuple[int, ...], monkeypatch):
    """However their times are divided over shelves."""
    monkeypatch.setattr(gaps, "HALVES", halves)
    monkeypatch.setattr(gaps, "LEAST_EACH", 1)
    rng = np.random.default_rng(num_blocks + longest)
    size, begin = rng.integers(1, 60, num_blocks), rng.integers(0, 2000, num_blocks).astype(np.int32)
    end, sequence = (begin + rng.integers(1, longest, num_blocks)).astype(np.int32), rng.permutation(num_blocks)
    places, length = best_fit(size, begin, end, sequence)
    assert length == (places + size).max()
    for n, block in enumerate(sequence):
        before = [b for b in sequence[:n] if begin[b] < end[block] and begin[block] < end[b]]
        taken = sorted((int(places[b]), int(places[b] + size[b])) for b in before)
        tops = np.maximum.accumulate([0, *(high for _, high in taken)]).tolist()
        free = [(low - top, top) for (low, _), top in zip(taken, tops, strict=False) if low - top >= size[block]]
        assert places[block] == (min(free)[1] if free else tops[-1])


class Blocks(NamedTuple):
    """Random blocks, and the most bytes of them that live at one time."""

    size: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    @property
    def live(self) -> int:
        return max((int(self.size[(self.begin <= t) & (t < self.end)].sum()) for t in self.begin), default=0)

    def length(self, room: float = np.inf) -> int:
        return int((placed(*self, self.live, room) + self.size).max(initial=0))


def blocks_drawn(seed: int, num_blocks: int, longest: int = 8, most: int = 30, last: int = 12) -> Blocks:
    rng = np.random.default_rng(seed)
    size, begin = 64 * rng.integers(1, most, num_blocks), rng.integers(0, last, num_blocks)
    return Blocks(size, begin, begin + rng.integers(1, longest + 1, num_blocks))


@pytest.mark.parametrize("num_blocks", [0, 1, 2, 5, 9, 14, 20, 40])
def test_no_block_shares_bytes_with_one_that_lives_then(num_blocks: int):
    for seed in range(25):
        blocks = blocks_drawn(seed, num_blocks)
        places = placed(*blocks, blocks.live)
        for a in range(num_blocks):
            at_once = (blocks.begin < blocks.end[a]) & (blocks.begin[a] < blocks.end) & (np.arange(num_blocks) != a)
            over = (places < places[a] + blocks.size[a]) & (places[a] < places + blocks.size)
            assert not (at_once & over).any()
        assert (places >= 0).all() and blocks.length() >= blocks.live


def test_the_shortest_arena_of_all_turns_is_taken(monkeypatch: pytest.MonkeyPatch):
    """Later turns help now and then, those of each order."""
    every, turns = [blocks_drawn(seed, 40) for seed in range(60)], range(1, gaps.TURNS + 1)
    usual, after = [blocks.length() for blocks in every], list[list[int]]()
    for most in turns:
        monkeypatch.setattr(gaps, "TURNS", most)
        after.append([blocks.length() for blocks in every])
    assert after[-1] == usual
    for before, now in pairwise(after):
        assert all(new <= old for old, new in zip(before, now, strict=True)) and now != before


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40))
def test_what_lives_beside_a_block_is_counted_at_every_moment_of_its_life(seed: int, num_blocks: int, longest: int):
    blocks = blocks_drawn(seed, num_blocks, longest, last=60)
    first, last = gaps._numbered(blocks.begin, blocks.end)
    alive = [int(blocks.size[(first <= t) & (t < last)].sum()) for t in range(last.max() + 1)]
    most = [max(alive[f:e]) for f, e in zip(first.tolist(), last.tolist(), strict=True)]
    assert gaps._most_beside(blocks.size, first, last).tolist() == most
    assert max(most) == blocks.live


def best_of_all_orders(blocks: Blocks) -> int:
    """The length of the shortest arena that some sequence leads to."""
    ranks = gaps._numbered(blocks.begin, blocks.end)
    return min(best_fit(blocks.size, *ranks, np.array(one))[1] for one in permutations(range(len(blocks.size))))


def test_what_some_sequence_has_room_for_is_placed_nearly_always(tell: Callable[[str], None]):
    """Of those cases that are not the easiest: in which the largest first need more than that."""
    hard = found = 0
    for seed in range(examples(400)):
        blocks = blocks_drawn(seed, 7, longest=6, most=9)
        largest_first = np.argsort(-blocks.size, kind="stable")
        length = best_fit(blocks.size, *gaps._numbered(blocks.begin, blocks.end), largest_first)[1]
        if length > blocks.live and length > (least := best_of_all_orders(blocks)):
            hard, found = hard + 1, found + (blocks.length(least) == least)
    tell(f"{found} of {hard}")
    assert hard > examples(400) // 20 and found >= 0.95 * hard


def test_where_room_lacks_more_is_tried():
    """And nothing else is done where it does not, or never will suffice."""
    shorter = 0
    for seed in range(60):
        blocks = blocks_drawn(seed, 60, 20, 400, 60)
        usual = blocks.length()
        assert blocks.length(usual) == blocks.length(blocks.live - 1) == usual
        least = blocks.length(blocks.live)
        assert blocks.live <= least <= usual
        # More room is never found to be too little.
        assert all(blocks.length(room) <= room for room in (least, least + 64, usual - 64) if room >= least)
        shorter += least < usual
    assert shorter > 20


def test_of_many_blocks_an_arena_that_is_all_but_the_shortest_will_do(monkeypatch: pytest.MonkeyPatch):
    spared = 0
    for seed in range(4):
        blocks = blocks_drawn(seed, 300, 200, 400, 900)
        for share in np.linspace(0, 0.5, 26):
            monkeypatch.setattr(gaps, "NEAR", share)
            monkeypatch.setattr(gaps, "MANY", 301)
            shortest = blocks.length()
            monkeypatch.setattr(gaps, "MANY", 300)
            length = blocks.length()
            assert length == shortest or shortest < length <= (1 + share) * blocks.live
            # Not where there is no room for that.
            assert blocks.length(length - 1) <= length
            spared += length > shortest
    assert spared


def test_of_very_many_blocks_so_many_are_placed_together_at_most(monkeypatch: pytest.MonkeyPatch):
    blocks, asked = blocks_drawn(1, 300, 200, 400, 900), []
    monkeypatch.setattr(gaps, "best_fit", lambda *problem: asked.append(len(problem[0])) or best_fit(*problem))
    for usual, for_room in ((299, 299), (300, 300), (600, 899), (1200, 3000)):
        monkeypatch.setattr(gaps, "PLACED", usual)
        monkeypatch.setattr(gaps, "PLACED_FOR_ROOM", for_room)
        for room, most in ((np.inf, max(usual, 300)), (blocks.live, max(for_room, 300))):
            asked.clear()
            assert blocks.length(room) > blocks.live, "these are not hard"
            assert most - 300 < sum(asked) <= most


def test_what_is_of_the_same_sizes_and_times_all_together_lies_otherwise_where_it_lives_otherwise():
    """One after the other on one processor, and on another together for a while."""
    draft = Draft(2)
    for proc in (0, 0, 1, 1):
        draft.task([(proc, Lane.COMPUTE)], private=128)
    start, end = np.array([0, 10, 0, 10]), np.array([10, 20, 14, 16])
    graph = draft.graph()
    packing = pack(graph, Timeline(np.arange(4), start, end))
    check_disjoint(graph, packing, start, end)
    assert packing.peak_bytes.tolist() == packing.live_bytes.tolist() == [128, 256]


def test_edges_are_needed():
    """Without its reuse edges the packing of two independent chains is unsafe, so the edges are not idle."""
    draft = Draft(1)
    first = draft.task([(0, Lane.COMPUTE)], private=640)
    second = draft.task([(0, Lane.COMPUTE)], private=640)
    packing = pack(draft.graph(), Timeline(np.arange(2), np.array([0, 5]), np.array([5, 9])))
    assert packing.private_offset.tolist() == [0, 0]
    assert packing.edges.tolist() == [[first, second]]


def test_every_parallel_reader_is_waited_for():
    draft = Draft(1)
    writer = draft.task([(0, Lane.COMPUTE)])
    b = draft.buffer(0, 100, writer)
    readers = [draft.task([(0, lane)], [writer], uses=[b]) for lane in (Lane.COMPUTE, Lane.HOST)]
    heir = draft.task([(0, Lane.COMPUTE)], private=100)
    timeline = Timeline(np.arange(4), np.array([0, 1, 1, 3]), np.array([1, 2, 3, 4]))
    packing = pack(draft.graph(), timeline)
    assert packing.peak_bytes.tolist() == [128]
    assert packing.edges.tolist() == [[reader, heir] for reader in readers]


def test_stated_needs_are_not_repeated():
    draft = Draft(1)
    a = draft.task([(0, Lane.COMPUTE)], private=64)
    draft.task([(0, Lane.COMPUTE)], [a], private=64)
    assert len(pack(draft.graph(), Timeline(np.arange(2), np.array([0, 1]), np.array([1, 2]))).edges) == 0


@pytest.mark.parametrize("depth", [1, 5, 40])
def test_nested_lives_take_no_byte_too_many(depth):
    """A forward and backward chain: every activation lives until its mirror image."""
    draft, kept = Draft(1), []
    for size in range(depth):
        t = draft.task([(0, Lane.COMPUTE)], [t for t, _ in kept[-1:]], private=64 * size)
        kept.append((t, draft.buffer(0, 100 + 37 * size, t)))
    last = kept[-1][0]
    for _, b in reversed(kept):
        last = draft.task([(0, Lane.COMPUTE)], [last], uses=[b])
    graph = draft.graph()
    packing = pack(graph, simulate(graph, np.array([3]), tuple(Lane)).timeline)
    assert packing.peak_bytes.tolist() == packing.live_bytes.tolist()


def test_only_asked_processors_are_packed():
    draft = Draft(2)
    for proc in range(2):
        draft.buffer(proc, 100)
        draft.task([(proc, Lane.COMPUTE)], private=100)
    packing = pack(draft.graph(), Timeline(np.arange(2), np.zeros(2, int), np.ones(2, int)), [1])
    assert packing.peak_bytes.tolist() == [0, 256]
    assert packing.offset.tolist() == [-1, 0]
    assert packing.private_offset.tolist() == [-1, 128]


def big_graph():
    draft = Draft(2)
    for name, size in (("embedding", 5 * 2**20), ("head", 3 * 2**20), ("bias", 100)):
        draft.buffer(1, size, name=name)
    t = draft.task([(1, Lane.COMPUTE)], private=2**21)
    draft.buffer(1, 2**20, t, "activation")
    draft.buffer(1, 2**20, t, "activation")
    draft.task([(0, Lane.SEND), (1, Lane.RECEIVE)], [t], kind=Kind.MOVE)
    return draft.graph(), Timeline(np.arange(2), np.array([0, 4]), np.array([4, 5]))


def test_largest_owners_add_up_by_name():
    graph, timeline = big_graph()
    expected = [("embedding", 5 << 20), ("head", 3 << 20), ("activation", 2 << 20), ("temporaries of task0", 2 << 20)]
    assert largest(graph, timeline, [1]) == [[*expected, ("bias", 128)]]


def test_refusal_names_processor_sizes_and_owners():
    graph, timeline = big_graph()
    packing = pack(graph, timeline)
    with pytest.raises(ValueError, match=r"^processor 1 needs 12.0 MiB but has 8.0 MiB; .*ding \(5.0 MiB\)") as refusal:
        refuse(graph, timeline, packing.peak_bytes, [2**30, 2**23])
    assert "bias (128 bytes)" in str(refusal.value)
    refuse(graph, timeline, packing.peak_bytes, [0, 2**24])
    with pytest.raises(ValueError, match=r"^processor 1 needs 12,58[\d,]+ bytes but has 12,582,912; "):
        refuse(graph, timeline, packing.peak_bytes, [2**30, 12 * 2**20])


def test_sizes_are_written_for_people():
    expected = {0: "0 bytes", 1023: "1023 bytes", 1536: "1.5 KiB", 2**20: "1.0 MiB", 3 << 29: "1.5 GiB"}
    assert {nbytes: written(nbytes) for nbytes in expected} == expected
