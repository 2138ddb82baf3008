"""Files that commands write are whole or as before, and are told by name where the system takes no more."""

import contextlib
import errno
import io
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from castile.launch.__main__ import main
from castile.launch.checkpoints.folder import latest
from castile.launch.processes.ranks import UserError
from castile.launch.processes.streams import Lossy
from castile.launch.reports.screen import Speaker
from castile.launch.typed import files
from tests import homes
from tests.command_lines import COMMANDS, options_of
from tests.effort import rare
from tests.mpi import CHECKOUT

BEFORE = b"as it was"


def full(draft):
    draft.write_bytes(b"half of ")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("before", [BEFORE, None])
def test_what_is_broken_off_leaves_the_file_as_it_was(before, tmp_path):
    path = tmp_path / "folder" / "x.json"
    if before is not None:
        files.write(path, before)
    with pytest.raises(UserError, match=re.escape(f"{path}: No space left on device; make room or choose")):
        with files.whole(path) as draft:
            full(draft)
    assert homes.contents(tmp_path) == ({} if before is None else {"folder/x.json": before})
    with pytest.raises(ZeroDivisionError), files.whole(path) as draft:
        draft.write_bytes(b"half of ")
        raise ZeroDivisionError
    assert homes.contents(tmp_path) == ({} if before is None else {"folder/x.json": before})


def test_a_link_to_itself_becomes_a_file(tmp_path):
    path = tmp_path / "x.json"
    path.symlink_to("x.json")
    files.write(path, b"it")
    assert homes.contents(tmp_path) == {"x.json": b"it"} and not path.is_symlink()


def test_each_who_writes_has_a_draft_of_its_own(tmp_path):
    """Who begins first and ends last has the file, and whoever looks meanwhile sees one that is whole."""
    path = tmp_path / "x.json"
    with files.whole(path) as first:
        first.write_bytes(b"half of ")
        with files.whole(path) as second:
            second.write_bytes(b"the second")
        assert path.read_bytes() == b"the second"
        with first.open("ab") as file:
            file.write(b"the first")
    assert homes.contents(tmp_path) == {"x.json": b"half of the first"} and os.listdir(tmp_path) == ["x.json"]


