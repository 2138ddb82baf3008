"""The acceptance run: its figures compare as they say, its checks are found by name, and what fails is not met."""

import inspect
import json
import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import accept
from benchmarks.checks import commands
from benchmarks.figures import Figure, in_turns, read, spread, tell
from benchmarks.lanes import lanes
from benchmarks.place import CHECKOUT, CheckFailed, Place
from benchmarks.simulator import megatron
from castile.launch import __main__ as castile
from castile.launch import models
from castile.planner import op as operators
from castile.planner.known.seeds import stamped
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from castile.runtime.task import Kind
from castile.runtime.timeline import Timeline
from tests.effort import examples

BENCHMARKS = sorted(p.stem for p in (CHECKOUT / "benchmarks").glob("*.py") if "ArgumentParser" in p.read_text())
numbers = st.floats(-1e6, 1e6)


@given(numbers, st.none() | numbers, st.none() | numbers)
def test_a_figure_is_met_exactly_where_it_lies_between_its_bounds(value, least, most):
    figure = Figure("some_seconds", value, least, most)
    if least is None and most is None:
        assert figure.met is None and figure.verdict == "told"
    else:
        between = (-math.inf if least is None else least) <= value <= (math.inf if most is None else most)
        assert figure.met is between and figure.verdict == ("met" if between else "not met")


@pytest.mark.parametrize("bounds", [{"least": 1.0}, {"most": 1.0}])
def test_what_was_not_measured_is_not_run_and_what_is_no_number_is_not_met(bounds):
    assert Figure("x_seconds", None, **bounds).verdict == "not run"
    assert Figure("x_seconds", math.nan, **bounds).verdict == "not met"


@settings(max_examples=examples(100, 1 / 10))
@given(st.lists(st.builds(Figure, st.text(min_size=1), st.none() | numbers, st.none() | numbers, note=st.text())))
def test_figures_come_back_from_the_last_line_as_they_were_told(figures):
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as out:
        print("some words before")
        tell(figures)
    assert read(out.getvalue()) == figures


@pytest.mark.parametrize("output", ["", "no figures", "[1, 2]", '[{"name": "a", "value": 1, "colour": "red"}]'])
def test_a_last_line_without_figures_is_refused(output):
    with pytest.raises(ValueError, match="last line holds no figures"):
        read(output)


def test_calls_take_turns_after_their_warm_up():
    made: list[str] = []
    seconds = in_turns({"a": lambda: made.append("a"), "b": lambda: made.append("b")}, rounds=4, warm_up=2)
    assert made == ["a", "b"] * 6
    assert all(len(times) == 4 and (times >= 0).all() for times in seconds.values())
    assert spread(np.array([1.0, 2.0, 3.0])) == pytest.approx(0.25)


class Step:
    """A task graph of which only kinds and processors are asked for."""

    def __init__(self, kinds, procs):
        self.kind, self._procs, self.num_procs = np.array(kinds), procs, 2

    def tasks_of(self, proc):
        return np.array([task for task, procs in enumerate(self._procs) if proc in procs])


def test_a_transfer_is_hidden_where_its_processor_computes_meanwhile():
    """Processor 0 computes 0-4 and 9-10, processor 1 computes 0-2; two transfers at 2-6 and 5-8 overlap."""
    second = 10**12
    step = Step([Kind.COMPUTE, Kind.COMPUTE, Kind.MOVE, Kind.COLLECTIVE, Kind.PACK], [(0,), (1,), (0, 1), (0, 1), (0,)])
    start, end = np.array([0, 0, 2, 5, 9]) * second, np.array([4, 2, 6, 8, 10]) * second
    did = lanes(step, Timeline(np.arange(5), start, end))
    assert did.step == 10
    assert did.compute.tolist() == [5, 2]
    assert did.transfer.tolist() == [6, 6]
    assert did.exposed.tolist() == [4, 6]
    assert did.hidden_share == pytest.approx(1 - 10 / 12)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=12))
def test_lanes_agree_with_counting_every_moment(spans):
    second = 10**12
    is_move, start, lasts = (np.array(column) for column in zip(*spans))
    step = Step(np.where(is_move, Kind.MOVE, Kind.COMPUTE), [(0,)] * len(spans))
    did = lanes(step, Timeline(np.arange(len(spans)), start * second, (start + lasts) * second))
    moments = np.arange(50)[:, None]
    alive = (start <= moments) & (moments < start + lasts)
    computing, moving = alive[:, ~is_move].any(1), alive[:, is_move].any(1)
    assert did.compute[0] == computing.sum() and did.transfer[0] == moving.sum()
    assert did.exposed[0] == (moving & ~computing).sum()


def test_every_check_is_found_by_its_name_and_says_what_it_checks():
    found = accept.every_check()
    assert set(found) >= {"demo", "suite", "torch_free", "helps", "json", "starts", "validate_convnet", "validate_gpt"}
    for name, check in found.items():
        assert check.__name__ == name and inspect.getdoc(check)
        assert list(inspect.signature(check).parameters) == ["place"]


