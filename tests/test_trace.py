"""A trace file holds every span of its timelines, in units and types that viewers accept."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch.reports import trace
from castile.planner.simulate import simulate
from castile.runtime.task import NUM_LANES, Lane
from castile.runtime.timeline import Timeline
from tests.effort import examples
from tests.graphs import Draft, task_graphs, timings


def events_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


@settings(max_examples=examples(100))
@given(st.data())
def test_every_span_is_found_again(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    graph = data.draw(task_graphs())
    timeline = simulate(graph, data.draw(timings(graph)) * 10**6, tuple(Lane)).timeline
    shown = np.array([t for t in range(graph.num_tasks) if data.draw(st.booleans())], int)
    measured = Timeline(shown, timeline.start[shown] + 7, timeline.end[shown] + 8)
    trace.write(str(path), graph, {"simulated": timeline, "measured": measured}, 3)
    events = events_of(path)
    assert all(isinstance(event["pid"], int) and isinstance(event["tid"], int) for event in events)
    for pid, times in enumerate((timeline, measured)):
        found = {(e["args"]["task"], e["tid"]): e for e in events if e["ph"] == "X" and e["pid"] == pid}
        wanted = {(t, lane) for t in times.task.tolist() for lane in graph.lanes_of(t).tolist()}
        assert set(found) == wanted
        for task, start, end in zip(times.task.tolist(), times.start, times.end, strict=True):
            for lane in graph.lanes_of(task).tolist():
                event = found[task, lane]
                assert round(event["ts"] * 10**6) == start
                assert round(event["dur"] * 10**6) == end - start
                assert event["args"]["step"] == 3
                assert event["args"]["flops"] == graph.cost_keys[graph.cost[task]].flops
        rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == pid}
        lanes = ((lane, Lane(lane % NUM_LANES).name.lower()) for _, lane in wanted)
        assert rows == {lane: f"processor {lane // NUM_LANES} {name}" for lane, name in lanes}


def test_names_survive_and_missing_timelines_are_left_out(tmp_path):
    draft = Draft(1)
    draft.task([(0, Lane.COMPUTE)])
    graph = draft.graph()
    name = 'layer "1" \\ größe\n</script>'
    graph.tasks[0] = graph.tasks[0].__class__(0, name, graph.tasks[0].kind, (0,))
    timeline = Timeline(np.arange(1), np.array([0]), np.array([1_500_000]))
    trace.write(str(tmp_path / "t.json"), graph, {"simulated": timeline, "measured": None})
    events = events_of(tmp_path / "t.json")
    assert [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [(name, 0.0, 1.5)]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["simulated"]


def test_unwritable_file_is_refused_in_words(tmp_path):
    graph = Draft(1).graph()
    (tmp_path / "no").write_text("a file")
    with pytest.raises(ValueError, match=r"no/such/folder/t.json: Not a directory"):
        trace.write(str(tmp_path / "no/such/folder/t.json"), graph, {})
