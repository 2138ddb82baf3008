"""Batches of which no plan fits are cut in time: into as few pieces as let one fit, or as many as are said."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from castile.launch import models
from castile.launch import plan as planning
from castile.launch.__main__ import main
from castile.planner import accumulating
from castile.planner import strategy as strategies
from castile.planner.evaluator import Evaluator
from castile.planner.lower import Lowering
from castile.planner.pins import Pins
from castile.planner.search import NoPlanFits, search
from castile.planner.seeds import seeds
from tests.little import evaluator, machine, tower

MODEL = "gpt:layers=1,width=32,heads=2,seq=32,vocab=64"
BATCH = 32
# Room for parameters, their gradients and what updates keep, and for the activations of some of the samples.
MEMORY = 900_000
SMALL = f"""
[[processor]]
count = 2
kind = "small"
flops_per_second = 1e10
bytes_per_second = 1e10
memory_bytes = {MEMORY}

[[level]]
name = "link"
latency_seconds = 1e-6
bytes_per_second = 1e9
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "small.toml").write_text(SMALL)
    on = str(tmp_path / "small.toml")
    return ["plan", MODEL, "--machine", on, "--batch", str(BATCH), "--budget", "5", "--out", str(tmp_path / "p.json")]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) != 0
    return capsys.readouterr().err


def test_numbers_divide_the_batch_and_double() -> None:
    assert accumulating.counts(1024) == tuple(2**n for n in range(11))
    assert accumulating.counts(96) == (1, 2, 4, 8, 16, 32, 96) and accumulating.counts(7) == (1, 7)
    for batch in range(1, 200):
        found = accumulating.counts(batch)
        assert found[0] == 1 and all(batch % n == 0 for n in found) and found[-1] in (1, batch)
        assert all(2 * a <= b for a, b in zip(found, found[1:]))


