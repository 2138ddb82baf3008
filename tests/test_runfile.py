"""Run files: what is written is read again, the command line goes before the file, and mistakes are told."""

import json
from dataclasses import dataclass, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch.jobs import runfile
from castile.launch.train import Train
from castile.launch.typed import options


@dataclass(frozen=True)
class Command:
    """A command with an option of each kind."""

    model: options.Model
    """What."""
    budget: options.BudgetOrOwn = "500"
    """A word that may look like a number."""
    batch: options.Count = None
    """A count."""
    check_every: options.Number = 3
    """A number."""
    lr: options.Rate = None
    """A rate."""
    resume: bool = False
    """A flag."""


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
commands = st.builds(
    Command, words, words, st.none() | st.integers(1, 10**12), st.integers(-(10**9), 10**9),
    st.none() | st.floats(allow_nan=False, allow_infinity=False), st.booleans(),
)  # fmt: skip


@given(commands)
def test_what_is_written_is_read_again(command):
    assert runfile.read(runfile.text(command).encode(), Command, "x.toml") == command


@given(commands, st.sets(st.sampled_from(["batch", "check_every", "resume"])))
def test_dashes_are_underscores(command, dashed):
    text = runfile.text(command).replace("check_every", "check-every" if "check_every" in dashed else "check_every")
    assert runfile.read(text.encode(), Command, "x.toml") == command


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('model = "mlp"\nbudget = 20\nbatch = 8\nlr = 1\nresume = true\n')
    return str(path)


def parsed(*words):
    return runfile.parse(Command, "castile test", words)


def test_a_file_says_what_the_command_line_leaves_open(run_file):
    assert parsed(run_file) == Command("mlp", "20", 8, 3, 1.0, True)


def test_the_command_line_goes_before_the_file(run_file):
    # A value that is the default goes before the file's too.
    said = ("--budget", "500", "--lr", "0.5", "--no-resume")
    assert parsed(run_file, *said) == parsed(*said, run_file) == Command("mlp", "500", 8, 3, 0.5, False)
    assert parsed(run_file, "--resume") == parsed(run_file)


def test_what_is_typed_stands_instead_of_what_the_file_says_of_the_other(tmp_path):
    path = tmp_path / "run.toml"
    for name, other in (("steps", "epochs"), ("epochs", "steps")):
        path.write_text(f'model = "mlp"\n{other} = 3\n')
        found = runfile.parse(Train, "castile train", [str(path), f"--{name}", "40"])
        assert (getattr(found, name), getattr(found, other)) == (40, None)
        both = runfile.parse(Train, "castile train", [str(path), "--steps", "40", "--epochs", "1"])
        assert (both.steps, both.epochs) == (40, 1)
    path.write_text('model = "mlp"\nsearch = "dynamic"\nbudget = "30s"\n')
    found = runfile.parse(Train, "castile train", [str(path), "--plan", "p.json"])
    assert (found.plan, found.search, found.budget) == ("p.json", "", "")
    path.write_text('model = "mlp"\nplan = "p.json"\n')
    found = runfile.parse(Train, "castile train", [str(path), "--search", "dynamic"])
    assert (found.plan, found.search) == ("", "dynamic")


def test_without_a_file_words_are_all_there_is():
    assert parsed("mlp", "--batch", "4") == Command("mlp", batch=4)


def test_every_option_of_training_is_a_key():
    values = {"model": "mlp", **{f.name: f.default for f in fields(Train) if f.name != "model"}}
    kinds = {str: "7", bool: True}
    text = {n: 7 if v is None or type(v) is int else kinds[type(v)] for n, v in values.items()}
    read = runfile.read("\n".join(f"{n} = {json.dumps(v)}" for n, v in text.items()).encode(), Train, "x.toml")
    assert {name: getattr(read, name) for name in text} == text


@pytest.mark.parametrize(
    "text, told",
    [
        ('model = "a"\nbath = 3', r"x.toml: unknown field 'bath' \(did you mean 'batch'"),
        ('model = "a"\nbatch = 3\nbatch = 4', r"x.toml is not TOML: .*overwrite"),
        (
            'model = "a"\ncheck-every = 3\ncheck_every = 4',
            r"x.toml: 'check-every' and 'check_every' are one option, given twice",
        ),
        ('model = "a"\nbatch = "3"', r"x.toml: batch: expected a whole number"),
        ('model = "a"\nbatch = 3.5', r"x.toml: batch: expected a whole number"),
        ('model = "a"\nresume = 1', r"x.toml: resume: expected true or false"),
        ('model = "a"\n[train]\nbatch = 3', r"x.toml: unknown field 'train'"),
        ("batch = 3", r"x.toml: the field 'model' is missing"),
        ("model = ", r"x.toml is not TOML"),
        ("\xff", r"x.toml is not TOML"),
    ],
)
def test_mistakes_are_told(text, told):
    with pytest.raises(ValueError, match=told):
        runfile.read(text.encode("latin-1"), Command, "x.toml")
