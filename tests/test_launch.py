"""Launching: the command line, the law of errors on one rank, and mpirun's environment and signals."""

import itertools
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from dataclasses import MISSING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile import __version__
from castile.launch import launch
from castile.launch.__main__ import main, parse
from castile.launch.processes import mpi_settings, ranks, signals
from tests import homes
from tests.command_lines import COMMANDS, module_of, options_of
from tests.effort import rare
from tests.mpi import CHECKOUT


def test_castile_alone_lists_its_commands(capsys):
    assert main([]) == 0
    alone = capsys.readouterr().out
    for word in ("--help", "-h", "help"):
        assert main([word]) == 0
        assert capsys.readouterr().out == alone
    assert "  doctor " in alone and "  launch " in alone


def test_help_may_come_before_the_command(capsys):
    assert main(["diff", "--help"]) == 0
    told = capsys.readouterr().out
    for word in ("--help", "-h", "help"):
        assert main([word, "diff"]) == 0
        assert capsys.readouterr().out == told
    assert main(["help", "dif"]) == 2
    assert "did you mean `castile diff`?" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"castile {__version__}\n"


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    assert main(["docter"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == "castile: castile has no command 'docter'; did you mean `castile doctor`?\n"
    assert main(["zzz"]) == 2
    assert "the commands are" in capsys.readouterr().err
    assert main(["PLAN", "mlp"]) == 2
    assert "castile has no command 'PLAN'; did you mean `castile plan`?" in capsys.readouterr().err
    assert main(["-v"]) == 2
    assert "castile has no option '-v'; the options are --help, --version" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_name_that_cannot_be_written_down_is_refused(name, capsys):
    assert main([name, os.fsdecode(b"name \xff")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(r"castile: the word 'name \udcff' is not UTF-8") and err.count("\n") == 1


@pytest.mark.parametrize("words", [["doctor", "--nonsense"], ["doctor", "--ranks", "two"], ["launch", "doctor"]])
def test_a_usage_error_is_status_2_without_traceback(words, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err and "Traceback" not in err


@pytest.mark.parametrize("command", ["doctor", "launch"])
def test_help_is_status_0(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"usage: castile {command}" in capsys.readouterr().out


def raises(error):
    def body():
        raise error

    return body


def library_error():
    return int("seven")


@pytest.mark.parametrize(
    "body, status",
    [
        (lambda: 0, 0),
        (lambda: 1, 1),
        (raises(SystemExit(None)), 0),
        (raises(SystemExit(3)), 3),
        (raises(SystemExit("over")), 1),
        (raises(ranks.UserError("mend this")), 2),
        (raises(FileNotFoundError(2, "No such file or directory", "plan.json")), 2),
        (raises(KeyboardInterrupt()), 130),
        (raises(RuntimeError("ours")), 1),
        (raises(AssertionError("ours")), 1),
        (library_error, 1),
    ],
)
def test_the_law_of_errors_on_one_rank(body, status, capsys):
    assert ranks.main_guard(body) == status
    err = capsys.readouterr().err
    assert ("Traceback" in err) == (status == 1 and err != "" and err != "over\n")
    assert err.count("\n") <= 1 or status == 1


@pytest.mark.parametrize("words", ["--help", "simulate mlp", *rare("simulate mlp --json")])
def test_a_reader_who_has_gone_ends_a_command_in_silence(words):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody:
        command = [sys.executable, "-m", "castile", *words.split()]
        ended = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT)
    assert (ended.returncode, homes.but_for_compiling(ended.stderr)) == (141, "")


def test_a_value_error_that_castile_raises_is_for_the_user(capsys):
    source = "def check(n):\n    raise ValueError(f'-n {n}: too few')\n\ndef convert(n):\n    return int(n)\n"
    module: dict = {"__name__": "castile.planner.example"}
    exec(compile(source, "example.py", "exec"), module)
    assert ranks.main_guard(lambda: module["check"](0)) == 2
    assert capsys.readouterr().err == "castile: -n 0: too few\n"
    # The same class out of a library, called by castile, is a fault of ours.
    assert ranks.main_guard(lambda: module["convert"]("x")) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_note_on_the_exception_is_in_the_report(capsys):
    error = RuntimeError("boom")
    error.add_note("step 3, task conv1.F[0]")
    assert ranks.main_guard(raises(error)) == 1
    err = capsys.readouterr().err
    assert "rank 0 of 1 on " in err and "step 3, task conv1.F[0]" in err and err.count("Traceback") == 1


def test_dry_run_is_a_command_line_that_a_shell_can_run(capsys):
    pytest.importorskip("mpi4py")
    assert main(["launch", "-n", "3", "--dry-run", "train", "convnet", "--seed", "0", "-n", "9"]) == 0
    words = shlex.split(capsys.readouterr().out)
    first = next(index for index, word in enumerate(words) if "=" not in word or word.startswith("/"))
    assert words[first:] == [
        str(launch.mpirun_path()), "-n", "3", sys.executable, "-m", "castile", "train", "convnet", "--seed", "0",
        "-n", "9",
    ]  # fmt: skip


def test_dry_run_as_json(capsys):
    pytest.importorskip("mpi4py")
    assert main(["launch", "-n", "3", "--dry-run", "--json", "doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["command"][-2:] == ["doctor", "--json"] and told["command"].count("--json") == 1
    assert all(isinstance(value, str) for value in told["environment"].values())


word = st.text("abc-=0", min_size=1, max_size=5)


@given(st.integers(1, 64), st.lists(word, min_size=1), st.booleans())
def test_the_commands_own_options_stay_its_own(num_ranks, rest, marked):
    command = ["train", *rest]
    parsed = launch.parse(["-n", str(num_ranks), *(["--"] if marked else []), *command])
    assert parsed.ranks == num_ranks and list(parsed.command) == command


@pytest.mark.parametrize(
    "words, told",
    [
        (["-n", "0", "doctor"], "at least 1 rank"),
        (["-n", "1000000000", "--dry-run", "doctor"], "so many ranks have no room"),
        (["-n", "2"], "nothing to launch: name a castile command, as in"),
        (["-n", "2", "castile", "doctor"], "nothing to launch: name a castile command, without the word castile"),
        (["-n", "2", "launch", "-n", "2", "doctor"], "a launch within a launch"),
        (["-n", "2", "--hostfile", "nowhere", "doctor"], "there is no host file nowhere"),
    ],
)
def test_a_bad_launch_is_told_in_one_sentence(words, told, capsys):
    assert main(["launch", *words]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1


@pytest.mark.parametrize("name", launch.ALLOCATIONS)
def test_within_an_allocation_there_may_be_more_ranks_than_one_host_has_room_for(name, monkeypatch, capsys):
    monkeypatch.setenv(name, "7")
    assert main(["launch", "-n", "1000000000", "--dry-run", "doctor"]) == 0
    assert "-n 1000000000 " in capsys.readouterr().out


@pytest.mark.parametrize("most", [52, 51, resource.RLIM_INFINITY])
def test_ranks_for_which_too_few_files_may_be_open_are_refused(most, monkeypatch, capsys):
    """mpirun says nothing of the limit, but "Unknown error"."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (10, most))
    assert main(["launch", "-n", "6", "--dry-run", "doctor"]) == 2 * (most == 51)
    told = "-n 6: mpirun opens 52 files for so many ranks, and only 51 may be open here: raise that limit (ulimit"
    assert (told in capsys.readouterr().err) == (most == 51)


def test_without_mpirun_the_line_that_installs_it_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert main(["launch", "-n", "2", "doctor"]) == 2
    assert capsys.readouterr().err.endswith(" -m pip install 'castile[mpi]'`\n")


def test_ranks_without_mpi4py_are_told_the_line(monkeypatch, capsys):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setitem(sys.modules, "castile.runtime.comm.mpi", None)
    monkeypatch.delattr("castile.runtime.comm.mpi", raising=False)  # as an import from its package looks there first
    ranks.this_world.cache_clear()
    with pytest.raises(ranks.UserError, match=r"4 ranks.*pip install 'castile"):
        ranks.this_world()


def test_the_hostfile(tmp_path, monkeypatch):
    """Ranks of other hosts get what is set here of what computes, and nothing else."""
    pytest.importorskip("mpi4py")
    path = tmp_path / "hosts"
    path.write_text("# two machines\none slots=2\n\ntwo\none slots=1\n")
    for name in ("DEBUG", "NCCL_DEBUG", "XDG_DATA_HOME", "HOME", "MY_SECRET"):
        monkeypatch.setenv(name, "1")
    words = launch.mpirun_words(4, path, ["x"])
    handed = [word for before, word in itertools.pairwise(words) if before == "-x"]
    assert {"DEBUG", "NCCL_DEBUG", "XDG_DATA_HOME", *mpi_settings.THREAD_VARIABLES} <= set(handed)
    assert not {"HOME", "MY_SECRET"} & set(handed) and "-x" not in launch.mpirun_words(4, None, ["x"])
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "1")
        # in an allocation of Slurm's each host has numbers of its own for what it may use
        assert ("CUDA_VISIBLE_DEVICES" in launch.mpirun_words(4, path, ["x"])) == (name != "SLURM_JOB_ID")
    assert "CUDA_CACHE_PATH" in launch.mpirun_words(4, path, ["x"])
    wrong = ("one slots=x\n", "one slots=²\n", "one slots=1 slots=2\n", "\none slots=0\n")
    for text, told in {"": "names no host", **{text: f"line {len(text.splitlines())}" for text in wrong}}.items():
        path.write_text(text)
        with pytest.raises(ranks.UserError, match=told):
            launch.mpirun_words(4, path, ["x"])


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"PMI_SIZE": "3"}, 3),
        ({"SLURM_STEP_NUM_TASKS": "5", "SLURM_NTASKS": "5"}, 5),
        # a script of a batch job is no step, and mpirun within a step says itself how many it starts
        ({"SLURM_NTASKS": "5"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_SIZE": "1"}, 1),
    ],
)
def test_how_many_ranks_a_launcher_has_started(variables, number, monkeypatch):
    for name in ranks._SIZE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks.num_launched() == number


def test_ranks_that_srun_has_not_made_known_to_each_other_are_told_how(monkeypatch):
    for name in ranks._SIZE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert "different MPI libraries" in ranks._mismatch(4)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert "`srun --mpi=pmix ...`" in ranks._mismatch(4)


@pytest.mark.parametrize(("host_index", "where"), [(0, ""), (1, "on b: ")])
def test_a_sentence_of_another_host_than_the_first_says_which(host_index, where, monkeypatch, capsys):
    world = ranks.World(rank=host_index, size=2, local_rank=0, host="b", host_index=host_index)
    monkeypatch.setattr(ranks, "_world_if_any", lambda: world)
    assert ranks.main_guard(raises(FileNotFoundError(2, "No such file or directory", "x.csv"))) == 2
    assert capsys.readouterr().err == f"castile: {where}x.csv: No such file or directory\n"


def launched(*words: str) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "castile", "launch", *words],
        text=True,
        env=environment | {"PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )


@pytest.mark.mpi
def test_launch_starts_more_ranks_than_cores_in_a_bare_environment():
    num_ranks = (os.cpu_count() or 1) + 2
    with launched("-n", str(num_ranks), "--json", "doctor") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out) and err == ""


@pytest.mark.mpi
def test_launch_gives_the_status_and_the_sentence_alone():
    with launched("-n", "3", "docter") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == "castile: castile has no command 'docter'; did you mean `castile doctor`?\n"


def test_too_little_memory_is_told_in_one_sentence(capsys):
    assert ranks.main_guard(lambda: np.empty(2**60, np.uint8) and 0) == 2
    err = capsys.readouterr().err
    assert err.startswith("castile: too little memory here (Unable to allocate") and err.count("\n") == 1


def test_a_signal_that_is_to_be_ignored_stays_so():
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, is_passed in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGHUP, handler)
            assert (signal.SIGHUP in signals.heard()) is is_passed
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_known_as_it_is_typed_and_a_letter_more_is_not(command, capsys):
    """--help comes after, so that a command that knows all its options tells its help and does nothing."""
    for option in filter(None, (option.flag for option in options_of(command))):
        given = next(o for o in options_of(command) if o.flag == option)
        words = [option, "1"] if given.metavar else [option]
        assert main([command, *words, "--help"]) == 0, option
        capsys.readouterr()
        assert main([command, f"{option}x", "--help"]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"castile: castile {command} has no option {option}x (did you mean '{option}'?)")


def typed_right(command: str) -> list[str]:
    """Words that give a command what it needs, and no more."""
    needed = [option for option in options_of(command) if option.default is MISSING]
    return [word for o in needed for word in ([o.flag, "1"] if o.flag else [o.metavar.partition("|")[0]])]


@pytest.mark.parametrize("command", COMMANDS)
def test_words_that_lack_and_words_too_many_are_told_in_a_sentence(command):
    def told(*words: str) -> str:
        with pytest.raises(ranks.UserError) as caught:
            parse(command, module_of(command), words)
        return str(caught.value)

    words = typed_right(command)
    # What follows `launch` is another command's.
    if command != "launch":
        assert not words or f"castile {command} needs {words[-1]}" in told(*words[:-1])
        left = [option.metavar for option in options_of(command) if not option.flag and option.default is not MISSING]
        assert f"castile {command} has no place for 'more'" in told(*words, *left, "more")
    for option in options_of(command):
        if option.metavar and option.flag:
            for line in ([option.flag], [option.flag, "--json", *words]):
                assert told(*line) == f"{option.flag} needs {option.metavar} after it"
        elif option.flag:
            assert f"{option.flag} is a switch and has no value: leave 'yes' out" in told(f"{option.flag}=yes", *words)


def test_ranks_that_are_to_be_launched_are_asked_for(capsys):
    assert main(["launch", "doctor"]) == 2
    assert capsys.readouterr().err.startswith("castile: castile launch needs --ranks N;")
    assert main(["launch", "-n", "--dry-run", "doctor"]) == 2
    assert capsys.readouterr().err == "castile: -n needs N after it\n"
    for words in (["-n2"], ["-n=2"], ["--ranks=2"], ["-n", "2"]):
        assert main(["launch", *words, "--dry-run", "--", "doctor"]) == 0
        assert "-n 2 " in capsys.readouterr().out


def test_a_word_that_is_one_of_few(capsys):
    assert main(["checkpoint", "list", "run"]) == 2
    assert capsys.readouterr().err == "castile: castile checkpoint: 'list' is none of ls, verify, export\n"


@pytest.mark.mpi
def test_what_ranks_write_to_a_file_has_no_styles():
    """mpirun gives them a terminal where there is none."""
    words = [sys.executable, "-m", "castile", "launch", "-n", "1", "plan", "--help"]
    environment = os.environ | {"TERM": "xterm-256color"}
    told = subprocess.run(words, env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.startswith("usage: castile plan") and "\x1b" not in told.stdout
