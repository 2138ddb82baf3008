"""What a network's first output is worth beside the truth, as evaluations judge it, without a run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from castile.launch.training.scoring import HeldOut, Scorer
from castile.planner.graph import Graph


def judge(graph: Graph, pieces: Iterable[tuple[np.ndarray, np.ndarray]], num_samples: int) -> HeldOut | None:
    """Of outputs and truth, batch by batch."""
    judging = Scorer(graph, next(iter(graph.outputs), ""), None)
    for scores, truth in pieces:
        judging.add(scores, truth)
    return judging.figures(num_samples)
