"""All of `python -m benchmarks.gpu` without a GPU: its order, its time, its files, and how a run goes on where one was.

Sides and checks are made up; what they do themselves is looked at in test_gpu_benchmark.py.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("triton")

from benchmarks.gpu import __main__ as benchmark
from benchmarks.gpu import cases, checks, errands, record, sides, sources, verdicts
from benchmarks.gpu.calls import calls
from benchmarks.gpu.record import Finding, Record

ROOT = Path(__file__).parents[1]
ABOUT = {"device": {"name": "NVIDIA H200"}, "versions": {"castile": "1"}}


class Sides:
    """Both sides made up: each row takes a second of a clock that stands else, and time is up where it says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.told = 1e9, list[tuple[str, str, str]]()
        monkeypatch.setattr(sides, "rows", self.tell)
        monkeypatch.setattr(sides, "is_there", lambda side: True)
        monkeypatch.setattr(errands, "time", lambda: self.now)
        monkeypatch.setattr(benchmark.time, "time", lambda: self.now)
        monkeypatch.setattr(benchmark, "device", lambda: ABOUT["device"])
        monkeypatch.setattr(benchmark, "versions", lambda: ABOUT["versions"])
        monkeypatch.setattr(checks, "run", lambda record, until: None)

    def tell(self, side: str, errand: str, kept: str, names: Sequence[str], until: float) -> Iterator[dict[str, Any]]:
        if errand in ("compile", "ready"):
            return
        for name in names:
            if self.now >= until:
                return
            self.now += 1
            self.told.append((side, errand, name))
            beside = {"compiled_seconds": 1.0, "nchw_seconds": 1.0, "nhwc_seconds": 1.0, "cudnn_seconds": 1.0}
            ours = {"seconds": 2.0 if errand == "default" else 1.0, "library_seconds": 1.0}
            yield {"name": name, **(beside if side == "theirs" else ours)}

    def run(self, monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["gpu", *words, "--out", str(out)])
        benchmark.main()
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def test_others_are_compiled_beside_the_checks_and_ours_after_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both, done, begun = Sides(monkeypatch), list[str](), Event()
    tell = both.tell

    def told(side: str, errand: str, *more: Any) -> Iterator[dict[str, Any]]:
        done.append(errand)
        begun.set()
        return tell(side, errand, *more)

    def check(record: Record, until: float) -> None:
        assert begun.wait(10), "PyTorch's side waits for the checks"
        done.append("checks")

    monkeypatch.setattr(sides, "rows", told)
    monkeypatch.setattr(checks, "run", check)
    both.run(monkeypatch, tmp_path / "figures.json", "checks", "losses", "--seconds", "1000")
    assert done[:4] == ["ready", "checks", "compile", "default"]


def test_what_is_promised_comes_first_and_tuning_of_the_rest_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = Sides(monkeypatch)
    found = both.run(monkeypatch, tmp_path / "figures.json", "--seconds", "100000")
    told, every = both.told, cases.named()
    assert len(set(told)) == len(told) and found["left"] == "nothing was left out"
    assert {name for side, _, name in told if side == "ours"} == set(every)

    def places(of: Callable[[str, str, Any], bool]) -> list[int]:
        return [n for n, (side, errand, name) in enumerate(told) if of(side, errand, every[name])]

    def is_step(case: Any) -> bool:
        return isinstance(case, cases.Step)

    ordered = (
        lambda side, errand, case: errand == "default" and cases.is_promised(case) and not is_step(case),
        lambda side, errand, case: side == "theirs" and not is_step(case),
        lambda side, errand, case: is_step(case) and (side == "theirs" or not case.tuned),
        lambda side, errand, case: errand == "tuned" and cases.is_promised(case),
        lambda side, errand, case: side == "ours" and not is_step(case) and not cases.is_promised(case),
    )
    groups = [places(of) for of in ordered]
    assert all(max(one) < max(other) and min(one) < min(other) for one, other in zip(groups, groups[1:]))
    assert sorted({row["name"] for row in found["rows"]}) == sorted(every)
    by_name = {row["name"]: row for row in found["rows"]}
    for name, case in every.items():
        # Tuned is what counts, and whatever is beside a case is beside all that it is the same for.
        assert by_name[name]["seconds"] == (2.0 if isinstance(case, cases.Step) and not case.tuned else 1.0)
        assert ("compiled_seconds" in by_name[name]) == (cases.peer(case) is not None)


