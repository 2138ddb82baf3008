"""Files of a training: none changes where nothing is trained, and none that cannot be written takes others with it."""

import errno
import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from castile.launch.__main__ import main
from castile.launch.checkpoints.disk import Disk
from castile.launch.checkpoints.folder import latest
from castile.launch.jobs.jobs import Job
from castile.launch.processes.ranks import UserError
from castile.launch.reports.screen import Speaker
from castile.launch.training.saving import Saves
from castile.launch.training.training import Training
from tests import homes
from tests.effort import rare
from tests.mpi import CHECKOUT
from tests.runs import MLP, losses, records, told


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("num_steps", [5, 3])
@pytest.mark.parametrize("fits", [True, False], ids=["its plan", "another machine"])
def test_where_nothing_is_left_to_train_it_is_judged_and_every_file_stays(num_steps, fits, alone, capsys, monkeypatch):
    files = {"checkpoint": "run", "metrics": "logs/a.jsonl", "tensorboard": "events", "out": "plan.json"}
    files |= {"trace": "trace.json", "picture": "step.svg", "profile": "profile.db"}
    words = [word for name, path in files.items() for word in (f"--{name}", f"{alone}/kept/{path}")]
    before = told(capsys, *words, "--steps", "5")
    there = everything(alone / "kept")
    assert before["files"].keys() - {"checkpoints", "plan"} <= files.keys() and len(there) > len(files)
    if not fits:
        monkeypatch.setattr("castile.launch.training.resume.plan_of", lambda *_: None)
    monkeypatch.setattr("castile.launch.measuring.plan_choice.choose", lambda *_: pytest.fail("it looked for a plan"))
    facts = told(capsys, *words, "--steps", str(num_steps), "--resume")
    assert (facts["first_step"], facts["num_steps"], facts["losses"]) == (5, 0, [])
    assert facts["held_out_loss"] == before["held_out_loss"] and facts["run"]["metrics"] == f"{alone}/kept/logs/a.jsonl"
    assert facts["files"].keys() <= {"profile"}
    assert everything(alone / "kept") == there
    assert main([*MLP, *words, "--steps", str(num_steps), "--resume"]) == 0
    assert f"nothing to train: 5 steps are done and the run has {num_steps}, so files stay" in capsys.readouterr().out


