"""How good plans are, each benchmark in a process of its own; the figures are those that they tell.

It does not know what they measure.
"""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.place import Place


def quality(place: Place) -> list[Figure]:
    """What is found for FlexFlow's six networks on 16 P100 processors, beside the published ratios."""
    return place.benchmark("quality", "--cluster", "flexflow-p100", "--seconds", "10")


def proofs(place: Place) -> list[Figure]:
    """The proven optimum of LeNet on 4 processors, and whether it is found within a second."""
    return place.benchmark("proofs", "--case", "lenet", "--machine", "flexflow-p100:nodes=1")


def found_soon(place: Place) -> list[Figure]:
    """What is found for RNNLM within a second, beside the best that is known."""
    return place.benchmark("proofs", "--case", "rnnlm", "--no-proof")


def patterns(place: Place) -> list[Figure]:
    """Known good plans for convolutions and dense layers, found from data parallelism alone."""
    return place.benchmark("patterns", "--only", "alexnet", "mlp2", "wide")


def patterns_of_blocks(place: Place) -> list[Figure]:
    """Megatron's pattern, found from data parallelism alone."""
    return place.benchmark("patterns", "--only", "gpt", "bert")
