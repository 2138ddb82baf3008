"""The benchmarks, each in a process of its own; the figures are those that they tell.

It does not know what they measure.
"""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.place import Place


def torch_step(place: Place) -> list[Figure]:
    """A step of gpt, convnet, resnet and lstm against PyTorch."""
    return place.benchmark("torch_step")


def scaling(place: Place) -> list[Figure]:
    """Two ranks over one, and the share of communication that is hidden."""
    return place.benchmark("scaling")


def simulator(place: Place) -> list[Figure]:
    """Tasks a second of the simulator."""
    return place.benchmark("simulator")


def untaught(place: Place) -> list[Figure]:
    """What is told of steps on one core of which nothing was measured, over what they take."""
    return place.benchmark("untaught")


def untaught_transfers(place: Place) -> list[Figure]:
    """What is told of steps on two ranks whose transfers were not measured, beside what they take."""
    return place.benchmark("untaught_transfers")


def delta(place: Place) -> list[Figure]:
    """Timing again only what a change of a plan moves, against timing all of it."""
    return place.benchmark("delta")


def search_time(place: Place) -> list[Figure]:
    """Searches beside FlexFlow's published times."""
    return place.benchmark("search_time")


def overhead(place: Place) -> list[Figure]:
    """The runtime's overhead per task."""
    return place.benchmark("overhead")
