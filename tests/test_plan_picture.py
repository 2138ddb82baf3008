"""Pictures of plans and fronts: each processor has the colour of its part, each plan the place of its figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.pictures import front, layout
from castile.launch.pictures.drawing import Box, Dot, names, svg
from castile.launch.reports import report
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.strategy import Config, Strategy, parts
from castile.runtime import machine as machines
from tests.effort import examples, rare
from tests.strategies import SGD, problems, strategies
from tests.strategies import machines as drawn_machines
from tests.svg import Picture, box_of


def rects(picture):
    """Stripes by the row's name and axis: (part, box)."""
    found = {}
    for told, rect in picture.titled("rect"):
        words, _, part = told.partition(", part ")
        found.setdefault(words, []).append((int(part or 0), box_of(rect)))
    return found


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_each_processor_has_the_parts_that_its_config_says(data):
    graph = data.draw(problems()).graph
    machine = data.draw(drawn_machines())
    plan = data.draw(strategies(graph, machine.num_procs))
    evaluator = Evaluator(Lowering(graph, machine, SGD), CostModel(machine))
    picture = Picture(layout.picture("a plan", evaluator, plan))
    assert picture.is_readable()
    stripes, names = rects(picture), evaluator.lowering.names
    grid = layout._Grid(machine.num_procs, 0.0)
    rows, left = layout._rows(evaluator, plan)
    assert sum(row.num_nodes for row in (*rows, *left)) == len(plan.configs)
    for row in rows:
        if row.num_nodes > 1:
            continue
        node = names.nodes.get(row.name) or names.optional[row.name]
        has = {}
        for number, proc in enumerate(row.configs[0].procs):
            has.setdefault(proc, []).append(number // row.configs[0].replicas)
        blocks = parts(node, row.configs[0].split)
        for axis, kind in zip(row.axes, row.kinds, strict=True):
            ranges = sorted({part.ranges[axis] for part in blocks})
            wanted = {proc: sorted({ranges.index(blocks[n].ranges[axis]) for n in held}) for proc, held in has.items()}
            shown = stripes[f"{row.name}: {axis} cut in {row.configs[0].degree(axis)}, {kind}"]
            for proc, indices in wanted.items():
                for n, index in enumerate(indices):
                    middle = grid.x(proc + (n + 0.5) / len(indices))
                    assert [part for part, box in shown if box.left < middle < box.right] == [index]
            covered = sum(box.right - box.left for _, box in shown)
            assert covered == pytest.approx(grid.width * len(wanted), abs=0.1)
    colours = picture.legend
    for told, rect in picture.titled("rect"):
        what, _, part = told.partition(": ")[2].partition(", part ")
        assert part not in ("", "0") or rect.get("fill") == colours[what.partition(", ")[2] or what], told
    check_bars(picture, rows, sum(row.seconds for row in left))


def check_bars(picture, rows, left_seconds):
    """Beside each row its name, a bar as long as its kernels take, and what share of all kernels' time that is."""
    total, longest = left_seconds + sum(row.seconds for row in rows), max(row.seconds for row in rows)
    bars = [box_of(rect) for rect in picture.all("rect") if rect.get("fill") == "#9aa7b5"]
    shares = [float(text.text.split()[0]) for text in picture.all("text") if text.text.endswith(" %")]
    lengths = [bar.right - bar.left for bar in bars]
    assert shares == pytest.approx([100 * row.seconds / total for row in rows], abs=0.051)
    assert lengths == pytest.approx([layout.BAR * row.seconds / longest for row in rows], abs=0.011)
    names = [(words, box) for words, box in picture.words if box.left == 8 and box.bottom > layout.TOP]
    for row, bar, (words, box) in zip(rows, bars, names[: len(rows)], strict=True):
        shown = words.rstrip("\u2026")
        assert row.label.startswith(shown) and bar.top < (box.top + box.bottom) / 2 < bar.bottom


def test_axes_are_called_by_what_cutting_them_means():
    machine = machines.parse("dgx-h100:nodes=1")
    lowering = Lowering(models.parse("gpt").graph(8), machine, SGD)
    nodes, samples = lowering.graph.nodes, {"b"}
    kinds = {name: {axis: layout.kind_of(nodes[name], axis, samples) for axis in nodes[name].alignment.axes}
             for name in ("block1.up", "block1.attention", "tok")}  # fmt: skip
    assert kinds["block1.up"] | {"s": ""} == {
        "b": layout.SAMPLES, "s": "", "o": layout.PARAMETERS, "i": layout.CONTRACTED}  # fmt: skip
    assert kinds["block1.attention"]["h"] == layout.ATTRIBUTES
    assert kinds["tok"]["d"] == layout.PARAMETERS


@pytest.mark.parametrize("model", ["inception", *rare("resnet:depth=101", "gpt:layers=30,width=64")])
def test_large_plans_on_many_processors_have_few_rows(model):
    machine = machines.parse("dgx-h100:nodes=64")
    evaluator = Evaluator(Lowering(models.parse(model).graph(512), machine, SGD), CostModel(machine))
    known = seeds(evaluator.lowering, ["data_parallel"])["data_parallel"]
    text = layout.picture(f"{model} " * 40, evaluator, known)
    picture = Picture(text)
    assert picture.is_readable() and len(text) < 2e6
    assert picture.whole.bottom <= layout.TOP + layout.ROW * (layout.MOST_ROWS + 2)


def test_a_pipeline_of_many_stages_is_shown_whole():
    """Each row has the processors of all its stages."""
    machine = machines.parse("dgx-h100:nodes=8")
    evaluator = Evaluator(Lowering(models.parse("gpt:layers=64,width=64").graph(64), machine, SGD), CostModel(machine))
    nodes = evaluator.lowering.graph.nodes
    places = [tuple(range(first, first + 4)) for first in range(0, 64, 4)]
    block = {name: int(name[5:].partition(".")[0]) - 1 for name in nodes if name.startswith("block")}
    axis = {name: "h" if name.endswith(".attention") else "b" for name in nodes}
    plan = Strategy({name: Config({axis[name]: 4}, 1, places[block.get(name, 0) // 4]) for name in nodes})
    rows, left = layout._rows(evaluator, plan)
    assert not left and sum(row.num_nodes for row in rows) == len(nodes)
    (shown,) = (row for row in rows if row.name == "block*.attention")
    assert {config.procs for config in shown.configs} == {*places} and shown.num_nodes == 64
    picture = Picture(layout.picture("a pipeline", evaluator, plan))
    words = "h:4 on each of 0-3 ... 60-63"
    assert picture.is_readable() and words in [told for told, _ in picture.words]
    (*parts,) = rects(picture)["block*.attention, 64 nodes: h cut in 4, attributes"]
    assert sorted(parts, key=lambda one: one[1].left) == parts and [part for part, _ in parts] == [*range(4)] * 16
    lines = report.plan_lines(plan)
    assert [line.split("  ")[0] for line in lines] == [words.replace("h", "b", 1), words]


def point(seconds, nbytes, fits=True):
    return {"step_seconds": seconds, "live_bytes": nbytes, "fits": fits}


@given(st.data())
def test_plans_lie_where_their_figures_are(data):
    figures = st.tuples(st.floats(1e-6, 1e3), st.integers(1, 2**40))
    chosen = sorted(data.draw(st.lists(figures, min_size=1, max_size=8)))
    joined = [point(*pair) for pair in chosen]
    known = {f"known_{n}": point(*pair) for n, pair in enumerate(data.draw(st.lists(figures, max_size=6)))}
    picture = Picture(front.picture("a front", joined, known, data.draw(st.integers(1, 2**41))))
    assert picture.is_readable()
    dots = {told.partition(":")[0]: Box(*(float(dot.get(name)) for name in ("cx", "cy", "cx", "cy")))
            for told, dot in picture.titled("circle")}  # fmt: skip
    every = {**{f"plan {n}": row for n, row in enumerate(joined, 1)}, **known}
    assert {name for name in every if name.startswith("plan")} <= set(dots)
    left = len(every) - len(dots)
    assert not left or any(words.startswith(f"{left} known plan") for words, _ in picture.words)
    names = sorted(dots, key=lambda name: every[name]["step_seconds"])
    across = np.array([dots[name].left for name in names])
    assert (np.diff(across) >= -0.1).all()
    zero, most = front.LEFT, max(every[name]["step_seconds"] for name in dots)
    scale = (front.WIDTH - front.LEFT - front.RIGHT) / (most * front.BEYOND)
    for name in names:
        assert dots[name].left == pytest.approx(zero + every[name]["step_seconds"] * scale, abs=0.1)


def test_plans_of_a_front_are_told_apart_where_they_lie_close_together():
    """As many as a small gpt on eight processors has."""
    joined = [point(1 + n / 25, 20 - n / 2) for n in range(18)]
    picture = Picture(front.picture("a front", joined, {}, 2**40))
    bottom = front.HEIGHT - front.BOTTOM
    inside = {words for words, box in picture.words if box.left > front.LEFT and box.bottom < bottom}
    assert picture.is_readable() and {str(n) for n in range(1, 19)} <= inside


@pytest.mark.parametrize("model", ["resnet:depth=50", "gpt"])
def test_names_of_nodes_of_the_zoo_have_room(model):
    machine = machines.parse("dgx-h100:nodes=1")
    evaluator = Evaluator(Lowering(models.parse(model).graph(8), machine, SGD), CostModel(machine))
    known = seeds(evaluator.lowering, ["data_parallel"])["data_parallel"]
    assert "\u2026" not in layout.picture(model, evaluator, known)


def test_words_that_lie_apart_are_not_written_on_each_other():
    """By less than the digits with which places are written."""
    for n in range(100):
        dots = [Dot(100.0, 100 + n / 70, 5.0, "one"), Dot(100.0, 111.03 + n / 70, 5.0, "two")]
        (one, a), (two, b) = Picture(svg(400, 400, "words", names(dots, Box(0, 0, 400, 400)))).words[1:]
        assert (one, two) == ("one", "two") and not a.meets(b)