@pytest.mark.parametrize("seconds", [1, 40, 170])
def test_a_run_ends_in_time_and_the_next_goes_on(seconds: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No case is measured twice, and all are in the end; what is known of some is written at any time."""
    both, out = Sides(monkeypatch), tmp_path / "figures.json"
    whole = 2 * sum(len(cases.listed(kind)) for kind in cases.KINDS) + 200
    for number in range(1, whole // seconds + 2):
        began = both.now
        found = both.run(monkeypatch, out, "losses", "updates", "attentions", "--seconds", str(seconds))
        assert both.now <= began + seconds
        assert len(both.told) == len(set(both.told))
        if found["left"] == "nothing was left out":
            break
        assert "run it again" in found["left"] and len(both.told) >= min(seconds, number * (seconds - 1))
    else:
        raise AssertionError("it never ended")
    assert all(row["seconds"] == 1.0 for row in found["rows"])


def test_without_pytorch_nothing_is_left_for_want_of_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = Sides(monkeypatch)
    monkeypatch.setattr(sides, "is_there", lambda side: side == "ours")
    found = both.run(monkeypatch, tmp_path / "figures.json", "losses", "--seconds", "1000")
    assert {side for side, *_ in both.told} == {"ours"}
    assert "want of time" not in found["left"] and "PyTorch is not there" in found["left"]


def test_a_run_that_is_cut_off_leaves_what_it_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both, out = Sides(monkeypatch), tmp_path / "figures.json"
    tell, number = both.tell, 5

    def cut(*words: Any) -> Iterator[dict[str, Any]]:
        for row in tell(*words):
            if len(both.told) > number:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(sides, "rows", cut)
    with pytest.raises(KeyboardInterrupt):
        both.run(monkeypatch, out, "attentions")
    assert sum("seconds" in row for row in json.loads(out.read_text())["rows"]) == number
    with out.with_suffix(".jsonl").open("a") as file:
        file.write('{"errand": "def')
    monkeypatch.setattr(sides, "rows", tell)
    both.told.clear()
    both.run(monkeypatch, out, "attentions")
    assert sum(errand == "default" for _, errand, _ in both.told) == len(cases.attentions()) - number


def test_a_kernel_of_which_a_check_failed_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Sides(monkeypatch)
    verdict = checks.Verdict(1, {"tests/test_one.py::test[gelu]": "it failed"}, {}, 0, frozenset({"gelu"}))
    monkeypatch.setattr(checks, "verdict", lambda record: verdict)
    monkeypatch.setattr(sys, "argv", ["gpu", "streams", "--out", str(tmp_path / "a.json")])
    assert benchmark.main() == 1
    rows = {row["name"]: row for row in json.loads((tmp_path / "a.json").read_text())["rows"]}
    for case in cases.streams():
        assert ("seconds" in rows[case.name]) == (case.kernel != "gelu") == ("failed" not in rows[case.name])


def test_what_is_known_is_of_one_device_and_of_sources_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both, out = Sides(monkeypatch), tmp_path / "figures.json"
    both.run(monkeypatch, out, "streams")
    of_kernels, both.told = sources.of_kernels, []
    monkeypatch.setattr(sources, "of_kernels", lambda names: of_kernels(names) + " changed" * ("softmax" in names))
    both.run(monkeypatch, out, "streams")
    called = {case.name for case in cases.streams() if case.kernel == "softmax"}
    assert {name for _, _, name in both.told} == called
    both.told.clear()
    monkeypatch.setattr(benchmark, "versions", lambda: {"castile": "2"})
    both.run(monkeypatch, out, "streams")
    assert {name for _, _, name in both.told} == {case.name for case in cases.streams()}


def test_each_kernel_has_the_sources_of_its_form_behind_it() -> None:
    """Those of one are not those of another; what all forms are launched by is behind all."""
    kernels = {call.kernel for case in cases.named().values() for call in calls(case)}
    assert len({sources.of_kernels(frozenset((kernel,))) for kernel in kernels}) > len(kernels) / 2
    for kernel in kernels:
        closed = sources._closed({sources.Table("triton").forms[kernel].__module__})
        assert {"castile.kernels.triton.launch", "castile.kernels.triton.driver"} <= closed, kernel
    assert sources.of_test("tests/test_ways_gpu.py", "copy") != sources.of_test("tests/test_ways_gpu.py", "gelu")


TESTS = """
import os, signal, sys, time, types
import pytest
pytestmark = pytest.mark.gpu
lost = []
def synchronize():
    if lost: raise RuntimeError("the device has failed")
sys.modules["cupy"] = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=types.SimpleNamespace(
    deviceSynchronize=synchronize)))

