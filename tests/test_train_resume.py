"""Training that stops and goes on: signals, checkpoints, the same samples and rates, records of all of it."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from castile.launch import launch
from castile.launch.__main__ import main
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints.folder import checkpoints, latest
from castile.launch.checkpoints.manifest import Facts
from castile.launch.checkpoints.reader import open_checkpoint
from castile.launch.jobs.execution import Execution, initial
from castile.launch.models import parse
from castile.launch.processes.stopping import Stopping
from castile.launch.reports import report
from castile.launch.training import evaluate, resume
from castile.launch.training.setup import TrainingRun
from castile.launch.training.training import Training
from castile.planner import strategy as strategies
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.ops.sgd import Sgd
from castile.runtime import machine as machines
from castile.runtime.comm.local import LocalWorld
from castile.runtime.garbage import set_aside
from castile.runtime.region import whole
from tests import homes, standing
from tests.answers import answer
from tests.effort import rare
from tests.mpi import CHECKOUT, end, mpirun_apart
from tests.runs import MLP, losses, records, told

UPDATES = Updates(Sgd(momentum=0.9, decay=0.001))


def when_trained(path, steps, then):
    """Do something in a thread of its own when so many steps are on record."""

    def watch():
        deadline = time.monotonic() + 60
        while not (path.exists() and path.read_bytes().count(b'"kind": "step"') > steps):
            # Then too: what runs for hours would not be ended by anybody else.
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def parameters(folder):
    found = latest(folder).open()
    return {name: found.read(name, whole(region.shape)) for name, region in found.regions.items()}


def check_equal(left, right):
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name]) for name in left)


OPTIMIZERS = ("sgd:momentum=0.8,decay=0.01", "adamw:decay=0.1", "adafactor")


@pytest.mark.parametrize("optimizer", [OPTIMIZERS[0], OPTIMIZERS[2], *rare(OPTIMIZERS[1])])
def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(optimizer, alone, capsys):
    how = ("--clip", "0.5", "--undecayed", "*.bias", "--accumulate", "2", "--lr", "0.01")
    words = ("--steps", "30", "--schedule", "wsd:warmup=6,decay=8", "--optimizer", optimizer, *how)
    told(capsys, *words, "--checkpoint", "whole", "--metrics", "whole.jsonl")
    # The first part ends where its disk does: nothing knows of it but the folder.
    told(capsys, *words, "--checkpoint", "parts", "--checkpoint-every", "11", "--keep", "9", "--metrics", "a.jsonl")
    for step, path in checkpoints("parts").items():
        if step > 11:
            path.rename(f"away-{step}")
    facts = told(capsys, *words, "--checkpoint", "parts", "--resume", "--metrics", "a.jsonl")
    assert (facts["first_step"], facts["num_steps"]) == (11, 19)
    check_equal(parameters("whole"), parameters("parts"))
    assert losses(alone / "a.jsonl") == losses(alone / "whole.jsonl")
    again = records(alone / "a.jsonl", "step")[30:]
    first = records(alone / "whole.jsonl", "step")[11:]
    assert [(r["step"], r["samples"], r["rate"]) for r in again] == [
        (r["step"], r["samples"], r["rate"]) for r in first
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_ends_with_status_0(number, alone, capsys):
    words = ("--steps", "1500", "--checkpoint", "run", "--metrics", "run.jsonl")
    before = signal.getsignal(number)
    watcher = when_trained(alone / "run.jsonl", 50, lambda: os.kill(os.getpid(), number))
    facts = told(capsys, *words)
    watcher.join()
    assert signal.getsignal(number) is before
    done = facts["num_steps"]
    assert facts["stopped_by"] == number.name and 50 <= done < 1500
    assert latest("run").step == done and "held_out_loss" not in facts
    assert records(alone / "run.jsonl", "end") == [{"kind": "end", "step": done, "reason": number.name}]
    facts = told(capsys, *words, "--resume", "--steps", str(done + 5))
    assert (facts["first_step"], facts["num_steps"], facts["stopped_by"]) == (done, 5, "")


@pytest.mark.parametrize(("words", "done"), [((), 8), (("--evaluate-every", "3"), 3)], ids=["the last", "on the way"])
@pytest.mark.parametrize("batches", [1, 3])
def test_a_signal_during_an_evaluation_ends_it_and_is_told(batches, words, done, alone, capsys, monkeypatch):
    taken, take = [], evaluate.full_batch

    def batch(*args):
        taken.append(args)
        if len(taken) == batches:
            signal.raise_signal(signal.SIGTERM)
        return take(*args)

    monkeypatch.setattr(evaluate, "full_batch", batch)
    line = [*MLP, "--steps", "8", "--checkpoint", "run", "--metrics", "a.jsonl", *words]
    assert main(line) == 0
    assert len(taken) == batches and latest("run").step == done
    out = capsys.readouterr().out
    assert f"step {done:5d}  held out: not judged, as SIGTERM asked to stop\n" in out
    assert "of 360 samples right" not in out and f"stopped by SIGTERM after step {done}: " in out
    assert records(alone / "a.jsonl", "end") == [{"kind": "end", "step": done, "reason": "SIGTERM"}]
    assert not records(alone / "a.jsonl", "evaluation")
    assert main([*line, "--resume"]) == 0
    assert "of 360 samples right" in capsys.readouterr().out


@pytest.mark.mpi
def test_a_signal_to_one_rank_ends_the_evaluation_of_all(alone):
    Path("case.py").write_text("""
