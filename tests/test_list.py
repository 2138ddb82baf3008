"""The command list: all that has a name, with the settings that it takes, and nothing else."""

import io
import os
import re

import pytest

from castile.launch import data, models
from castile.launch.__main__ import main
from castile.launch.reports import catalogue, report
from castile.launch.typed import optimizers, rates
from castile.planner import searches
from castile.planner.known.described import described
from castile.planner.known.seeds import known_names
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from tests.answers import answer
from tests.effort import some

NAMES = {
    "models": models.available, "machines": machines.presets, "data": data.available,
    "optimizers": optimizers.available, "schedules": rates.available, "searches": searches.available,
    "plans": described,
}  # fmt: skip
OWN = '''
"""What I try: now."""
from castile.planner.graph import Graph

def build(batch=None, dtype="float32", width: int = 3):
    """x [b, 4] -> y.

    width   of it
    """
    g = Graph("own", dtype)
    g.linear("fc", g.input("x", (batch or 2, 4), "b i"), features=width)
    return g
'''
EVERY = [(kind, name) for kind in NAMES for name in NAMES[kind]()]


def test_all_that_has_a_name_is_listed(capsys):
    facts = answer(capsys, "list")
    assert {kind: [row["name"] for row in rows] for kind, rows in facts.items()} == {
        kind: [*names()] for kind, names in NAMES.items()
    }
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for kind, rows in facts.items():
        assert re.search(rf"^{kind} +{re.escape(' '.join(row['name'] for row in rows))} *$", out, re.MULTILINE)


@pytest.mark.parametrize("kind", NAMES)
def test_a_kind_is_told_a_line_for_each(kind, capsys):
    facts = answer(capsys, "list", kind)
    assert [*facts] == [kind]
    assert main(["list", kind]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(name, what.rstrip()) for name, what in lines] == [(row["name"], row["what"]) for row in facts[kind]]


@pytest.mark.parametrize(("kind", "name"), some(EVERY))
def test_one_is_told_with_its_settings(kind, name, capsys):
    row = answer(capsys, "list", kind, name)
    assert row["name"] == name and row["what"]
    assert main(["list", kind, name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: {row['what']}\n")
    for setting in row["settings"]:
        told = " +".join(re.escape(word) for word in setting.values() if word)
        assert re.search(rf"^{told} *$", out, re.MULTILINE), setting


@pytest.mark.parametrize("name", machines.presets())
def test_machines_take_the_settings_that_they_are_said_to_take(name):
    usual = machines.settings_of(name)
    assert machines.parse(name + ":" + ",".join(f"{key}={value}" for key, value in usual.items())).num_procs == (
        machines.parse(name).num_procs
    )
    with pytest.raises(ValueError, match=f"its settings: {', '.join(usual)}$"):
        machines.parse(f"{name}:zzz=1")


def test_a_model_is_counted_with_its_settings(capsys):
    assert answer(capsys, "list", "models", "gpt:size=124m")["num_params"] == 124_439_808
    assert answer(capsys, "list", "models", "gpt")["num_params"] == catalogue.num_params("gpt") == 875_264


def test_a_file_of_ones_own_is_told_as_a_model_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    row = answer(capsys, "list", "models", "own.py:width=5")
    assert row == {
        "name": "own.py:width=5", "what": "What I try", "gives": "x [b, 4] -> y.", "num_params": 4 * 5 + 5,
        "settings": [{"name": "width", "default": "3", "what": "of it"}],
    }  # fmt: skip


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_narrow_terminal_has_words_below_each_other_and_a_file_a_line_for_each(is_terminal, monkeypatch):
    monkeypatch.setattr(report.shutil, "get_terminal_size", lambda: os.terminal_size((24, 10)))
    made = report.table("name", "what it is")
    made.add_row("first", "words that have no room in it")
    made.add_row("second", "")
    out = report.Output(file=io.StringIO(), highlight=False, width=report.TABLE_WIDTH, force_terminal=is_terminal)
    out.say_table(made, wraps=True)
    narrow = ["name    what it is", "first   words that have", "        no room in it", "second"]
    wide = ["name    what it is", "first   words that have no room in it", "second"]
    assert out.file.getvalue().splitlines() == (narrow if is_terminal else wide)


PLANNED = [
    ("mlp", 64, "dgx-h100:nodes=2", 1), ("mlp", 64, "dgx-h100:nodes=2", 8), ("gpt", 4, "dgx-h100:nodes=4", 2),
    ("moe", 8, "dgx-h100:nodes=2", 4), ("gpt", 2, "dgx-h100:nodes=128", 2),
]  # fmt: skip


@pytest.mark.parametrize(("model", "batch", "machine", "microbatches"), PLANNED)
def test_every_known_plan_has_a_name_that_is_told(model, batch, machine, microbatches):
    lowering = Lowering(models.parse(model).graph(batch), machines.parse(machine), microbatches=microbatches)
    plain = rf"(?:{'|'.join(name for name in described() if name.islower())})(?:_\d+)?"
    for name in known_names(lowering):
        assert re.fullmatch(rf"(?:{plain}|pipeline_\d+(?:_interleaved)?(?:_{plain})?)(?:_zero)?", name), name


def test_what_is_told_of_known_plans_is_of_some():
    """Plans that everyone has, by their own names."""
    known = known_names(Lowering(models.parse("moe").graph(4), machines.parse("dgx-h100"), microbatches=1))
    assert {name for name in described() if name.islower()} <= set(known)
