"""Forecasts: what is sketched in a process beside is what would be sketched here, whenever it is asked for."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from castile.launch.jobs import escalation
from castile.launch.jobs import request as requests
from castile.planner.searching import forecasts
from castile.planner.searching.forecasts import Forecast, Forecaster, ForecastRequest, Forecasts, Prefetcher, may_fit
from castile.planner.searching.forks import Fork
from castile.planner.strategy import Strategy
from tests.answers import answer
from tests.little import described
from tests.test_accumulating import MODEL, SMALL

# What no pipe holds.
LONG = 2**20


@pytest.fixture
def doubling() -> Iterator[Fork[int, tuple[int, int]]]:
    """A fork that tells twice a number, and where."""
    fork = Fork[int, tuple[int, int]](lambda n: (2 * n, os.getpid()))
    yield fork
    fork.end(at_once=True)


def test_a_fork_answers_in_whatever_order_its_answers_are_wanted(doubling: Fork[int, tuple[int, int]]) -> None:
    asked = [doubling.ask(n) for n in range(9)]
    answers = [doubling.answer(number) for number in asked[::-1]]
    assert [twice for twice, _ in answers[::-1]] == [2 * n for n in range(9)]
    assert {pid for _, pid in answers} == {doubling.process.pid} != {os.getpid()}


def test_a_fork_goes_on_while_what_it_told_is_not_heard() -> None:
    """Of what was asked it answers the latest first, and all of it however long the answers are."""
    told, heard = os.pipe()
    wait, go_on = os.pipe()

    def long(n: int) -> bytes:
        os.write(heard, bytes([n]))
        return bytes([n]) * (LONG if n else LONG * len(os.read(wait, 1)))

    fork = Fork(long)
    try:
        asked = [fork.ask(0)]
        assert os.read(told, 1) == b"\0"
        asked += [fork.ask(n) for n in range(1, 5)]
        os.write(go_on, b"x")
        seen = b""
        while len(seen) < 4:
            seen += os.read(told, 4)
        assert [*seen] == [4, 3, 2, 1]
        assert [fork.answer(number) for number in asked] == [bytes([n]) * LONG for n in range(5)]
    finally:
        fork.end(at_once=True)
        for end in (told, heard, wait, go_on):
            os.close(end)


def test_who_asks_does_not_wait_until_it_is_heard() -> None:
    wait, go_on = os.pipe()
    fork = Fork[bytes, int](lambda question: len(question or os.read(wait, 1)))
    try:
        asked = [fork.ask(question) for question in (b"", *[bytes(LONG)] * 4)]
        os.write(go_on, b"x")
        assert [fork.answer(number) for number in asked] == [1, *[LONG] * 4]
    finally:
        fork.end(at_once=True)
        os.close(wait)
        os.close(go_on)


def test_what_a_fork_that_is_gone_was_asked_is_answered_here(doubling: Fork[int, tuple[int, int]]) -> None:
    assert doubling.answer(doubling.ask(1)) == (2, doubling.process.pid)
    assert doubling.process.pid is not None
    os.kill(doubling.process.pid, signal.SIGKILL)
    doubling.process.join()
    assert [doubling.answer(doubling.ask(n)) for n in (2, 3)] == [(4, os.getpid()), (6, os.getpid())]


def test_what_was_not_begun_with_can_be_given_up_and_what_can_wait_comes_last() -> None:
    told, heard = os.pipe()
    wait, go_on = os.pipe()

    def slow(n: int) -> int:
        os.write(heard, bytes([n]))
        return len(os.read(wait, 1)) if n == 0 else n

    fork = Fork(slow)
    try:
        first = fork.ask(0)
        assert os.read(told, 1) == b"\0"
        asked = {n: fork.ask(n, can_wait=n < 3) for n in (1, 2, 3, 4, 5)}
        assert fork.cancel(asked[5]) and fork.cancel(asked[2])
        while first not in fork._started:
            fork._receive()
        assert not fork.cancel(first)
        os.write(go_on, b"x")
        assert [fork.answer(asked[n]) for n in (1, 3, 4)] == [1, 3, 4] and fork.answer(first) == 1
        assert os.read(told, 9) == bytes([4, 3, 1])
        # Given up in time or not, what is asked next is answered; what it is asked once it is gone is not begun with.
        fork.cancel(fork.ask(6))
        assert fork.answer(fork.ask(7)) == 7
        fork.process.kill()
        fork.process.join()
        assert fork.cancel(fork.ask(8))
    finally:
        fork.end(at_once=True)
        for end in (told, heard, wait, go_on):
            os.close(end)


@pytest.fixture
def hearing() -> Iterator[None]:
    """A process that hears what asks it to end, and goes on."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


