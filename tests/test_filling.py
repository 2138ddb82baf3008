"""Which pipeline is taken in the time that there is."""

import pytest

from castile.launch import models
from castile.launch.jobs import offline
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluated, Evaluator
from castile.planner.evaluation.sizes import variants
from castile.planner.known import seeds
from castile.planner.lower import Lowering
from castile.planner.searching import filling
from castile.planner.searching.accumulating import Chosen
from castile.planner.searching.filling import Others, sooner
from castile.planner.searching.settling import settled_known
from castile.planner.strategy import READY, Strategy

MODEL = "gpt:layers=8,width=1024,heads=8,seq=128,vocab=1000"
LONG = 1000


def at(number: int) -> tuple[Evaluator, None]:
    machine = offline.find_machine("p3.16xlarge:nodes=2")
    lowering = Lowering(models.parse(MODEL).graph(64), machine, microbatches=number)
    return Evaluator(lowering, CostModel(machine)), None


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[Evaluated]:
    """The pipelines that are simulated, of plans that are taken for too many parts to search."""
    found: list[Evaluated] = []

    def kept(*given: object) -> list[Evaluated]:
        every = variants(*given)  # type: ignore[arg-type]
        found.extend(every)
        return every

    for module in (seeds, filling):
        monkeypatch.setattr(module, "has_many_parts", lambda lowering: True)
    monkeypatch.setattr(filling, "variants", kept)
    return found


def taken(most: int) -> tuple[Evaluator, Strategy]:
    """The pipeline that is taken where time is over once that has been asked so often, of those in 4 to 16."""
    asked, found = 0, list[tuple[Evaluator, Strategy]]()

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        return asked > most

    def look(chosen: Chosen, plan: Strategy | None) -> None:
        assert plan is not None
        found.append((chosen.evaluator, plan))

    sooner(Chosen(2, *at(2), seconds=1.0), Others((4, 8, 16), at, is_over), look)  # type: ignore[arg-type]
    return found[0]


@pytest.mark.parametrize(("most", "count"), [(0, 1), (1, 2), (LONG, 3)])
def test_once_a_time_is_over_the_best_pipeline_so_far_is_taken(most: int, count: int, looked: list[Evaluated]) -> None:
    """One is simulated in any case; and what was begun ahead of it is kept where there is no time to see more."""
    evaluator, plan = taken(most)
    assert len({one.strategy.ahead for one in looked}) == count
    assert plan == min(looked, key=lambda one: one.seconds).strategy
    settled = settled_known(evaluator, plan, None, lambda: True, (READY,))
    assert settled.strategy.ahead == plan.ahead and settled.evaluated.seconds == evaluator.evaluate(plan).seconds
    assert settled.seeds[plan.search].strategy.ahead == 0
