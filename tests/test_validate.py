"""How predictions are compared with measurements, and that what is told of them is JSON whatever was measured."""

import io
import json
import math
import random
from contextlib import redirect_stdout
from dataclasses import asdict
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.checks.validate import validate_convnet
from castile.launch import models
from castile.launch.validate import Row, Validate, _random, _report, truth
from castile.planner.lower import Lowering
from castile.runtime.machine import parse
from tests.validated import LEARNED, job, outcome

SECONDS = st.floats(1e-6, 10.0)
ROWS = st.lists(st.builds(Row, st.just("x"), st.booleans(), SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=8)


@given(ROWS, st.booleans())
def test_what_is_told_is_finite(rows, after):
    told = truth(rows, after)
    json.dumps(asdict(told), allow_nan=False)
    assert -1 <= told.kendall_tau <= 1 and told.regret >= 0 and told.mean_error <= told.largest_error * (1 + 1e-12)
    assert told.num_pairs or told.kendall_tau == 0
    assert told.least_ratio <= told.largest_ratio and 0 <= told.coverage < 1


@given(st.lists(st.integers(1, 1000).map(float), min_size=2, max_size=8, unique=True))
def test_right_predictions_are_right_and_their_opposite_is_not(seconds):
    right = [Row("x", False, s, 0.0, s, 1 / s) for s in seconds]
    exact, opposite = truth(right, after=False), truth(right, after=True)
    num_pairs = math.comb(len(seconds), 2)
    assert (exact.mean_error, exact.kendall_tau, exact.num_pairs, exact.regret) == (0.0, 1.0, num_pairs, 0.0)
    assert opposite.kendall_tau < 1 and opposite.regret > 0


@given(st.lists(SECONDS, min_size=2, max_size=9, unique=True))
def test_of_plans_drawn_alike_as_many_lie_between_the_others_as_is_told(measured):
    """Each in turn as the one that is not among those of which it is told."""
    rows = [Row("x", False, s, 0.0, 1.0, 1.0) for s in measured]
    between = 0
    for n, row in enumerate(rows):
        told = truth(rows[:n] + rows[n + 1 :], after=True)
        between += told.least_ratio < row.measured_seconds / row.after_seconds < told.largest_ratio
    assert between / len(rows) == pytest.approx(told.coverage)


@given(st.integers(0, 9))
def test_steps_that_other_programs_held_up_are_told(num_held_up):
    rows = [Row(name, name == "a", 1.0, 0.1, 1.0, 1.0) for name in "ab"]
    told = {}
    for as_json in (False, True):
        with redirect_stdout(io.StringIO()) as out:
            _report(Validate("m", json=as_json), job(), outcome(rows, num_held_up, 9))
        told[as_json] = out.getvalue()
    assert json.loads(told[True])["num_held_up"] == num_held_up
    assert (f"held up {num_held_up} of 9 steps" in told[False]) == (num_held_up > 0)
    gap, meeting = (1e6 * json.loads(told[True])[f"{which}_seconds"] for which in ("overhead", "meeting"))
    assert (gap, meeting) == (1e6 * LEARNED.overhead_seconds, 1e6 * LEARNED.meeting_seconds)
    assert f"{gap:.1f} us before a kernel, {meeting:.1f} us where processors meet" in told[False]


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_plans_of_microbatches_are_pipelines_too(microbatches: int):
    machine = parse("local:procs=4")
    lowering = Lowering(models.parse("mlp:layers=4,width=16").graph(16), machine, microbatches=microbatches)
    job, rng, met = SimpleNamespace(machine=machine, lowering=lowering), random.Random(0), set()
    for _ in range(40):
        plan = lowering.plan(_random(job, rng))
        lowering.check(plan)
        procs = [plan.configs[name].procs for name in lowering.piece.nodes]
        met |= {count for count in (2, 4) if is_pipeline(procs, count)}
    assert met == {count for count in (2, 4) if count <= microbatches}


def is_pipeline(procs, num_stages: int) -> bool:
    """Whether nodes lie on each of so many groups of four processors, one after the other."""
    groups = [{proc * num_stages // 4 for proc in of} for of in procs]
    order = [group.pop() for group in groups if len(group) == 1]
    return len(order) == len(procs) and order == sorted(order) and {*order} == {*range(num_stages)}


@given(st.permutations([0.4, 0.8, 0.9]))
def test_the_figures_are_the_middle_of_several_draws(taus):
    plans = [asdict(Row("x", n % 2 == 0, 0.02 + n, 0.0, 1.0, 1.0)) for n in range(16)]
    told = {"mean_error": 0.1, "largest_error": 0.2, "num_pairs": 28, "regret": 0.0}

    def run(*words, user, timeout):
        of = told | {"kendall_tau": taus[int(words[-1])]}
        facts = {"plans": plans, "batch": 64, "measured_spread": 2.0, "before_learning": of, "after_learning": of}
        return Mock(object=lambda: facts)

    found = {figure.name: figure for figure in validate_convnet(Mock(run=run))}
    assert found["validate_convnet_kendall_tau"].value == 0.8
    assert all(f"{tau:.2f} (28 pairs)" in found["validate_convnet_kendall_tau"].note for tau in taus)
    assert found["validate_convnet_num_plans"].value == 16 and found["validate_convnet_mean_error_share"].value == 0.1