def test_forks_end_with_what_they_do_or_at_once(hearing: None) -> None:
    for at_once, left in ((False, 0), (True, -signal.SIGTERM)):
        begun, tell = os.pipe()

        def slow(n: int, tell: int = tell) -> None:
            os.write(tell, b"x")
            signal.pause() if n else None

        forks = [Fork(slow) for _ in range(2)]
        for fork in forks:
            fork.ask(at_once)
        for _ in forks:
            os.read(begun, 1)
        for fork in forks:
            fork.end(at_once)
            assert not fork.process.is_alive() and fork.process.exitcode == left


class Watched:
    """Sketches of numbers that are known by their shares of memory; remembers which were drawn here."""

    def __init__(self, shares: dict[int, float]) -> None:
        self.shares, self.here = shares, list[int]()

    def foresee(self, evaluator: int, names: object, pins: object) -> Forecast:
        self.here.append(evaluator)
        share = self.shares[evaluator]
        return Forecast(share, ((1.0, Strategy({})),) if share <= 1 else (), 1.0)

    def outlook(self, helps: bool) -> Forecaster:
        def at(number: int) -> tuple[int, None]:
            if number not in self.shares:
                raise ValueError("cannot be cut so")
            return number, None

        plain = Forecaster(at)  # type: ignore[arg-type]
        return replace(plain, prefetcher=Prefetcher(helps))


@contextmanager
def begun(outlook: Forecaster) -> Iterator[Prefetcher]:
    """What is expected of it is drawn by what it is without foresight."""
    assert outlook.prefetcher is not None
    plain = replace(outlook, prefetcher=None)
    with outlook.prefetcher.running(lambda asked: plain.compute(asked.counts)):
        yield outlook.prefetcher


@pytest.fixture(params=["alone", "beside", "whoever begins"])
def helps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool | None:
    """Whether all that is expected is drawn beside; None where it is drawn here unless that was begun with."""
    if request.param == "beside":
        monkeypatch.setattr(Fork, "cancel", lambda self, number: False)
    return {"alone": False, "beside": True}.get(request.param)


