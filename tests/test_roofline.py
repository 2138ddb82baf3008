"""The picture of a roofline: what is written on it can be read, wherever kinds of tasks lie along the roof."""

import re

from castile.launch import roofline

PEAK, RATE = 1e11, 5e10
DOT = re.compile(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"[^>]*><title>')
TEXT = re.compile(r'<text x="([\d.]+)" y="([\d.]+)" font-size="(\d+)" text-anchor="(\w+)">([^<]*)<')


def kind(intensity, above):
    """A kind of task of so many operations a byte, so many times above the roof."""
    flops, nbytes = above * min(PEAK, intensity * RATE), above * min(RATE, PEAK / intensity)
    rates = {"flops_per_second": flops, "bytes_per_second": nbytes, "seconds": 1e-3}
    return rates | {"op": "x", "pass": "F", "shapes": "", "roofline_share": above, "step_share": 0.01}


def facts():
    """Kinds all along the roof and somewhat above it, up to the right edge."""
    keys = [kind(10 ** (n / 10 - 2), above) for n in range(47) for above in (1.0, 1.3)]
    processor = {"flops_per_second": PEAK, "bytes_per_second": RATE}
    return {"model": "m", "batch_samples": 1, "machine": "here", "processor": processor, "keys": keys}


def test_no_dot_lies_on_words():
    picture = roofline.picture(facts())
    dots = [tuple(map(float, found)) for found in DOT.findall(picture)]
    assert len(dots) == 94 and "100 GFLOP/s, 50 GB/s" in picture
    for x, y, size, anchor, words in TEXT.findall(picture):
        width, height = 0.6 * float(size) * len(words), float(size)
        left = float(x) - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        for cx, cy, r in dots:
            beside = cx + r < left or cx - r > left + width or cy + r < float(y) - height or cy - r > float(y)
            assert beside, f"a dot lies on {words!r}"