import signal, sys
from unittest.mock import patch
from castile.launch.__main__ import main
from castile.launch.processes.ranks import this_world
from castile.launch.training import evaluate
take = evaluate.full_batch
def batch(samples, begin, *args):
    if this_world().rank == 1 and begin == 64:
        signal.raise_signal(signal.SIGTERM)
    return take(samples, begin, *args)
with patch.object(evaluate, "full_batch", batch):
    sys.exit(main(sys.argv[1:]))
""")
    words = [*MLP, "--steps", "4", "--evaluate-every", "2", "--checkpoint", "run", "--json"]
    status, out, err = standing.run(2, "case.py", *words)
    assert status == 0, err
    facts = json.loads(out)
    assert (facts["stopped_by"], facts["num_steps"], facts["evaluations"]) == ("SIGTERM", 2, [])
    assert latest("run").step == 2


@pytest.mark.parametrize("saves", [True, False])
def test_ctrl_c_ends_at_once_and_says_what_there_is_to_go_on_from(saves, alone, capsys):
    words = [*MLP, "--steps", "1500", "--metrics", "run.jsonl"]
    words += ["--checkpoint", "run", "--checkpoint-every", "20"] if saves else []
    watcher = when_trained(alone / "run.jsonl", 50, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert main(words) == 128 + signal.SIGINT
    watcher.join()
    left = r"with --resume the same command goes on from run/step-(\d{8})$" if saves else "nothing is saved yet; "
    told = re.search(rf"^castile: ended after step \d+: {left}", capsys.readouterr().err, re.MULTILINE)
    assert told is not None
    # One that was being written when it was told may have become whole since.
    assert not saves or latest("run").step - 20 <= int(told[1]) <= latest("run").step


@pytest.mark.parametrize(("given", "every"), [((), 900), (("--checkpoint-every", "70"), 70)])
def test_who_saves_and_has_nothing_yet_is_told_when_saves_come(given, every, alone, capsys, monkeypatch):
    """Not to give the folder that was given."""
    step_once = Training._step

    def step_or_end(training, step, feeder):
        if step == 5:
            raise KeyboardInterrupt
        step_once(training, step, feeder)

    monkeypatch.setattr(Training, "_step", step_or_end)
    assert main([*MLP, "--steps", "900", "--checkpoint", "run", *given]) == 130
    told = f"nothing is saved yet: saves come after every {every} steps, with a smaller --checkpoint-every sooner\n"
    assert capsys.readouterr().err.endswith(f"castile: ended after step 5: {told}")


def test_what_ends_before_its_first_step_says_what_was_there_before(alone, capsys, monkeypatch):
    words = [*MLP, "--steps", "9", "--checkpoint", "run", "--resume"]
    assert main([*words[:-3], "--steps", "3", "--out", "plan.json", "--checkpoint", "run"]) == 0
    monkeypatch.setattr("castile.launch.measuring.plan_choice.given", lambda *_: signal.raise_signal(signal.SIGTERM))
    capsys.readouterr()
    assert main(words) == 128 + signal.SIGTERM
    left = "castile: ended before the first step: with --resume the same command goes on from run/step-00000003\n"
    assert capsys.readouterr().err.endswith(left)
    assert main([*MLP[:2], "--steps", "9", "--plan", "plan.json"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err.endswith("castile: ended before the first step, so nothing is saved\n")


def test_without_checkpoints_sigterm_ends_a_run_at_once_and_the_log_says_so(alone, home):
    words = [sys.executable, "-m", "castile", *MLP, "--steps", "1000000", "--metrics", "a.jsonl"]
    with started(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        when_trained(alone / "a.jsonl", 10, process.terminate).join()
        assert process.wait(20) == 128 + signal.SIGTERM
        assert process.stderr is not None
        assert homes.but_for_compiling(process.stderr.read()) == "castile: ended by SIGTERM\n"


@contextmanager
def started(program, **options):
    """A process, which a test that fails does not leave to go on."""
    environment = {**os.environ, **launch.variables(), "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(program, env=environment, text=True, process_group=0, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                end(process)


def launched(*words):
    program = launch.mpirun_words(2, None, [sys.executable, "-m", "castile", *words])
    return started(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.mpi
def test_two_ranks_stop_after_the_same_step_and_one_goes_on(alone, capsys):
    told(capsys, "--steps", "300", "--metrics", "whole.jsonl")
    words = (*MLP, "--checkpoint", "run", "--metrics", "run.jsonl")
    with launched(*words, "--steps", "100000", "--json") as process:
        # mpirun passes this one on and lets the ranks end as they will.
        when_trained(alone / "run.jsonl", 20, lambda: process.send_signal(signal.SIGUSR1)).join()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    facts = json.loads(out)
    done = facts["num_steps"]
    assert facts["stopped_by"] == "SIGUSR1" and latest("run").step == done
    facts = answer(capsys, *words, "--resume", "--steps", str(done + 20))
    assert (facts["first_step"], facts["num_steps"]) == (done, 20)
    seen, expected = losses(alone / "run.jsonl"), losses(alone / "whole.jsonl")
    assert all(seen[step] == pytest.approx(expected[step], rel=1e-2, abs=1e-3) for step in seen if step < 60)
    assert sorted(seen) == list(range(1, done + 21))


DOUBLE = """
from castile.launch.models import mlp
RECIPE = mlp.RECIPE
def build(batch=None, dtype="float32"):
    return mlp.build(batch, "float64", width=24)
