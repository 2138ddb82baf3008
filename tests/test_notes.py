"""Notes: what mpirun says of a job's end is not told twice, and a rank that was killed is told in one sentence."""

import os
import signal

import pytest

from castile.launch.processes import last_words, notes
from castile.launch.processes.signals import SIGNALS, meant

RULE = "-" * 74 + "\n"
# As Open MPI 5 wraps it, with the system's word for the signal, and without.
KILLED = [
    "mpirun noticed that process rank 1 with PID 4821 on node here exited on\nsignal {}.\n",
    "prterun noticed that process rank 1 with PID 4821 on node here exited on\nsignal {} (Word).\n",
]


def told(*lines, left=""):
    return list(notes.plain(iter([line.encode() for line in lines]), lambda: left, []))


def test_mpiruns_note_on_a_failed_rank_is_left_out():
    note = [RULE, "MPI_ABORT was invoked on rank 0\n", RULE]
    other = [RULE, "prterun was unable to find the specified executable file\n", RULE]
    kept = told("before\n", *note, *other, "\0", "after\n", RULE, "cut off\n")
    assert kept == ["before\n", *other, "after\n", RULE, "cut off\n"]


@pytest.mark.parametrize("line", ["Abort is in progress", "prterun: abort is already in progress"])
def test_what_mpirun_says_to_a_second_signal_is_left_out(line):
    said = [f"{line}...hit ctrl-c again to forcibly terminate\n", "\n"]
    assert told("before\n", "\n", *said, "after\n", "\n") == ["before\n", "\n", "after\n", "\n"]


@pytest.mark.parametrize("form", KILLED)
@pytest.mark.parametrize("number", sorted({*map(int, signal.Signals), 33}))
def test_a_rank_that_was_killed_is_told_in_one_sentence_with_what_it_left(form, number):
    note = [RULE, *form.format(number).splitlines(keepends=True), RULE]
    name = signal.Signals(number).name if number != 33 else "signal 33"
    for left, end in (("", "the job with it\n"), ("go on so", "the job with it: go on so\n")):
        before, sentence, after = told("before\n", *note, "after\n", left=left)
        assert (before, after) == ("before\n", "after\n")
        assert sentence.startswith(f"castile: rank 1 on here was ended by {name}") and sentence.endswith(end)
    # who was asked to end has not died
    assert told("before\n", *note, "after\n", left=None) == ["before\n", "after\n"]


DISCONNECTED = """\
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

  Local host: a
  Local PID:  498
  Peer host:  b
"""
UNREACHED = """\
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-a-528@0,0] on node a
  Remote daemon: [prterun-a-528@0,1] on node b

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of the daemon.
"""
FATAL = """\
[a:00000] *** An error occurred in Socket closed
[a:00000] *** reported by process [899088385,0]
[a:00000] *** on a NULL communicator
[a:00000] *** Unknown error
[a:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[a:00000] ***    and MPI will try to terminate your MPI job as well)
"""


UNKNOWN = """\
A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable.

  Local host:    a
  Remote host:   b
  Daemon exit status: 255
"""


def test_a_host_to_which_nobody_got_is_told_as_the_launcher_tells_it():
    box = [RULE, *UNKNOWN.splitlines(keepends=True), RULE]
    assert told(*box) == box


@pytest.mark.parametrize("box", [DISCONNECTED, UNREACHED, UNKNOWN])
def test_a_rank_that_is_gone_is_told_by_its_host_where_it_has_not_said_why(box):
    hosts: list[str] = []
    lines = ["before\n", RULE, *box.splitlines(keepends=True), RULE, *FATAL.splitlines(keepends=True), "after\n"]
    kept = list(notes.plain(iter([line.encode() for line in lines]), lambda: "half is kept", hosts))
    assert kept == ["before\n", "after\n"]
    assert hosts == ["b"]
    assert notes.lost("b", "go on").endswith("failed), and the job with it: go on")
    assert notes.lost("b", "").endswith("and the job with it")


def test_that_the_launcher_went_first_is_left_out():
    line = "[a:18768] pmix_ptl_base: send_msg: write failed: Broken pipe (32) [sd = 26]\n"
    assert told("before\n", line, "after\n") == ["before\n", "after\n"]


def test_other_faults_of_mpi_are_told_as_they_come():
    line = "[a:00000] *** An error occurred in MPI_Recv\n"
    assert told(line) == [line]


def test_the_last_that_is_left_is_read_and_to_leave_nothing_is_no_fault(monkeypatch):
    monkeypatch.delenv(last_words.VARIABLE, raising=False)
    last_words.leave("nobody waits for it")
    with last_words.awaited() as left:
        assert left.read() == ""
        monkeypatch.setenv(last_words.VARIABLE, left.address)
        for words in ("first of all", "then", "", "ein Wörtchen"):
            last_words.leave(words)
            assert left.read() == words
    last_words.leave("too late")


def test_ranks_learn_which_signal_was_meant_beside_the_words_that_they_leave(monkeypatch):
    monkeypatch.delenv(last_words.VARIABLE, raising=False)
    assert meant(signal.SIGUSR1) == "SIGUSR1"
    with last_words.awaited() as left:
        monkeypatch.setenv(last_words.VARIABLE, left.address)
        assert meant(signal.SIGUSR1) == "SIGUSR1" and left.read() == ""
        last_words.leave("half of it is kept")
        for number in SIGNALS:
            left.pass_on(number.name)
            assert (meant(signal.SIGUSR1), left.read()) == (number.name, "half of it is kept")
        assert meant(signal.SIGHUP) == "SIGHUP"
    assert meant(signal.SIGUSR1) == "SIGUSR1"


def test_words_go_to_no_file_but_that_of_the_launcher(monkeypatch, tmp_path):
    """On another host the same link may lead to what is no business of ours."""
    (tmp_path / "theirs").write_text("theirs")
    with (tmp_path / "theirs").open("r+") as file, last_words.awaited() as left:
        _, _, name = left.address.partition(" ")
        monkeypatch.setenv(last_words.VARIABLE, f"/proc/{os.getpid()}/fd/{file.fileno()} {name}")
        last_words.leave("ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
