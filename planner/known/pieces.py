"""Updates in pieces: of all who hold a piece of a parameter alike, each updates a share of it and keeps its states.

Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020. The
share is the parameter's home too: what lies elsewhere is gathered for a step and stays until its last use in it, or
for each pass, if what is fetched of it is not kept; then gradients are scattered after each microbatch. It does not
know what that costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

import numpy as np

from castile.planner.graph import Node
from castile.planner.lower import Lowering
from castile.planner.step.program import accumulate_name, fetch_name, update_name
from castile.planner.step.recompute import large
from castile.planner.strategy import Config

# Pieces of different length have no collective and go from each to each: as many messages as this squared may be.
MOST_UNEVEN = 64


def in_pieces(lowering: Lowering, configs: Mapping[str, Config]) -> dict[str, Config]:
    """The plan with its nodes as they are and its updates in pieces."""
    nodes = {name: config for name, config in configs.items() if name in lowering.names.nodes}
    homes = lowering.configs(lowering.plan(nodes))
    found, known, anew = dict(nodes), dict[tuple, Config](), {*lowering.recompute}
    for param in large(lowering.graph):
        name = update_name(param)
        update, home = lowering.names.optional[name], homes[name]
        key = lowering.templates.node_kind(update), home
        if key not in known:
            known[key] = _shared(update, home)
        if known[key] != home:
            found[name] = known[key]
            if lowering.microbatches > 1 and fetch_name(param) in anew and param not in lowering.graph.frozen:
                found[accumulate_name(param)] = known[key]
    return found


def _shared(update: Node, home: Config) -> Config:
    """Each piece of a home cut further for those who hold it, into equal pieces along the axis that is cut into most
    so, and along others where that leaves holders who have the same.

    Where holders are few and no axes are cut into as many equal pieces, the longest whole one is cut unequally.
    Neighbours among the holders have different shares, so that what is gathered first comes from near.
    """
    a = update.alignment
    lengths = {
        axis: a.extents[axis] // home.degree(axis)
        for axis in a.axes if axis not in a.frozen and a.extents[axis] % home.degree(axis) == 0
    }  # fmt: skip
    counts = _equally(lengths, home.replicas)
    whole = [x for x in lengths if home.degree(x) == 1 and lengths[x] >= home.replicas]
    if prod(counts.values()) < home.replicas <= MOST_UNEVEN and whole:
        counts = {max(whole, key=lambda x: lengths[x]): home.replicas}
    shares = [counts.get(x, 1) for x in a.axes]
    if prod(shares) == 1:
        return home
    degrees = [home.degree(x) for x in a.axes]
    # pieces along each axis, copies of a share, shares along each axis, which go behind the pieces of theirs
    procs = np.array(home.procs).reshape(*degrees, -1, *shares)
    n = len(degrees)
    order = [place for x in range(n) for place in (x, n + 1 + x)]
    return Config(
        {x: degree * count for x, degree, count in zip(a.axes, degrees, shares, strict=True) if degree * count > 1},
        home.replicas // prod(shares),
        tuple(procs.transpose(*order, n).reshape(-1).tolist()),
    )


def _equally(lengths: Mapping[str, int], most: int) -> dict[str, int]:
    """Into how many equal pieces each axis of these lengths is cut, few axes, so that all together divide `most`."""
    found: dict[str, int] = {}
    while axis := max(
        (x for x in lengths if x not in found and gcd(lengths[x], most) > 1),
        key=lambda x: (gcd(lengths[x], most), lengths[x]),
        default="",
    ):
        found[axis] = gcd(lengths[axis], most)
        most //= found[axis]
    return found