"""


@pytest.mark.mpi
@pytest.mark.slow
def test_ranks_and_plans_may_change_from_one_part_of_a_run_to_the_next(alone):
    (alone / "double.py").write_text(DOUBLE)
    graph = parse("double.py").graph()
    words = ["train", "double.py", "--optimizer", "sgd:momentum=0.9,decay=0.001", "--seed", "3", "--json"]
    assert main([*words, "--steps", "16", "--metrics", "whole.jsonl", "--search", "data_parallel"]) == 0
    parts = [(4, "one_weird_trick"), (2, "data_parallel"), (3, "one_weird_trick"), (1, "data_parallel")]
    for part, (num_ranks, name) in enumerate(parts, start=1):
        plan = seeds(Lowering(graph, machines.local(num_ranks), updates=UPDATES))[name]
        Path("plan.json").write_bytes(strategies.encode(plan))
        more = ["--checkpoint", "run", "--metrics", "run.jsonl", "--resume", "--steps", str(4 * part)]
        command = ["-m", "castile", *words, *more, "--plan", "plan.json"]
        status, _, err = standing.run(num_ranks, *command) if num_ranks > 1 else (main(command[2:]), "", "")
        assert status == 0, err
    whole, run = losses(alone / "whole.jsonl"), losses(alone / "run.jsonl")
    assert list(run) == list(range(1, 17))
    assert [run[step] for step in whole] == pytest.approx(list(whole.values()), rel=1e-10)
    assert [r["samples"] for r in records(alone / "run.jsonl", "step")] == [64 * step for step in run]


def test_batches_that_are_cut_otherwise_need_another_plan(alone, capsys):
    told(capsys, "--steps", "2", "--checkpoint", "run")
    for pieces in (None, 2, 1):
        words = [] if pieces is None else ["--accumulate", str(pieces)]
        before = latest("run").step
        how = ("--checkpoint", "run", "--resume", "--out", "plan.json", *words)
        facts = told(capsys, "--steps", str(before + 2), *how)
        assert (facts["candidates"] == []) is (pieces is None), "nothing is measured where the plan is there"
        assert strategies.read("plan.json").microbatches == (pieces or 1) and latest("run").step == before + 2


@pytest.mark.mpi
def test_a_signal_to_one_rank_stops_all(home):
    code = """