def test_every_benchmark_is_run_by_a_check_of_its_name():
    assert set(BENCHMARKS) - {"accept"} <= set(accept.every_check())


def test_every_command_of_castile_is_checked():
    assert set(commands.COMMANDS) >= set(castile.commands())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_explains_itself(name, tmp_path, monkeypatch, capsys):
    path = str(CHECKOUT / "benchmarks" / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, "--help"])
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "benchmarks"), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(path, run_name="__main__")
    assert ended.value.code == 0 and f"benchmarks/{name}.py" in capsys.readouterr().out


def test_a_benchmark_finds_castile_by_itself(tmp_path):
    ran = Place(tmp_path).run(sys.executable, str(CHECKOUT / "benchmarks" / "untaught.py"), "--help", timeout=60)
    assert ran.status == 0 and "benchmarks/untaught.py" in ran.out, ran.err


def test_a_command_that_fails_or_lasts_too_long_is_told_in_words(tmp_path):
    place = Place(tmp_path)
    ran = place.run(sys.executable, "-c", "import sys; print('{}'); sys.exit('it broke')")
    with pytest.raises(CheckFailed, match="status 1: it broke"):
        ran.object()
    with pytest.raises(CheckFailed, match="no single JSON object"):
        place.run(sys.executable, "-c", "print('a', 'b')").object()
    with pytest.raises(CheckFailed, match=r"did not end within 0\.2 s"):
        place.run(sys.executable, "-c", "import time; time.sleep(60)", timeout=0.2)
    assert place.run(sys.executable, "-c", "print('{\"a\": 1}')").object() == {"a": 1}


def test_users_of_different_names_share_nothing(tmp_path):
    place = Place(tmp_path)
    one, other = place.environment("one"), place.environment("other")
    for variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "NUMBA_CACHE_DIR"):
        assert one[variable] != other[variable] and one[variable] == place.environment("one")[variable]


def _fails(place):
    """Fails."""
    raise CheckFailed("it broke")


def _succeeds(place):
    """Succeeds."""
    return [Figure("a_seconds", 1.0, most=2.0), Figure("b_seconds", 1.0), Figure("c_seconds", None, most=1.0)]


def test_a_check_that_breaks_off_has_not_met_its_target(tmp_path):
    outcome = accept.run("broken", _fails, Place(tmp_path), quiet=True)
    assert [f.verdict for f in outcome.figures] == ["not met"] and "it broke" in outcome.figures[0].note


@pytest.mark.parametrize("checks", [{"good": _succeeds}, {"good": _succeeds, "broken": _fails}])
def test_the_exit_status_tells_whether_all_targets_are_met(checks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(accept, "every_check", lambda: checks)
    monkeypatch.setattr(accept, "RESULTS", tmp_path / "build" / "accept.json")
    status = accept.main(["--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads((tmp_path / "build" / "accept.json").read_text())
    assert status == (1 if "broken" in checks else 0)
    assert facts["counts"] == {"met": 1, "not met": len(checks) - 1, "not run": 1, "told": 1}


def test_the_plan_of_the_simulator_s_benchmark_moves_data_within_and_between_groups():
    graph = models.parse("gpt:layers=2,width=16,heads=4,seq=8,vocab=32").graph(4)
    lowering = Lowering(graph, machines.parse("dgx-h100:nodes=1"))
    tasks = lowering.lower(stamped(lowering, megatron(graph, 2, 4), "megatron"))
    assert tasks.num_procs == 8 and (tasks.kind >= Kind.MOVE).any()
    assert all(len(tasks.tasks_of(proc)) > 50 for proc in range(8))


def test_every_operator_of_the_models_has_its_call_in_pytorch():
    pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    from benchmarks.torch_model import WHOLE, Calls
    from benchmarks.torch_step import CASES

    graphs = [models.parse(case.model).graph(2) for case in CASES.values()]
    used = {node.op.name for graph in graphs if graph.name not in WHOLE for node in graph.nodes.values()}
    assert used <= set(operators.available()) and all(hasattr(Calls, name) for name in used)


@pytest.mark.parametrize("model", ["mlp:layers=1,width=8", "convnet:channels=2", "gpt:layers=1,width=8,heads=2,seq=8"])
def test_pytorch_s_model_has_castile_s_loss(model):
    pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    from benchmarks.alone import SEED, alone, workload
    from benchmarks.torch_model import TorchStep
    from benchmarks.torch_step import agree

    work = workload(model, 4)
    _, ours = alone(work)
    theirs = TorchStep(work.graph, SEED, work.recipe.lr, work.recipe.momentum)
    assert agree(work, ours, theirs) < 1e-5


def test_accept_is_what_make_runs():
    assert "benchmarks/accept.py" in (Path(CHECKOUT) / "Makefile").read_text()
