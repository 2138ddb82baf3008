"""Whether a graph that a rewrite of the user's own made computes what it was made of, at numbers that are drawn.

Of castile's own rewrites the tests hold it. It does not know what a rewrite does.
"""

from __future__ import annotations

import numpy as np

from castile.launch.arrays import defined
from castile.planner.graph import Graph

# Definitions of kernels are slow: what takes more operations is not looked at.
MOST_FLOPS = 2e9
# How far numbers may be apart, of the largest: both are computed in float64, in whatever order.
TOLERANCE = 1e-6


def difference(graph: Graph, rewritten: Graph) -> str:
    """What a graph gives otherwise than another one, in words; "" for nothing, and where it takes too long to see."""
    if sum(node.op.flops("F", node.whole()) for node in graph.nodes.values()) > MOST_FLOPS:
        return ""
    # what is drawn may be nothing that it takes
    with np.errstate(all="ignore"):
        for draw in defined.DRAWS:
            known = defined.given(graph, draw)
            try:
                wanted = defined.made(graph, known)
            except (IndexError, ValueError, ArithmeticError):
                continue
            if all(np.isfinite(array).all() for array in wanted.values()):
                return _difference(wanted, defined.made(rewritten, known))
    return ""


def _difference(wanted: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> str:
    for name, array in wanted.items():
        other = found[name]
        apart = np.abs(other - array)
        if not (apart <= TOLERANCE * max(1.0, float(np.abs(array).max()))).all():
            at = np.unravel_index(np.argmax(np.nan_to_num(apart, nan=np.inf)), array.shape)
            where = f"[{', '.join(map(str, at))}]" if at else ""
            return f"{name}{where} is {other[at]:.6g}, and {array[at]:.6g} without it"
    return ""
