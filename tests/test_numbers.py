"""Whole numbers among samples that stand for nothing are told before this host is measured."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.kernels.ids import OutOfRange
from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.data import Arrays, Dataset
from castile.launch.here import hosts
from castile.launch.jobs import sample_checks
from castile.launch.processes.ranks import UserError
from castile.planner.graph import Graph
from castile.planner.op import available, find
from tests.op_cases import Case, cases_of
from tests.op_laws import node_of, run, whole_pass
from tests.test_models import small

NUMBERED = [c for name in available() if find(name).numbering for c in cases_of(name)]


@pytest.mark.parametrize("case", NUMBERED, ids=str)
def test_an_operator_numbers_what_its_kernels_look_up(case: Case) -> None:
    """The last number is taken, one more and one less than 0 are not."""
    part = node_of(case).whole()
    for operand, axes in case.op.numbering:
        length = prod(map(part.extent, axes.split()))
        for number in (0, length - 1, length, -1):
            arrays = [np.full_like(a, number) if n == operand else a for n, a in enumerate(case.arrays)]
            if 0 <= number < length:
                run(case, "F", part, arrays, None, None)
            else:
                with pytest.raises(OutOfRange):
                    run(case, "F", part, arrays, None, None)


def test_whatever_is_looked_up_by_an_input_is_numbered() -> None:
    """Of operators that take whole numbers and refuse some; experts and their places come from other operators."""
    for case in (c for name in available() for c in cases_of(name)):
        for operand, array in enumerate(case.arrays):
            if array.dtype.kind in "iu" and array.size and case.op.name not in ("dispatch", "combine", "balance"):
                arrays = [np.full_like(a, 2**30) if n == operand else a for n, a in enumerate(case.arrays)]
                try:
                    whole_pass(case, "F", arrays)
                except IndexError:
                    assert operand in dict(case.op.numbering), str(case)


def looked_up(kind: str, seq: int, rows: int) -> Graph:
    """A table that is looked up by numbers of that kind."""
    g = Graph("table")
    tokens = g.input("tokens", (2, seq), "b s", kind)
    g.minimise(g.sum("loss", g.embedding("tok", tokens, rows=rows, features=2)))
    return g


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint64"])
def test_what_numbers_stand_for_is_found_for_more_places_than_they_count(kind: str) -> None:
    below = sample_checks.taken(looked_up(kind, 300, 11))["tokens"].below
    assert below is not None and below.tolist() == [11] * 300


@pytest.mark.parametrize(
    ("kind", "number", "words"),
    [("uint8", 256, "256 in 'tokens', which holds 0 to 255 as uint8"), ("int8", 128, "128 in .* -128 to 127 as int8"),
     ("uint32", -1, "-1 in .* 0 to 4294967295 as uint32"), ("uint8", 255, ""), ("int64", 399, ""), ("int32", 399, "")],
)  # fmt: skip
def test_a_number_that_an_input_has_no_room_for_is_told(kind: str, number: int, words: str) -> None:
    """It would become another one, which may stand for something."""
    graph = looked_up(kind, 3, 400)
    found = dataset(graph, {"tokens": np.array([[0, 1, 2], [3, number, 5]])})
    if not words:
        sample_checks.check(graph, found)
        return
    with pytest.raises(UserError, match=rf"samples 1 to 2 have {words}: "):
        sample_checks.check(graph, found)


def dataset(graph: Graph, drawn: dict[str, np.ndarray]) -> Dataset:
    samples = Arrays({name: drawn.get(name, np.zeros(graph.tensors[name].shape)) for name in graph.inputs})
    return Dataset("mine", 0, samples, samples)


@pytest.mark.parametrize("text", [small(name) for name in models.available()])
def test_every_model_says_which_numbers_it_takes(text: str) -> None:
    graph = models.parse(text).graph(3)
    whole = [name for name in graph.inputs if np.issubdtype(graph.tensors[name].dtype, np.integer)]
    drawn = {name: np.zeros(graph.tensors[name].shape, np.int32) for name in whole}
    sample_checks.check(graph, dataset(graph, drawn))
    for name in whole:
        for number in (-1, 10**7):
            wrong = drawn | {name: drawn[name].copy()}
            wrong[name].flat[-1] = number
            told = rf"^data set mine: samples 1 to 3 have {number} in .* takes 0 to \d+: "
            with pytest.raises(UserError, match=told):
                sample_checks.check(graph, dataset(graph, wrong))


@given(st.integers(0, 9), st.integers(10, 99), st.booleans(), st.booleans())
def test_the_batch_that_has_it_is_told(where: int, number: int, held_out: bool, shuffled: bool) -> None:
    """Samples that come one after another are not looked at beyond the first batch, as they could not come again."""
    graph, fine = models.parse("mlp:width=8").graph(2), np.arange(10) % 10
    wrong = fine.copy()
    wrong[where] = number
    images = np.zeros((10, *graph.tensors["image"].shape[1:]), np.float32)
    parts = [Arrays({"image": images, "label": label}) for label in ((fine, wrong) if held_out else (wrong, fine))]
    data = Dataset("mine", 0, *parts, shuffled=shuffled)
    if not shuffled and not held_out and where > 1:
        sample_checks.check(graph, data)
        return
    first, kind = where - where % 2 + 1, "held-out " if held_out else ""
    told = f": {kind}samples {first} to {first + 1} have {number} in 'label'"
    with pytest.raises(UserError, match=re.escape(told)):
        sample_checks.check(graph, data)


@given(st.integers(0, 9), st.sampled_from([-1.0, 1.5, 2.0, np.inf]), st.booleans(), st.booleans())
def test_what_is_no_share_is_told_where_the_loss_takes_shares(
    where: int, number: float, held_out: bool, trained: bool
) -> None:
    """Labels 1 and 2 of a binary cross-entropy would all be right, at a loss below any bound."""
    graph = Graph("two")
    x, y = graph.input("x", (2, 3), "b i"), graph.input("y", (2, 1), "b o")
    graph.minimise(graph.bce("loss", graph.linear("fc", x, features=1), graph.reshape("same", y, "b o -> b (o)")))
    fine = np.linspace(0, 1, 10, dtype=np.float32)[:, None]
    wrong = fine.copy()
    wrong[where] = number
    xs = np.zeros((10, 3), np.float32)
    parts = [Arrays({"x": xs, "y": label}) for label in ((fine, wrong) if held_out else (wrong, fine))]
    sample_checks.check(graph, Dataset("mine", 0, *[parts[not held_out]] * 2), trained)
    kind = "held-out " if held_out else ""
    told = f"{kind}sample {where}, counted from 0, has {number} in 'y', where loss takes 0 to 1: number two classes"
    with pytest.raises(UserError, match=re.escape(told)):
        sample_checks.check(graph, Dataset("mine", 0, *parts), trained)


def test_labels_are_looked_at_before_this_host_is_measured(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosts, "measured", None)
    np.savez("mine.npz", image=np.zeros((90, 1, 8, 8), np.float32), label=np.arange(90) % 11)
    assert main(["train", "mlp", "--batch", "30", "--data", "numpy:file=mine.npz"]) == 2
    told = capsys.readouterr().err
    wrong = r"castile: data set numpy: .*samples \d+ to \d+ have 10 in 'label', where loss takes 0 to 9: .*\n"
    assert re.fullmatch(wrong, told), told
