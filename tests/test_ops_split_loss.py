"""A cross-entropy over blocks of classes against the one over all of them, and what its parts read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.planner.graph import Graph
from castile.planner.op import find
from castile.planner.strategy import parts
from tests.op_cases import case
from tests.op_laws import Whole, node_of, relative
from tests.test_models import backward, forward

# A prime, as GPT-2 has: blocks are not all as long.
CLASSES = 23


def graphs(blocks: int):
    """The same logits under a cross-entropy in one piece and in blocks."""
    found = []
    for kind in ("cross_entropy", "split_cross_entropy"):
        g = Graph(kind, "float64")
        x, labels = g.input("x", (4, 3, 5), "b s i"), g.input("labels", (4, 3), "b s", "int32")
        logits = g.linear("head", x, features=CLASSES)
        settings = {"blocks": blocks} if kind == "split_cross_entropy" else {}
        g.minimise(getattr(g, kind)("loss", logits, labels, **settings))
        found.append(g)
    return found


@pytest.mark.parametrize("blocks", [1, 2, 8, 22, CLASSES])
def test_blocks_give_the_loss_and_gradients_of_the_whole(blocks):
    rng = np.random.default_rng(blocks)
    env = {"x": rng.normal(size=(4, 3, 5)), "labels": rng.integers(0, CLASSES, (4, 3)).astype(np.int32)}
    env |= {"head.weight": 9 * rng.normal(size=(CLASSES, 5)), "head.bias": rng.normal(size=CLASSES)}
    whole, split = graphs(blocks)
    one, other = forward(whole, env), forward(split, env)
    assert abs(one["loss"] - other["loss"]) <= 1e-13 * abs(one["loss"])
    ours, theirs = backward(split, other), backward(whole, one)
    for name in ("head.weight", "head.bias", "x"):
        assert relative(ours[name], theirs[name]) <= 1e-12, name


def test_a_part_reads_its_own_classes_only():
    rng = np.random.default_rng(0)
    c = case(find("block_entropy")(4), (rng.normal(size=(3, 8)), "b v"), (rng.integers(0, 8, 3), "b"))
    boxes = [part.reads(0) for part in parts(node_of(c), {"p": 2})]
    assert [(box.lo, box.hi) for box in boxes] == [((0, 0), (3, 4)), ((0, 4), (3, 8))]
    assert Whole(c).y[0].shape == (3, 4, 2)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4))
def test_parts_of_the_loss_read_the_logits_that_parts_of_a_head_make(classes, degree, times):
    """Whatever the classes: where blocks are so many times as many as parts, no logit moves."""
    blocks = degree * times
    g = Graph("g", "float64")
    x, labels = g.input("x", (4, 3), "b i"), g.input("labels", (4,), "b", "int32")
    if blocks <= classes:
        g.split_cross_entropy("loss", g.linear("head", x, features=classes), labels, blocks=blocks)
        makes, reads = parts(g.nodes["head"], {"o": degree}), parts(g.nodes["loss.blocks"], {"p": degree})
        assert [part.writes(0) for part in makes] == [part.reads(0) for part in reads]


def test_blocks_that_do_not_fit_are_refused_in_words():
    g = Graph("g")
    logits, labels = g.input("logits", (4, 50), "b v"), g.input("labels", (4,), "b", "int32")
    with pytest.raises(ValueError, match="loss: 50 classes are cut into 1 to as many blocks, not 51"):
        g.split_cross_entropy("loss", logits, labels, blocks=51)
