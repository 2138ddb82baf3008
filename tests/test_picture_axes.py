"""What stands on a picture says where things lie: numbers beside axes, colours of legends, names.

Each is read off the picture as its reader does, and compared with what is told of the thing itself.
"""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch.pictures import drawing, front, roofline
from castile.launch.pictures import timeline as timelines
from castile.planner.simulate import simulate
from castile.runtime import memory
from castile.runtime.task import Lane
from tests.effort import examples
from tests.graphs import task_graphs, timings
from tests.svg import Picture, box_of
from tests.test_plan_picture import point
from tests.test_roofline import PEAK, RATE, facts
from tests.test_timeline_picture import drawn

# Places are drawn to a tenth of a pixel.
ROUNDED = 0.11
FIGURES = st.tuples(st.floats(1e-6, 1e3), st.integers(1, 2**40))
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Axis:
    """The line of numbers beside a picture that has most of them: below or above ("middle"), or at a side ("end")."""

    def __init__(self, picture: Picture, anchor: str, is_logarithmic: bool = False) -> None:
        lines = defaultdict(list)
        along, across = ("x", "y") if anchor == "middle" else ("y", "x")
        # numbers at a side are set in the middle of their height
        lift = 4.0 if anchor == "end" else 0.0
        for text in picture.all("text"):
            if text.get("text-anchor") == anchor and _is_number(text.text):
                lines[text.get(across)].append((float(text.get(along)) - lift, float(text.text)))
        places, numbers = np.array(max(lines.values(), key=len)).T
        assert (np.diff(places) * (1 if anchor == "middle" else -1) > 9).all(), "numbers lie on each other"
        self.is_logarithmic = is_logarithmic
        self.scale, self.first = np.polyfit(np.log10(numbers) if is_logarithmic else numbers, places, 1)

    def at(self, number: float) -> float:
        """The pixel at which a number lies."""
        return float(self.first + self.scale * (np.log10(number) if self.is_logarithmic else number))


def _is_number(words: str) -> bool:
    return words.replace(".", "").replace("e-", "").replace("e+", "").isdigit()


@given(st.text(max_size=20), st.text(min_size=1, max_size=20))
def test_any_words_can_be_drawn(words, told):
    elements = [drawing.text(9, 90, words, 9), drawing.rect(drawing.Box(0, 50, 9, 60), "red", told)]
    root = Picture(drawing.svg(900, 100, words, elements)).root
    shown = [element.text or "" for element in root.iter() if element.tag.endswith(("text", "title"))]
    for given_words, drawn_words in zip((words, words, told), shown, strict=True):
        assert len(drawn_words) == len(given_words.replace("\r\n", "\n"))
        pairs = zip(drawn_words, given_words.replace("\r\n", "\n"), strict=True)
        assert all(a == b or b == "\r" or drawing.UNWRITABLE.match(b) for a, b in pairs)


@given(st.floats(1e-9, 1e9), st.integers(5, 12))
def test_ticks_are_round_and_as_many_as_asked_for(most, count):
    found = list(drawing.ticks(most, count))
    step = found[1]
    assert found[0] == 0 and most * (1 - 1e-9) < found[-1] + step and found[-1] <= most * (1 + 1e-6)
    assert count / 2.5 - 1 < len(found) - 1 <= count
    smaller = step / {"1": 2, "2": 2, "5": 2.5}[f"{step:.0e}"[0]]
    assert most / smaller > count * (1 - 1e-6) and step == pytest.approx(float(f"{step:.0e}"))
    assert found == pytest.approx([number * step for number in range(len(found))])


@given(st.lists(st.text("ab c", min_size=1, max_size=60), min_size=1, max_size=9), st.integers(200, 900))
def test_a_legend_takes_as_many_lines_as_its_words(words, width):
    entries = [(text, f"#{number:06x}") for number, text in enumerate(words)]
    picture = Picture(drawing.svg(1000, 500, "a legend", drawing.legend(drawing.Box(20, 40, 20 + width, 90), entries)))
    assert picture.is_readable()
    lines = defaultdict(list)
    for (_, box), drawn_box in zip(picture.words[1:], picture.boxes, strict=True):
        assert box.left - drawn_box.right == pytest.approx(4, abs=0.1) and box.bottom + 1 == drawn_box.bottom
        lines[box.bottom].append(box.right)
    assert [text for text, _ in picture.words[1:]] == words
    # what is alone on its line may be longer
    assert all(len(line) == 1 or max(line) <= 20 + width for line in lines.values())
    firsts = sorted(lines)
    assert all(low - high >= drawing.SMALL for high, low in zip(firsts, firsts[1:]))