KILLED = """
import os, signal, sys
from castile.launch.typed import files
with files.whole(sys.argv[1]) as draft:
    draft.write_bytes(b"half of ")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_kill_left_goes_with_the_next_who_writes(tmp_path):
    path, others = tmp_path / "x[0].json", {"x[0].json.old.part": b"a user's", "x0.json.01234567.part": b"another's"}
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL and list(homes.contents(tmp_path).values()).count(b"half of ") == 1
    with files.whole(path) as draft:
        draft.write_bytes(b"half of ")
        files.write(path, b"all")
        assert draft.read_bytes() == b"half of ", "somebody still wrote it"
        draft.write_bytes(b"all of it")
    assert homes.contents(tmp_path) == {"x[0].json": b"all of it", **others}
    assert len(os.listdir(tmp_path)) == 3


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "x.json")
    files.write(tmp_path / "link", b"all")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "x.json").read_bytes() == b"all"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write(path, b"all")
        assert os.read(reader, 100) == b"all" and path.is_fifo()
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("path", "is_one"), [("/dev/stderr", True), ("/dev/fd/1", True), ("/dev/shm/a.jsonl", False), ("a.jsonl", False)]
)
def test_what_lies_among_devices_is_a_stream_but_for_files_in_memory(path, is_one):
    assert files.is_stream(Path(path)) == is_one


PLAN = "plan mlp --machine local:procs=2 --search data_parallel"
WRITERS = [
    f"{PLAN} --out",
    f"{PLAN} --trace",
    "simulate mlp --machine local:procs=2 --trace",
    "profile mlp:layers=1,width=8 --batch 2 --picture",
    "train mlp --plan one.json --steps 2 --out",
    "train mlp --plan one.json --steps 2 --trace",
    "checkpoint export run --out",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A plan for one processor, and a checkpoint."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in homes.make(folder / "home").items():
            patch.setenv(name, value)
        assert main("plan mlp --machine local:procs=1 --budget 1 --out one.json".split()) == 0
        assert main("train mlp --plan one.json --steps 2 --checkpoint run".split()) == 0
    return folder


@pytest.mark.parametrize("words", WRITERS)
def test_a_full_disk_is_told_in_one_sentence(words, folder, monkeypatch, capsys):
    """/dev/full takes no byte; the same as a disk without room, and it stays the device that it is."""
    monkeypatch.chdir(folder)
    for name, value in homes.make(folder / "home").items():
        monkeypatch.setenv(name, value)
    (folder / "full").unlink(missing_ok=True)
    (folder / "full").symlink_to("/dev/full")
    assert main([*words.split(), "full"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("castile: ") and err.count("\n") == 1 and "full: " in err, err
    assert (folder / "full").is_char_device()


def test_a_training_does_not_end_for_its_records(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for name, value in homes.make(folder / "home").items():
        monkeypatch.setenv(name, value)
    (folder / "full").unlink(missing_ok=True)
    (folder / "full").symlink_to("/dev/full")
    assert main("train mlp --plan one.json --steps 3 --metrics full --json".split()) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["files"]["metrics"] == "full"
    assert err.count("\n") == 1 and "castile: --metrics full: No space left on device; training goes on" in err


def ended(shell_words, **variables):
    """How a command line ends whose output goes where a shell is told."""
    words = ["sh", "-c", f'"$0" -m castile {shell_words}', sys.executable]
    found = {**os.environ, "PYTHONPATH": str(CHECKOUT), **variables}
    return subprocess.run(words, env=found, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        ("--help", "1"), ("simulate mlp --machine dgx-h100:nodes=1", ""),
        *rare(("--help", ""), ("doctor --help", ""), ("doctor --help", "1")),
        *rare(("simulate mlp --machine dgx-h100:nodes=1", "1")),
    ],
)  # fmt: skip
def test_output_for_which_there_is_no_room_is_told_in_one_sentence(words, unbuffered):
    done = ended(f"{words} >/dev/full", PYTHONUNBUFFERED=unbuffered)
    told = "castile: standard output: No space left on device; make room or send it elsewhere\n"
    assert (done.returncode, homes.but_for_compiling(done.stderr)) == (2, told)


@pytest.mark.parametrize("words", ["launch -n 2 train nosuch", "train --nosuch", *rare("train nosuch", "nosuch")])
def test_the_status_of_a_mistake_is_true_though_nobody_can_be_told_of_it(words):
    assert ended(f"{words} 2>/dev/full").returncode == 2


@pytest.mark.parametrize("where", [">/dev/full", *rare(">/dev/full 2>/dev/full")])
def test_a_training_does_not_end_for_want_of_room_for_its_lines(where, folder, tmp_path):
    """Only its report, at the end of all, may be missed by whoever waits for it."""
    words = f"train mlp --plan {folder}/one.json --steps 40 --checkpoint {tmp_path}/run"
    done = ended(f"{words} {where}", **homes.make(tmp_path / "home"))
    assert latest(tmp_path / "run").step == 40, done.stderr
    err = homes.but_for_compiling(done.stderr)
    assert done.returncode != 0 and (err == "") == ("2>" in where)
    assert err.count("standard output: No space left on device; the run goes on") == (err != "")
    assert err.count("\n") == 2 * (err != "")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_want_of_room_for_lines_is_warned_of_once_and_only_the_end_needs_it(number, monkeypatch, capsys):
    class Small(io.StringIO):
        room = False

        def flush(self):
            if not self.room:
                raise OSError(number, os.strerror(number))

    out, say = Small(), Speaker(leads=True, json=False)
    monkeypatch.setattr("sys.stdout", out)
    for out.room in (False, False, True, False):
        say.line("a line")
    assert capsys.readouterr().err.count("lines are lost until you make room") == 1
    with pytest.raises(OSError, match=os.strerror(number)):
        say.close(lambda facts: "the end", {})


def test_words_beside_the_work_are_lost_where_the_terminal_has_gone():
    """And nothing else is: of a stream that is closed too soon a fault is told."""
    master, slave = pty.openpty()
    os.close(master)
    with contextlib.suppress(OSError), open(slave, "w") as gone:
        stream = Lossy(gone)
        assert stream.write("a word\n") == 7
        stream.flush()
        os.close(gone.fileno())
        with pytest.raises(OSError, match="Bad file descriptor"):
            stream.flush()


def test_without_standard_output_a_mistake_is_told():
    done = ended("nosuch >&-")
    assert done.returncode == 2 and done.stderr.startswith("castile: castile has no command 'nosuch'")


def test_without_standard_error_a_command_does_what_it_does():
    done = ended("plan mlp --machine dgx-h100:nodes=1 --search data_parallel 2>&-")
    assert done.returncode == 0 and "the plan, after" in done.stdout
    assert ended("nosuch 2>&-").returncode == 2


def test_a_letter_that_the_encoding_has_not_ends_nothing(tmp_path):
    (tmp_path / "n\xfc.py").write_text("from castile.launch.models.mlp import build\n")
    done = ended(f"simulate {tmp_path}/*.py --machine dgx-h100:nodes=1", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "n\\xfc.py, " in done.stdout, done.stderr


def test_a_plan_goes_where_standard_output_goes(tmp_path):
    words = [sys.executable, "-m", "castile", *PLAN.split(), "--out", "/dev/stdout"]
    found = {**os.environ, **homes.make(tmp_path / "home"), "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(words, cwd=tmp_path, env=found, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0 and '"data_parallel"' in done.stdout and "the plan, after" in done.stdout, done.stderr


def test_what_a_stream_leads_to_keeps_what_it_has(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    done = ended(f"{PLAN.replace('local:procs=2', 'dgx-h100:nodes=1')} --out /dev/stdout >>{log}")
    assert done.returncode == 0 and log.read_text().startswith("before\n{"), done.stderr
    assert "the plan, after" in log.read_text()


def test_nothing_is_written_beside_a_stream(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    words = ["plan", "mlp", "--machine", "local:procs=2", "--batch", "2", "--budget", "5", "--front"]
    assert main([*words, "--out", "pipe"]) == 0
    assert os.read(reader, 1) == b"{" and os.listdir() == ["pipe"]
    os.close(reader)


RESULTS = ("out", "trace", "picture", "metrics")
WRITTEN = {name: [o.field for o in options_of(name) if o.field in RESULTS] for name in COMMANDS}


@pytest.mark.parametrize("name", [name for name, options in WRITTEN.items() if len(options) > 1])
def test_no_two_results_go_into_one_file(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alias").symlink_to("x")
    for one, other in itertools.combinations(WRITTEN[name], 2):
        for path in ("x", "./x", "alias", str(tmp_path / "x")):
            assert main([name, "mlp", f"--{one}", "x", f"--{other}", path]) == 2
            err = capsys.readouterr().err
            assert f"--{one}" in err and f"--{other}" in err and "are one file" in err and err.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("words, option", [
    ("plan mine.py --out mine.py", "out"),
    ("plan mine.py:width=8 --trace ./mine.py", "trace"),
    ("plan mlp --machine one.toml --picture alias", "picture"),
    ("explain p.json --picture p.json", "picture"),
    ("simulate p.json --trace p.json", "trace"),
    ("train mlp --data csv:file=one.toml --metrics one.toml", "metrics"),
    ("train mlp --plan p.json --picture p.json", "picture"),
])  # fmt: skip
def test_no_result_takes_the_place_of_what_is_read(words, option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py", "one.toml", "p.json"):
        (tmp_path / name).write_text("kept")
    (tmp_path / "alias").symlink_to("one.toml")
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert f"--{option} " in err and "the command reads this file" in err and err.count("\n") == 1
    assert all((tmp_path / name).read_text() == "kept" for name in ("mine.py", "one.toml", "p.json"))


def test_a_plan_may_take_the_place_of_the_one_that_it_goes_on_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["plan", "mlp", "--machine", "dgx-h100:nodes=1", "--search", "data_parallel", "--out", "p.json"]
    assert main(words) == 0 and main([*words, "--from", "p.json"]) == 0
