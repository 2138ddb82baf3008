"""The benchmarks, each in a process of its own; the figures are those that they tell.

It does not know what they measure.
"""

from __future__ import annotations

import sys

from benchmarks.figures import Figure, read
from benchmarks.place import CHECKOUT, Place


def torch_step(place: Place) -> list[Figure]:
    """A step of gpt, convnet, resnet and lstm against PyTorch."""
    return _benchmark(place, "torch_step")


def scaling(place: Place) -> list[Figure]:
    """Two ranks over one, and the share of communication that is hidden."""
    return _benchmark(place, "scaling")


def simulator(place: Place) -> list[Figure]:
    """Tasks a second of the simulator."""
    return _benchmark(place, "simulator")


def delta(place: Place) -> list[Figure]:
    """Timing again only what a change of a plan moves, against timing all of it."""
    return _benchmark(place, "delta")


def search_time(place: Place) -> list[Figure]:
    """Searches beside FlexFlow's published times."""
    return _benchmark(place, "search_time")


def overhead(place: Place) -> list[Figure]:
    """The runtime's overhead per task."""
    return _benchmark(place, "overhead")


def _benchmark(place: Place, name: str) -> list[Figure]:
    ran = place.run(sys.executable, str(CHECKOUT / "benchmarks" / f"{name}.py"), user="benchmarks", timeout=600).ok()
    return read(ran.out)