@given(st.data())
def test_plans_of_a_front_lie_at_their_numbers_and_are_joined(data):
    chosen = sorted(data.draw(st.lists(FIGURES, min_size=1, max_size=8)))
    others = st.lists(st.tuples(FIGURES, st.booleans()), max_size=6)
    known = {f"known_{n}": point(*pair, fits) for n, (pair, fits) in enumerate(data.draw(others))}
    capacity = data.draw(st.integers(1, 2**41))
    picture = Picture(front.picture("a front", [point(*pair) for pair in chosen], known, capacity))
    (unit,) = [words.split()[0] for words, _ in picture.words if words.endswith("of the fullest processor")]
    across, up = Axis(picture, "middle"), Axis(picture, "end")
    every = {**{f"plan {n}": point(*pair) for n, pair in enumerate(chosen, 1)}, **known}
    at = {}
    for told, dot in picture.titled("circle"):
        name, row = told.partition(": ")[0], every[told.partition(": ")[0]]
        at[name] = float(dot.get("cx")), float(dot.get("cy"))
        wanted = across.at(row["step_seconds"] * 1e3), up.at(row["live_bytes"] / UNITS[unit])
        assert at[name] == pytest.approx(wanted, abs=2 * ROUNDED)
        fits = "" if row["fits"] else ", does not fit"
        assert told == f"{name}: {row['step_seconds'] * 1e3:.4g} ms, {memory.written(row['live_bytes'])}{fits}"
    named = [(f"plan {words}" if words.isdigit() else words, box) for words, box in picture.words
             if box.left > front.LEFT and box.bottom < front.HEIGHT - front.BOTTOM]  # fmt: skip
    for words, box in named:
        if words in at:
            x, y = at[words]
            beside = max(box.left - x, x - box.right), max(box.top - y, y - box.bottom)
            assert max(beside) <= front.RADIUS + drawing.SMALL + 4, words
    assert len(at) > 1 or "plan 1" in [words for words, _ in named]
    assert picture.legend == dict(front.COLOURS)
    drawn_lines = [line for line in picture.all("line") if line.get("stroke") == drawing.EDGE]
    joined = [[float(line.get(end)) for end in ("x1", "y1", "x2", "y2")] for line in drawn_lines]
    places = [at[f"plan {n}"] for n in range(1, len(chosen) + 1)]
    steps = [
        step for (x, y), (to_x, to_y) in zip(places, places[1:]) for step in ([x, y, to_x, y], [to_x, y, to_x, to_y])
    ]
    assert np.allclose(joined, steps)
    dashed = [float(line.get("y1")) for line in picture.all("line") if line.get("stroke-dasharray")]
    assert dashed == pytest.approx([up.at(capacity / UNITS[unit])] * len(dashed), abs=2 * ROUNDED)
    largest = max(every[name]["live_bytes"] for name in at)
    assert bool(dashed) == (capacity <= largest * front.BEYOND)


def test_kinds_of_tasks_lie_at_what_they_reach_below_their_roof():
    told = facts()
    picture = Picture(roofline.picture(told))
    across, up = Axis(picture, "middle", True), Axis(picture, "end", True)
    elements = list(picture.root)
    colours = {text.text: dot.get("fill") for dot, text in zip(elements, elements[1:])
               if dot.tag.endswith("circle") and dot.find("*") is None}  # fmt: skip
    assert len(set(colours.values())) == len(colours) == 4
    dots = [element for _, element in picture.titled("circle")]
    by_share = sorted(told["keys"], key=lambda key: -key["step_share"])
    for key, dot in zip(by_share, dots, strict=True):
        intensity = key["flops_per_second"] / key["bytes_per_second"]
        wanted = across.at(intensity), up.at(key["flops_per_second"] / 1e9)
        assert (float(dot.get("cx")), float(dot.get("cy"))) == pytest.approx(wanted, abs=2 * ROUNDED)
        assert dot.get("fill") == colours[roofline.WORDS.get(key["pass"], "others")]
    roof = [line for line in picture.all("line") if line.get("stroke") == "black"][:2]
    ends = [(float(line.get(f"x{n}")), float(line.get(f"y{n}"))) for line in roof for n in (1, 2)]
    assert ends[1] == ends[2] == pytest.approx((across.at(PEAK / RATE), up.at(PEAK / 1e9)), abs=2 * ROUNDED)
    intensities = [10 ** ((x - across.first) / across.scale) for x, _ in ends]
    reached = [up.at(min(PEAK, intensity * RATE) / 1e9) for intensity in intensities]
    assert reached == pytest.approx([y for _, y in ends], abs=4 * ROUNDED)
    assert ends[3][0] == pytest.approx(max(x for x, _ in picture.points), abs=ROUNDED)


