"""Signals while a user waits: Ctrl-C that ends with what there is, and ends that say what is left of the work."""

import contextlib
import ctypes
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch.__main__ import main
from castile.launch.processes import ranks
from castile.launch.processes.interrupts import ending_early, ending_with
from castile.launch.processes.ranks import Ended, main_guard
from castile.launch.processes.signals import SIGNALS
from castile.launch.processes.stopping import MOST_STEPS_A_ROUND, ROUND_SECONDS, Stopping
from castile.runtime.comm.local import LocalWorld
from tests import homes
from tests.threads import Ranks

ENDS = (signal.SIGINT, *SIGNALS)


@pytest.mark.parametrize("number", ENDS)
def test_what_asks_to_end_ends_with_what_there_is_and_the_second_time_all(number, capsys):
    def body() -> int:
        with ending_early("what there is") as is_over:
            assert not is_over()
            signal.raise_signal(number)
            assert is_over()
            signal.raise_signal(number)
        raise AssertionError("the work went on")

    assert main_guard(body) == 128 + number
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert f"castile: ending with what there is; {name} once more leaves it all\n" in capsys.readouterr().err


WORKING = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, ({soft}, {hard}))
from castile.launch.processes import ranks
from castile.launch.processes.interrupts import ending_early
def body():
    with ending_early("what there is") as is_over:
        while not is_over():
            pass
        begun = time.process_time()
        while time.process_time() < begun + {seconds}:
            pass
    return 0
sys.exit(ranks.main_guard(body))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells of a limit again each second")
@pytest.mark.parametrize(("soft", "hard", "seconds"), [(3, 3, 0.2), (1, 60, 1.3)])
def test_a_limit_of_processor_time_is_told_once_and_leaves_time_to_end(soft, hard, seconds):
    program = WORKING.format(soft=soft, hard=hard, seconds=seconds)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    assert done.stderr == "\ncastile: ending with what there is; SIGXCPU once more leaves it all\n"


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_a_log_says_which_signal_ended_a_command_that_has_nothing_else_to_say(number, ctrl_c, capsys):
    """Of what a script starts in the background too, which ignores Ctrl-C."""

    def body() -> int:
        signal.raise_signal(number)
        raise AssertionError("the work went on")

    before, heard = signal.signal(signal.SIGINT, ctrl_c), signal.getsignal(number)
    try:
        assert main_guard(body) == 128 + number
        assert signal.getsignal(signal.SIGINT) is ctrl_c and signal.getsignal(number) is heard
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == f"castile: ended by {number.name}\n"


def test_a_training_that_is_to_ignore_a_signal_is_not_stopped_by_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopping(LocalWorld(1).communicators[0]) as stopping:
            signal.raise_signal(signal.SIGHUP)
            assert not stopping.after(1)
            signal.raise_signal(signal.SIGTERM)
            assert stopping.after(2) and stopping.name == "SIGTERM"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_for_a_search_in_several_processes_is_told_once(capfd):
    """A terminal gives it to all of them, and all end what they walk."""
    with ending_early("what there is") as is_over:
        is_over()
        # not os.fork, of which Python warns where there are threads
        member = multiprocessing.get_context("fork").Process(
            target=lambda: (signal.raise_signal(signal.SIGINT), sys.exit(is_over()))
        )
        member.start()
        member.join()
        assert member.exitcode == 1 and capfd.readouterr().err == ""
        signal.raise_signal(signal.SIGINT)
        assert "ending with what there is" in capfd.readouterr().err


def test_where_there_is_nothing_yet_the_first_ctrl_c_ends_all(capsys):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ending_early("what there is") as is_over:
        # another thread of the search may look at plans while this one has none to show
        other = threading.Thread(target=is_over)
        other.start()
        other.join()
        signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err == "" and signal.getsignal(signal.SIGINT) is before


def test_work_in_the_background_of_a_script_ignores_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending_early("what there is") as is_over:
            signal.raise_signal(signal.SIGINT)
            assert not is_over()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", ENDS)
def test_an_end_says_what_is_left_and_which_signal_it_was(number, capsys):
    def body() -> int:
        with ending_with("ended; half of it is kept"):
            signal.raise_signal(number)
        raise AssertionError("the work went on")

    before = signal.getsignal(number)
    assert main_guard(body) == 128 + number
    assert capsys.readouterr().err == "castile: ended; half of it is kept\n"
    assert signal.getsignal(number) is before


def ended(body, number: int, is_told: bool) -> None:
    """Run what a signal ends, as by a command that says what is left, or by one that does not."""

    def run() -> int:
        with ending_with("ended") if is_told else contextlib.nullcontext():
            return body()

    before, hook = signal.getsignal(number), sys.unraisablehook
    assert main_guard(run) == 128 + number
    assert signal.getsignal(number) is before and sys.unraisablehook is hook


WAITING = [(signal.SIGINT, False), *((number, True) for number in ENDS)]


@pytest.mark.parametrize(("number", "is_told"), WAITING)
@pytest.mark.parametrize("made", [ImportError("failed to import"), RuntimeError("no compiled object yet")])
def test_an_interrupt_is_no_fault_of_the_library_that_it_met(made, number, is_told, capsys):
    def body() -> int:
        try:
            signal.raise_signal(number)
        except (KeyboardInterrupt, Ended):
            raise made from None
        return 0

    ended(body, number, is_told)
    assert capsys.readouterr().err == "castile: ended\n" * is_told


