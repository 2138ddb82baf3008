"""The picture of a roofline: what is written on it can be read, wherever kinds of tasks lie along the roof."""

import re
from itertools import combinations
from random import Random

import pytest

from castile.launch import roofline

PEAK, RATE = 1e11, 5e10
DOT = re.compile(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"[^>]*><title>')
TEXT = re.compile(r'<text x="([\d.]+)" y="([\d.]+)" font-size="(\d+)" text-anchor="(\w+)">([^<]*)<')


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


def is_apart(dots, texts):
    """Raises AssertionError where a dot or a text lies on a text."""
    boxes = []
    for x, y, size, anchor, words in texts:
        width, height = 0.6 * float(size) * len(words), float(size)
        left = float(x) - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        boxes.append((left, float(y) - height, left + width, float(y), words))
    for left, top, right, bottom, words in boxes:
        for cx, cy, r in dots:
            beside = cx + r < left or cx - r > right or cy + r < top or cy - r > bottom
            assert beside, f"a dot lies on {words!r}"
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], f"{a[4]!r} lies on {b[4]!r}"


def test_no_dot_and_no_words_lie_on_words():
    picture = roofline.picture(facts())
    dots = [tuple(map(float, found)) for found in DOT.findall(picture)]
    assert len(dots) == 94 and "100 GFLOP/s, 50 GB/s" in picture
    is_apart(dots, TEXT.findall(picture))


@pytest.mark.parametrize("seed", range(20))
def test_what_takes_most_of_the_step_has_its_name_where_there_is_room(seed):
    random = Random(seed)
    more = [kind(10 ** random.uniform(-2, 2), 10 ** random.uniform(-2, 0), random.uniform(0, 0.3)) for _ in range(12)]
    picture = roofline.picture(facts(*more))
    is_apart([tuple(map(float, found)) for found in DOT.findall(picture)], TEXT.findall(picture))
    named = picture.count(">x forward ")
    assert 3 <= named <= sum(key["step_share"] >= roofline.LEAST_NAMED for key in more)
    alone = roofline.picture(facts(kind(10.0, 0.01, 0.25)))
    assert alone.count(">x forward 25%<") == 1