@pytest.mark.parametrize("share", [0.0001, 0.04, 0.25, 1.0])
def test_dots_are_as_large_as_their_share(share):
    told = facts()
    told["keys"] = [{**told["keys"][0], "step_share": of} for of in (share, 1.0)]
    one, other = sorted(float(dot.get("r")) for _, dot in Picture(roofline.picture(told)).titled("circle"))
    assert one == pytest.approx(max(roofline.LEAST_RADIUS, other * share**0.5), abs=0.06)


@settings(max_examples=examples(100))
@given(st.data())
def test_times_of_a_step_are_read_off_its_axis(data):
    graph = data.draw(task_graphs())
    timeline = simulate(graph, data.draw(timings(graph)) * 10**6, tuple(Lane)).timeline
    picture = drawn(graph, timeline)
    axis, colours = Axis(picture, "middle"), picture.legend
    for told, rect in picture.titled("rect"):
        box, (name, _, rest) = box_of(rect), told.partition(", ")
        if rest.startswith("most of it "):
            assert rect.get("fill") == colours[rest.removeprefix("most of it ")]
            continue
        assert rect.get("fill") in colours.values()
        where = next(t for t, task in enumerate(graph.tasks) if task.name == name)
        start, end = (axis.at(moment[where] / 1e9) for moment in (timeline.start, timeline.end))
        assert (box.left, box.right + 0.3) == pytest.approx((start, end), abs=3 * ROUNDED)
        assert rest == f"{(timeline.end - timeline.start)[where] / 1e9:.3f} ms"
    working = [text.text for text in picture.all("text") if text.text.endswith(" %")]
    groups = timelines._groups(graph, timeline, np.zeros(graph.num_tasks, int), 0.0)
    rows = [row for group in groups for row in group.rows if row.lane == Lane.COMPUTE]
    assert len(working) >= len(rows)
    shares = [100 * (row.end - row.start).sum() / max(1, timeline.end.max()) for row in rows]
    assert {float(words.split()[0]) for words in working} == {float(f"{share:.1f}") for share in shares}


@settings(max_examples=examples(100))
@given(st.data())
def test_the_curve_of_memory_is_what_lives_at_each_time(data):
    graph = data.draw(task_graphs())
    timeline = simulate(graph, data.draw(timings(graph)) * 10**6, tuple(Lane)).timeline
    picture = drawn(graph, timeline)
    axis = Axis(picture, "middle")
    (told,) = [words for words, _ in picture.words if words.startswith("memory of processor ")]
    proc = int(told.split()[3].rstrip(":"))
    moments, alive = memory.courses(graph, timeline)[proc]
    assert alive.max() == max(course.max() for _, course in memory.courses(graph, timeline))
    assert f": {memory.written(int(alive.max()))} at most, of 1.0 GiB" in told
    (curve,) = picture.all("polyline")
    points = np.array([tuple(map(float, pair.split(","))) for pair in curve.get("points").split()])
    height = (points[:, 1].max() - points[:, 1]) / timelines.MEMORY * max(1, alive.max())
    assert not alive.max() or height.max() == pytest.approx(alive.max(), rel=2e-3)
    # a column has the most of what lives in it
    for number in range(0, len(points) - 2, 2):
        left, right = points[number + 1 : number + 3, 0]
        begins = np.array([axis.at(moment / 1e9) for moment in moments])
        ends = np.append(begins[1:], axis.at(timeline.end.max(initial=1) / 1e9))
        there = (begins < right - 2 * ROUNDED) & (ends > left + 2 * ROUNDED)
        if there.any():
            assert alive[there].max() <= height[number + 1] + 2e-3 * alive.max() + 1e-9
        near = (begins < right + 1) & (ends > left - 1)
        assert height[number + 1] <= alive[near].max(initial=0) + 2e-3 * alive.max() + 1e-9
