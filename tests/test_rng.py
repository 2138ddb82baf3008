"""Random numbers by place: a box's numbers are a slice of the whole's, and streams are unlike each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.runtime import rng
from castile.runtime.region import Box, slices


@st.composite
def boxes(draw) -> tuple[tuple[int, ...], Box]:
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=4)))
    ends = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
    return shape, Box(tuple(lo for lo, _ in ends), tuple(hi for _, hi in ends))


@given(boxes(), st.integers(0, 2**64 - 1), st.integers(0, 2**63))
def test_a_box_is_a_slice_of_the_whole(case, seed, step):
    shape, box = case
    for draw in (rng.uniform, rng.normal):
        everything = draw(seed, "w", shape, step=step)
        part = draw(seed, "w", shape, box, step)
        assert everything.shape == shape and part.shape == box.shape
        np.testing.assert_array_equal(part, everything[slices(box)])


def test_the_stream_is_fixed():
    """Golden numbers: a run of an older castile must be repeatable."""
    assert rng.uniform(1, "fc.weight", (5,), step=2).tolist() == GOLDEN_UNIFORM
    assert rng.permutation(0, "digits", 8, 3).tolist() == GOLDEN_PERMUTATION


GOLDEN_UNIFORM = [0.9588763250957718, 0.7851743739480177, 0.8464147239983805, 0.6189668744652856, 0.1383063954754279]
GOLDEN_PERMUTATION = [2, 7, 1, 5, 4, 3, 0, 6]


def test_moments():
    u, z = rng.uniform(0, "u", (100_000,)), rng.normal(0, "z", (100_000,))
    assert 0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 0.005
    assert np.isfinite(z).all() and abs(z.mean()) < 0.015 and abs(z.std() - 1) < 0.01


@pytest.mark.parametrize("other", [{"seed": 1}, {"name": "b"}, {"step": 1}])
def test_seed_name_and_step_give_other_numbers(other):
    one = {"seed": 0, "name": "a", "step": 0}
    a, b = (rng.uniform(shape=(1000,), **kwargs) for kwargs in (one, {**one, **other}))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.15


@given(st.integers(0, 300), st.integers(0, 5))
def test_a_permutation_holds_each_number_once(n, epoch):
    assert sorted(rng.permutation(7, "shuffle", n, epoch).tolist()) == list(range(n))


def test_epochs_are_shuffled_anew():
    assert rng.permutation(0, "s", 50, 0).tolist() != rng.permutation(0, "s", 50, 1).tolist()


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="seed"):
        rng.uniform(-1, "a", (2,))
