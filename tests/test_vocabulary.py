"""What the vocabulary refuses, and laws of the bytes that it declares."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.planner.bodies import vocabulary
from castile.planner.bodies.vocabulary import Spec, results, workspace
from castile.planner.shapes.attention import SCORES_CAP
from castile.planner.shapes.convolution import COLUMNS_CAP

F = "float32"
WINDOW: dict[str, Any] = {"stride": (1, 1), "pads": (0, 0, 0, 0)}
HEADS: dict[str, Any] = {"heads": 2, "causal": True, "offset": 0, "scale": 0.5}

BLOCKS = {"blocks": 2, "first": 0, "of": 4, "classes": 9}
REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("conv3d", (), {}, 'no kernel "conv3d".*conv2d'),
    ("relu", (Spec((2,), F), Spec((2,), F)), {}, "kernel relu"),
    ("relu_grad", (Spec((2,), F), Spec((3,), F)), {}, r"dy has \(2,\), x has \(3,\)"),
    ("contract", ("ij,jk->ik", Spec((2, 3), F), Spec((4, 5), F)), {}, "label j: earlier has 3, array 1 has 4"),
    ("contract", ("ij->ik", Spec((2, 3), F)), {}, "no array has the result's k"),
    ("contract", ("ij,j->i", Spec((2, 3), F)), {}, "one term for each of its 1 arrays"),
    ("contract", ("ij->i", Spec((2,), F)), {}, "does not fit"),
    ("contract", ("i,i->", Spec((2,), F), Spec((2,), "float64")), {}, "dtypes"),
    ("contract", ("...i,...i->...", Spec((2, 3), F), Spec((4, 3), F)), {}, "label ..."),
    ("add", (Spec((2, 3), F), Spec((2,), F)), {}, "does not broadcast"),
    ("add_bias", (Spec((2, 3), F), Spec((2,), F)), {"dim": 1}, "b has"),
    ("add_bias", (Spec((2, 3), F), Spec((2,), F)), {"dim": 2}, "no dim 2"),
    ("sum_over", (Spec((2, 3), F),), {"dims": (0, 0)}, "distinct"),
    ("reshape", (Spec((2, 3), F),), {"shape": (5,)}, "different numbers"),
    ("expand", (Spec((1,), F),), {"shape": (5,)}, "scalar"),
    ("gelu", (Spec((1,), F),), {"approximate": "erf"}, "erf"),
    ("conv2d", (Spec((1, 3, 4, 4), F), Spec((2, 2, 3, 3), F)), WINDOW, "input channels: x has 3, w has 2"),
    ("conv2d", (Spec((1, 2, 4, 4), F), Spec((2, 2, 5, 3), F)), WINDOW, "does not fit"),
    ("conv2d", (Spec((1, 2, 4), F), Spec((2, 2, 5, 3), F)), WINDOW, "4 dims"),
    ("max_pool2d", (Spec((1, 2, 4, 4), F),), WINDOW | {"kernel": (2, 2), "stride": (0, 1)}, "stride"),
    ("layer_norm", (Spec((2, 3), F), Spec((3,), F), Spec((2,), F)), {"eps": 1e-5}, "b has"),
    ("embedding", (Spec((2,), F), Spec((3, 4), F)), {"first": 0, "known": 3}, "ids must be integers"),
    ("embedding", (Spec((2,), "int64"), Spec((3, 4), F)), {"first": 2, "known": 4}, "rows 2 to 5 lie not within 4"),
    ("block_entropy", (Spec((2, 4), F), Spec((2,), "int64")), BLOCKS, "2 blocks have 5 logits, not 4"),
    ("cross_entropy", (Spec((2, 3), F), Spec((3,), "int64")), {"scale": 1.0}, "labels has"),
    ("attention", (Spec((1, 2, 3), F), Spec((1, 2, 3), F), Spec((1, 2, 3), F)), HEADS, "multiple of 2 heads"),
    ("attention", (Spec((1, 2, 4), F), Spec((2, 2, 4), F), Spec((2, 2, 4), F)), HEADS, "samples"),
    ("sgd", (Spec((2,), F),) * 3 + (Spec((1,), F),), {"momentum": 0.9, "decay": 0.0, "nesterov": False}, "lr has"),
]


@pytest.mark.parametrize("name,args,params,sentence", REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_refused_in_words(name: str, args: tuple[Any, ...], params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        results(name, args, params)


LENGTHS = st.integers(1, 300)


@given(batch=LENGTHS, channels=LENGTHS, size=st.integers(3, 64), dtype=st.sampled_from(["float32", "float64"]))
def test_copies_hold_a_row_and_stay_under_the_cap(batch: int, channels: int, size: int, dtype: str) -> None:
    x, w = Spec((batch, channels, size, size), dtype), Spec((5, channels, 3, 3), dtype)
    outs = results("conv2d", (x, w), WINDOW)
    nbytes = workspace("conv2d", (x, w), outs, WINDOW, False)
    # The weights lie there too, in blocks, and a block's sums; a copied channel goes on beyond its last row.
    weights = x.itemsize * 9 * channels * (5 + 8)
    row = channels * 3 * size * x.itemsize
    assert nbytes % 64 == 0
    assert weights + row <= nbytes <= 2 * weights + 2**16 + max(4 * row + channels * 1024, COLUMNS_CAP)
    assert nbytes <= 2 * weights + 2**16 + batch * (2 * row * size + channels * 1024)


@given(batch=LENGTHS, queries=LENGTHS, keys=st.integers(1, 300_000), heads=st.integers(1, 8))
def test_scores_hold_a_row_and_stay_under_the_cap(batch: int, queries: int, keys: int, heads: int) -> None:
    q, kk = Spec((batch, queries, heads * 4), F), Spec((batch, keys, heads * 4), F)
    params = HEADS | {"heads": heads}
    nbytes = workspace("attention", (q, kk, kk), results("attention", (q, kk, kk), params), params, False)
    row = (keys + 1) * 4
    assert nbytes % 64 == 0
    assert row <= nbytes <= vocabulary.round_up(max(row, SCORES_CAP))


@given(shape=st.lists(st.integers(1, 50), max_size=3).map(tuple))
def test_adding_holds_the_result(shape: tuple[int, ...]) -> None:
    x = Spec(shape, F)
    assert workspace("relu", (x,), (x,), {}, False) == 0
    assert workspace("relu", (x,), (x,), {}, True) == vocabulary.round_up(x.nbytes)
    assert workspace("copy", (x,), (x,), {}, True) == 0
