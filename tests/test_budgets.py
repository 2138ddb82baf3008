"""Times that searches are given are kept, whatever takes them, by a clock that goes on with the work that is done."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from castile.launch.__main__ import main
from castile.planner.bounds import partial_bounds
from castile.planner.bounds.additive import Additive
from castile.planner.evaluation import budget
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import SIZES
from castile.planner.searches import available
from castile.planner.searching.fronts import NUM_LIMITS
from castile.planner.searching.refinement import REFINEMENT_SHARE
from castile.planner.sketch.sketch import Sketch
from tests.effort import rare
from tests.little import SEARCHES

MODEL = "mlp:layers=1,width=16"
# Seconds of simulating a plan, of a price between two nodes or of one, and of a proposal to a sketch.
PLAN, PRICE, STEP = 1.0, 0.02, 1e-5


class Watch:
    """A clock that goes on while plans are simulated, prices found and sketches walked through, at no other time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self._lock = 100.0, threading.Lock()
        monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: self.now))
        # What is compiled meanwhile takes none of this clock's time, so none is to be taken off.
        monkeypatch.setattr(budget, "compiling_seconds", lambda: 0.0)
        for owner, name, seconds in (
            (Evaluator, "_simulated_through", PLAN),
            (Additive, "moves", PRICE),
            (Additive, "lasts", PRICE),
            (partial_bounds, "missing_elements", PRICE),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name), lambda *_, each=seconds: each))
        trail = self._counted(Sketch.walk, lambda _, plan, draws, *__: STEP * len(draws))
        monkeypatch.setattr(Sketch, "walk", trail)

    def _counted(self, of: Callable[..., Any], seconds: Callable[..., float]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            with self._lock:
                self.now += seconds(*given)
            return of(*given)

        return counted


MORE = (("--front",), ("--accumulate", "2"), ("--objective", "memory"))


@pytest.mark.parametrize(
    ("seconds", "name", "words"),
    [
        *product((0.5, 20.0), SEARCHES, [()]),
        *product([20.0], ["mcmc"], MORE),
        *rare(*product([0.5], ["mcmc"], MORE), *product((0.5, 20.0), ("random", "dynamic"), MORE)),
    ],
)
def test_a_time_is_kept_but_for_one_plan_and_what_every_search_looks_at(
    seconds: float,
    name: str,
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch(monkeypatch)
    began = watch.now
    given = ["plan", MODEL, "--machine", "dgx-h100:nodes=1", "--search", name, "--budget", f"{seconds}s", *words]
    status = main([*given, "--json"])
    told, passed = capsys.readouterr(), watch.now - began
    # Data parallelism is looked at with buckets of every size, and what is told of a plan is found once more.
    num_plans = 1 + (1 + len(SIZES)) + 1
    if "memory" in words:
        # A short search says where to look, of data parallelism and the smallest known plan at least.
        num_plans += 2
    if status:
        assert name == "exhaustive" and f"not done after {seconds:.3g} s" in told.err
        assert passed <= seconds + PLAN
        return
    facts = json.loads(told.out)
    if "front" in facts:
        # Each of its searches may be late by a plan, and of each point it is told where everything lies.
        num_plans += NUM_LIMITS + 2 + len(facts["front"])
    assert facts["elapsed_seconds"] <= passed <= (1 + REFINEMENT_SHARE) * seconds + PLAN * num_plans
    if name in available() and "memory" not in words:
        assert all(facts["found"]["step_seconds"] <= known["step_seconds"] for known in facts["seeds"].values())
