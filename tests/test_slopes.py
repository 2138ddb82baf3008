"""Gradients of operators in a model's own file are held against differences, and those that are wrong are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.training import slopes
from tests import homes
from tests.op_cases import Case, every_case
from tests.op_laws import node_of

OWN = """
from castile.planner.families.elementwise import Unary
from castile.planner.graph import Graph
from castile.planner.op import Init, Op, op


@op("... -> ...", flops_per_point=8)
class Root(Unary):
    value = "x -> sqrt(x)"
    slope = "d, x -> d / (2 * sqrt(x))"


@op("b i, *o i -> b o", flops_per_point=2)
class Product(Op):
    def forward(self, k, x, w):         return k.contract("bi,oi->bo", x, w)
    def grad_inputs(self, k, dy, x, w): return (k.contract("bo,oi->bi", dy, w),)
    def grad_params(self, k, dy, x, w): return (k.contract("bo,bi->oi", dy, x),)


def build(batch=None, dtype="float32"):
    g = Graph("own", dtype)
    image = g.input("image", (batch or 32, 1, 8, 8), "b c h w")
    label = g.input("label", (batch or 32,), "b", "int32")
    x = g.reshape("flat", image, "b c h w -> b (c h w)")
    x = g.apply(Product(), "fc", x, g.param("fc.weight", (10, 64), ("o", "i"), Init("normal", 0.1)))
    x = g.apply(Root(), "root", g.shift("one", g.square("square", x), 1.0))
    g.minimise(g.cross_entropy("loss", x, label))
    return g
"""
WRONG = {
    ("d / (2 * sqrt(x))", "d / sqrt(x)"): ".Root: its gradient of operand 0 says ",
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
    return slopes.remarks(models.parse(str(path)).graph(4))


@every_case
def test_nothing_is_said_of_gradients_that_are_right(case: Case) -> None:
    """As those of all operators of castile's are, by the law that they are held to."""
    if not (case.op.has("B") or case.op.has("W")):
        return
    try:
        assert [*slopes._remarks(node_of(case), case.tensors)] == []
    except (IndexError, ValueError, ArithmeticError):
        pass  # what is drawn is nothing that it takes


def test_who_is_asked_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of a model's own file alone, each once, and none that would take long."""
    asked = list[str]()
    monkeypatch.setattr(slopes, "_remarks", lambda node, tensors: asked.append(node.name) or [])
    assert told(tmp_path / "own.py", OWN) == [] and asked == ["fc", "root"]
    monkeypatch.setattr(slopes, "MOST_FLOPS", 1000)
    assert told(tmp_path / "own.py", OWN) == [] and asked == ["fc", "root", "root"]


@pytest.mark.parametrize("change", WRONG)
def test_what_is_wrong_is_told_in_a_line(change: tuple[str, str], tmp_path: Path) -> None:
    assert change[0] in OWN and told(tmp_path / "right.py", OWN) == []
    (line,) = told(tmp_path / "wrong.py", OWN.replace(*change))
    assert WRONG[change] in line and "\n" not in line


def test_training_tells_it_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in homes.make(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "own.py").write_text(OWN.replace(*next(iter(WRONG))))
    assert main("train own.py --steps 1 --search one_processor".split()) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and err.startswith("castile: own.Root: its gradient of operand 0 says ")
    assert "leave it only if it is meant so" in err and "own.Root" not in out
