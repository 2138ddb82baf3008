"""Templates: what parts share is what each of them would find alone."""

from __future__ import annotations

import random
from types import SimpleNamespace

from castile.planner.template import Shared


def test_what_is_shared_is_what_each_would_find() -> None:
    rng, num_asked, num_found = random.Random(0), 0, 0
    for _ in range(200):
        axes = "abcd"[: rng.randint(1, 4)]
        # at which ranges one looks may depend on what one saw
        branch = {n: rng.sample(axes, rng.randint(0, len(axes))) for n in range(3)}
        found = []

        def look(part, axes=axes, branch=branch, found=found):
            found.append(part)
            first = part.ranges[axes[0]]
            return first, [part.ranges[axis] for axis in branch[first[0]]]

        shared = Shared(look)
        for _ in range(20):
            part = SimpleNamespace(op=None, alignment=None, ranges={a: (n := rng.randrange(3), n + 1) for a in axes})
            num_asked, mine = num_asked + 1, shared.of(part)
            num_found += len(found)
            found.clear()
            assert mine == look(part)
            found.clear()
    assert num_found < num_asked / 2
