"""The picture of a roofline: what is written on it can be read, wherever kinds of tasks lie along the roof."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch.pictures import roofline
from castile.launch.pictures.drawing import Box
from tests.svg import Picture

PEAK, RATE = 1e11, 5e10


def kind(intensity, above, share=0.01):
    """A kind of task of so many operations a byte, so many times above the roof, that takes a share of the step."""
    flops, nbytes = above * min(PEAK, intensity * RATE), above * min(RATE, PEAK / intensity)
    rates = {"flops_per_second": flops, "bytes_per_second": nbytes, "seconds": 1e-3}
    return rates | {"op": "x", "pass": "F", "shapes": "", "roofline_share": above, "step_share": share}


def facts(*more):
    """Kinds all along the roof and somewhat above it, up to the right edge, and what else there is."""
    keys = [kind(10 ** (n / 10 - 2), above) for n in range(47) for above in (1.0, 1.3)] + list(more)
    processor = {"flops_per_second": PEAK, "bytes_per_second": RATE}
    return {"model": "m", "batch_samples": 1, "machine": "here", "processor": processor, "keys": keys}


def dots_of(picture):
    """The dots, each as the box around it. Raises AssertionError where one lies on words."""
    dots = []
    for _, dot in picture.titled("circle"):
        x, y, r = (float(dot.get(name)) for name in ("cx", "cy", "r"))
        dots.append(Box(x - r, y - r, x + r, y + r))
    for words, box in picture.words:
        assert not any(dot.meets(box) for dot in dots), f"a dot lies on {words!r}"
    return dots


def test_no_dot_and_no_words_lie_on_words():
    text = roofline.picture(facts())
    picture = Picture(text)
    assert picture.is_readable() and len(dots_of(picture)) == 94 and "100 GFLOP/s, 50 GB/s" in text


@given(st.floats(9, 15.9), st.floats(9, 13), st.lists(st.tuples(st.floats(-2, 3), st.floats(-4, 0)), max_size=12))
def test_no_words_lie_on_the_roof(peak, rate, places):
    peak, rate, keys = 10**peak, 10**rate, []
    for power, below in places:
        reached = 10**below * min(peak, 10**power * rate)
        rates = {"flops_per_second": reached, "bytes_per_second": reached / 10**power}
        keys.append(kind(1.0, 1.0, 0.1) | rates)
    given_facts = facts() | {"keys": keys, "processor": {"flops_per_second": peak, "bytes_per_second": rate}}
    picture = Picture(roofline.picture(given_facts))
    assert picture.is_readable()
    for drawn in [line for line in picture.all("line") if line.get("stroke") == "black"][:2]:
        x, y, to_x, to_y = (float(drawn.get(name)) for name in ("x1", "y1", "x2", "y2"))
        for n in range(201):
            at = Box(*[x + (to_x - x) * n / 200, y + (to_y - y) * n / 200] * 2)
            assert not any(box.meets(at) for words, box in picture.words[1:] if box.left > roofline.MARGIN), at


@pytest.mark.parametrize("seed", range(20))
def test_what_takes_most_of_the_step_has_its_name_where_there_is_room(seed):
    random = Random(seed)
    more = [kind(10 ** random.uniform(-2, 2), 10 ** random.uniform(-2, 0), random.uniform(0, 0.3)) for _ in range(12)]
    text = roofline.picture(facts(*more))
    picture = Picture(text)
    assert picture.is_readable() and dots_of(picture)
    named = text.count(">x forward ")
    assert 3 <= named <= sum(key["step_share"] >= roofline.LEAST_NAMED for key in more)
    alone = roofline.picture(facts(kind(10.0, 0.01, 0.25)))
    assert alone.count(">x forward 25%<") == 1
