"""The debug ladder: what each rung prints, when, and on which rank."""

from __future__ import annotations

import numpy as np
import pytest

from castile.runtime import debug
from castile.runtime.task import CostKey, TaskGraph
from castile.runtime.timeline import Timeline
from tests.handmade import Hand


def small() -> TaskGraph:
    hand = Hand(2)
    x, y = hand.buffer("x", (4,), 0, "input"), hand.buffer("y", (4,), 0)
    hand.compute("relu", [x], y, name="act.F[0]")
    hand.move(y, hand.buffer("y", (4,), 1, "output"))
    hand.all_reduce([x, hand.buffer("z", (4,), 1)], [hand.buffer("s", (4,), 0), hand.buffer("s", (4,), 1)])
    return hand.graph()


@pytest.fixture
def rung(monkeypatch):
    """Sets DEBUG, which is read once."""

    def set_to(text: str) -> None:
        monkeypatch.setenv("DEBUG", text)
        debug.level.cache_clear()

    yield set_to
    debug.level.cache_clear()


def test_each_rung_shows_itself_and_those_below(rung, capsys) -> None:
    for text, shown in (("", 0), ("0", 0), ("1", 1), ("3", 3), ("4", 4)):
        rung(text)
        for asked in range(1, 5):
            debug.show(asked, 0, lambda asked=asked: f"rung {asked}")
            debug.show(asked, 1, lambda: "another rank")
        assert capsys.readouterr().err.split("\n")[:-1] == [f"rung {n}" for n in range(1, shown + 1)]


def test_text_that_is_not_asked_for_is_not_made(rung) -> None:
    rung("1")
    debug.show(2, 0, lambda: pytest.fail("made"))


def test_a_rung_that_is_none_is_refused(rung) -> None:
    rung("yes")
    with pytest.raises(ValueError, match="DEBUG='yes': set it to 1"):
        debug.level()


def test_the_task_table_gives_rates() -> None:
    graph = small()
    object.__setattr__(graph, "cost_keys", (CostKey("relu", "4", "float64", 3000, 6000),))
    times = np.array([0, 10**6, 2 * 10**6])
    lines = debug.task_table(graph, Timeline(np.arange(3), times[::-1].copy(), times[::-1] + 10**6)).split("\n")
    assert [line.split()[-2] for line in lines[1:]] == ["all_reduce#2", "move#1", "act.F[0]#0"]
    assert lines[3].split() == ["0.002", "0.0010", "6.00", "3.00", "0", "act.F[0]#0", "4"]


def test_the_graph_table_shows_transfers_and_waits() -> None:
    lines = debug.graph_table(small()).split("\n")
    assert lines[0] == "3 tasks, 8 buffers, 2 processors"
    assert lines[2].split() == ["0", "compute", "0", "act.F[0]#0"]
    assert lines[3].endswith("move#1 (0 -> 1: 4 float64 of y) after 0")
    assert lines[4].endswith("all_reduce#2 (among 0 1: 4 float64 of x) after 0")


def test_sources_are_those_of_called_kernels() -> None:
    assert debug.kernel_sources(small(), lambda name: f"def {name}(): ...\n") == "relu:\ndef relu(): ..."
