"""Pins: what they ask is had by every plan that they are applied to, and nothing else changes."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from castile.planner.choices.pins import Pin, Pins, parse, parse_procs, without
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.step import beside
from castile.planner.strategy import Config, Strategy, check_config
from castile.runtime.machine import Level, Machine, Processor
from tests import strategies as drawn
from tests.effort import examples

NUM_PROCS = 4


def layers() -> Graph:
    g = Graph("layers", "float64")
    x = g.input("x", (6, 8), "b i")
    y = g.input("label", (6,), "b", "int64")
    for n in range(2):
        x = g.relu(f"h.{n}.act", g.linear(f"h.{n}.fc", x, features=8))
    g.minimise(g.cross_entropy("loss", g.linear("head", x, features=4), y))
    g.outputs = ["head"]
    return g


GRAPH = layers()
NAMES = beside.names(GRAPH, drawn.SGD)


def pins(*texts: str, num_procs: int = NUM_PROCS) -> Pins:
    return Pins([parse(text) for text in texts], NAMES, num_procs)


@st.composite
def drawn_pins(draw, graph: Graph, num_procs: int) -> Pins:
    """Pins of one or more nodes that do not contradict each other."""
    found = []
    for name in draw(st.lists(st.sampled_from(sorted(graph.nodes)), min_size=1, max_size=3, unique=True)):
        config = draw(drawn.configs(graph.nodes[name], num_procs))
        degrees = {axis: n for axis, n in config.split.items() if draw(st.booleans())}
        procs = frozenset(draw(st.permutations(range(num_procs)))[: draw(st.integers(1, num_procs))])
        replicas = draw(st.none() | st.integers(1, len(procs)))
        found.append(Pin(name, degrees, replicas, draw(st.sampled_from((None, procs)))))
    return Pins(found, beside.names(graph, drawn.SGD), num_procs)


@settings(max_examples=examples(60))
@given(st.data())
def test_what_is_pinned_is_so(data):
    graph = data.draw(drawn.problems(most_layers=4)).graph
    pinned = data.draw(drawn_pins(graph, NUM_PROCS))
    plan = data.draw(drawn.strategies(graph, NUM_PROCS))
    made = pinned.apply(plan.configs)
    names = beside.names(graph, drawn.SGD)
    for name, config in made.items():
        assert pinned.allows(name, config)
        check_config(names.nodes.get(name) or names.optional[name], config, NUM_PROCS)
        for pin in pinned.pins:
            if pin.pattern == name:
                assert all(config.degree(axis) == degree for axis, degree in pin.degrees.items())
                assert pin.replicas in (None, config.replicas)
                assert pin.procs is None or set(config.procs) <= pin.procs
        if pinned.allows(name, plan.configs[name]):
            assert config is plan.configs[name]
    assert made.keys() == plan.configs.keys() and pinned.apply(made) == made


@settings(max_examples=60)
@given(st.data())
def test_frozen_processors_do_nothing(data):
    graph = data.draw(drawn.problems(most_layers=3)).graph
    frozen = data.draw(st.lists(st.integers(0, NUM_PROCS - 1), min_size=1, max_size=NUM_PROCS - 1, unique=True))
    pinned = Pins([without(",".join(map(str, frozen)), NUM_PROCS)], beside.names(graph, drawn.SGD), NUM_PROCS)
    plan = data.draw(drawn.strategies(graph, NUM_PROCS))
    machine = Machine("m", (Processor("p", 1e9, 1e9, 2**30),) * NUM_PROCS, (Level("link", NUM_PROCS, 1e-6, 1e9),))
    lowering = Lowering(graph, machine)
    made = lowering.configs(Strategy(pinned.apply(plan.configs)))
    assert not {proc for config in made.values() for proc in config.procs} & set(frozen)


def test_a_pattern_is_for_nodes_and_those_with_a_stroke_for_updates():
    found = pins("h.*.fc: {o: 4}", "h.0.fc.weight/update: {o: 2}")
    for name in ("h.0.fc", "h.1.fc"):
        assert found.allows(name, Config({"o": 4}, 1, (0, 1, 2, 3)))
        assert not found.allows(name, Config({"b": 4}, 1, (0, 1, 2, 3)))
    assert found.allows("head", Config()) and found.allows("h.1.fc.weight/update", Config())
    assert not found.allows("h.0.fc.weight/update", Config())
    made = found.apply({name: Config() for name in GRAPH.nodes})
    assert made["h.0.fc"].split == {"o": 4} and made["h.0.fc.weight/update"].split == {"o": 2}
    assert made["head"] == Config() and "h.1.fc.weight/update" not in made


def test_what_is_not_pinned_stays_as_far_as_it_goes():
    assert pins("head: {o: 2}").apply({"head": Config({"b": 2}, 1, (2, 3))})["head"].split == {"b": 2, "o": 2}
    # Four parts along b are two, not three: so they still hold whole parts of neighbours.
    crossed = pins("h.0.fc: {o: 2}", num_procs=6).apply({"h.0.fc": Config({"b": 4}, 1, (0, 1, 2, 3))})["h.0.fc"]
    assert crossed == Config({"b": 2, "o": 2}, 1, (0, 1, 2, 3))
    squeezed = pins("head: {procs: 1-3}").apply({"head": Config({"b": 4}, 1, (0, 1, 2, 3))})["head"]
    assert squeezed.split == {"b": 3} and sorted(squeezed.procs) == [1, 2, 3]
    fewer = pins("head: {b: 2}").apply({"head": Config({"b": 3}, 1, (3, 2, 1))})["head"]
    assert fewer == Config({"b": 2}, 1, (3, 2))
    assert pins("head: {b: 1}").apply({"head": Config({"b": 2}, 2, (0, 1, 2, 3))})["head"].num_parts == 1


def test_nodes_without_the_axis_are_not_bound():
    found = pins("h.*: {i: 2}")
    assert found.allows("h.0.act", Config()) and not found.allows("h.0.fc", Config())


@given(
    st.from_regex(r"[a-z][a-z0-9.*]{0,8}", fullmatch=True),
    st.dictionaries(st.sampled_from("bio"), st.integers(1, 64), max_size=3),
    st.none() | st.integers(1, 8),
    st.none() | st.frozensets(st.integers(0, 20), min_size=1),
)
def test_a_pin_is_read_as_it_is_written(pattern, degrees, replicas, procs):
    pin = Pin(pattern, degrees, replicas, procs)
    assume(degrees or replicas is not None or procs is not None)
    assert parse(str(pin)) == pin


def test_words_of_pins():
    assert parse("h.*.attn: {h: 8}") == Pin("h.*.attn", {"h": 8})
    assert parse(" head:{ b:4 ,replicas: 2, procs: [0-3, 8] } ") == Pin("head", {"b": 4}, 2, frozenset((0, 1, 2, 3, 8)))
    assert str(without("3,5-6", 10)) == "*: {procs: [0-2,4,7-9]}"
    assert str(Config({"b": 5}, 1, (0, 1, 2, 2, 3))) == "b:5 on 0-2,2,3" and str(Config(procs=(0, 1))) == "whole on 0,1"
    assert parse("head: {procs: 2-3}").procs == {2, 3} and parse("head: {procs: 2}").procs == {2}
    assert parse_procs("3,5", "x") == (3, 5) and parse_procs("0-2,7", "x") == (0, 1, 2, 7)


@pytest.mark.parametrize(
    "text",
    ["", "head", "head: 8", "head: {}", "{b: 2}", "head: {b}", "head: {b: two}", "head: {b: 0}", "head: {b: -1}",
     "head: {b: 2, b: 3}", "head: {b: [2]}", "head: {procs: }", "head: {procs: []}", "head: {procs: 3-1}",
     "head: {procs: [1, 1]}", "head: {replicas: 0}", "head: {b: 2} x", "a b: {b: 2}", "head: {{b: 2}}"],
)  # fmt: skip
def test_what_is_no_pin_is_refused(text):
    with pytest.raises(ValueError, match=r"^pin "):
        parse(text)


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        (["heat: {b: 2}"], r"no node has a name like 'heat' \(did you mean 'head'"),
        (["head: {c: 2}"], "has no axis 'c'"),
        (["head: {b: 7}"], "axis 'b' has 6 elements"),
        (["head: {procs: 4}"], "processor 4 is out of range; the machine has 4"),
        (["head: {b: 2}", "he*: {b: 3}"], "contradicts"),
        (["head: {replicas: 1}", "he*: {replicas: 2}"], "contradicts"),
        (["head: {procs: 0-1}", "he*: {procs: 2-3}"], "too few processors are left"),
        (["head: {procs: 0-1, replicas: 3}"], "too few processors are left for 3 replicas"),
    ],
)
def test_pins_that_cannot_be_met_are_refused(texts, part):
    with pytest.raises(ValueError, match=part):
        pins(*texts)


@pytest.mark.parametrize("text", ["", "x", "4", "0-3", "1,1", "3-1"])
def test_processors_that_cannot_be_frozen_are_refused(text):
    with pytest.raises(ValueError, match=r"^--without: "):
        without(text, NUM_PROCS)