def test_a_run_goes_on_without_the_run_files_that_cannot_be_written(alone, capsys):
    for path in ("run/resolved.toml", "a.resolved.toml"):
        (alone / path).mkdir(parents=True)
    assert main([*MLP, "--steps", "3", "--checkpoint", "run", "--metrics", "a.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert latest("run").step == 3 and len(losses(alone / "a.jsonl")) == 3 and "held out" in out
    assert [line.split(": ")[1] for line in err.splitlines() if "goes on without this file" in line] == [
        "a.resolved.toml", "run/resolved.toml",
    ]  # fmt: skip


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_records_go_where_streams_go_and_nothing_lies_beside_them(resume, alone):
    pipe = alone / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main([*MLP, "--steps", "3", "--checkpoint", "run", "--metrics", "pipe", *resume]) == 0
        kinds = [json.loads(line)["kind"] for line in os.read(reader, 1 << 16).splitlines()]
    finally:
        os.close(reader)
    assert kinds == ["run", "step", "step", "step", "checkpoint", "evaluation", "end"]
    assert (alone / "run/resolved.toml").exists() and not list(alone.glob("pipe.*"))


def measured(path):
    return set(sqlite3.connect(path).execute("SELECT * FROM measurement"))


def test_what_was_measured_stays_where_the_training_ends(alone, capsys, monkeypatch):
    def ends(*_):
        raise KeyboardInterrupt

    words = (*MLP, "--steps", "3", "--profile", "profile.db", "--json")
    with monkeypatch.context() as patch:
        patch.setattr("castile.launch.training.training.Training.run", ends)
        assert main(words) == 130
    assert measured("profile.db")
    # what is written last may fail: the training is told all the same, and learned from
    (alone / "step.svg").mkdir()
    monkeypatch.setattr("castile.launch.jobs.checks.writable", lambda **_: None)
    before = measured("profile.db")
    assert main([*words, "--picture", "step.svg"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["num_steps"] == 3 and "castile: step.svg: " in err and measured("profile.db") != before


def test_who_is_asked_to_stop_tries_no_longer(alone, capsys, monkeypatch):
    def write(disk, descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told(capsys, "--steps", "2", "--checkpoint", "run")
    monkeypatch.setattr(Disk, "write", write)
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    begun = time.monotonic()
    status = main([*MLP, "--steps", "4", "--checkpoint", "run", "--checkpoint-every", "9", "--resume", "--json"])
    out, err = capsys.readouterr()
    assert time.monotonic() - begun < 5 and err.count("it is tried again in 5 s") == 1
    assert (status, json.loads(out)["stopped_by"], latest("run").step) == (2, "SIGTERM", 2)
    assert "castile: what was trained since is lost: the checkpoint of step 4, " in err


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("has_room", [True, False])
def test_who_is_stopped_is_told_which_checkpoint_there_is(has_room, before, alone, capsys, monkeypatch):
    def write(disk, descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def after(stopping, step):
        stopping.name = "SIGTERM"
        return step == 3

    if before:
        told(capsys, "--steps", str(before), "--checkpoint", "run")
    if not has_room:
        monkeypatch.setattr(Disk, "write", write)
    monkeypatch.setattr("castile.launch.training.training.Stopping.after", after)
    assert main([*MLP, "--steps", "8", "--checkpoint", "run", "--resume"]) == (0 if has_room else 2)
    there = 4 if has_room else before
    left = f"--resume goes on from run/step-{there:08}" if there else "nothing is saved"
    assert f"stopped by SIGTERM after step 4: {left}\n" in capsys.readouterr().out


def test_a_run_that_nobody_listens_to_any_more_ends_the_save_that_is_under_way(alone):
    words = f"{shlex.join([sys.executable, '-c', LATE, *MLP])} --steps 100 --checkpoint run --checkpoint-every 5"
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    ended = subprocess.run(
        ["bash", "-c", f"{words} | head -n 9 >/dev/null; exit ${{PIPESTATUS[0]}}"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, homes.but_for_compiling(ended.stderr)) == (128 + signal.SIGPIPE, "")
    assert latest("run").warnings == () and not list(alone.glob("run/*.part"))


LATE = """
import sys, time
from castile.launch.__main__ import main
from castile.launch.checkpoints.disk import Disk
from castile.launch.training.training import Training
sync, step_once = Disk.sync, Training._step
def slowly(*args):
    time.sleep(0.1)
    sync(*args)
def step(training, number, feeder):
    time.sleep(0.02)
    step_once(training, number, feeder)
Disk.sync, Training._step = slowly, step
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("end", "status"), [(KeyboardInterrupt(), 130), (UserError("mend this"), 2)])
def test_what_breaks_a_run_off_leaves_the_save_that_is_under_way(end, status, alone, capsys, monkeypatch):
    write, step_once = Disk.write, Training._step

    def slowly(*args):
        time.sleep(0.2)
        return write(*args)

    def step_or_end(training, step, feeder):
        if step == 5:
            raise end
        step_once(training, step, feeder)

    monkeypatch.setattr(Disk, "write", slowly)
    monkeypatch.setattr(Training, "_step", step_or_end)
    assert main([*MLP, "--steps", "8", "--checkpoint", "run", "--checkpoint-every", "5"]) == status
    out, err = capsys.readouterr()
    assert latest("run").step == 5 and "step     5  saved in run/step-00000005: " in out
    left = "with --resume the same command goes on from run/step-00000005\n"
    broken = "ended after step 5: " if status == 130 else "mend this\ncastile: "
    assert err.endswith(f"castile: {broken}{left}")


LEFT_ALONE = """
import signal, sys, threading
from castile.launch.__main__ import main
from castile.launch.checkpoints.checkpointer import Checkpointer
from castile.launch.checkpoints.disk import Disk
from castile.launch.training.training import Training
step_once = Training._step
create = Disk.create
def never_the_second(disk, path):
    if "step-00000008" in str(path):
        threading.Event().wait()
    return create(disk, path)
def step_or_end(training, step, feeder):
    if step == 9:
        raise KeyboardInterrupt
    step_once(training, step, feeder)
def again(saver):
    main_thread = threading.main_thread().ident
    threading.Timer(0.3, lambda: signal.pthread_kill(main_thread, signal.SIGINT)).start()
    return break_off(saver)
break_off = Checkpointer.break_off
Disk.create, Training._step, Checkpointer.break_off = never_the_second, step_or_end, again
sys.exit(main(sys.argv[1:]))
"""


def test_a_second_ctrl_c_leaves_the_save_says_what_there_is_and_waits_for_no_disk(alone):
    words = [*MLP, "--steps", "100", "--checkpoint", "run", "--checkpoint-every", "4"]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_ALONE, *words], env=environment, capture_output=True, text=True, timeout=180
    )
    assert ended.returncode == 130 and "Ctrl-C once more leaves it ...\n" in ended.stdout
    left = "with --resume the same command goes on from run/step-00000004\n"
    assert ended.stderr.endswith(f"castile: ended after step 9: {left}") and "Traceback" not in ended.stderr


def test_what_was_measured_is_kept_where_there_is_no_room_to_tell_it(alone, monkeypatch, capsys):
    def close(*args):
        raise UserError("no room")

    kept = []
    monkeypatch.setattr(Speaker, "close", close)
    monkeypatch.setattr(Job, "keep", lambda job: kept.append(job.snapshot))
    assert main([*MLP, "--steps", "5"]) == 2
    assert capsys.readouterr().err.endswith("castile: no room\n")
    # of the plans that were tried, and of the steps
    assert len(kept) == 2 and kept[0] != kept[1]


def test_a_folder_that_is_gone_ends_no_training(alone, capsys, monkeypatch):
    real = Saves.save

    def save(saves, step):
        if step == 4:
            # nobody writes there meanwhile
            saves.saver.wait()
            shutil.rmtree("run")
        return real(saves, step)

    monkeypatch.setattr(Saves, "save", save)
    words = ("--steps", "8", "--checkpoint", "run", "--checkpoint-every", "2", "--metrics", "a.jsonl")
    status = main([*MLP, *words, "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out)["num_steps"] == 8 and status == 2
    assert "the checkpoint of step 4, " in err and "No such file or directory; there is none yet, and training" in err
    assert len(records(alone / "a.jsonl", "step")) == 8


@pytest.mark.parametrize("stops", [False, True], ids=["to its end", "asked to stop"])
@pytest.mark.parametrize(
    ("num_refusals", "number"),
    [
        (0, 0), (2, errno.EDQUOT), (99, errno.EDQUOT), (2, errno.EFBIG),
        *rare((2, errno.EROFS), (99, errno.EROFS), (99, errno.EFBIG)),
    ],
)
def test_the_last_save_is_tried_while_what_hinders_it_may_pass(num_refusals, number, stops, alone, capsys, monkeypatch):
    real, refused = Disk.write, []

    def write(disk, descriptor, data):
        if len(refused) < num_refusals:
            refused.append(descriptor)
            raise OSError(number, os.strerror(number))
        return real(disk, descriptor, data)

    def after(stopping, step):
        stopping.name = "SIGTERM" if stops else ""
        return stops and step == 3

    told(capsys, "--steps", "2", "--checkpoint", "run")
    monkeypatch.setattr(Disk, "write", write)
    monkeypatch.setattr("castile.launch.training.training.Stopping.after", after)
    monkeypatch.setattr("castile.launch.training.saving.AGAIN_SECONDS", (0.0,) * 3)
    status = main([*MLP, "--steps", "4", "--checkpoint", "run", "--checkpoint-every", "9", "--resume", "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out)["num_steps"] == 2
    most = 1 if stops or number == errno.EFBIG else 4
    num_tries = min(num_refusals, most)
    assert len(refused) == num_tries
    assert err.count("; it is tried again") == min(num_tries, most - 1)
    is_lost = num_refusals >= most
    assert (status, latest("run").step) == ((2, 2) if is_lost else (0, 4))
    assert ("castile: what was trained since is lost: the checkpoint of step 4, " in err) == is_lost
    assert err.count("step-00000002 stays the latest") == num_tries + is_lost


OUTPUTS = ("checkpoint", "tensorboard", "metrics", "out", "trace", "picture")


@pytest.mark.parametrize("there", [True, False], ids=["there", "to be made"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_folder_that_may_not_be_written_is_refused_before_any_work(name, there, alone, capsys, monkeypatch):
    access, folder = os.access, alone / "theirs"
    folder.mkdir()
    # whoever runs the tests may be one who may write anywhere
    monkeypatch.setattr("os.access", lambda path, mode: os.fspath(path) != str(folder) and access(path, mode))
    monkeypatch.setattr("castile.launch.jobs.jobs.start", lambda *_: pytest.fail("it went on"))
    path = folder if there and name in OUTPUTS[:2] else folder / "new" / "x.svg" if not there else folder / "x.svg"
    for more in ([], ["--resume"] if name == "checkpoint" else []):
        assert main([*MLP, f"--{name}", str(path), *more]) == 2
        told = f"castile: --{name} {path}: the folder {folder} may not be written; choose another path\n"
        assert capsys.readouterr().err == told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_who_is_asked_to_stop_while_the_run_ends_lets_it_end(number, alone, capsys, monkeypatch):
    close, kept = Speaker.close, []

    def stopped(*args):
        signal.raise_signal(number)
        close(*args)

    monkeypatch.setattr(Speaker, "close", stopped)
    monkeypatch.setattr(Job, "keep", lambda job: kept.append(job.snapshot))
    before = signal.getsignal(number)
    assert main([*MLP, "--steps", "5", "--checkpoint", "run", "--trace", "trace.json"]) == 0
    assert latest("run").step == 5 and (alone / "trace.json").exists() and len(kept) == 2
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("part", ["jobs.jobs.Job.execute", "training.setup.TrainingRun._saver"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_ends_while_a_run_is_made_ready_says_what_was_there_before(number, part, alone, capsys, monkeypatch):
    words = [*MLP, "--steps", "9", "--checkpoint", "run", "--resume"]
    assert main([*words[:-3], "--steps", "3", "--checkpoint", "run"]) == 0
    monkeypatch.setattr(f"castile.launch.{part}", lambda *_, **__: signal.raise_signal(number))
    capsys.readouterr()
    assert main(words) == 128 + number
    left = "castile: ended before the first step: with --resume the same command goes on from run/step-00000003\n"
    assert capsys.readouterr().err.endswith(left)


def test_a_plan_that_cannot_be_written_keeps_nobody_from_training(alone, capsys, monkeypatch):
    def write(path, data):
        raise UserError(f"{path}: no room")

    monkeypatch.setattr("castile.launch.train.files.write", write)
    assert main([*MLP, "--steps", "4", "--checkpoint", "run", "--out", "plan.json", "--json"]) == 2
    out, err = capsys.readouterr()
    assert latest("run").step == 4 and "plan" not in json.loads(out)["files"]
    assert err.endswith("castile: plan.json: no room\n")
