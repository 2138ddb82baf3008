"""The picture of a timeline shows each processor, each task that is long enough to be seen, and what memory holds."""

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.pictures import timeline as pictures
from castile.launch.reports import report
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.simulate import simulate
from castile.runtime import machine as machines
from castile.runtime import memory
from castile.runtime.levels import level_name
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.task import NUM_LANES, Kind, Lane
from castile.runtime.timeline import Timeline
from tests.effort import examples, rare
from tests.graphs import Draft, task_graphs, timings
from tests.svg import Picture, box_of


def levels_of(graph):
    return sorted({level_name(key.link) for key in graph.cost_keys if key.link})


def drawn(graph, timeline, title="a step", undrawn=None, **others):
    processor = Processor("p", 1e9, 1e9, 2**30, 0, 0.0)
    levels = tuple(Level(name, graph.num_procs, 0.0, 1e9) for name in levels_of(graph) or ["link"])
    levels = levels if graph.num_procs > 1 else ()
    machine = Machine("drawn", (processor,) * graph.num_procs, levels, tuple(Lane))
    return Picture(pictures.picture(title, graph, {"simulated": timeline, **others}, machine, None, undrawn))


@settings(max_examples=examples(100))
@given(st.data())
def test_each_task_is_where_its_times_are(data):
    graph = data.draw(task_graphs())
    timeline = simulate(graph, data.draw(timings(graph)) * 10**6, tuple(Lane)).timeline
    picture = drawn(graph, timeline)
    assert picture.is_readable()
    idle = set(range(graph.num_procs)) - {int(lane) // NUM_LANES for lane in graph.lanes}
    assert sum(words.endswith(" idle") for words, _ in picture.words) == bool(idle)
    groups = pictures._groups(graph, timeline, pictures._kinds(graph, levels_of(graph)), 0.0)
    num_left = graph.num_procs - sum(len(group.procs) for group in groups)
    assert sum(len(group.procs) for group in groups) + num_left == graph.num_procs
    chart = pictures._Chart(graph, int(timeline.end.max(initial=1)), [("", "")] * 9)
    # Short ones are told in columns, by their number.
    told = [(words, box_of(rect)) for words, rect in picture.titled("rect") if not words[0].isdigit()]
    seen = sorted((words.rpartition(", ")[0], box) for words, box in told)
    wanted = sorted(
        (graph.tasks[task].name, chart.x(timeline.start[task]), chart.x(timeline.end[task]))
        for group in groups for row in group.rows for task in row.task.tolist()
        if (timeline.end[task] - timeline.start[task]) * chart.scale >= pictures.LEAST
    )  # fmt: skip
    assert [name for name, _ in seen] == [name for name, _, _ in wanted]
    for (_, box), (_, left, right) in zip(seen, wanted, strict=True):
        assert box.left == pytest.approx(left, abs=0.01) and box.right == pytest.approx(right, abs=0.35)


@given(st.data())
def test_processors_that_do_the_same_are_shown_once(data):
    graph = data.draw(task_graphs())
    timeline = simulate(graph, data.draw(timings(graph)) * 10**6, tuple(Lane)).timeline
    groups = pictures._groups(graph, timeline, graph.kind.astype(np.int64), 0.0)

    def does(proc):
        mine = [(int(lane) % NUM_LANES, timeline.start[t], timeline.end[t], graph.kind[t])
                for t in range(graph.num_tasks) for lane in graph.lanes_of(t) if lane // NUM_LANES == proc]  # fmt: skip
        return sorted(mine)

    for group in groups:
        assert all(does(proc) == does(group.procs[0]) for proc in group.procs)
    firsts = [does(group.procs[0]) for group in groups]
    assert all(one != other for number, one in enumerate(firsts) for other in firsts[:number])


@settings(max_examples=examples(100))
@given(st.data())
def test_columns_hold_all_that_short_tasks_take(data):
    graph = data.draw(task_graphs())
    timeline = simulate(graph, data.draw(timings(graph)) * 10**6, tuple(Lane)).timeline
    chart = pictures._Chart(graph, int(timeline.end.max(initial=1)), [])
    for group in pictures._groups(graph, timeline, graph.kind.astype(np.int64), 0.0):
        for row in group.rows:
            for kind in np.unique(row.kind).tolist():
                filled = pictures._filled(row, kind, chart.columns)
                mine = row.kind == kind
                assert filled.sum() == pytest.approx((row.end - row.start)[mine].sum())
                assert (filled >= -1e-6 * chart.last).all()


@settings(max_examples=examples(100))
@given(st.data())
def test_the_course_of_memory_is_what_packing_counts(data):
    graph = data.draw(task_graphs())
    timeline = simulate(graph, data.draw(timings(graph)) * 10**6, tuple(Lane)).timeline
    live = memory.pack(graph, timeline).live_bytes
    for proc in range(graph.num_procs):
        moments, alive = memory.courses(graph, timeline)[proc]
        assert moments[0] == 0 and (np.diff(moments) > 0).all() and alive.max() <= live[proc]
        # What a task that takes no time holds is in no span of time.
        if (timeline.durations() > 0).all():
            assert alive.max() == live[proc]
    assert drawn(graph, timeline).is_readable()


@settings(max_examples=examples(100))
@given(st.data())
def test_simulated_and_measured_lie_below_each_other_on_one_scale(data):
    graph = data.draw(task_graphs())
    timeline = simulate(graph, data.draw(timings(graph)) * 10**6, tuple(Lane)).timeline
    ran = np.array([t for t in range(graph.num_tasks) if data.draw(st.booleans())], int)
    measured = Timeline(ran, 2 * timeline.start[ran], 2 * timeline.end[ran] + 5)
    picture = drawn(graph, timeline, measured=measured)
    assert picture.is_readable()
    assert [words.partition(":")[0] for words, _ in picture.words if ": " in words and " ms" in words] == [
        "simulated", "measured"]  # fmt: skip
    right = max((box.right for _, box in ((0, box_of(rect)) for _, rect in picture.titled("rect"))), default=0.0)
    assert right <= pictures.WIDTH - pictures.RIGHT + 0.1


@settings(max_examples=examples(100))
@given(st.data())
def test_a_time_that_is_left_out_is_a_break_and_all_else_is_in_proportion(data):
    graph = data.draw(task_graphs())
    timeline = simulate(graph, data.draw(timings(graph)) * 10**9, tuple(Lane)).timeline
    assume(graph.num_tasks)
    later, last = np.zeros(graph.num_tasks, bool), int(timeline.end.max())
    later[np.argsort(timeline.start, kind="stable")[data.draw(st.integers(0, graph.num_tasks - 1)) :]] = True
    start, end = timeline.start + 3 * last * later, timeline.end + 3 * last * later
    timeline, until = Timeline(timeline.task, start, end), int(end.max())
    since, to = timeline.longest_pause()
    assert (since, to) == (end[~later].max(initial=0), start[later].min())
    undrawn = pictures.Undrawn(since, to, "9 microbatches", np.arange(graph.num_procs) / 256)
    chart = pictures._Chart(graph, until, [("", "")] * 9, undrawn)
    left, right = pictures.LEFT, pictures.WIDTH - pictures.RIGHT
    assert chart.x(to) - chart.x(since) == pytest.approx(pictures.BREAK)
    assert chart.scale * (until - to + since) == pytest.approx(right - left - pictures.BREAK)
    for moment in {*start.tolist(), *end.tolist()}:
        place = left + moment * chart.scale if moment <= since else right - (until - moment) * chart.scale
        assert chart.x(moment) == pytest.approx(place)
    picture = drawn(graph, timeline, undrawn=undrawn)
    told = [words for words, _ in picture.words]
    groups = pictures._groups(graph, timeline, pictures._kinds(graph, levels_of(graph)), 0.0)
    shares = [report.percent(group.procs[0] / 256) for group in groups if group.rows and group.rows[0].lane == 0]
    assert picture.is_readable() and "9 microbatches" in told
    assert [words for words in told if words.endswith(" %")] == shares
    # A break takes the room of what it stands for at most.
    chart = pictures._Chart(graph, 99 * until, [], undrawn)
    assert chart.x(to) == pytest.approx(left + to * (right - left) / (99 * until))


@pytest.mark.parametrize("model", ["rnntc:seq=4,width=8,vocab=8", "convnet", *rare("gpt", "moe")])
def test_every_pass_has_its_colour(model):
    machine = machines.parse("dgx-h100:nodes=1")
    lowering = Lowering(models.parse(model).graph(16), machine, Updates(find("adam")()))
    for plan in seeds(lowering).values():
        graph = lowering.lower(msgspec.structs.replace(plan, recompute=tuple(lowering.graph.nodes)))
        kinds = pictures._kinds(graph, [level.name for level in machine.levels])
        for task, kind in enumerate(kinds.tolist()):
            told = (*pictures.PASSES, "update", "again", "copy", "nvlink")[kind]
            name, is_kernel = graph.tasks[task].name, graph.kind[task] == Kind.COMPUTE
            wanted = ("update" if "/" in name else name.rpartition("[")[0].rpartition(".")[2]) if is_kernel else (
                "nvlink" if graph.cost_keys[graph.cost[task]].link else "copy")  # fmt: skip
            assert told == wanted, name


def test_of_many_processors_some_are_shown_and_the_others_counted():
    draft = Draft(40)
    for proc in range(40):
        draft.task([(proc, Lane.COMPUTE)], cost=proc)
    graph = draft.graph()
    timeline = simulate(graph, np.arange(1, 41) * 10**9, tuple(Lane)).timeline
    picture = drawn(graph, timeline, "a title that is much longer than any picture could be wide " * 9)
    assert picture.is_readable() and "and 28 processors more" in [words for words, _ in picture.words]
