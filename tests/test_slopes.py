"""Gradients of operators in a model's own file are held against differences, and those that are wrong are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.training import gradient_check, own_operators
from tests import homes
from tests.op_cases import Case, every_case
from tests.op_laws import node_of
from tests.test_own_operators import OWN as TWICE

# Of what doubles a number one that squares it, whose slope depends on it.
SQUARE = 'value = "x -> x * x"\n    slope = "d, x -> d * (x + x)"'
OWN = TWICE.replace('value = "x -> x + x"\n    slope = "d -> d + d"', SQUARE)
WRONG = {
    ("d * (x + x)", "d * x"): ".Twice: its gradient of operand 0 says ",
    ('return (k.contract("bo,oi->bi", dy, w),)', 'return (k.contract("bo,oi->bi", dy, k.relu(w)),)'):
        ".Product: its gradient of operand 0 says ",
    ('return (k.contract("bo,bi->oi", dy, x),)', 'return (k.contract("bo,bi->oi", dy, k.relu(x)),)'):
        ".Product: its gradient of operand 1 says ",
    ("def grad_params(self, k, dy, x, w): return (k.contract(\"bo,bi->oi\", dy, x),)",
     "def grad_params(self, k, dy, x, w): return (None,)"): ".Product: its gradient of operand 1 says 0 ",
}  # fmt: skip


def told(path: Path, text: str) -> list[str]:
    """What is said of a model's file."""
    path.write_text(text)
    return gradient_check.remarks(models.parse(str(path)).graph(4))


@every_case
def test_nothing_is_said_of_gradients_that_are_right(case: Case) -> None:
    """As those of all operators of castile's are, by the law that they are held to."""
    if not (case.op.has("B") or case.op.has("W")):
        return
    try:
        assert [*gradient_check._remarks(node_of(case), case.tensors)] == []
    except (IndexError, ValueError, ArithmeticError):
        pass  # what is drawn is nothing that it takes


def test_who_is_asked_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of a model's own file alone, each once, and none that would take long."""
    asked = list[str]()
    monkeypatch.setattr(gradient_check, "_remarks", lambda node, tensors: asked.append(node.name) or [])
    assert told(tmp_path / "own.py", OWN) == [] and asked == ["fc", "twice"]
    monkeypatch.setattr(own_operators, "MOST_FLOPS", 1000)
    assert told(tmp_path / "own.py", OWN) == [] and asked == ["fc", "twice", "twice"]


@pytest.mark.parametrize("change", WRONG)
def test_what_is_wrong_is_told_in_a_line(change: tuple[str, str], tmp_path: Path) -> None:
    assert change[0] in OWN and told(tmp_path / "right.py", OWN) == []
    (line,) = told(tmp_path / "wrong.py", OWN.replace(*change))
    assert WRONG[change] in line and "\n" not in line


def test_what_takes_no_numbers_below_zero_is_held_too(tmp_path: Path) -> None:
    root = OWN.replace(SQUARE, 'value = "x -> sqrt(x)"\n    slope = "d, x -> d / sqrt(x)"')
    (line,) = told(tmp_path / "root.py", root)
    assert ".Twice: its gradient of operand 0 says " in line


def test_training_tells_it_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in homes.make(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "own.py").write_text(OWN.replace(*next(iter(WRONG))))
    assert main("train own.py --steps 1 --search one_processor".split()) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and err.startswith("castile: own.Twice: its gradient of operand 0 says ")
    assert "leave it only if it is meant so" in err and "own.Twice" not in out