@pytest.mark.parametrize("most", [0.4, 1.0, 8.0, inf])
def test_places_are_the_same_with_those_that_follow_drawn_beside(
    helps: bool | None, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched({1: 4.0, 2: 2.0, 4: 1.2, 16: 0.5, 32: 0.4, 64: 0.4})
    monkeypatch.setattr(forecasts, "forecast_known", watched.foresee)
    outlook, numbers = watched.outlook(helps is not False), (1, 2, 4, 8, 16, 32, 64)
    with begun(outlook):
        places = [*outlook.candidates(numbers, most, lambda: False)]
    expected, shares = list[int](), dict[int, float]()
    for number in numbers:
        if may_fit(shares, number, most) and number in watched.shares:
            shares[number] = watched.shares[number]
            expected.append(number)
    assert [(one.num_microbatches, one.forecast.share) for one in places] == [(n, watched.shares[n]) for n in expected]
    assert helps is None or (watched.here == expected) == (not helps)
    assert {*watched.here} <= {*expected}


def test_of_numbers_that_are_asked_for_together_none_is_drawn_behind_one_that_fits(
    helps: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for behind it is drawn here, and what follows that beside."""
    watched = Watched({1: 4.0, 2: 3.0, 4: 0.9, 8: 0.8, 16: 0.4})
    monkeypatch.setattr(forecasts, "forecast_known", watched.foresee)
    outlook, numbers = watched.outlook(helps is not False), (1, 2, 3, 4, 8, 16)
    assert [*watched.outlook(False).compute(numbers)] == [*watched.here] == [1, 4]
    watched.here.clear()
    with begun(outlook):
        outlook.prefetch(*numbers)
        assert [one.num_microbatches for one in outlook.candidates(numbers, 1.0, lambda: False)] == [1, 4, 8, 16]
    assert helps is None or watched.here == ([8] if helps else [1, 4, 8, 16])


def test_what_is_not_begun_with_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """By those alone for whom it was expected."""
    outlook, given_up = Watched({1: 1.0, 2: 1.0, 4: 1.0}).outlook(True), list[int]()
    other = replace(outlook, recompute=("x",))
    monkeypatch.setattr(Fork, "cancel", lambda self, number: given_up.append(number) or number != 1)
    with begun(outlook) as ahead:
        for one in (outlook, other):
            one.prefetch(1)
            one.prefetch(2)
        outlook.cancel()
        assert given_up == [0, 1]
        for one, number, is_expected in ((outlook, 1, False), (outlook, 2, True), (other, 1, True), (other, 2, True)):
            assert ahead.is_pending(ForecastRequest((number,), one.recompute, None)) == is_expected


def test_what_was_drawn_is_not_drawn_again(helps: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whomever it was drawn, and whatever was looked for."""
    watched = Watched({1: 4.0, 2: 2.0, 4: 1.0, 8: 0.5})
    monkeypatch.setattr(forecasts, "forecast_known", watched.foresee)
    outlook, numbers = watched.outlook(helps is not False), (1, 2, 3, 4, 8)
    with begun(outlook):
        first = [*outlook.candidates(numbers, 1.0, lambda: False)]
        drawn = [*watched.here]
        assert [*outlook.candidates(numbers, 1.0, lambda: False)] == first and watched.here == drawn
        assert [one.num_microbatches for one in outlook.candidates(numbers, inf, lambda: False)] == [1, 2, 4, 8]
    assert len({*watched.here}) == len(watched.here)


def test_where_work_takes_too_long_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with more microbatches; what was drawn before is given all the same."""
    watched = Watched({1: 4.0, 2: 2.0, 4: 1.0})
    monkeypatch.setattr(forecasts, "forecast_known", watched.foresee)
    monkeypatch.setattr(forecasts, "work_bound", lambda number: {1: 1.0, 2: 1.2, 4: 1.4}[number])
    outlook = watched.outlook(False)
    for to_beat, drawn in ((1.0, []), (1.2, [1]), (1.3, [1, 2]), (1.1, [1, 2]), (inf, [1, 2, 4])):
        assert [one.num_microbatches for one in outlook.candidates((1, 2, 4), inf, lambda: False, to_beat)] == drawn
        assert watched.here == drawn


def test_nothing_is_looked_at_once_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched({1: 4.0, 2: 2.0, 4: 1.0})
    monkeypatch.setattr(forecasts, "forecast_known", watched.foresee)
    late = iter((False, False, True))
    places = watched.outlook(False).candidates((1, 2, 4), inf, lambda: next(late))
    assert [one.num_microbatches for one in places] == [1, 2]


def test_what_cannot_be_cut_is_told_as_nothing_beside_too(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched({1: 4.0})
    monkeypatch.setattr(forecasts, "forecast_known", watched.foresee)
    outlook = watched.outlook(True)
    with begun(outlook) as ahead:
        outlook.prefetch(3)
        assert ahead.is_pending(ForecastRequest((3,), (), None))
        assert [*outlook.candidates((3,), inf, lambda: False)] == [] and not watched.here
    assert outlook.compute((3,)) == {3: None} and not ahead.is_pending(ForecastRequest((3,), (), None))
    outlook.prefetch(3)
    assert not ahead.is_pending(ForecastRequest((3,), (), None))


def test_a_plan_is_the_same_however_many_cores_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of plans of many parts, whose sketches take long; whatever is asked ahead is what the process beside says."""
    monkeypatch.setattr(Fork, "cancel", lambda self, number: False)
    monkeypatch.setattr(requests, "has_many_parts", lambda lowering, most=0: True)
    found, asked, small = [], list[ForecastRequest](), tmp_path / "small.toml"
    small.write_text(described(80_000))
    model = "gpt:layers=1,width=16,heads=2,seq=16,vocab=64"
    monkeypatch.setattr(forecasts, "Fork", watching(asked))
    for cores in (1, 2):
        monkeypatch.setattr(requests, "num_cores", lambda cores=cores: cores)
        path = str(tmp_path / f"{cores}.json")
        words = ["plan", model, "--machine", str(small), "--batch", "4", "--budget", "10", "--out", path]
        facts = answer(capsys, *words)
        found.append((facts["found"], facts["microbatches"], Path(path).read_text()))
        assert bool(asked) == (cores == 2)
    assert found[0] == found[1]


@pytest.mark.parametrize("is_dear", [False, True])
def test_garbage_is_looked_for_but_where_plans_have_many_parts(
    is_dear: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    looked, search = list[bool](), escalation.search
    monkeypatch.setattr(requests, "has_many_parts", lambda lowering, most=0: is_dear)
    noted = lambda *args, **more: looked.append(gc.isenabled()) or search(*args, **more)  # noqa: E731
    monkeypatch.setattr(escalation, "search", noted)
    words = ["plan", MODEL, "--machine", str(tmp_path / "small.toml"), "--batch", "4", "--budget", "5"]
    answer(capsys, *words, "--out", str(tmp_path / "p.json"))
    assert looked and {*looked} == {not is_dear} and gc.isenabled()


def watching(asked: list[ForecastRequest]) -> Callable[..., Fork[ForecastRequest, Forecasts]]:
    def begun(draw: Callable[[ForecastRequest], Forecasts]) -> Fork[ForecastRequest, Forecasts]:
        fork = Fork(draw)
        ask = fork.ask
        fork.ask = lambda question, *how: asked.append(question) or ask(question, *how)  # type: ignore[method-assign, func-returns-value]
        return fork

    return begun