import os, signal, time
from castile.launch.here.leader import communicator
from castile.launch.processes.stopping import Stopping
comm = communicator()
with Stopping(comm) as stopping:
    for step in range(100000):
        if step == 500 and comm.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if stopping.after(step):
            break
        time.sleep(1e-4)
steps = comm.gather_bytes(f"{step} {stopping.name}".encode())
if steps is not None:
    print(*{s.decode() for s in steps})
"""
    status, out, err = mpirun_apart(3, "-c", code, **home)
    assert status == 0, err
    step, name = out.split()
    assert 500 <= int(step) < 5000 and name == "SIGTERM"


def test_a_rank_alone_stops_at_once():
    with Stopping(LocalWorld(1).communicators[0]) as stopping:
        assert not stopping.after(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.after(1) and stopping.name == "SIGTERM"


def test_a_loss_that_is_no_number_ends_the_run_and_is_not_saved(alone, capsys):
    with warnings.catch_warnings(action="error"):
        status = main([*MLP, "--steps", "10", "--lr", "1e9", "--checkpoint", "run", "--metrics", "a.jsonl"])
    err = capsys.readouterr().err
    step = len(losses(alone / "a.jsonl"))
    assert status == 2 and err.startswith(f"castile: step {step}: the loss is not a finite number")
    assert records(alone / "a.jsonl", "step")[-1]["loss"] is None
    assert records(alone / "a.jsonl", "end")[-1]["step"] == step
    assert not checkpoints("run")


def test_a_loss_that_is_no_number_before_the_first_update_is_blamed_on_no_rate(alone, capsys):
    weights = {t.name: np.full(t.shape, np.nan, "float32") for t in parse(MLP[1]).graph().params}
    save_file(weights, "nan.safetensors")
    assert main([*MLP, "--steps", "10", "--weights", "nan.safetensors"]) == 2
    assert capsys.readouterr().err.endswith(
        "castile: step 1: the loss is not a finite number: look for such numbers in samples and parameters, "
        "and for labels out of range, or with --watch, which tells where they begin\n"
    )


@pytest.mark.parametrize("saves", [True, False])
def test_numbers_that_are_not_finite_are_a_mistake_and_not_saved_though_the_loss_is_finite(saves, alone, capsys):
    # The loss of a step is that of the parameters before it.
    with warnings.catch_warnings(action="error"):
        assert main([*MLP, "--steps", "1", "--lr", "1e300", *["--checkpoint", "run"] * saves]) == 2
    err = capsys.readouterr().err
    assert "holds numbers that are not finite" in err and ("not saved" in err) == saves
    assert not checkpoints("run")


def test_an_evaluation_whose_loss_is_no_number_is_warned_of(alone, capsys):
    """Parameters that are finite may be too large for any sample."""
    assert main([*MLP, "--steps", "1", "--lr", "1e30"]) == 0
    told = "castile: step 1: the loss of held-out samples is not a finite number: look for such numbers in them, or "
    assert capsys.readouterr().err.count(told) == 1


@pytest.mark.parametrize(
    "words, reason",
    [
        ("train mlp:width=32 --seed 1", r"was trained with --seed 0, and this run has --seed 1"),
        ("train mlp:width=32 --batch 32", r"was trained with --batch 64, and this run has --batch 32"),
        ("train mlp:width=16", r"is of mlp:width=32, and this run trains mlp:width=16"),
    ],
)
def test_another_training_is_not_resumed(words, reason, alone, capsys):
    told(capsys, "--steps", "2", "--checkpoint", "run")
    assert main([*words.split(), "--steps", "4", "--checkpoint", "run", "--resume"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("castile: --resume: ") and reason in err and err.count("\n") == 1


def test_data_that_changed_are_not_gone_on_with(alone, capsys):
    rng = np.random.default_rng(0)
    images = {"image": rng.normal(size=(200, 1, 8, 8)).astype(np.float32), "label": np.arange(200) % 10}
    np.savez("mine.npz", **images)
    words = [*MLP, "--batch", "16", "--data", "numpy:file=mine.npz", "--checkpoint", "run"]
    assert main([*words, "--steps", "2"]) == 0
    assert main([*words, "--steps", "3", "--resume"]) == 0
    capsys.readouterr()
    np.savez("mine.npz", **{name: array[:150] for name, array in images.items()})
    assert main([*words, "--steps", "4", "--resume"]) == 2
    err = capsys.readouterr().err
    assert re.search(r"^castile: --resume: .* 180 samples and 20 held out \(.*has 135 samples and 15 held out", err)
    saved = open_checkpoint(latest("run").path).facts
    # what an earlier castile has saved tells nothing of its samples, nor of its options
    older = msgspec.json.decode(msgspec.json.encode(saved), type=dict)
    del older["samples"], older["options"]
    resume.check_same(msgspec.convert(older, Facts), saved, Path("run"))


def test_another_castile_is_told(alone, capsys, monkeypatch):
    words = ("--checkpoint", "run", "--steps")
    told(capsys, *words, "1")
    then = resume.__version__
    monkeypatch.setattr(resume, "__version__", "9.9")
    assert told(capsys, *words, "2", "--resume")["changed"] == {"steps": [1, 2], "castile": [then, "9.9"]}
    assert main([*MLP, *words, "3", "--resume"]) == 0
    assert f"\nit was saved by castile {then}, and this is castile 9.9\n" in capsys.readouterr().out


def test_options_that_changed_are_told(alone, capsys):
    words = ("--checkpoint", "run", "--steps")
    given = ("--optimizer", "adam", "--lr", "0.001", "--schedule", "cosine", "--clip", "1")
    told(capsys, *given, *words, "2")
    assert told(capsys, *given, *words, "2", "--resume")["changed"] == {}
    assert told(capsys, *given, *words, "3", "--resume")["changed"] == {"steps": [2, 3]}
    again = ("--optimizer", "adam:beta1=0.9", "--lr", "0.3", "--dtype", "bfloat16", "--accumulate", "2", *words)
    assert told(capsys, *again, "4", "--resume")["changed"] == {
        "lr": [0.001, 0.3], "schedule": ["cosine", "constant"], "clip": [1.0, None], "steps": [3, 4],
        "dtype": ["float32", "bfloat16"], "accumulate": [1, 2],
    }  # fmt: skip
    # the plan goes on, and with it the pieces that it cuts batches into
    how = ("--dtype", "bfloat16", "--resume")
    assert told(capsys, *given, *how, *words, "4")["changed"].keys() == {"lr", "schedule", "clip"}
    assert main([*MLP, *given, "--accumulate", "1", *words, "5", "--resume"]) == 0
    out = capsys.readouterr().out
    assert "--lr was 0.3 until step 4, and is 0.001 from there on\n" in out and "--clip was none until step 4" in out
    assert "--steps was 4 until step 4, and is 5 from there on\n" in out and "--dtype was bfloat16 until step 4" in out
    assert "--accumulate was 2 until step 4, and is 1 from there on\n" in out
    assert main([*MLP, "--optimizer", "adamw", *words, "6", "--resume"]) == 2
    assert "was trained with --optimizer adam, whose state is none of --optimizer adamw" in capsys.readouterr().err


def test_to_resume_where_nothing_is_yet_is_to_begin(alone, capsys):
    words = ("--steps", "5", "--checkpoint", "run", "--resume")
    assert told(capsys, *words)["first_step"] == 0
    facts = told(capsys, *words)
    assert (facts["first_step"], facts["num_steps"], facts["losses"]) == (5, 0, [])


def test_the_resolved_run_lies_beside_its_checkpoints_and_records(alone, capsys):
    told(capsys, "--steps", "4", "--checkpoint", "run", "--metrics", "logs/a.jsonl")
    assert (alone / "run/resolved.toml").read_bytes() == (alone / "logs/a.resolved.toml").read_bytes()
    assert main(["train", "run/resolved.toml", "--resume", "--steps", "6", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["first_step"], facts["num_steps"]) == (4, 2)
    assert facts["run"] == records(alone / "logs/a.jsonl", "run")[-1]["run"]


def test_records_are_what_the_screen_says(alone, capsys):
    words = ("--steps", "8", "--evaluate-every", "3", "--checkpoint", "run", "--checkpoint-every", "4")
    facts = told(capsys, *words, "--metrics", "a.jsonl")
    steps, ends = records(alone / "a.jsonl", "step"), records(alone / "a.jsonl", "evaluation")
    assert [r["loss"] for r in steps] == facts["losses"]
    assert [r["samples"] for r in steps] == [64 * step for step in range(1, 9)]
    numbers = ("rate", "step_seconds", "simulated_seconds", "samples_per_second", "peak_bytes")
    assert all(r[name] > 0 for r in steps for name in numbers) and all(r["waited_seconds"] >= 0 for r in steps)
    assert [r["step"] for r in ends] == [3, 6, 8]
    assert [{"kind": "evaluation", **e} for e in facts["evaluations"]] == ends
    assert [r["step"] for r in records(alone / "a.jsonl", "checkpoint")] == [4, 8]
    assert records(alone / "a.jsonl", "end") == [{"kind": "end", "step": 8, "reason": "done"}]
    assert facts["held_out_loss"] == ends[-1]["loss"]


def test_lines_tell_the_pace_with_what_samples_take_to_load(alone, capsys, monkeypatch):
    feed = Execution.feed

    def slow(*args):
        time.sleep(0.05)
        feed(*args)

    monkeypatch.setattr(Execution, "feed", slow)
    assert main([*MLP, "--steps", "3", "--metrics", "a.jsonl"]) == 0
    lines = re.findall(r"^step .* \| ([\d.]+k? samples/s) \|", capsys.readouterr().out, re.MULTILINE)
    paces = [r["samples_per_second"] for r in records(alone / "a.jsonl", "step")]
    assert lines == [report.pace(pace) for pace in paces] and max(paces) <= 64 / 0.05


def test_rates_go_as_the_schedule_says(alone, capsys):
    told(capsys, "--steps", "5", "--lr", "0.5", "--schedule", "linear:warmup=2,floor=0.1", "--metrics", "a.jsonl")
    rates = [r["rate"] for r in records(alone / "a.jsonl", "step")]
    assert rates == pytest.approx([0.25, 0.5, 0.35, 0.2, 0.05])


def test_training_begins_with_the_weights_of_a_file(alone, capsys):
    graph = parse("mlp:width=32").graph()
    save_file({p.name: initial(p, 5, whole(p.shape)) for p in graph.params}, "five.safetensors")
    words = ("--steps", "3", "--lr", "1e-9")
    given = told(capsys, *words, "--weights", "five.safetensors")["losses"]
    assert given != pytest.approx(told(capsys, *words)["losses"], rel=1e-4)
    save_file({p.name: initial(p, 0, whole(p.shape)) for p in graph.params}, "none.safetensors")
    assert told(capsys, *words, "--weights", "none.safetensors")["losses"] == told(capsys, *words)["losses"]


class Terminal:
    """A stream that says that it is a terminal."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass


