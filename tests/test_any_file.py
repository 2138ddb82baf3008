"""Any file at all: whatever is in a file that users hand in, a command takes it or says why not, in one sentence.

Files are real ones of which bytes are lost or changed, or whose values are others. The sentence names the file.
"""

import copy
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch.__main__ import main
from tests import homes
from tests.command_lines import COMMANDS, options_of
from tests.effort import examples
from tests.mpi import CHECKOUT

VALUES = [0, -1, 1, 2, 2**63, 2**80, 1.5, 1e300, "", "x", "b", None, True, [], {}, [[]], [0, 1], {"b": 2}, "\0", [None]]
TOML = [
    "0",
    "-1",
    "1",
    "3",
    "1.5",
    "1e400",
    "nan",
    "inf",
    "9" * 20,
    '""',
    '"x"',
    "[]",
    "{}",
    "true",
    "1979-05-27",
    "[1]",
]
WORDS = (
    [str(value) for value in VALUES if not isinstance(value, list | dict)] + TOML + ["mlpp", "no/such.file", "=", "--"]
)
PLAN = "simulate any.json --machine local:procs=2", "diff plan.json any.json", "plan mlp --from any.json --budget 1"
RUN = """
model = "mlp"
steps = 3
batch = 8
optimizer = "adamw:beta2=0.9"
schedule = "cosine:warmup=2"
clip = 1.0
"""
FEW = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a plan, a machine, a run and a host file; the process is in it."""
    folder = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in homes.make(folder / "home").items():
            patch.setenv(name, value)
        assert main("plan mlp --machine local:procs=2 --budget 20 --out plan.json".split()) == 0
        preset = (CHECKOUT / "runtime" / "machines" / "flexflow-k80.toml").read_text()
        (folder / "machine.toml").write_text(re.sub(r"^#.*\n", "", preset, flags=re.MULTILINE))
        (folder / "run.toml").write_text(RUN)
        (folder / "hosts").write_text("one slots=2\n# no host\ntwo slots=1\n")
        yield folder


@st.composite
def broken(draw, data):
    """The bytes with some lost, changed or put in."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(found)))
        end = draw(st.sampled_from([begin, begin + 1, begin + 20, len(found)]))
        found[begin:end] = draw(st.binary(max_size=3))
    return bytes(found)


@st.composite
def altered(draw, tree):
    """The tree of a JSON file with a value that is another, is missing, or has another name."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        at = tree
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = draw(st.sampled_from(keys))
            if not (isinstance(at[key], dict | list) and at[key] and draw(st.booleans())):
                break
            at = at[key]
        how = draw(st.sampled_from(["other", "other", "gone", "renamed"]))
        value = at.pop(key) if how != "other" else None
        if how == "other":
            at[key] = draw(st.sampled_from(VALUES))
        elif how == "renamed" and isinstance(at, dict):
            at[draw(st.sampled_from(["", "x", "fc1", "procs"]))] = value
        if not tree:
            break
    return tree


@st.composite
def rewritten(draw, text):
    """The lines of a TOML file with a value that is another, or a line that is gone or there twice."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 2))):
        n = draw(st.integers(0, len(lines) - 1))
        key, equals, _ = lines[n].partition("=")
        how = draw(st.sampled_from(["other", "other", "gone", "twice"]))
        lines[n : n + 1] = {
            "other": [f"{key}= {draw(st.sampled_from(TOML))}" if equals else lines[n]],
            "gone": [],
            "twice": [lines[n]] * 2,
        }[how] or [""]
    return "\n".join(lines).encode()


def check(words, named, capsys):
    """Taken, or refused in one sentence that names the file, or the option that the file's key is."""
    capsys.readouterr()
    status = main(words.split())
    err = capsys.readouterr().err
    assert status in (0, 2), (status, err)
    if status == 2:
        assert err.startswith("castile: ") and err.count("\n") == 1 and "Traceback" not in err, err
        assert re.search(named, err), err


@FEW
@given(data=st.data())
def test_a_plan(data, folder, capsys):
    whole = (folder / "plan.json").read_bytes()
    trees = altered(json.loads(whole)).map(lambda tree: json.dumps(tree).encode())
    (folder / "any.json").write_bytes(data.draw(st.one_of(trees, broken(whole))))
    check(data.draw(st.sampled_from(PLAN)), r"any\.json", capsys)


def write_any(data, folder, name):
    """Put a file like this one, with other values or damaged, in the place of any.toml."""
    text = (folder / name).read_text()
    (folder / "any.toml").write_bytes(data.draw(st.one_of(rewritten(text), broken(text.encode()))))


@FEW
@given(data=st.data())
def test_a_machine(data, folder, capsys):
    write_any(data, folder, "machine.toml")
    check("plan mlp --machine any.toml:nodes=1 --search data_parallel --seeds data_parallel", r"any\.toml", capsys)


@FEW
@given(data=st.data())
def test_a_run(data, folder, capsys):
    write_any(data, folder, "run.toml")
    # what is a value of an option's type, yet none that can be, is told as on the command line
    check("train any.toml --print", r"any\.toml|--\w|\b(?:model|optimizer|schedule|settings?)\b", capsys)


@FEW
@given(data=st.data())
def test_a_list_of_hosts(data, folder, capsys):
    whole = (folder / "hosts").read_bytes()
    (folder / "any").write_bytes(data.draw(broken(whole)))
    check("launch -n 2 --hostfile any --dry-run doctor", r"\bany\b", capsys)


@FEW
@given(data=st.data())
def test_a_command_line(data, folder, capsys):
    """Options of a command with any words, in any order and number, for a model that there is not."""
    command = data.draw(st.sampled_from([name for name in COMMANDS if name != "doctor"]))
    flags = [option.flag for option in options_of(command) if option.flag and option.flag != "--resume"]
    words = data.draw(st.lists(st.sampled_from([*flags, *WORDS]), max_size=6))
    capsys.readouterr()
    status = main([command, "no_such_thing", *words])
    err = capsys.readouterr().err
    assert status == 2 and err and "Traceback" not in err, (status, err)
