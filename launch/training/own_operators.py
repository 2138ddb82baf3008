"""Applies a check to each operator of a model's own file before training: the test suite covers castile's own only.

It does not know what is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np

from castile.planner.graph import Graph, Node
from castile.planner.op import Tensor

# Definitions of kernels are slow: an operator with more operations is not looked at.
MOST_FLOPS = 1e8


def remarks(graph: Graph, look: Callable[[Node, Sequence[Tensor]], Iterable[str]]) -> list[str]:
    """The lines that `look` returns for one node of each such operator and its operands."""
    seen, found = set[str](), list[str]()
    for node in graph.nodes.values():
        is_asked = node.op.is_from_elsewhere and node.op.flops("F", node.whole()) <= MOST_FLOPS
        if is_asked and node.op.name not in seen:
            seen.add(node.op.name)
            # an operator may not take the numbers that are drawn
            with np.errstate(all="ignore"), suppress(IndexError, ValueError, TypeError, ArithmeticError):
                found += look(node, [graph.tensors[name] for name in node.inputs])
    return found