@pytest.mark.parametrize("name", {names!r})
def test_one(name):
    with open({log!r}, "a") as file: file.write(name + "\\n")
    if name == "hangs" : time.sleep(1000)
    if name == "dies": os.kill(os.getpid(), signal.SIGKILL)
    if name == "loses": lost.append(1)
    if name == "leaves": os._exit(9)
    if name == "skips": pytest.skip("not here")
    assert not lost and name != "fails"

@pytest.mark.mpi
def test_of_ranks():
    pass
"""
CONFTEST = """
from benchmarks.gpu import sources
sources.of_test = lambda path, kernel: "same"
"""
INI = "[pytest]\nmarkers =\n    gpu: needs a GPU\n    mpi: starts ranks\n"


@pytest.fixture
def tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[checks.Verdict, list[str]]]:
    """Checks with such tests: what is known then, and which ran."""
    (tmp_path / "tests").mkdir()
    log = tmp_path / "log"

    def run(names: Sequence[str], seconds: float) -> tuple[checks.Verdict, list[str]]:
        (tmp_path / "tests" / "test_some.py").write_text(TESTS.format(names=list(names), log=str(log)))
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "pytest.ini").write_text(INI)
        log.write_text("")
        found = Record(tmp_path / "a.jsonl", ABOUT)
        checks.run(found, time.time() + seconds)
        return checks.verdict(found), log.read_text().split()

    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "of_test", lambda path, kernel: "same")
    monkeypatch.setattr(checks, "RUNS", tuple((*words[:2], "-n", "1") if "not" in words[1] else words
                                              for words in checks.RUNS))  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [one for one in os.environ if one.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    return run


def test_checks_tell_what_failed_and_others_do_not_fail_for_it(tested: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything tested twice whose end is known."""
    monkeypatch.setattr(checks, "RUNS", checks.RUNS[:1])
    monkeypatch.setattr(checks, "PATIENCE_SECONDS", 8.0)
    monkeypatch.setattr(checks, "GRACE_SECONDS", 1.0)
    names = ["a", "fails", "b", "loses", "c", "skips", "dies", "e", "hangs", "f", "g"]
    verdict, ran = tested(names, 100)
    assert verdict.kernels == {"fails", "loses", "dies", "hangs"}, verdict
    assert verdict.num_passed == len(names) - 5 and not verdict.num_left
    assert list(verdict.skipped.values()) == ["Skipped: not here"]
    # What was skipped is met again whenever pytest starts again: where one hangs, or where it starts slowly.
    assert sorted(set(ran)) == sorted(names) and set(ran) - {"skips"} == {one for one in ran if ran.count(one) == 1}
    again, ran = tested(names, 100)
    assert again == verdict and set(ran) == {"skips"}


def test_what_ends_all_of_pytest_costs_itself(tested: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other processes test."""
    monkeypatch.setattr(checks, "RUNS", (("-m", "gpu and not mpi"),))
    names = ["a", "loses", "b", "dies", "leaves", "c"]
    verdict, ran = tested(names, 100)
    assert ran == names and verdict.kernels == {"loses", "dies", "leaves"} and verdict.num_passed == 3


def test_tests_that_cannot_begin_have_not_passed(tested: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are they taken to fail when they can."""
    well = (("-m", "gpu and not mpi"),)
    monkeypatch.setattr(checks, "RUNS", (("-m", "gpu and not mpi", "--no-such-option"),))
    verdict, ran = tested(["a"], 100)
    assert not ran and not verdict.num_passed and list(verdict.failed.values()) == ["ended with status 4, and said why"]
    monkeypatch.setattr(checks, "RUNS", well)
    assert tested(["a"], 100)[1] == ["a"]


def test_checks_that_had_no_time_are_told(tested: Any) -> None:
    verdict, ran = tested(["a", "b"], 0)
    assert not ran and not verdict.num_passed
    finding = Finding(verdicts.ERRAND, "tests/test_some.py::test_one[a]", "same", {"kernel": "a"})
    record.add(sources.ROOT / "a.jsonl", finding)
    assert checks.verdict(Record(sources.ROOT / "a.jsonl", ABOUT)).num_left == 1
    verdict, ran = tested(["a", "b"], 100)
    assert sorted(ran) == ["a", "b"] and verdict.num_passed == 3 and not verdict.num_left
    (sources.ROOT / "tests" / "test_some.py").unlink()
    assert checks.verdict(Record(sources.ROOT / "a.jsonl", ABOUT)) == (0, {}, {}, 0, frozenset())