def test_where_no_plan_of_a_whole_batch_fits_it_is_cut(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = refused(capsys, *words, "--accumulate", "1")
    facts = answer(capsys, *words)
    count = facts["microbatches"]
    assert count > 1 and facts["is_cut_to_fit"] and facts["found"]["fits"]
    assert f"--accumulate {count}" in told and "no plan fits" in told
    plan = strategies.read(str(tmp_path / "p.json"))
    assert plan.microbatches == count and max(facts["found"]["arena_bytes"]) <= MEMORY
    asked = answer(capsys, *words, "--accumulate", str(count))
    assert not asked["is_cut_to_fit"] and asked["found"] == facts["found"]
    assert main(words) == 0
    assert f"{count} microbatches, one after another: no plan of a whole batch" in capsys.readouterr().out
    simulated = answer(capsys, "simulate", str(tmp_path / "p.json"), *words[2:6])
    assert simulated["step_seconds"] == facts["found"]["step_seconds"]


@pytest.mark.parametrize(
    ("budget", "each", "shares"),
    [
        ("10s", 4.0, [10.0, 6.0, 2.0]),
        ("10s", 8.0, [10.0, 2.0, planning.LEAST_SECONDS]),
        ("5", 4.0, [None, None, None]),
    ],
)
def test_searches_that_find_nothing_share_the_time_with_the_next(
    budget: str,
    each: float,
    shares: list[float | None],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, given = [100.0], []

    def searched(name, evaluator, limits, *rest, **more):
        given.append(limits)
        clock[0] += each
        if len(given) < len(shares):
            raise NoPlanFits("no plan fits")
        return replace(search(name, evaluator, "5", *rest, **more), elapsed_seconds=each)

    monkeypatch.setattr(planning, "search", searched)
    monkeypatch.setattr(planning, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    words[words.index("--budget") + 1] = budget
    facts = answer(capsys, *words)
    assert [limits.seconds for limits in given] == (shares if shares[0] is None else pytest.approx(shares))
    assert len({limits.proposals for limits in given}) == 1
    assert facts["elapsed_seconds"] == pytest.approx(each * len(shares)) and facts["is_cut_to_fit"]


def test_where_no_time_is_left_a_known_plan_is_found(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_left", lambda limits, passed: replace(limits, seconds=planning.LEAST_SECONDS))
    words[words.index("--budget") + 1] = "10s"
    facts = answer(capsys, *words)
    assert facts["found"]["fits"] and facts["is_cut_to_fit"]


def test_more_pieces_need_less_memory(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    few, many = (answer(capsys, *words, "--accumulate", n, "--search", "data_parallel") for n in ("8", "16"))
    assert (few["microbatches"], many["microbatches"]) == (8, 16) and not few["is_cut_to_fit"]
    assert many["found"]["live_bytes"] < few["found"]["live_bytes"]
    assert many["found"]["step_seconds"] > few["found"]["step_seconds"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--accumulate", "0"), "--accumulate 0: give 1 or more"),
        (("--accumulate", "3"), "--accumulate 3: a batch of 32 samples does not make as many equal pieces"),
        (("--accumulate", "2", "--objective", "latency"), "--accumulate means nothing for --objective latency"),
    ],
)
def test_what_cannot_be_cut_is_refused(more, words, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "plan", MODEL, "--machine", "dgx-h100", "--batch", str(BATCH), *more)
    assert words in told and told.count("\n") == 1


def test_a_given_plan_says_its_own_number(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, *words, "--accumulate", "16")
    path = str(tmp_path / "p.json")
    assert answer(capsys, *words, "--from", path)["microbatches"] == 16
    told = refused(capsys, *words, "--from", path, "--accumulate", "8")
    assert "cuts the batch into 16; give that, or leave --from out" in told


def test_what_is_advised_where_a_given_plan_does_not_fit_is_not_refused(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, large = tmp_path / "p.json", tmp_path / "large.toml"
    large.write_text(SMALL.replace(str(MEMORY), str(100 * MEMORY)))
    answer(capsys, *[str(large) if word.endswith("small.toml") else word for word in words])
    told = refused(capsys, *words, "--from", str(path))
    assert "no plan fits" in told
    advice = re.search(r"; or leave --from out and give (--accumulate) ([0-9]+), with which", told)
    assert advice is not None, told
    assert answer(capsys, *words, *advice.groups())["found"]["fits"]


def on(memory: int, microbatches: int) -> tuple[Evaluator, Pins | None]:
    return evaluator(tower(3, batch=64), machine(2, memory=memory), microbatches=microbatches), None


def test_what_is_foreseen_is_hopeless_only_where_no_plan_fits() -> None:
    """Of anything that is known to fit, all nodes once take less than all memory."""
    for memory in (3_000, 5_000, 10_000, 20_000, 10**6):
        for count in (1, 4, 16):
            known = on(memory, count)[0]
            foreseen = accumulating.foresee(known)
            plans = [known.evaluate(plan) for plan in seeds(known.lowering).values()]
            assert not (foreseen.is_hopeless and any(plan.fits for plan in plans))
            assert not (foreseen.is_hopeless and foreseen.fitting)
    assert accumulating.foresee(on(3_000, 1)[0]).is_hopeless and not accumulating.foresee(on(10**6, 1)[0]).is_hopeless


def test_the_number_is_that_in_which_known_plans_are_best() -> None:
    assert accumulating.enough(lambda n: on(10**6, n), (2, 4, 8)) == 2
    assert accumulating.enough(lambda n: on(100, n), (2, 4, 8)) is None
    numbers = (1, 2, 4, 8, 16, 32)
    every = [on(15_000, n)[0] for n in numbers]
    fits = [any(known.evaluate(plan).fits for plan in seeds(known.lowering).values()) for known in every]
    assert accumulating.enough(lambda n: on(15_000, n), numbers) == numbers[fits.index(True)] > 1


def test_what_lets_samples_meet_is_not_cut() -> None:
    graph, two = models.parse("resnet:depth=18,size=32").graph(8), machine(2)
    whole = evaluator(graph, two)

    def at(count: int) -> tuple[Evaluator, Pins | None]:
        return whole.turned("time", lowering=Lowering(graph, two, microbatches=count)), None

    assert accumulating.enough(at, (2, 4)) is None
