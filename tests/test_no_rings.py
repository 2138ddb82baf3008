"""What a plan was made of goes at once when nobody holds it any more: there are no rings in it, which would stay until
Python looks through all that there is, which may be for as long as a training takes.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import search
from castile.runtime import machine as machines
from tests.answers import answer
from tests.effort import rare
from tests.little import SEARCHES

pytestmark = pytest.mark.usefixtures("set_aside")


def rings(call: Callable[[], object]) -> Counter[str]:
    """Which objects of castile's a call leaves that nobody holds, and that are there still."""
    # What is found once is kept, by castile and by others.
    call()
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        call()
        gc.collect()
        classes = map(type, gc.garbage)
        return Counter(one.__qualname__ for one in classes if one.__module__.startswith("castile."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()


def lowering(model: str, batch: int, machine: str) -> Lowering:
    graph = models.parse(model).graph(batch)
    return Lowering(graph, machines.parse(machine), Updates(find("sgd")(momentum=0.9)))


def test_rings_are_found() -> None:
    class Ring:
        __module__ = "castile.tests"

        def __init__(self) -> None:
            self.me = self

    assert rings(Ring) == {Ring.__qualname__: 1}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_leaves_nothing_behind(name: str) -> None:
    def searched() -> None:
        made = lowering("mlp:width=4,layers=1", 8, "local:procs=2")
        search(name, Evaluator(made, CostModel(made.machine)), "20" if name != "exhaustive" else "100000")

    assert not rings(searched)


@pytest.mark.parametrize(
    ("model", "batch", "machine"),
    [
        ("gpt:layers=2,width=32,heads=4,seq=16,vocab=64", 8, "dgx-h100:nodes=1"),
        ("moe:layers=2,width=32,heads=4,seq=16,vocab=64,experts=4", 8, "flexflow-p100:nodes=1"),
    ],
)
def test_a_plan_that_is_lowered_leaves_nothing_behind(model: str, batch: int, machine: str) -> None:
    def lowered() -> None:
        made = lowering(model, batch, machine)
        for plan in dict(seeds(made)).values():
            made.lower(plan)

    assert not rings(lowered)


@pytest.mark.parametrize(
    "more", [("--front",), *rare((), ("--objective", "memory"), ("--recompute", "selective"))], ids=" ".join
)
def test_a_command_leaves_nothing_of_its_planning_behind(
    more: tuple[str, ...], capsys: pytest.CaptureFixture[str], alone: Path
) -> None:
    words = ("plan", "mlp:width=4,layers=1", "--machine", "flexflow-p100:nodes=1", "--without", "2-3", "--batch", "2")
    assert not rings(lambda: answer(capsys, *words, "--budget", "20", *more))
