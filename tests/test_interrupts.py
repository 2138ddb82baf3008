"""Signals while a user waits: Ctrl-C that ends with what there is, and ends that say what is left of the work."""

import signal

import pytest

from castile.launch.__main__ import main
from castile.launch.interrupts import ending_early, told
from castile.launch.ranks import Ended, main_guard
from castile.launch.stopping import SIGNALS
from tests import homes

ENDS = (signal.SIGINT, *SIGNALS)


def test_the_second_ctrl_c_ends_all():
    with pytest.raises(KeyboardInterrupt), ending_early("what there is") as is_over:
        signal.raise_signal(signal.SIGINT)
        assert is_over()
        signal.raise_signal(signal.SIGINT)


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
        with told("ended; half of it is kept"):
            signal.raise_signal(number)
        raise AssertionError("the work went on")

    before = signal.getsignal(number)
    assert main_guard(body) == 128 + number
    assert capsys.readouterr().err == "castile: ended; half of it is kept\n"
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_that_is_to_be_ignored_ends_nothing(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with told("nothing"):
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


def test_an_end_is_no_fault_that_work_takes_for_its_own():
    with pytest.raises(Ended, match="what there is"), told("what there is"):
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
        for measure in ("explore.measure", "validate.measure", "rounds.measure"):
            patch.setattr(f"castile.launch.{measure}", ends)
        assert main(command.split()) == 128 + signal.SIGTERM
    err = capsys.readouterr().err
    assert part in err and "Traceback" not in err