@pytest.mark.parametrize("seconds", [0.0, ranks.REPEAT_SECONDS])
@pytest.mark.parametrize(("number", "is_told"), WAITING)
def test_an_interrupt_that_c_code_drops_comes_again(number, is_told, seconds, capsys, monkeypatch):
    """However soon: not while it is still being dropped, which would drop it too."""
    monkeypatch.setattr(ranks, "REPEAT_SECONDS", seconds)

    def called() -> None:
        signal.raise_signal(number)

    def body() -> int:
        ctypes.CFUNCTYPE(None)(called)()
        time.sleep(30)
        return 0

    began = time.monotonic()
    ended(body, number, is_told)
    assert time.monotonic() - began < 30, "it came when the sleep had ended"
    assert capsys.readouterr().err == "castile: ended\n" * is_told


SLOW = """
import signal, sys
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "NAME":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                # as NumPy does where its own modules are loaded
                print("failed to import", file=sys.stderr)
                raise
sys.meta_path.insert(0, Slow())
from castile.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("name", "told"), [("castile.launch.__main__", "failed to import\n"), ("castile.launch.doctor", "")]
)
def test_an_interrupt_while_the_program_is_loaded_is_no_traceback(name, told):
    command = [sys.executable, "-c", SLOW.replace("NAME", name), "doctor"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (130, "", told)


LEFT = """
import sys
import castile.launch.__main__ as launch
from castile.__main__ import main
class Left:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("looked for")
launch.main = lambda: bool(Left()) - 1
sys.exit(main())
"""


def test_no_garbage_is_looked_for_at_the_end_of_the_program() -> None:
    outcome = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=60, check=False)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_that_is_to_be_ignored_ends_nothing(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with ending_with("nothing"):
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


def test_an_end_is_no_fault_that_work_takes_for_its_own():
    with pytest.raises(Ended, match="what there is"), ending_with("what there is"):
        try:
            signal.raise_signal(signal.SIGTERM)
        except Exception:
            pytest.fail("taken for a fault")


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("train mlp --budget 20", "before the first step, so nothing is saved"),
        ("validate mlp --plans 4", "nothing is kept"),
        ("profile mlp --profile here.db", "kept in here.db, and the same command goes on"),
        ("profile mlp --profile here.db --again", "kept in here.db, and without --again the same command goes on"),
    ],
)
def test_commands_that_measure_say_what_is_left(command, part, capsys, monkeypatch, tmp_path):
    def ends(*words: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    for name, value in homes.make(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        for measure in ("measuring.plan_choice.measure", "validate.measure", "measuring.task_timing.measure"):
            patch.setattr(f"castile.launch.{measure}", ends)
        assert main(command.split()) == 128 + signal.SIGTERM
    err = capsys.readouterr().err
    assert part in err and "Traceback" not in err


@settings(max_examples=40)
@given(st.data(), st.integers(2, 3), st.integers(0, 120), st.floats(1e-6, 1.0), st.sampled_from([0, 10**6]))
def test_all_ranks_stop_after_the_same_step_soon_and_seldom_ask(data, size, asked, seconds, first):
    """Whichever rank gets the signal, however long steps take, and wherever the run goes on from."""
    rank = data.draw(st.integers(0, size - 1))
    each = min(MOST_STEPS_A_ROUND, max(1, int(ROUND_SECONDS / seconds)))
    now, talks = [data.draw(st.sampled_from([1.0, 1e5]))], []

    def train(comm):
        ours = Stopping(comm, ())
        gather = comm.gather_bytes
        comm.gather_bytes = lambda word: talks.append(comm.rank) or gather(word)
        for step in range(asked + 2 * each + 3):
            if comm.rank == 0:
                now[0] += seconds
            if (comm.rank, step) == (rank, asked):
                ours.name = "SIGTERM"
            if ours.after(first + step):
                return step, ours.name
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("castile.launch.processes.stopping.time", SimpleNamespace(perf_counter=lambda: now[0]))
        (told,) = set(Ranks(size).run(train))
    assert told is not None and told[1] == "SIGTERM" and asked <= told[0] <= asked + each + 1
    # the first two rounds are of a step each, as nothing is known of steps yet
    assert len(talks) <= size * (3 + told[0] / max(each - 1, 1))


@given(st.data(), st.integers(1, 3))
def test_a_signal_while_ranks_ask_each_other_is_told_to_all_or_to_none_and_is_not_lost(data, size):
    rank = data.draw(st.integers(0, size - 1))

    def ask(comm):
        ours = Stopping(comm, ())
        gather = comm.gather_bytes

        def gather_and_hear(word):
            told = gather(word)
            ours.name = "SIGTERM" if comm.rank == rank else ours.name
            return told

        comm.gather_bytes = gather_and_hear
        return [(ours.now(), ours.name), (ours.now(), ours.name)]

    for number, ((first, name), then) in enumerate(Ranks(size).run(ask)):
        assert (first, name) == (False, "SIGTERM" * (number == rank)) and then == (True, "SIGTERM")