def test_a_terminal_shows_a_bar_and_a_pipe_shows_lines(alone, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    assert main([*MLP, "--steps", "20", "--evaluate-every", "10"]) == 0
    out = capsys.readouterr().out
    assert "/20" in shown.text and "samples/s" in shown.text
    # What is not on the terminal is written down as ever.
    assert out.count("\nstep ") == 21 and "held out" in out
    assert main([*MLP, "--steps", "2", "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_a_run_that_would_write_over_another_is_refused_before_anything_is_measured(alone, capsys, monkeypatch):
    first = told(capsys, "--steps", "3", "--checkpoint", "run", "--out", "plan.json")
    monkeypatch.setattr(TrainingRun, "choose", lambda _: pytest.fail("it went on"))
    assert main([*MLP, "--steps", "3", "--checkpoint", "run"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"step-0000000{first['num_steps']} is there" in err and "--resume" in err
    busy = "castile: --checkpoint run: another run writes there now; wait for its end or choose another folder\n"
    with folders.held(Path("run")):
        for words in ((), ("--resume",)):
            assert main([*MLP, "--steps", "5", "--checkpoint", "run", *words]) == 2
            assert capsys.readouterr().err == busy


@pytest.mark.parametrize(
    "words, said",
    [("--checkpoint run", "another run writes there now; wait for its end or choose another folder\n"),
     ("--metrics run.jsonl", "another run writes there; wait for its end or choose another path\n")],
)  # fmt: skip
def test_of_two_runs_that_begin_together_the_second_is_refused_before_it_plans(words, said, alone, capsys, monkeypatch):
    """Also where there is no folder, or file, yet."""
    choose, others = TrainingRun.choose, []

    def second(begun):
        monkeypatch.setattr(TrainingRun, "choose", lambda _: pytest.fail("it looks for a plan"))
        others.append((main([*MLP, "--steps", "3", *words.split()]), capsys.readouterr().err))
        return choose(begun)

    monkeypatch.setattr(TrainingRun, "choose", second)
    assert main([*MLP, "--steps", "3", *words.split()]) == 0
    [(status, err)] = others
    assert status == 2 and err.endswith(said)
    if "--checkpoint" in words:
        assert latest("run").step == 3
    else:
        assert [json.loads(line)["kind"] for line in Path("run.jsonl").read_text().splitlines()][-1] == "end"


def test_a_run_that_fails_before_it_trains_leaves_no_file_of_metrics(alone, capsys):
    assert main([*MLP, "--steps", "3", "--metrics", "run.jsonl", "--undecayed", "nothing"]) == 2
    assert "no parameter" in capsys.readouterr().err and not Path("run.jsonl").exists()


@pytest.mark.parametrize("kept, others", [("float32", ("bfloat16", "float16")), ("float64", ())])
def test_a_run_goes_on_in_any_dtype_that_keeps_parameters_alike(kept, others, alone, capsys):
    words = (*MLP, "--checkpoint", "run", "--resume")
    assert main([*words, "--steps", "2", "--dtype", kept]) == 0
    for number, dtype in enumerate((*others, kept)):
        assert main([*words, "--steps", str(3 + number), "--dtype", dtype]) == 0
    capsys.readouterr()
    assert main([*words, "--steps", "9", "--dtype", "float32" if kept == "float64" else "float64"]) == 2
    assert f"keeps its parameters in {kept}" in capsys.readouterr().err


SLOW = """
import time
import numpy as np
def samples(seed, epoch):
    while True:
        time.sleep(0.2)
        yield {"image": np.ones((1, 8, 8)), "label": 1}
"""


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, *rare(signal.SIGUSR1)])
def test_a_launch_that_is_asked_to_stop_saves(number, alone):
    """Of steps that take longer than the quarter of a second that mpirun gives ranks which it ends."""
    (alone / "slow.py").write_text(SLOW)
    # A plan that is given is not measured, which would take more steps than are trained.
    network = ["mlp:width=8", "--batch", "2"]
    planned = ["--machine", "local:procs=2", "--search", "data_parallel", "--out", "plan.json"]
    assert main(["plan", *network, *planned]) == 0
    words = ["train", *network, "--plan", "plan.json", "--steps", "10000"]
    files = ["--data", "iterator:file=slow.py,length=1000", "--checkpoint", "run", "--metrics", "run.jsonl", "--json"]
    program = [sys.executable, "-m", "castile", "launch", "-n", "2", *words, *files]
    with started(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        when_trained(alone / "run.jsonl", 2, lambda: process.send_signal(number)).join()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert latest("run").step == json.loads(out)["num_steps"] >= 2
    assert records(alone / "run.jsonl", "end")[0]["reason"] == number.name


def test_evaluations_leave_nothing_behind(alone, capsys, monkeypatch):
    seen, real = [], evaluate.judge

    def judge(*args):
        # What other tests left, millions of objects, is neither listed each time nor let go of meanwhile.
        if len(seen) == 20:
            aside.enter_context(set_aside())
        seen.append(len(gc.get_objects()) if len(seen) >= 20 else 0)
        return real(*args)

    monkeypatch.setattr(evaluate, "judge", judge)
    with ExitStack() as aside:
        assert main([*MLP, "--steps", "60", "--evaluate-every", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_steps"] == 60
    # Of each a few objects, and not all that its plan is lowered to.
    assert seen[-1] - seen[20] < 60 * 40, seen
